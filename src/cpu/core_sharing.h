// SPDX-License-Identifier: Apache-2.0
// A thread and its core on a machine where others want it: how much the thread lost to them, and
// ways to share that keep it from losing the core in the middle of something.
#pragma once

#include <cstdint>
#include <thread>
#include <vector>

#include "base/descriptor.h"

namespace koho {

/// How long a thread has waited for a core while it had work, since it began.
class RunDelay {
 public:
  /// Of the calling thread, in ns; 0 where the system does not tell.
  std::int64_t ns();

 private:
  Descriptor file_;
  std::thread::id owner_;
};

/// The core that the calling thread is on; -1: unknown.
int current_core();

/// Moves the calling thread to another of the cores that it may use, if there are any.
void leave_core();

/// How one thread takes turns with others that want its core: it works for less than a time slice,
/// then rests, so that the system does not take the core away while it works. Of a core that one
/// other thread wants it keeps 47 % (Linux 6.18, 250 ticks a second).
class CoreTurns {
 public:
  /// Between two pieces of work: rests if the turn is over. The first call begins to take turns.
  /// From the next rest on the thread keeps off the core `other`.
  void take(int other);
  /// Takes no more turns: the thread may use all of its cores again.
  void end();

 private:
  bool active_ = false;
  std::vector<int> cores_;  // of the thread, when it began to take turns
  int kept_off_ = -1;
  std::int64_t began_ns_ = 0;  // the latest turn
};

}  // namespace koho
