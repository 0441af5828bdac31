// SPDX-License-Identifier: Apache-2.0
// A small model of random weights under the real engine, its ranks threads or processes, and
// requests whose answers are known.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/process_executor.h"
#include "runtime/loaded_model.h"

namespace koho::testing {

/// One answer: its tokens, and the bits of their logprobs.
struct KnownAnswer {
  std::vector<Token> tokens;
  std::vector<std::uint32_t> logprobs;
  friend bool operator==(const KnownAnswer&, const KnownAnswer&) = default;
};

/// Reads a stream to its end. Fails the test if the request does not complete.
KnownAnswer read_answer(OutputStream& stream);

struct WorkerEngineOptions {
  std::string program;  // of worker processes; empty: threads
  std::int64_t ranks = 2;
  AttentionLayout attention = AttentionLayout::tensor_parallel;
  std::int64_t silence_us_max = 10'000'000;
  std::int64_t step_deadline_us = 600'000'000;
};

class WorkerEngine {
 public:
  /// Null and a failure if it does not start.
  static std::unique_ptr<WorkerEngine> start(const std::filesystem::path& directory,
                                             const WorkerEngineOptions& options);

  Engine& engine() { return *engine_; }
  /// Requires: processes.
  ProcessExecutor& processes() { return *processes_; }

  /// Request `index` of some different ones: greedy and drawn, with penalties, of several lengths.
  Request request(std::size_t index) const;
  std::shared_ptr<OutputStream> submit(std::size_t index);

 private:
  WorkerEngine() = default;

  LoadedModel model_;
  EngineLimits limits_;
  SteadyClock clock_;
  std::unique_ptr<Executor> executor_;
  ProcessExecutor* processes_ = nullptr;
  std::unique_ptr<Engine> engine_;
};

/// Writes the model of these tests.
void write_worker_model(const std::filesystem::path& directory);

}  // namespace koho::testing
