// SPDX-License-Identifier: Apache-2.0
// How one rank works through its steps, whoever feeds them: it starts a step as soon as that is
// submitted, also while the one before still runs, takes late masks when they come, and answers in
// order. Executors implement the feed, over a mutex (threads) or over shared memory (processes).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "plan/step_result.h"
#include "worker/plan_runner.h"
#include "worker/worker.h"

namespace koho {

/// Where a rank finds its steps and leaves its results. Steps are numbered from 0.
class StepFeed {
 public:
  /// What the engine has said so far.
  struct Counts {
    std::uint64_t submitted = 0;  // steps
    std::uint64_t masked = 0;     // the steps up to here have late masks, if any
    bool stopping = false;
    friend bool operator==(const Counts&, const Counts&) = default;
  };
  static constexpr std::chrono::microseconds kForever{-1};

  virtual ~StepFeed() = default;
  /// Waits until there is more than `seen`, or until `timeout` has passed, and says what there is.
  virtual Counts wait(const Counts& seen, std::chrono::microseconds timeout) = 0;
  /// The plan of a submitted step that is not answered.
  virtual std::span<const std::byte> plan(std::uint64_t step) = 0;
  /// Where the step's result goes, reusing the vectors' capacity.
  virtual StepResult& result(std::uint64_t step) = 0;
  /// The step is over: its result is complete, or `status` says why there is none.
  virtual void answer(std::uint64_t step, Status status) = 0;
};

/// Runs steps until the feed stops. After an error the rank gives up its group, so that no other
/// waits for it, and answers with that error. Requires: `feed` has at most
/// Worker::kStepsInFlightMax unanswered steps.
void run_steps(Worker& worker, PlanRunner& runner, StepFeed& feed);

}  // namespace koho
