// SPDX-License-Identifier: Apache-2.0
// StepPlans on one rank: keeps what ranks remember of each seat (page table, last sampled token)
// and turns a checked plan into the flat arrays of one step.
#pragma once

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

  /// Reads, checks and runs one plan. Errors: corrupt_data (the plan), device_error; after any
  /// error the seats are unusable until reset().
  Status run(std::span<const std::byte> plan, StepResult& result);

  /// Forgets every seat.
  void reset();

 private:
  Status apply(const StepPlan& plan);
  void gather(const StepPlan& plan);

  Worker* worker_;
  PlanBounds bounds_;
  std::int32_t pages_per_seat_;
  std::vector<std::int32_t> page_tables_;   // [seats, pages_per_seat]
  std::vector<std::int32_t> last_sampled_;  // [seats]

  // Scratch of one step.
  std::vector<std::int32_t> token_ids_;    // [T], resolved
  std::vector<std::int32_t> step_tables_;  // [S, width]
  std::int64_t table_width_ = 0;
  std::vector<SamplingRow> sampling_;  // [R]
  std::vector<LogitBias> biases_;
  std::vector<std::int32_t> copies_;  // [C, 2]
  StepOutput output_;
};

}  // namespace koho
