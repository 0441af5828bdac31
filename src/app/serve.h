// SPDX-License-Identifier: Apache-2.0
// `koho serve` reads its own flags (app/serve_options.h): its table also feeds the environment, a
// config file and the documentation.
#pragma once

#include <string>
#include <vector>

namespace koho::app {

/// Runs the server; `arguments` stand behind "koho serve". Returns the exit code.
int run_serve(const std::vector<std::string>& arguments);

}  // namespace koho::app
