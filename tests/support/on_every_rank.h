// SPDX-License-Identifier: Apache-2.0
// For tests: ranks as threads.
#pragma once

#include <cstddef>
#include <thread>
#include <vector>

namespace koho::testing {

/// Runs `body(rank)` on a thread for each rank.
template <typename Body>
void on_every_rank(std::size_t ranks, const Body& body) {
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&body, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace koho::testing
