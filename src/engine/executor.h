// SPDX-License-Identifier: Apache-2.0
// The interface between the engine, which decides what a step computes, and the ranks, which
// compute it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "plan/step_result.h"

namespace koho {

/// Runs StepPlans on all ranks, in the order of submission. Up to kStepsInFlightMax
/// (scheduler/scheduler.h) are submitted and not collected.
///
/// Any error but collect's deadline_exceeded means that the ranks are unusable and that everything
/// they knew is lost: page contents, page tables, last sampled tokens, token counts. The steps in
/// flight will not be collected; the engine calls recover() until it succeeds, then plans anew.
///
/// Threads: the engine's thread only.
class Executor {
 public:
  virtual ~Executor() = default;

  /// Memory for the next plan, 8-byte aligned, large enough for the largest plan of the limits the
  /// executor was made for; not touched by the ranks until submit(). Requires: fewer than
  /// kStepsInFlightMax steps in flight.
  virtual std::span<std::byte> plan_space() = 0;

  /// Starts the step whose plan stands in the first `bytes` of plan_space(). Returns at once.
  virtual Status submit(std::size_t bytes) = 0;

  /// Says that the masks of the last submitted step are now in its plan. Only for a plan with late
  /// masks (plan/step_plan.h): the caller may write its mask words until this call; the ranks run
  /// its forward pass meanwhile and sample after this call. The caller collects all earlier steps
  /// first, and submits or collects nothing in between. Returns at once.
  virtual Status send_masks() = 0;

  /// Waits for the oldest step in flight and stores its result, reusing the vectors' capacity.
  /// Errors: deadline_exceeded: nothing came within `timeout_us`, call again (or recover()).
  virtual Status collect(StepResult& result, std::int64_t timeout_us) = 0;

  /// Whether the ranks are there, for a caller that has nothing to compute. Returns at once.
  /// Requires: no step is in flight.
  virtual Status check() = 0;

  /// Brings the ranks back with empty tables, whatever state they are in; drops all steps in
  /// flight. Errors: deadline_exceeded: still under way after `timeout_us`, call again; others:
  /// this attempt failed, the next call is a new one.
  virtual Status recover(std::int64_t timeout_us) = 0;
};

}  // namespace koho
