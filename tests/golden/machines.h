// SPDX-License-Identifier: Apache-2.0
// The machines that a golden test program runs on: cpu_machines.cpp or cuda_machines.cpp, by what
// it is linked with.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "ops/backend.h"

namespace koho::testing {

struct Machine {
  std::string name;  // of a test
  bool fastest = false;
  std::function<Result<std::unique_ptr<Backend>>()> open;
};

/// Slowest first. Empty if what the program needs is not there, a GPU say.
std::vector<Machine> golden_machines();

}  // namespace koho::testing
