// SPDX-License-Identifier: Apache-2.0
// OpenAI's /v1/files and /v1/batches over the server's BatchService. No sockets.
#pragma once

#include <string_view>
#include <vector>

#include "server/handlers.h"

namespace koho::server {

inline constexpr std::string_view kFilesPath = "/v1/files";

/// Their rows of the table of routes.
std::vector<Route> file_routes();

}  // namespace koho::server
