// SPDX-License-Identifier: Apache-2.0
// StepPlans on one rank: turns a checked plan into a worker's step and its results into a
// StepResult. What ranks remember of a seat lies with the worker.
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
  /// Requires: `worker` outlives this and was made for the same limits.
  PlanRunner(Worker& worker, const PlanBounds& bounds);

  /// Reads, checks and starts one plan, whose bytes are not needed afterwards. Requires: fewer than
  /// Worker::kStepsInFlightMax plans are unfinished. Errors: corrupt_data (the plan), device_error;
  /// after any error the worker is unusable.
  Status start(std::span<const std::byte> plan);
  /// Waits for the oldest unfinished plan.
  Status finish(StepResult& result);
  /// Whether finish() would return at once.
  bool finishes_at_once() const { return worker_->finishes_at_once(); }
  /// Both.
  Status run(std::span<const std::byte> plan, StepResult& result);

 private:
  void list_pages(const StepPlan& plan);

  Worker* worker_;
  PlanBounds bounds_;
  std::array<std::int64_t, Worker::kStepsInFlightMax> steps_{};  // numbers of the unfinished plans
  std::uint64_t started_ = 0;
  std::uint64_t finished_ = 0;

  // Scratch of one step.
  std::vector<std::int32_t> page_places_;  // [C, 2]
  std::vector<std::int32_t> page_copies_;  // [C, 2]
  StepOutput output_;
};

}  // namespace koho
