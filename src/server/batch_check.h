// SPDX-License-Identifier: Apache-2.0
// Checks the input of a batch before a request runs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "server/batch_record.h"

namespace koho::server {

struct BatchCheck {
  std::int64_t total = 0;  // requests
  std::vector<BatchFault> faults{};
};

/// Reads all lines: each is a request to `endpoint`, no custom_id stands there twice.
BatchCheck check_batch_input(const std::filesystem::path& input, std::string_view endpoint);

}  // namespace koho::server
