// SPDX-License-Identifier: Apache-2.0
// Runs StepPlans on one rank: turns a checked plan into its worker's step, and the step's results
// into a StepResult. What a rank remembers of a batch slot is the worker's.
//
// Under data-parallel attention a rank takes the sequences whose pages lie in its partition. It
// runs a step even without any, since the other ranks' tokens need its experts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "plan/step_plan.h"
#include "plan/step_result.h"
#include "worker/worker.h"

namespace koho {

class PlanRunner {
 public:
  /// Requires: `worker` outlives this and was made for the same limits; under data-parallel
  /// attention `bounds` have a partition for each rank.
  PlanRunner(Worker& worker, const PlanBounds& bounds);

  /// Reads, checks and starts one plan. Afterwards only late masks still need the plan's bytes.
  /// Requires: fewer than Worker::kStepsInFlightMax plans are unfinished, none awaits its masks.
  /// Errors: corrupt_data (the plan), device_error; after any error the worker is unusable.
  Status start(std::span<const std::byte> plan);
  /// Whether the latest plan has late masks that take_masks() has not taken. Until then it cannot
  /// be finished.
  bool awaits_masks() const { return awaits_masks_; }
  /// Takes the latest plan's masks, which the caller has written into it by now. Errors: as
  /// start().
  Status take_masks();
  /// Waits for the oldest unfinished plan. Rows of other ranks are kSampledElsewhere.
  Status finish(StepResult& result);
  /// Whether finish() would return at once.
  bool finishes_at_once() const { return worker_->finishes_at_once(); }
  /// start() and finish(), for a plan without late masks.
  Status run(std::span<const std::byte> plan, StepResult& result);

 private:
  /// A plan that is not finished.
  struct Unfinished {
    std::int64_t step = 0;
    std::size_t rows = 0;                 // samples of all ranks
    std::vector<std::size_t> own_rows{};  // those of this rank
  };

  bool owns(std::int32_t page) const {
    return page >= first_page_ && page < first_page_ + bounds_.pages_per_partition();
  }
  void list_histories(const StepPlan& plan);
  void list_pages(const StepPlan& plan);
  void list_outputs(const StepPlan& plan);
  void list_tokens(const StepPlan& plan, std::vector<std::size_t>& own_rows);

  Worker* worker_;
  PlanBounds bounds_;
  std::int32_t first_page_;          // of this rank's partition
  std::vector<std::uint8_t> owned_;  // by batch slot: its pages lie here
  std::array<Unfinished, Worker::kStepsInFlightMax> unfinished_{};
  std::span<const std::uint32_t> late_masks_;  // in the plan that awaits them
  bool awaits_masks_ = false;
  std::uint64_t started_ = 0;
  std::uint64_t finished_ = 0;

  // One step's arrays for this rank, kept for their capacity.
  std::vector<std::int32_t> token_ids_;           // [T]
  std::vector<std::int32_t> positions_;           // [T]
  std::vector<std::int64_t> slots_;               // [T] in this rank's pages
  std::vector<std::int32_t> query_starts_;        // [S+1]
  std::vector<std::int32_t> context_lengths_;     // [S]
  std::vector<std::int32_t> batch_slots_;         // [S]
  std::vector<std::int32_t> logit_rows_;          // [R]
  std::vector<std::int32_t> sample_batch_slots_;  // [R]
  std::vector<SamplingRow> sampling_;             // [R]
  std::vector<std::int32_t> logits_wanted_;       // ascending rows of R
  std::int64_t decodes_ = 0;
  std::vector<std::int64_t> rank_tokens_;            // [ranks], where each has its own tokens
  std::vector<std::int32_t> page_table_updates_;     // [C, 2]
  std::vector<std::int32_t> output_record_updates_;  // [C, 2]
  std::vector<std::int32_t> page_copies_;            // [C, 2]
  std::vector<CountsReset> counts_resets_;
  std::vector<std::int32_t> history_tokens_;
  StepOutput output_;
};

}  // namespace koho
