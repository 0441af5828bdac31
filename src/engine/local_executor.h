// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of this process: the executor of the CPU backend, of one GPU, of tests and
// sanitizers. Each rank owns a worker; all run the same plans; rank 0 answers and the others'
// tokens are compared with its.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/error.h"
#include "engine/executor.h"
#include "plan/step_plan.h"
#include "worker/worker.h"

namespace koho {

struct LocalExecutorSettings {
  WorkerSettings worker;  // .load.shard's rank is filled in for each rank
  std::int64_t ranks = 1;
  PlanBounds bounds;
  /// Makes the backend of a rank. Called again by recover().
  std::function<Result<std::unique_ptr<Backend>>(std::int64_t rank)> make_backend;
};

class LocalExecutor final : public Executor {
 public:
  /// `sources` must outlive the executor. Errors: those of loading, with the rank.
  static Result<std::unique_ptr<LocalExecutor>> create(const ModelConfig& config,
                                                       const ModelSources& sources,
                                                       LocalExecutorSettings settings);
  LocalExecutor(const LocalExecutor&) = delete;
  LocalExecutor& operator=(const LocalExecutor&) = delete;
  ~LocalExecutor() override;

  std::span<std::byte> plan_space() override;
  Status submit(std::size_t bytes) override;
  Status collect(StepResult& result, std::int64_t timeout_us) override;
  Status recover(std::int64_t timeout_us) override;

 private:
  class Ranks;

  LocalExecutor(const ModelConfig& config,
                const ModelSources& sources,
                LocalExecutorSettings settings);

  ModelConfig config_;
  const ModelSources* sources_;
  LocalExecutorSettings settings_;
  std::unique_ptr<Ranks> ranks_;
};

}  // namespace koho
