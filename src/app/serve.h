// SPDX-License-Identifier: Apache-2.0
// `koho serve` parses its own flags (app/serve_options.h), because its table also serves the
// environment, the config file and the documentation.
#pragma once

#include <string>
#include <vector>

namespace koho::app {

/// Runs the server; `arguments` are those after "koho serve". Returns the exit code.
int run_serve(const std::vector<std::string>& arguments);

}  // namespace koho::app
