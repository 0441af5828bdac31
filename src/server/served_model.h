// SPDX-License-Identifier: Apache-2.0
// Makes a ServedModel of a started runtime.
#pragma once

#include <string>
#include <vector>

#include "runtime/runtime.h"
#include "server/core.h"

namespace koho::server {

/// `names` are the model's names in the API, at least one. The runtime outlives the result.
ServedModel served_model_of(Runtime& runtime, std::vector<std::string> names);

}  // namespace koho::server
