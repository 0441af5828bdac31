// SPDX-License-Identifier: Apache-2.0
// For tests of what something costs, beside other processes: processor time of this thread so far.
#pragma once

#include "base/clock.h"

namespace koho::testing {

inline double thread_us() {
  return 1e-3 * static_cast<double>(thread_ns());
}

inline double thread_seconds() {
  return 1e-9 * static_cast<double>(thread_ns());
}

}  // namespace koho::testing
