// SPDX-License-Identifier: Apache-2.0
// The ring of the last steps, and a record as JSON.
#include "engine/flight_recorder.h"

#include <algorithm>
#include <string_view>

#include <fmt/core.h>

namespace koho {
namespace {

std::string_view name(StepRecord::Outcome outcome) {
  switch (outcome) {
    case StepRecord::Outcome::in_flight:
      return "in_flight";
    case StepRecord::Outcome::collected:
      return "collected";
    case StepRecord::Outcome::lost:
      return "lost";
  }
  return "lost";
}

}  // namespace

void FlightRecorder::launched(const StepRecord& record) {
  const std::lock_guard lock(mutex_);
  ring_[count_ % kSteps] = record;
  ++count_;
}

void FlightRecorder::ended(std::int64_t step, StepRecord::Outcome outcome, std::int64_t now_us) {
  const std::lock_guard lock(mutex_);
  // At most a few steps are in flight, so this looks at the last few records.
  for (std::uint64_t back = 1; back <= std::min<std::uint64_t>(count_, kSteps); ++back) {
    StepRecord& record = ring_[(count_ - back) % kSteps];
    if (record.step != step || record.outcome != StepRecord::Outcome::in_flight) continue;
    record.outcome = outcome;
    record.collected_us = now_us;
    return;
  }
}

std::vector<StepRecord> FlightRecorder::records() const {
  std::vector<StepRecord> result;
  result.reserve(kSteps);
  const std::lock_guard lock(mutex_);
  const std::uint64_t kept = std::min<std::uint64_t>(count_, kSteps);
  for (std::uint64_t i = count_ - kept; i < count_; ++i) result.push_back(ring_[i % kSteps]);
  return result;
}

std::string to_json(const StepRecord& r) {
  return fmt::format(
      R"({{"step":{},"launched_us":{},"collected_us":{},"sequences":{},"decodes":{},"tokens":{},)"
      R"("samples":{},"preempted":{},"copies":{},"waiting":{},"pages_free":{},"pages_idle":{},)"
      R"("outcome":"{}"}})",
      r.step, r.launched_us, r.collected_us, r.sequences, r.decodes, r.tokens, r.samples,
      r.preempted, r.copies, r.waiting, r.pages_free, r.pages_idle, name(r.outcome));
}

}  // namespace koho
