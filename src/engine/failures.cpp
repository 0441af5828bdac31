// SPDX-License-Identifier: Apache-2.0
// The part of StepLoop that runs when the device is lost and recovered. Every request resumes from
// its token ids. A request that was in flight in two failures without progress in between is a
// suspect: suspects run one at a time while all others are set aside, so that the next failure has
// one cause, and the request that caused it is failed.
#include <algorithm>
#include <utility>

#include "engine/step_loop.h"

namespace koho {
namespace {

constexpr std::int32_t kFaultsOfASuspect = 2;

}  // namespace

void StepLoop::lose_device(const Error& error) {
  const std::int64_t now = clock_.now_us();
  ++counts_.device_failures;
  device_up_ = false;
  device_error_ = error;
  for (Live& live : requests_) {
    bool in_flight = false;
    for (Choice& choice : live.choices) {
      if (!choice.active) continue;
      const Sequence& sequence = *scheduler_.find(choice.sequence);
      in_flight = in_flight || sequence.in_flight_rows > 0;
      choice.computed_before_loss = std::max(choice.computed_before_loss, sequence.computed);
      if (sequence.state == SequenceState::running && choice.stalled_since_us < 0)
        choice.stalled_since_us = now;
    }
    live.faults += in_flight ? 1 : 0;
  }
  for (std::int64_t back = 0; back < kStepsInFlightMax; ++back)
    recorder_.ended(scheduler_.steps_planned() - back, StepRecord::Outcome::lost, now);
  scheduler_.reset_device();
  // Steps in flight no longer reserve room in streams: requests that waited only for that go on.
  for (Live& live : requests_) {
    if (!live.stream || !live.reader_full) continue;
    live.reader_full = live.stream->pause_without(static_cast<std::size_t>(live.active_choices));
    settle_pause(live);
  }
  for (Live& live : requests_)
    if (live.stream && live.faults >= limits_.faults_per_request_max)
      end(live, Ending::failed,
          make_error(ErrorCode::device_error, "{} steps failed with this request: {}", live.faults,
                     error.message));
  const bool too_often = fails_too_often(now);
  if (++failures_in_a_row_ >= limits_.failures_in_a_row_max || too_often)
    give_up(error);
  else
    update_isolation();
}

bool StepLoop::check_device() {
  if (!device_up_) return false;
  const Status status = executor_.check();
  if (!status.ok()) lose_device(status.error());
  return status.ok();
}

/// Notes a failure; whether it is one more than the window may have.
bool StepLoop::fails_too_often(std::int64_t now) {
  if (failures_us_.empty()) return false;
  std::int64_t& oldest = failures_us_[counts_.device_failures % failures_us_.size()];
  return now - std::exchange(oldest, now) < limits_.failures_window_us;
}

void StepLoop::note_progress(Live& live, Choice& choice, const StepRow& row) {
  // Computing again what was lost is no progress: the failure may wait behind it.
  if (!row.samples && row.start + row.count <= choice.computed_before_loss) return;
  failures_in_a_row_ = 0;
  const bool suspect = is_suspect(live);
  live.faults = 0;
  if (suspect) update_isolation();
}

bool StepLoop::is_suspect(const Live& live) const {
  return live.faults >= kFaultsOfASuspect;
}

void StepLoop::update_isolation() {
  // The first suspect that has room to write to is computed alone.
  const Live* alone = nullptr;
  for (const Live& live : requests_) {
    if (!live.stream || !is_suspect(live) || live.reader_full) continue;
    if (alone == nullptr || live.submitted_us < alone->submitted_us) alone = &live;
  }
  isolating_ = alone != nullptr;
  for (Live& live : requests_) {
    if (!live.stream) continue;
    // Suspects without room stay aside until they have it.
    live.set_aside = isolating_ ? &live != alone : is_suspect(live);
    settle_pause(live);
  }
}

bool StepLoop::recover(std::int64_t timeout_us) {
  if (device_up_ || broken_) return device_up_;
  const Status status = executor_.recover(timeout_us);
  if (status.ok()) {
    device_up_ = true;
    failed_recoveries_ = 0;
    ++counts_.recoveries;
    return true;
  }
  if (status.error().code == ErrorCode::deadline_exceeded) return false;
  device_error_ = status.error();
  if (++failed_recoveries_ > limits_.recoveries_max) give_up(status.error());
  return false;
}

void StepLoop::give_up(const Error& error) {
  broken_ = true;
  end_all(
      make_error(ErrorCode::device_error, "the device could not be recovered: {}", error.message));
}

}  // namespace koho
