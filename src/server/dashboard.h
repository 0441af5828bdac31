// SPDX-License-Identifier: Apache-2.0
// The dashboard at /ui: one page without external files, and the numbers it shows.
#pragma once

#include <string>
#include <string_view>

#include "server/core.h"

namespace koho::server {

/// The text of dashboard.html, embedded at build time.
std::string_view dashboard_page();

/// One server-sent event with the engine's statistics, its last steps and the server's counters. It
/// asks clients to reconnect after one second.
std::string dashboard_event(const Core& core);

}  // namespace koho::server
