// SPDX-License-Identifier: Apache-2.0
// Reads token ids from a JSON file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"

namespace koho::app {

/// The ids of a file with one JSON array of integers. Errors: not_found, io_error,
/// invalid_argument.
Result<std::vector<std::int32_t>> read_token_id_file(const std::string& path);

}  // namespace koho::app
