// SPDX-License-Identifier: Apache-2.0
// StepPlans on one rank: turns a checked plan into a worker's step and its results into a
// StepResult. What ranks remember of a batch slot lies with the worker.
//
// Under data-parallel attention the rank keeps to the sequences whose pages lie in its partition; a
// step without any still runs, since the other ranks' tokens need this rank's experts.
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

  /// Reads, checks and starts one plan, whose bytes are not needed afterwards, but for late masks.
  /// Requires: fewer than Worker::kStepsInFlightMax plans are unfinished, none awaits its masks.
  /// Errors: corrupt_data (the plan), device_error; after any error the worker is unusable.
  Status start(std::span<const std::byte> plan);
  /// Whether the plan that was started last has late masks and they were not taken yet. It cannot
  /// be finished before.
  bool awaits_masks() const { return awaits_masks_; }
  /// The masks of the plan that was started last stand in it now. Errors: as start().
  Status take_masks();
  /// Waits for the oldest unfinished plan. Rows of other ranks are kSampledElsewhere.
  Status finish(StepResult& result);
  /// Whether finish() would return at once.
  bool finishes_at_once() const { return worker_->finishes_at_once(); }
  /// Both, for a plan without late masks.
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
  Status start_histories(const StepPlan& plan);
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

  // Scratch of one step: this rank's tokens, sequences, samples and pages.
  std::vector<std::int32_t> token_ids_;           // [T]
  std::vector<std::int32_t> positions_;           // [T]
  std::vector<std::int64_t> slots_;               // [T] in this rank's pages
  std::vector<std::int32_t> query_starts_;        // [S+1]
  std::vector<std::int32_t> context_lengths_;     // [S]
  std::vector<std::int32_t> batch_slots_;         // [S]
  std::vector<std::int32_t> logit_rows_;          // [R]
  std::vector<std::int32_t> sample_batch_slots_;  // [R]
  std::vector<SamplingRow> sampling_;             // [R]
  std::int64_t decodes_ = 0;
  std::vector<std::int32_t> page_table_updates_;     // [C, 2]
  std::vector<std::int32_t> output_record_updates_;  // [C, 2]
  std::vector<std::int32_t> page_copies_;            // [C, 2]
  StepOutput output_;
};

}  // namespace koho
