// SPDX-License-Identifier: Apache-2.0
// A started runtime as what the server answers with.
#pragma once

#include <string>
#include <vector>

#include "runtime/runtime.h"
#include "server/core.h"

namespace koho::server {

/// `names` are what the model is called, at least one. The runtime outlives the result.
ServedModel served_model_of(Runtime& runtime, std::vector<std::string> names);

}  // namespace koho::server
