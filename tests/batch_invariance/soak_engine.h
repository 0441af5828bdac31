// SPDX-License-Identifier: Apache-2.0
// The step loop over the real executor and worker of one rank, driven by one thread: requests of
// every kind in, one in ten cancelled, fewer pages than they want.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "engine/local_executor.h"
#include "engine/step_loop.h"
#include "runtime/loaded_model.h"
#include "tokenizer/tokenizer.h"

namespace koho::testing {

class SoakEngine {
 public:
  using MakeBackend = std::function<Result<std::unique_ptr<Backend>>()>;

  /// The model of `directory` with the embedded model's tokenizer. `stepping` is true while a step
  /// is launched or collected. Null and a failure if something is not there.
  static std::unique_ptr<SoakEngine> open(const std::filesystem::path& directory,
                                          const MakeBackend& make_backend,
                                          std::atomic<bool>& stepping);

  /// So many steps from an empty engine to an empty engine: every page has to be back.
  void run(std::int64_t steps);

  const StepLoop& loop() const { return *loop_; }
  /// The rank's backend, to be asked between runs.
  const Backend& backend() const { return *backend_; }
  std::int64_t requests() const { return requests_; }

 private:
  SoakEngine(LoadedModel model, Tokenizer tokenizer, std::atomic<bool>& stepping);
  void start(const MakeBackend& make_backend);
  void submit();
  void step();
  void read_and_cancel();
  std::int32_t in(std::int32_t low, std::int32_t high);

  LoadedModel model_;
  Tokenizer tokenizer_;
  EngineLimits limits_;
  SteadyClock clock_;
  Backend* backend_ = nullptr;
  std::unique_ptr<LocalExecutor> executor_;
  std::unique_ptr<StepLoop> loop_;
  std::vector<std::pair<std::shared_ptr<OutputStream>, std::int32_t>> streams_;
  OutputEvent event_;
  std::mt19937_64 random_{5};
  std::int64_t requests_ = 0;
  std::atomic<bool>& stepping_;
};

/// That a run of 10,000 steps was the work that was meant: requests, cancellations, preemptions,
/// forks and evictions, no failures. `requests` are the run's.
void expect_all_kinds_of_work(const Statistics& before,
                              const Statistics& after,
                              std::int64_t requests);

}  // namespace koho::testing
