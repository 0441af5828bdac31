// SPDX-License-Identifier: Apache-2.0
// Turns the scheduler's StepBatch, and how each sequence samples, into the StepPlan that the ranks
// read.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "base/error.h"
#include "engine/request.h"
#include "plan/step_plan.h"
#include "sampling/output_record.h"
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
  std::vector<std::int32_t> stops;      // as in OutputRecord
  std::span<const std::uint32_t> mask;  // of what is allowed after all known tokens; empty: all is
  bool logits = false;                  // they come back
};

/// The masks of a plan that are written after it was submitted, because what may come next depends
/// on a token that the previous step is still sampling. One late mask makes all of the plan's masks
/// late.
struct LateMasks {
  std::span<std::uint32_t> words;  // in the plan; empty: none are late
  std::vector<SequenceId> rows;    // whose masks they are, in order
};

/// Writes the plan of `batch` into `space` and returns its bytes. `draw_of` gives the Draw of a
/// sequence. Allocates nothing if `late.rows` has room for limits().sequences_max. Errors: as
/// begin_plan.
Result<std::size_t> write_plan(const Scheduler& scheduler,
                               const StepBatch& batch,
                               const std::function<const Draw&(const Sequence&)>& draw_of,
                               std::span<std::byte> space,
                               LateMasks& late);

/// Writes the masks of a plan once nothing before it is in flight. `draw_of` as above.
void write_late_masks(const Scheduler& scheduler,
                      const std::function<const Draw&(const Sequence&)>& draw_of,
                      const LateMasks& late);

}  // namespace koho
