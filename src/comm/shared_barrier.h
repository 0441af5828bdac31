// SPDX-License-Identifier: Apache-2.0
// A barrier of the ranks of a group, in memory that their processes share.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "base/error.h"

namespace koho {

/// What lies in the shared memory; zeros are a barrier that nobody has reached.
struct SharedBarrierState {
  std::atomic<std::uint32_t> arrived{0};
  std::atomic<std::uint32_t> round{0};
  std::atomic<std::uint32_t> broken{0};
  std::atomic<std::uint32_t> changes{0};  // of the others: what waiters sleep on
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

/// One process' view of it. A rank that waits longer than `timeout` breaks the barrier for all and
/// for good.
class SharedBarrier {
 public:
  /// `state` outlives this.
  SharedBarrier(SharedBarrierState& state, std::int64_t ranks, std::chrono::milliseconds timeout)
      : state_(&state), ranks_(static_cast<std::uint32_t>(ranks)), timeout_(timeout) {}

  /// Waits until all ranks have called this. What a rank wrote before is seen by all after. Errors:
  /// unavailable.
  Status meet();
  /// Breaks the barrier. Threads: any.
  void give_up();

 private:
  void wake_all();

  SharedBarrierState* state_;
  std::uint32_t ranks_;
  std::chrono::milliseconds timeout_;
};

}  // namespace koho
