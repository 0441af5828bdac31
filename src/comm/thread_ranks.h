// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of one process over host memory: for the CPU backend, unit tests and sanitizers.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/rendezvous.h"

namespace koho {

/// What the ranks share: a barrier and each rank's current operand.
class ThreadRankGroup;

/// Communicators of one group, one for each thread. A rank that waits longer than `timeout` for
/// the others, or whose group was aborted, gets `unavailable`, and so do all from then on.
std::vector<std::unique_ptr<Communicator>> make_thread_ranks(std::int64_t ranks,
                                                             std::chrono::milliseconds timeout);

/// The same, one rank at a time: each of the group's threads calls it. Errors: those of the
/// rendezvous.
Result<std::unique_ptr<Communicator>> join_thread_ranks(Rendezvous& rendezvous,
                                                        std::chrono::milliseconds timeout);

}  // namespace koho
