// SPDX-License-Identifier: Apache-2.0
// One rank at work: owns the model, the step's arrays, what the rank remembers of each batch slot (page
// table, last token, its output's end, token counts), and runs steps given as host arrays. It
// decides nothing: which tokens, which pages and which rows to sample come with every step.
//
// Steps are enqueued and finished, up to kStepsInFlightMax of them at once; what a step sampled is
// the next one's input without leaving the device. A step is two halves, the forward pass and
// sampling: the second may be enqueued later, while the first runs, once its masks are known. Where
// the backend supports graphs, a pure decode step is padded to one of a few captured sizes: a
// graph of each half.
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

/// One step as host arrays; meanings and shapes as in ops/batch.h and ops/backend.h.
struct StepInput {
  std::span<const std::int32_t> token_ids;     // [T] id, or -1 - batch slot: what it sampled last
  std::span<const std::int32_t> positions;     // [T]
  std::span<const std::int64_t> slots;         // [T]
  std::span<const std::int32_t> query_starts;  // [S+1]
  std::span<const std::int32_t> context_lengths;  // [S]
  std::span<const std::int32_t> batch_slots;      // [S]
  std::int64_t decodes = 0;                       // the first sequences with one token row each
  std::span<const std::int32_t> logit_rows;       // [R] rising
  std::span<const std::int32_t>
      sample_batch_slots;                 // [R] whose last token this becomes; with sampling
  std::span<const SamplingRow> sampling;  // [R], or empty: no sampling, logits only
  std::span<const LogitBias> biases;
  std::span<const std::uint32_t> masks;  // [M, ceil(V/32)], for enqueue()
  std::span<const std::int32_t>
      page_table_updates;  // [C, 2] Worker::page_table_index and its page, before the
                           // step; a place named twice has one page
  std::span<const std::int32_t>
      output_record_updates;  // [C, 2] Worker::output_record_index and its word, before
                              // the step; no place is named twice
  std::span<const std::int32_t> page_copies;  // [C, 2] from, to, before the step
};

/// What a step gave. Vectors keep their capacity from step to step.
struct StepOutput {
  std::vector<std::int32_t> ids;      // [R]; -1: no token could be drawn
  std::vector<RowEnd> ends;           // [R] what became of the rows' outputs
  std::vector<float> logprobs;        // [R], or empty if no row wants any
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
  static constexpr std::int64_t kStepsInFlightMax = 2;

  /// Takes over the backend and the communicator, loads the model, runs each kind of step once on
  /// padding and captures what will be replayed. `sources` must outlive the worker. Errors: as
  /// Glm4Moe::load.
  static Result<Worker> create(const ModelConfig& config,
                               const ModelSources& sources,
                               const WorkerSettings& settings,
                               std::unique_ptr<Backend> backend,
                               std::unique_ptr<Communicator> communicator);

  /// Starts one step and returns; the input's arrays are copied. Requires: fewer than
  /// kStepsInFlightMax steps are unfinished. Errors: invalid_argument (arrays do not fit together
  /// or exceed the limits), device_error.
  Status enqueue(const StepInput& input);
  /// The same in two halves, of which each returns at once. Between them no other step is enqueued;
  /// the steps before may be finished. Requires, for the second: the first was enqueued. Errors: as
  /// enqueue(), and internal where the step before has had its first half only.
  Status enqueue_forward(const StepInput& input);
  Status enqueue_sampling(std::span<const std::uint32_t> masks);
  /// Waits for the oldest unfinished step, both halves of which are enqueued. Errors: device_error.
  Status finish(StepOutput& output);
  /// Whether finish() would return at once. Requires: as finish().
  bool finishes_at_once() { return in_flight_[finished_ % kStepsInFlightMax].done->completed(); }
  /// Both.
  Status step(const StepInput& input, StepOutput& output);

  /// Where entry `index` of a batch slot's page table lies, for StepInput::page_table_updates.
  std::int32_t page_table_index(std::int64_t batch_slot, std::int64_t index) const {
    return static_cast<std::int32_t>(batch_slot * page_table_width_ + index);
  }

  /// Where a word of what is remembered of a batch slot's output lies, for StepInput::output_record_updates. What
  /// no step has written is 0: an output that nothing ends.
  static std::int32_t output_record_index(std::int64_t batch_slot, std::int64_t word) {
    return static_cast<std::int32_t>(batch_slot * OutputRecord::kWords + word);
  }

  /// Starts a penalty row: clears it, then counts the request's prompt and output so far.
  Status start_counts(std::int64_t slot,
                      std::span<const std::int32_t> prompt,
                      std::span<const std::int32_t> output);

  /// This rank gives up its replica's collectives. Threads: any.
  void give_up_collectives() { communicator_->give_up(); }

  /// For measurements: once more the operators of the last step that was enqueued, those that the
  /// trace selects, on the arrays it left; now, or as a captured graph, during whose life this worker
  /// stays where it is. Harmless but for the batch slots' last tokens.
  Status repeat();
  Result<std::unique_ptr<CapturedGraph>> capture_repeat();

  Backend& backend() { return *backend_; }
  Glm4Moe& model() { return *model_; }
  /// Bytes that the step enqueued last sent to the device and brings back; its masks not included.
  struct Traffic {
    std::int64_t sent = 0;
    std::int64_t fetched = 0;
  };
  const Traffic& last_traffic() const { return last_traffic_; }
  /// The rows that a decode step of `rows` is padded to; `rows` where nothing is captured.
  std::int64_t padded_rows(std::int64_t rows) const;

 private:
  TokenCounts token_counts();

  /// What lies on the device from step to step.
  struct Arrays {
    Tensor packed;                  // a step's arrays, as they come from the host
    Tensor token_ids, page_tables;  // of the step, resolved
    Tensor batch_slot_pages, last_sampled, outputs;
    Tensor masks, counts, count_nonzero, id_list;
    Tensor results;
  };
  /// A pure decode step of a fixed number of rows.
  struct DecodeGraph {
    std::int64_t rows = 0;
    std::unique_ptr<CapturedGraph> forward, sample;
  };
  /// A step on its way: its arrays and results on the host.
  struct InFlightStep {
    Tensor packed, masks, results;
    std::unique_ptr<Event> done;
    StepShape shape;        // padded
    std::int64_t rows = 0;  // of the caller
    const DecodeGraph* decode_graph = nullptr;
    bool samples = false;
    bool logprobs = false;
    ConstTensorView logits;
  };

  Worker() = default;
  Status allocate(const WorkerSettings& settings);
  Status warm_up();
  Status capture_decode_graphs();
  Status check(const StepInput& input) const;
  const DecodeGraph* decode_graph_for(const StepInput& input) const;
  /// Writes the step's arrays but the masks, padded to `shape`, to the in-flight step's buffer and enqueues their copy
  /// and what comes before the forward pass.
  Status upload(const StepInput& input, const StepShape& shape, InFlightStep& in_flight);
  Status upload_masks(std::span<const std::uint32_t> masks, InFlightStep& in_flight);
  BatchSlotTables batch_slot_tables();
  Batch batch_of(const StepShape& shape, std::int64_t decodes);
  Result<TensorView> forward(const StepShape& shape, const Batch& batch);
  Status sample(const StepShape& shape, ConstTensorView logits);
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
  std::vector<DecodeGraph> decode_graphs_;  // rising
  StepShape last_shape_;                    // of the last step enqueued
  Batch last_batch_;
  Traffic last_traffic_;
  bool last_samples_ = false;
  std::uint64_t enqueued_ = 0;  // steps, with their first half …
  std::uint64_t sampled_ = 0;   // … and with both
  std::uint64_t finished_ = 0;
};

}  // namespace koho
