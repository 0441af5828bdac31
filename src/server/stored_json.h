// SPDX-License-Identifier: Apache-2.0
// Small files that must be whole or absent, and the members of the JSON objects in them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/error.h"
#include "chat/json.h"

namespace koho::server {

/// Writes `text` beside `path`, brings it to the disk and renames it. Errors: io_error.
Status write_whole_file(const std::filesystem::path& path, std::string_view text);

/// The member's value; "" or 0 if it is missing or of another type.
std::string text_member(const chat::Json& object, std::string_view name);
std::int64_t integer_member(const chat::Json& object, std::string_view name);

/// Appends `,"name":` and the value; null for "" and 0.
void append_text_member(std::string& out, std::string_view name, std::string_view value);
void append_time_member(std::string& out, std::string_view name, std::int64_t value);

}  // namespace koho::server
