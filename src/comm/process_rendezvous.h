// SPDX-License-Identifier: Apache-2.0
// The rendezvous of ranks that are processes of one machine, in memory that they share.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>

#include "comm/rendezvous.h"

namespace koho {

/// Bytes of shared memory for a rendezvous of so many ranks.
std::size_t process_rendezvous_bytes(std::int64_t ranks);

/// One rank's rendezvous in `shared`, which is zero-filled before the first rank comes, 64-byte
/// aligned, and outlives this. A rank that waits longer than `timeout` for the others, or whose
/// group was given up, gets `unavailable`, and so do all from then on. Requires: `shared` has
/// process_rendezvous_bytes(ranks).
std::unique_ptr<Rendezvous> make_process_rendezvous(std::span<std::byte> shared,
                                                    std::int64_t rank,
                                                    std::int64_t ranks,
                                                    std::chrono::milliseconds timeout);

}  // namespace koho
