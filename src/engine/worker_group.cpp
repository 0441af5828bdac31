// SPDX-License-Identifier: Apache-2.0
#include "engine/worker_group.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utility>

#include "base/arithmetic.h"
#include "base/check.h"
#include "base/log.h"

namespace koho {
namespace {

constexpr std::int64_t kSliceUs = 20'000;
// What a look counts at most as silence: this process may have been stopped itself.
constexpr std::int64_t kLookUsMax = 100'000;
// How long the rank whose failure made others fail may need to say what it was.
constexpr std::int64_t kCauseUsMax = 2'000'000;

Result<Descriptor> make_event() {
  Descriptor event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (event.is_open()) return event;
  return make_error(ErrorCode::resource_exhausted, "no event descriptor: {}", std::strerror(errno));
}

void signal_event(const Descriptor& event) {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(event.get(), &one, sizeof(one));
}

}  // namespace

Result<std::unique_ptr<WorkerGroup>> WorkerGroup::spawn(const WorkerGroupSettings& settings) {
  if (settings.ranks < 1 || settings.ranks > kWorkerRanksMax)
    return make_error(ErrorCode::invalid_argument, "1 to {} ranks may be, found {}",
                      kWorkerRanksMax, settings.ranks);
  std::unique_ptr<WorkerGroup> group(new WorkerGroup());
  group->silence_us_max_ = settings.silence_us_max;
  WorkerTask task = settings.task;
  task.beat_us = std::clamp<std::int64_t>(settings.silence_us_max / 8, 1000, 100'000);
  KOHO_TRY_ASSIGN(group->control_memory_, make_control_memory(task, settings.ranks));
  KOHO_TRY_ASSIGN(group->control_, control_in(group->control_memory_));
  KOHO_TRY_ASSIGN(group->step_memory_, SharedMemory::create("koho steps", 0));
  KOHO_TRY_ASSIGN(group->answered_, make_event());
  KOHO_TRY_ASSIGN(const Descriptor end_notice, own_end_notice());
  for (std::int64_t rank = 0; rank < settings.ranks; ++rank) {
    KOHO_TRY_ASSIGN(Descriptor wake, make_event());
    KOHO_TRY_ASSIGN(
        ChildProcess process,
        ChildProcess::spawn(
            {.program = settings.program,
             .arguments = {"koho", "worker", std::to_string(rank)},
             .descriptors = {group->control_memory_.descriptor(), group->step_memory_.descriptor(),
                             wake.get(), group->answered_.get(), end_notice.get()}}));
    group->ranks_.push_back({.process = std::move(process), .wake = std::move(wake)});
  }
  group->looked_us_ = group->clock_.now_us();
  return group;
}

WorkerGroup::~WorkerGroup() {
  for (const Rank& rank : ranks_) rank.process.kill();
}

std::optional<Error> WorkerGroup::failure() const {
  std::optional<Error> consequence;
  for (std::int64_t rank = 0; rank < ranks(); ++rank) {
    if (words(rank).stage.load(std::memory_order_acquire) != RankStage::failed) continue;
    Error error = words(rank).error.error().with_context("rank " + std::to_string(rank));
    if (error.code != ErrorCode::unavailable) return error;
    if (!consequence) consequence = std::move(error);
  }
  return consequence;
}

Status WorkerGroup::wait_for(RankStage stage,
                             LoadProgress* progress,
                             const std::atomic<bool>& cancelled) {
  std::int64_t failed_us = 0;  // since then a rank has failed by another one's failure
  while (true) {
    std::optional<Error> failed = failure();
    if (failed && failed_us == 0) failed_us = clock_.now_us();
    if (failed &&
        (failed->code != ErrorCode::unavailable || clock_.now_us() - failed_us > kCauseUsMax))
      return *std::move(failed);
    bool all = true;
    for (std::int64_t rank = 0; rank < ranks(); ++rank) {
      const RankStage at = words(rank).stage.load(std::memory_order_acquire);
      all = all && at >= stage && at != RankStage::failed;
    }
    if (progress != nullptr) report(*progress);
    if (all) return {};
    if (cancelled.load()) return make_error(ErrorCode::cancelled, "the start was cancelled");
    wait(kSliceUs);
    if (Status there = check(); !there.ok()) {
      // A rank that failed may have said so, and another one ended since.
      failed = failure();
      if (failed && failed->code != ErrorCode::unavailable) return *std::move(failed);
      return there;
    }
  }
}

/// The ranks' sums grow one by one; what they grew by is added.
void WorkerGroup::report(LoadProgress& progress) {
  for (std::int64_t i = 0; i < ranks(); ++i) {
    Rank& rank = ranks_[static_cast<std::size_t>(i)];
    const std::int64_t total = words(i).load_bytes_total.load(std::memory_order_relaxed);
    const std::int64_t done = words(i).load_bytes_done.load(std::memory_order_relaxed);
    if (total > rank.load_bytes_total)
      progress.expect(total - std::exchange(rank.load_bytes_total, total));
    if (done > rank.load_bytes_done)
      progress.arrived(done - std::exchange(rank.load_bytes_done, done));
  }
}

Status WorkerGroup::load(const LoadTask& task) {
  layout_ = StepMemoryLayout(task.bounds, ranks());
  KOHO_TRY(step_memory_.grow(layout_.bytes()));
  control_->load = task;
  control_->front.load.store(1, std::memory_order_release);
  wake_all();
  return {};
}

void WorkerGroup::wake_all() const {
  for (const Rank& rank : ranks_) signal_event(rank.wake);
}

void WorkerGroup::submit(std::uint64_t step, std::size_t bytes) {
  FrontWords& front = control_->front;
  front.plan_bytes[step % Worker::kStepsInFlightMax].store(bytes, std::memory_order_relaxed);
  front.submitted.store(step + 1, std::memory_order_release);
  wake_all();
}

void WorkerGroup::send_masks(std::uint64_t steps) {
  control_->front.masked.store(steps, std::memory_order_release);
  wake_all();
}

std::span<const std::byte> WorkerGroup::answer(std::int64_t rank, std::uint64_t step) {
  const std::span<const std::byte> shared = layout_.result(step_memory_.bytes(), rank, step);
  const std::uint64_t bytes = std::min<std::uint64_t>(
      words(rank).result_bytes[step % Worker::kStepsInFlightMax].load(std::memory_order_relaxed),
      shared.size());
  if (bytes == 0) return {};
  // Answers with logits are large and rare: there is room for one once one has come.
  const std::size_t needed = ceil_div<std::size_t>(bytes, sizeof(std::uint64_t));
  if (copy_.size() < needed) copy_.resize(needed);
  std::memcpy(copy_.data(), shared.data(), bytes);
  return std::as_bytes(std::span(copy_)).first(bytes);
}

bool WorkerGroup::wait(std::int64_t timeout_us) {
  std::array<pollfd, kWorkerRanksMax + 1> waiting{};
  waiting[0] = {.fd = answered_.get(), .events = POLLIN, .revents = 0};
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
    waiting[rank + 1] = {.fd = ranks_[rank].process.end_notice(), .events = POLLIN, .revents = 0};
  const timespec time{.tv_sec = timeout_us / 1'000'000, .tv_nsec = timeout_us % 1'000'000 * 1000};
  if (ppoll(waiting.data(), ranks_.size() + 1, &time, nullptr) <= 0) return false;
  if ((waiting[0].revents & POLLIN) == 0) return false;
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t taken = ::read(answered_.get(), &count, sizeof(count));
  return true;
}

Status WorkerGroup::check() {
  const std::int64_t now = clock_.now_us();
  const std::int64_t since = std::min(now - std::exchange(looked_us_, now), kLookUsMax);
  for (std::int64_t i = 0; i < ranks(); ++i) {
    Rank& rank = ranks_[static_cast<std::size_t>(i)];
    if (const auto ending = rank.process.ended())
      return make_error(ErrorCode::device_error, "rank {} (process {}) {}", i, rank.process.pid(),
                        *ending);
    const std::uint64_t beats = words(i).beats.load(std::memory_order_relaxed);
    rank.silent_us = beats == std::exchange(rank.beats, beats) ? rank.silent_us + since : 0;
    if (rank.silent_us > silence_us_max_)
      return make_error(ErrorCode::device_error,
                        "rank {} (process {}) has not run for {} ms: it is stopped", i,
                        rank.process.pid(), rank.silent_us / 1000);
  }
  return {};
}

void WorkerGroup::stop(int timeout_ms) {
  control_->front.stopping.store(1, std::memory_order_release);
  wake_all();
  const std::int64_t end = clock_.now_us() + std::int64_t{1000} * timeout_ms;
  for (Rank& rank : ranks_)
    rank.process.ended(static_cast<int>(std::max<std::int64_t>((end - clock_.now_us()) / 1000, 0)));
}

Status WorkerGroup::kill(int timeout_ms) {
  for (const Rank& rank : ranks_) rank.process.kill();
  const std::int64_t end = clock_.now_us() + std::int64_t{1000} * timeout_ms;
  for (std::int64_t i = 0; i < ranks(); ++i) {
    const std::int64_t left = std::max<std::int64_t>((end - clock_.now_us()) / 1000, 0);
    ChildProcess& process = ranks_[static_cast<std::size_t>(i)].process;
    if (!process.ended(static_cast<int>(left)))
      return make_error(ErrorCode::device_error,
                        "rank {} (process {}) was killed and does not end: its driver hangs", i,
                        process.pid());
  }
  return {};
}

}  // namespace koho
