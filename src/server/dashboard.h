// SPDX-License-Identifier: Apache-2.0
// The dashboard at /ui: one page without external files, and the numbers that only it shows.
#pragma once

#include <string>
#include <string_view>

#include "server/core.h"
#include "server/http_message.h"

namespace koho::server {

/// The page: the files of dashboard/ joined at build time.
std::string_view dashboard_page();
/// Its Content-Security-Policy: the browser runs this page's style and script, no other, loads
/// nothing else, and refuses to make elements of text.
std::string_view dashboard_policy();
/// The page as an answer.
Response dashboard_answer();

/// What the page needs before it has a key: whether one is needed, the program's version, and the
/// readiness, as a JSON object.
std::string dashboard_status(const Core& core);

/// The samples of one range of the history, by their period in seconds as text; "": there is none.
std::string dashboard_history(const Core& core, std::string_view period);

/// The running requests, oldest first, and the last ended ones (requests_json).
std::string dashboard_requests(const Core& core, const ApiKey* key);

/// One server-sent event with the engine's statistics, its last steps and the server's counters. It
/// asks clients to reconnect after one second.
std::string dashboard_event(const Core& core);

}  // namespace koho::server
