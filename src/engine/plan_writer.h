// SPDX-License-Identifier: Apache-2.0
// Turns the scheduler's decision into the plan that the ranks read.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "base/error.h"
#include "engine/request.h"
#include "plan/step_plan.h"
#include "sampling/parameters.h"
#include "scheduler/scheduler.h"

namespace koho {

/// What an executor holds the engine's plans against.
PlanBounds plan_bounds(const EngineLimits& limits);

/// How the next token of a sequence is to be drawn; kept by the engine per choice.
struct Draw {
  SamplingRow row;                     // position, slots and ranges are filled in per step
  std::vector<LogitBias> biases;       // of the request
  std::vector<LogitBias> stop_biases;  // added while a stop token must not come
  std::int32_t min_tokens = 0;
  std::span<const std::uint32_t> mask;  // of the allowed tokens; empty: all are
};

/// Writes the plan of `batch` into `space` and returns its bytes. `draw_of` gives the Draw of a
/// sequence. Allocates nothing. Errors: as begin_plan.
Result<std::size_t> write_plan(const Scheduler& scheduler,
                               const StepBatch& batch,
                               const std::function<const Draw&(const Sequence&)>& draw_of,
                               std::span<std::byte> space);

}  // namespace koho
