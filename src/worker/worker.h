// SPDX-License-Identifier: Apache-2.0
// One rank at work. A Worker owns the backend, the model, the step's arrays and what the rank
// remembers of each batch slot (page table, last sampled token, output record, token counts). It
// runs steps that come as host arrays. It decides nothing: the step says which tokens, which pages
// and which rows to sample.
//
// The caller enqueues steps and finishes them in order, with up to kStepsInFlightMax in flight. A
// sampled token becomes the next step's input on the device, without a way through the host. A step
// has two halves, the forward pass and sampling; the caller may enqueue the second while the first
// runs, once its token masks are known. Where the backend supports CUDA graphs, a pure decode step
// is padded to one of a few captured sizes; each size has two graphs, one per half.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/error.h"
#include "model/glm4_moe.h"
#include "ops/backend.h"
#include "sampling/output_record.h"
#include "sampling/parameters.h"
#include "worker/step_layout.h"

namespace koho {

/// A batch slot's token counts begin anew: `prompt` tokens, then `output` tokens of
/// StepInput::history_tokens.
struct CountsReset {
  std::int32_t batch_slot = 0;
  std::int32_t prompt = 0;
  std::int32_t output = 0;
};

/// One step as host arrays; meanings and shapes as in ops/batch.h and ops/backend.h.
struct StepInput {
  std::span<const std::int32_t> token_ids;     // [T] id, or -1 - batch slot: what it sampled last
  std::span<const std::int32_t> positions;     // [T]
  std::span<const std::int64_t> slots;         // [T]
  std::span<const std::int32_t> query_starts;  // [S+1]
  std::span<const std::int32_t> context_lengths;  // [S]
  std::span<const std::int32_t> batch_slots;      // [S]
  std::int64_t decodes = 0;                       // the first sequences with one token row each
  // Data-parallel attention: the tokens of every rank, [ranks], equal on all of them, and whether
  // each of those is a decode that is sampled. Needed there.
  std::span<const std::int64_t> rank_tokens{};
  bool all_ranks_decode = false;
  std::span<const std::int32_t> logit_rows;  // [R] ascending
  // [R] the batch slot whose last token each sampled row becomes; with sampling only
  std::span<const std::int32_t> sample_batch_slots;
  std::span<const SamplingRow> sampling;  // [R], or empty: no sampling, logits only
  std::span<const LogitBias> biases;
  std::span<const std::uint32_t> masks;  // [M, ceil(V/32)], for enqueue()
  // The worker applies these before the step. A page table's index may appear twice, with the same
  // page; an output record's index may not.
  std::span<const std::int32_t> page_table_updates;     // [C, 2] page_table_index(), page
  std::span<const std::int32_t> output_record_updates;  // [C, 2] output_record_index(), word
  std::span<const std::int32_t> page_copies;            // [C, 2] from, to
  std::span<const CountsReset> counts_resets{};         // applied before the step samples
  std::span<const std::int32_t> history_tokens{};       // theirs, in order; a context at most
};

/// Results of a step. Vectors keep their capacity from step to step.
struct StepOutput {
  std::vector<std::int32_t> ids;      // [R]; -1: no token could be drawn
  std::vector<RowEnd> ends;           // [R] whether a row's output ended, or had ended before
  std::vector<float> logprobs;        // [R], or empty if no row wants any
  std::vector<std::int32_t> top_ids;  // [R, kTopLogprobsMax]
  std::vector<float> top_logprobs;    // [R, kTopLogprobsMax]
  // [count, V] f32 on the device, until the next step: rows first_logits … of the R, which are all
  // of them unless ranks cut the vocabulary.
  ConstTensorView logits;
  std::int64_t first_logits = 0;
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
  static constexpr std::int64_t kStepsInFlightMax = 2;

  /// Takes over the backend and the communicator, loads the model, warms up (runs the largest steps
  /// once with padding rows) and captures the decode graphs. Requires: `sources` outlives the
  /// worker. Errors: as Glm4Moe::load.
  static Result<Worker> create(const ModelConfig& config,
                               const ModelSources& sources,
                               const WorkerSettings& settings,
                               std::unique_ptr<Backend> backend,
                               std::unique_ptr<Communicator> communicator);

  /// Enqueues one step and returns; copies the input's arrays. Requires: fewer than
  /// kStepsInFlightMax steps are unfinished. Errors: invalid_argument (arrays do not fit together
  /// or exceed the limits), device_error.
  Status enqueue(const StepInput& input);
  /// The same in two halves; each returns at once. Between them the caller may finish earlier
  /// steps, but enqueue no other. Requires, for the second: the first was enqueued. Errors: as
  /// enqueue(); internal if the preceding step lacks its second half.
  Status enqueue_forward(const StepInput& input);
  Status enqueue_sampling(std::span<const std::uint32_t> masks);
  /// Waits for the oldest unfinished step, both halves of which are enqueued. Errors: device_error.
  Status finish(StepOutput& output);
  /// Whether finish() would return at once. Requires: as finish().
  bool finishes_at_once() { return in_flight_[finished_ % kStepsInFlightMax].done->completed(); }
  /// enqueue() and finish().
  Status step(const StepInput& input, StepOutput& output);

  /// The index of entry `index` of a batch slot's page table, for StepInput::page_table_updates.
  std::int32_t page_table_index(std::int64_t batch_slot, std::int64_t index) const {
    return static_cast<std::int32_t>(batch_slot * page_table_width_ + index);
  }

  /// The index of a word of a batch slot's output record, for StepInput::output_record_updates. A
  /// word that no step has written is 0: nothing ends the output.
  static std::int32_t output_record_index(std::int64_t batch_slot, std::int64_t word) {
    return static_cast<std::int32_t>(batch_slot * OutputRecord::kWords + word);
  }

  /// Aborts: every rank's pending and later collectives fail with `unavailable`. Threads: any.
  void abort_collectives() { communicator_->give_up(); }

  /// For measurements: runs the latest step's operators again, those that the trace selects, on the
  /// arrays it left; at once, or as a captured graph. Requires: this worker does not move while the
  /// graph exists. Only the batch slots' last tokens change.
  Status repeat();
  Result<std::unique_ptr<CapturedGraph>> capture_repeat();

  Backend& backend() { return *backend_; }
  Glm4Moe& model() { return *model_; }
  /// Bytes that the latest enqueued step copies to the device and back, without its masks.
  struct Traffic {
    std::int64_t sent = 0;
    std::int64_t fetched = 0;
  };
  const Traffic& last_traffic() const { return last_traffic_; }
  /// How many rows a decode step of `rows` is padded to; `rows` without graphs.
  std::int64_t padded_rows(std::int64_t rows) const;

 private:
  TokenCounts token_counts();

  /// Device memory that stays from step to step.
  struct Arrays {
    Tensor packed;                  // a step's arrays, as they come from the host
    Tensor token_ids, page_tables;  // of the step, resolved
    Tensor batch_slot_pages, last_sampled, outputs;
    Tensor masks, counts, count_nonzero;
    Tensor results;
  };
  /// The captured graphs of a pure decode step of `rows` rows.
  struct DecodeGraph {
    std::int64_t rows = 0;
    std::unique_ptr<CapturedGraph> forward, sample;
  };
  /// The host's buffers of a step in flight: its arrays and its results.
  struct InFlightStep {
    Tensor packed, masks, results;
    std::unique_ptr<Event> done;
    StepShape shape;        // padded
    std::int64_t rows = 0;  // of the caller
    const DecodeGraph* decode_graph = nullptr;
    bool samples = false;
    bool logprobs = false;
    SampledLogits logits;
  };

  Worker() = default;
  Status start(const ModelConfig& config,
               const ModelSources& sources,
               const WorkerSettings& settings);
  Status allocate(const WorkerSettings& settings);
  Status warm_up();
  Status capture_decode_graphs();
  Status check(const StepInput& input) const;
  const DecodeGraph* decode_graph_for(const StepInput& input) const;
  /// Writes the step's arrays, padded to `shape`, to the in-flight buffer; enqueues their copy and
  /// the operators that precede the forward pass. Masks come later.
  Status upload(const StepInput& input, const StepShape& shape, InFlightStep& in_flight);
  /// Enqueues the resets of token counts; `tokens` are the step's history tokens on the device.
  Status reset_counts(std::span<const CountsReset> resets, ConstTensorView tokens);
  Status upload_masks(std::span<const std::uint32_t> masks, InFlightStep& in_flight);
  BatchSlotTables batch_slot_tables();
  Batch batch_of(const StepShape& shape, std::int64_t decodes);
  /// Where each rank's rows lie among those of all, `tokens` on each, or as `rank_tokens` says;
  /// empty without data-parallel attention.
  std::span<const std::int64_t> row_starts(std::int64_t tokens,
                                           std::span<const std::int64_t> rank_tokens);
  Result<SampledLogits> forward(const StepShape& shape, const Batch& batch);
  Status sample(const StepShape& shape, const SampledLogits& logits);
  ResultLayout result_layout(std::int64_t rows) {
    return ResultLayout(model_->collectives().padded_sampled_rows(rows));
  }
  Status run_padding(const StepShape& shape, std::int64_t decodes);

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<Glm4Moe> model_;
  StepLimits limits_;
  std::int64_t page_table_width_ = 0;
  std::int64_t mask_rows_max_ = 0;
  std::int64_t tokenizer_tokens_ = 0;
  Arrays arrays_;
  std::array<InFlightStep, kStepsInFlightMax> in_flight_;
  std::vector<DecodeGraph> decode_graphs_;  // ascending
  std::vector<std::int64_t> row_starts_;    // of the latest step; Batch::row_starts
  StepShape last_shape_;                    // of the last step enqueued
  Batch last_batch_;
  Traffic last_traffic_;
  bool last_samples_ = false;
  std::uint64_t enqueued_ = 0;  // steps, with their first half …
  std::uint64_t sampled_ = 0;   // … and with both
  std::uint64_t finished_ = 0;
};

}  // namespace koho
