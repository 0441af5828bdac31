// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of this process, on the CPU, on one GPU or on several. Each rank owns a worker;
// all run the same plans. Ranks share the rows that a step samples, tell each other what they
// sampled, and the results must agree; under data-parallel attention the rank that holds a row
// samples it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/error.h"
#include "engine/executor.h"
#include "plan/step_plan.h"
#include "worker/device.h"
#include "worker/worker.h"

namespace koho {

struct LocalExecutorSettings {
  WorkerSettings worker;  // .load.shard's rank and ranks and .load.kv_pages are filled in
  std::int64_t ranks = 1;
  PlanBounds bounds;
  DeviceOptions device;  // of make_communicator
  /// Makes the backend of a rank. Called again by recover().
  std::function<Result<std::unique_ptr<Backend>>(std::int64_t rank)> make_backend;
};

class LocalExecutor final : public Executor {
 public:
  /// `sources` must outlive the executor. Errors: those of loading, with the rank;
  /// invalid_argument: data-parallel attention needs a partition of the pages for each rank, else
  /// there is one.
  static Result<std::unique_ptr<LocalExecutor>> create(const ModelConfig& config,
                                                       const ModelSources& sources,
                                                       LocalExecutorSettings settings);
  LocalExecutor(const LocalExecutor&) = delete;
  LocalExecutor& operator=(const LocalExecutor&) = delete;
  ~LocalExecutor() override;

  std::span<std::byte> plan_space() override;
  Status submit(std::size_t bytes) override;
  Status send_masks() override;
  Status collect(StepResult& result, std::int64_t timeout_us) override;
  Status check() override { return {}; }  // a thread does not go by itself
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
