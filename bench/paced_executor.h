// SPDX-License-Identifier: Apache-2.0
// Ranks that compute nothing: they read each plan as a real one would and answer every sampled row,
// at once or at a fixed pace. What runs over them measures the host's side alone.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "engine/executor.h"
#include "kvcache/prefix_cache.h"
#include "plan/step_plan.h"

namespace koho::bench {

/// When steps end.
struct Pace {
  std::int64_t period_us = 0;  // 0: at once
  /// On the grid begin, begin + period, …: while there is work a step ends at each of its times,
  /// late ones as soon as they can.
  std::int64_t begin_us = 0;
};

/// Step number n on the grid answers the token n modulo the vocabulary, so that who reads it knows
/// when it was due. Without a period n counts steps. No token ends an answer.
class PacedExecutor final : public Executor {
 public:
  PacedExecutor(const PlanBounds& bounds, Token vocabulary, const Pace& pace = {})
      : bounds_(bounds), vocabulary_(vocabulary), pace_(pace) {
    for (auto& buffer : step_buffers_) buffer.resize((plan_bytes(bounds.counts_max()) + 7) / 8);
  }
  std::span<std::byte> plan_space() override {
    return std::as_writable_bytes(std::span(step_buffers_[submitted_ % 2]));
  }
  Status submit(std::size_t bytes) override {
    KOHO_TRY_ASSIGN(const StepPlan plan, read_plan(plan_space().first(bytes), bounds_));
    // Who comes to idle ranks begins at the grid's next time.
    if (pace_.period_us > 0 && submitted_ == collected_)
      number_ = std::max(number_, (clock_.now_us() - pace_.begin_us) / pace_.period_us + 1);
    steps_[submitted_ % 2] = {plan.step, plan.sample_batch_slots.size()};
    ++submitted_;
    return {};
  }
  Status send_masks() override { return {}; }  // it looks at none
  Status collect(StepResult& result, std::int64_t timeout_us) override {
    if (pace_.period_us > 0) {
      const std::int64_t wait = pace_.begin_us + number_ * pace_.period_us - clock_.now_us();
      if (wait > 0)
        std::this_thread::sleep_for(std::chrono::microseconds(std::min(wait, timeout_us)));
      if (wait > timeout_us) return make_error(ErrorCode::deadline_exceeded, "not yet");
    }
    const auto [step, samples] = steps_[collected_++ % 2];
    result.step = step;
    result.tokens.assign(samples, static_cast<Token>(number_++ % vocabulary_));
    result.ends.assign(samples, RowEnd::none);
    result.logprobs.assign(samples, -1.0F);
    result.top_ids.assign(samples * StepResult::kTop, 1);
    result.top_logprobs.assign(samples * StepResult::kTop, -2.0F);
    return {};
  }
  Status check() override { return {}; }
  Status recover(std::int64_t /*timeout_us*/) override { return {}; }

 private:
  PlanBounds bounds_;
  Token vocabulary_;
  Pace pace_;
  SteadyClock clock_;
  std::vector<std::uint64_t> step_buffers_[2];
  std::pair<std::int64_t, std::size_t> steps_[2];
  std::uint64_t submitted_ = 0;
  std::uint64_t collected_ = 0;
  std::int64_t number_ = 0;  // of the step that ends next
};

}  // namespace koho::bench
