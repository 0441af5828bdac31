// SPDX-License-Identifier: Apache-2.0
// Times whole steps of one rank, and classes of operators within them, on a worker that it drives
// itself: no engine, no server. Several ranks of a replica run the same calls side by side.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "bench/latency_report.h"
#include "bench/latency_steps.h"
#include "comm/communicator.h"
#include "model/config.h"
#include "model/sharding.h"
#include "model/weights.h"
#include "ops/backend.h"
#include "tensor/dtype.h"
#include "worker/worker.h"

namespace koho::bench {

struct LatencySettings {
  std::vector<std::int64_t> batches{1, 16, 64};
  std::int64_t context = 1024;
  std::vector<std::int64_t> prefill{8192};  // tokens of prompts, each a step; 0 = none
  std::vector<std::int64_t> mixed;  // tokens of prompts, each in one step with a batch's decodes
  std::int64_t steps = 32;
  DType kv_dtype = DType::bf16;
  Shard shard;
  /// Decodes random tokens instead of those that were sampled: a rank alone samples a part only.
  bool random_tokens = false;
  bool classes = true;
  bool kernels = false;
};

class LatencyBench {
 public:
  /// Requires: the arguments outlive this.
  LatencyBench(const LatencySettings& settings,
               const ModelConfig& config,
               const ModelSources& sources)
      : settings_(settings), config_(config), sources_(sources) {}

  /// What is asked for has positions in the model: the cache of more would be taken all the same.
  Status check_lengths() const;
  /// Loads the rank's part of the weights.
  Status start(std::unique_ptr<Backend> backend, std::unique_ptr<Communicator> communicator);
  /// What start() made, in words: the device, the time, the memory. Requires: it succeeded.
  const std::string& started() const { return started_; }

  Result<LatencyReport> prefill(std::int64_t tokens);
  Result<LatencyReport> decode(std::int64_t batch);
  /// Decodes of `batch` sequences and a prompt of `prompt` tokens in one step.
  Result<LatencyReport> mixed(std::int64_t batch, std::int64_t prompt);

  /// Makes the collectives of all ranks fail.
  void abort() {
    if (worker_ != nullptr) worker_->abort_collectives();
  }

  std::string machine() const { return worker_->backend().description(); }

 private:
  static constexpr int kStepsBefore = 4;
  static constexpr std::int64_t kFillTokens = 2048;  // at once

  /// Tokens of the longest prompt.
  std::int64_t prompt_max() const;
  /// Times a step that begins when the one before it has ended, and where its time goes.
  Status time_alone(LatencyReport& report, std::span<const Sequences> sequences);
  /// Which experts the last step's rows chose.
  Result<ExpertLoad> expert_load(std::int64_t rows);
  Status classify(LatencyReport& report, int rounds);
  /// The kernels' own times in the step's graph and in each class's. A system that cannot record
  /// them is told once, and all else is measured as ever; an error of the device itself comes back
  /// with the next step.
  void record_kernels(LatencyReport& report, int rounds);
  Status try_record_kernels(LatencyReport& report, int rounds);

  const LatencySettings& settings_;
  const ModelConfig& config_;
  const ModelSources& sources_;
  std::int64_t tokens_max_ = 0;
  std::int64_t allocations_ = 0;
  bool kernels_refused_ = false;
  std::string started_;
  std::unique_ptr<Worker> worker_;
  std::unique_ptr<Steps> steps_;
};

}  // namespace koho::bench
