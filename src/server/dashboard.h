// SPDX-License-Identifier: Apache-2.0
// The dashboard at /ui: one page without external files, and the numbers it shows.
#pragma once

#include <string>
#include <string_view>

#include "server/core.h"

namespace koho::server {

/// dashboard.html, as it was when the program was built.
std::string_view dashboard_page();

/// One server-sent event: the engine's statistics, its last steps, the server's counters. Who loses
/// the stream is asked to come back after a second.
std::string dashboard_event(const Core& core);

}  // namespace koho::server
