// SPDX-License-Identifier: Apache-2.0
// Collectives of ranks that are processes of one machine, over host memory that they share: the
// CPU backend's. The same bits as the threads of comm/thread_ranks.h.
#pragma once

#include <chrono>
#include <memory>

#include "comm/communicator.h"
#include "comm/rendezvous.h"

namespace koho {

/// Each rank shares memory of its own with the others, which find it through the rendezvous; it
/// grows with what the rank brings to a collective. A rank that waits longer than `timeout` for the
/// others, or whose group was given up, gets `unavailable`, and so do all from then on. Errors:
/// those of the rendezvous; resource_exhausted; io_error (/proc is not mounted).
Result<std::unique_ptr<Communicator>> join_process_ranks(Rendezvous& rendezvous,
                                                         std::chrono::milliseconds timeout);

}  // namespace koho
