// SPDX-License-Identifier: Apache-2.0
// For tests of what something costs, beside other processes.
#pragma once

#include <ctime>

namespace koho::testing {

/// Processor time of this thread so far, in microseconds.
inline double thread_us() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e6 * static_cast<double>(now.tv_sec) + 1e-3 * static_cast<double>(now.tv_nsec);
}

}  // namespace koho::testing
