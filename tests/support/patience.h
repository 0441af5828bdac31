// SPDX-License-Identifier: Apache-2.0
// How tests wait for what other threads and processes do: until it is done, however long that takes
// on a machine that has much else to do. Only a hang ends a wait before.
#pragma once

#include <chrono>
#include <thread>

namespace koho::testing {

/// The end of a hang: within ctest's limit of 600 s, so that the test says what did not come. Under
/// AddressSanitizer on a busy machine one answer took a minute.
inline constexpr std::chrono::seconds kPatience{300};
inline constexpr std::chrono::microseconds kPatienceUs = kPatience;

/// Waits until `condition` holds. False: it does not come.
template <typename Condition>
[[nodiscard]] bool comes_true(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace koho::testing
