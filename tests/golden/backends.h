// SPDX-License-Identifier: Apache-2.0
// The backends that a golden test program runs on: cpu_backends.cpp or cuda_backends.cpp, by what
// it is linked with.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "ops/backend.h"

namespace koho::testing {

struct GoldenBackend {
  std::string name;  // of a test
  bool fastest = false;
  std::function<Result<std::unique_ptr<Backend>>()> open;
};

/// Slowest first. Empty if what the program needs is not there, a GPU say.
std::vector<GoldenBackend> golden_backends();

}  // namespace koho::testing
