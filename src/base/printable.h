// SPDX-License-Identifier: Apache-2.0
// Text from files and requests, made safe and short for an error message or a log line.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace koho {

/// `text` with control characters and bytes that are not UTF-8 written as \xHH, cut after about
/// `bytes_max` bytes with "…".
std::string printable(std::string_view text, std::size_t bytes_max = 160);

}  // namespace koho
