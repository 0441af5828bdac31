// SPDX-License-Identifier: Apache-2.0
// One rank at work: owns the model, the step's device arrays and the sampling state, and runs steps
// given as host arrays. It decides nothing: which tokens, which pages and which rows to sample come
// with every step.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/error.h"
#include "model/glm4_moe.h"
#include "ops/backend.h"
#include "sampling/parameters.h"

namespace koho {

/// One step as host arrays; meanings and shapes as in ops/batch.h and ops/backend.h.
struct StepInput {
  std::span<const std::int32_t> token_ids;        // [T]
  std::span<const std::int32_t> positions;        // [T]
  std::span<const std::int64_t> slots;            // [T]
  std::span<const std::int32_t> query_starts;     // [S+1]
  std::span<const std::int32_t> context_lengths;  // [S]
  std::span<const std::int32_t> page_tables;      // [S, page_table_width]
  std::int64_t page_table_width = 0;
  std::int64_t decodes = 0;                  // the first sequences with one token row each
  std::span<const std::int32_t> logit_rows;  // [R]
  std::span<const SamplingRow> sampling;     // [R], or empty: no sampling, logits only
  std::span<const LogitBias> biases;
  std::span<const std::int32_t> masks;  // [M, ceil(V/32)]
};

/// What a step gave. Vectors keep their capacity from step to step.
struct StepOutput {
  std::vector<std::int32_t> ids;      // [R]; -1: no token could be drawn
  std::vector<float> logprobs;        // [R]
  std::vector<std::int32_t> top_ids;  // [R, kTopLogprobsMax]
  std::vector<float> top_logprobs;    // [R, kTopLogprobsMax]
  ConstTensorView logits;             // [R, V] f32 on the device, until the next step
};

/// Sizes of a worker.
struct WorkerSettings {
  LoadSettings load;
  std::int64_t counts_slots = 0;      // sequences that may have penalties at once
  std::int64_t mask_rows_max = 0;     // constrained rows in a step
  std::int64_t tokenizer_tokens = 0;  // ids from here on are never sampled
};

class Worker {
 public:
  /// Takes over the backend and the communicator. `sources` must outlive the worker. Errors: as
  /// Glm4Moe::load.
  static Result<Worker> create(const ModelConfig& config,
                               const ModelSources& sources,
                               const WorkerSettings& settings,
                               std::unique_ptr<Backend> backend,
                               std::unique_ptr<Communicator> communicator);

  /// Runs one step and waits for its results. Errors: invalid_argument (arrays do not fit together
  /// or exceed the limits), device_error.
  Status step(const StepInput& input, StepOutput& output);

  /// Starts a penalty row: clears it, then counts the request's prompt and output so far.
  Status start_counts(std::int64_t slot,
                      std::span<const std::int32_t> prompt,
                      std::span<const std::int32_t> output);

  /// Copies pages {from, to} in every layer.
  Status copy_pages(std::span<const std::int32_t> pairs);

  /// This rank gives up its replica's collectives. Threads: any.
  void give_up_collectives() { communicator_->give_up(); }

  Backend& backend() { return *backend_; }
  Glm4Moe& model() { return *model_; }

 private:
  /// Device arrays that a step's host arrays are copied into.
  struct Arrays {
    Tensor token_ids, positions, slots, query_starts, context_lengths, page_tables, logit_rows;
    Tensor sampling, biases, masks, counts, id_list;
    Tensor ids, logprobs, top_ids, top_logprobs;
  };

  Worker() = default;
  Status allocate(const WorkerSettings& settings);
  Status check(const StepInput& input) const;
  Result<Batch> upload(const StepInput& input);
  Status sample(const StepInput& input, ConstTensorView logits, StepOutput& output);

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<Glm4Moe> model_;
  StepLimits limits_;
  std::int64_t page_table_width_max_ = 0;
  std::int64_t mask_rows_max_ = 0;
  std::int64_t tokenizer_tokens_ = 0;
  Arrays arrays_;
};

}  // namespace koho
