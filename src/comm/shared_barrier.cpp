// SPDX-License-Identifier: Apache-2.0
// Waiters look some times, then sleep on a futex, which works between processes.
#include "comm/shared_barrier.h"

#include <ctime>
#include <limits>
#include <sys/syscall.h>
#include <unistd.h>

#include <linux/futex.h>

namespace koho {
namespace {

/// As long as it takes to go to sleep and to be woken, or less.
constexpr int kLooks = 200;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

long futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value, timespec* time) {
  return syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), operation, value, time,
                 nullptr, 0);
}

}  // namespace

void SharedBarrier::wake_all() {
  state_->changes.fetch_add(1, std::memory_order_release);
  futex(state_->changes, FUTEX_WAKE, std::numeric_limits<std::int32_t>::max(), nullptr);
}

void SharedBarrier::give_up() {
  state_->broken.store(1, std::memory_order_release);
  wake_all();
}

Status SharedBarrier::meet() {
  using Clock = std::chrono::steady_clock;
  const std::uint32_t round = state_->round.load(std::memory_order_acquire);
  const auto passed = [&] { return state_->round.load(std::memory_order_acquire) != round; };
  const auto broken = [&] { return state_->broken.load(std::memory_order_acquire) != 0; };
  if (!broken() && state_->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == ranks_) {
    state_->arrived.store(0, std::memory_order_relaxed);
    state_->round.store(round + 1, std::memory_order_release);
    wake_all();
    return {};
  }
  for (int look = 0; look < kLooks && !passed() && !broken(); ++look) relax();
  const Clock::time_point deadline = Clock::now() + timeout_;
  while (!passed() && !broken()) {
    const std::uint32_t seen = state_->changes.load(std::memory_order_acquire);
    if (passed() || broken()) break;
    const auto left =
        std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - Clock::now()).count();
    if (left <= 0) {
      give_up();
      break;
    }
    timespec time{.tv_sec = left / 1'000'000'000, .tv_nsec = left % 1'000'000'000};
    futex(state_->changes, FUTEX_WAIT, seen, &time);
  }
  if (passed()) return {};
  return make_error(ErrorCode::unavailable, "a rank left the group, or did not come within {} ms",
                    timeout_.count());
}

}  // namespace koho
