// SPDX-License-Identifier: Apache-2.0
// Parts of the table of `koho serve` options that have files of their own.
#pragma once

#include <vector>

#include "app/serve_options.h"

namespace koho::app {

// In serve_option_table_server.cpp.
std::vector<ServeOption> address_and_access_options();
std::vector<ServeOption> server_limit_options();
std::vector<ServeOption> log_options();

}  // namespace koho::app
