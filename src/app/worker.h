// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace koho::app {

/// Runs `koho worker` with the arguments behind that; returns the exit code.
int run_worker(const std::vector<std::string>& arguments);

}  // namespace koho::app
