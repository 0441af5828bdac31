// SPDX-License-Identifier: Apache-2.0
// The steps that `koho bench latency` times: random tokens in sequences that lie side by side in
// the cache.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "base/error.h"
#include "sampling/sampler.h"
#include "worker/worker.h"

namespace koho::bench {

/// `count` batch slots from `batch_slot` on, each with `length` tokens from position `first` on:
/// random ones, or (`follows`) the one it sampled last.
struct Sequences {
  std::int64_t batch_slot = 0;
  std::int64_t count = 1;
  std::int64_t first = 0;
  std::int64_t length = 1;
  bool follows = false;
};

/// Enqueues steps. Batch slot s has the pages s * W .. s * W + W - 1, W = pages_each; the first one
/// has `pages`, which may be those of the others too.
class Steps {
 public:
  Steps(Worker& worker,
        std::int64_t vocabulary,
        std::int64_t batch_slots,
        std::int64_t pages_each,
        std::int64_t pages);

  /// Starts a step of these sequences, those of one token first. Each samples one token at
  /// temperature 1.
  Status enqueue(std::span<const Sequences> all);
  Status enqueue(const Sequences& sequences) { return enqueue({&sequences, 1}); }
  /// Waits for the oldest step. Errors: internal if it sampled nothing.
  Status finish();
  /// Fills the cache of `count` batch slots from `batch_slot` on up to `context` tokens.
  Status fill(std::int64_t batch_slot,
              std::int64_t count,
              std::int64_t context,
              std::int64_t tokens_max);

 private:
  /// Adds batch slot `batch_slot` of `of` to the arrays of the next step.
  void add(const Sequences& of, std::int64_t batch_slot);

  Worker& worker_;
  std::int64_t vocabulary_;
  std::int64_t pages_each_;
  std::mt19937_64 random_{1};
  StepOutput output_;
  std::vector<std::int32_t> ids_, positions_, starts_, contexts_, batch_slots_, rows_,
      page_table_updates_;
  std::vector<std::int64_t> slots_;
  std::vector<SamplingRow> sampling_;
};

}  // namespace koho::bench
