// SPDX-License-Identifier: Apache-2.0
// The rendezvous of ranks that are threads of one process.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "comm/rendezvous.h"

namespace koho {

/// One for each of `ranks` threads. A rank that waits longer than `timeout` for the others, or
/// whose group was given up, gets `unavailable`, and so do all from then on.
std::vector<std::unique_ptr<Rendezvous>> make_thread_rendezvous(std::int64_t ranks,
                                                                std::chrono::milliseconds timeout);

}  // namespace koho
