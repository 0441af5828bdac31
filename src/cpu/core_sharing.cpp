// SPDX-License-Identifier: Apache-2.0
// /proc/thread-self/schedstat, affinities, short sleeps.
#include "cpu/core_sharing.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>
#include <utility>

#include "base/host_cpus.h"

namespace koho {
namespace {

// Less than a time slice (1.4 ms on two cores, more on more), beside a rest that is long enough for
// another thread to take the core.
constexpr std::int64_t kTurnNs = 1'000'000;
constexpr std::int64_t kRestNs = 100'000;

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// Keeps the calling thread on those of `cores` that are not `other`, if there are any.
void keep_off(int other, std::vector<int> cores) {
  std::erase(cores, other);
  if (!cores.empty()) keep_thread_on(cores);
}

}  // namespace

std::int64_t RunDelay::ns() {
  if (owner_ != std::this_thread::get_id()) {
    owner_ = std::this_thread::get_id();
    file_ = Descriptor(::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC));
  }
  // Nanoseconds on a core, nanoseconds of waiting for one, time slices.
  std::array<char, 64> text{};
  const ssize_t bytes = ::pread(file_.get(), text.data(), text.size(), 0);
  const char* const end = text.data() + std::max<ssize_t>(bytes, 0);
  const char* const space = std::find(static_cast<const char*>(text.data()), end, ' ');
  std::int64_t waited = 0;
  if (space != end) std::from_chars(space + 1, end, waited);
  return waited;
}

int current_core() {
  return sched_getcpu();
}

void leave_core() {
  const std::vector<int> cores = allowed_cpus();
  keep_off(current_core(), cores);
  keep_thread_on(cores);
}

void CoreTurns::take(int other) {
  if (!std::exchange(active_, true)) {
    cores_ = allowed_cpus();
    kept_off_ = -1;
  } else if (now_ns() - began_ns_ < kTurnNs) {
    return;
  }
  if (other != kept_off_) keep_off(kept_off_ = other, cores_);
  std::this_thread::sleep_for(std::chrono::nanoseconds(kRestNs));
  began_ns_ = now_ns();
}

void CoreTurns::end() {
  if (std::exchange(active_, false)) keep_thread_on(cores_);
}

}  // namespace koho
