// SPDX-License-Identifier: Apache-2.0
// The one way in which koho writes JSON: each function appends a part to a string, so that a
// server-sent event costs no tree and no second copy. Callers write the braces, commas and keys
// that they know; whatever is not known at compile time goes through here. Text must be UTF-8.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/json.h"

namespace koho {

/// Appends `text` as a JSON string with its quotes, escaped as Python's
/// json.dumps(text, ensure_ascii=False) does: chat templates are compared with Python byte by byte.
void append_json_string(std::string& out, std::string_view text);
/// The same without the quotes. The escapes of a concatenation are the concatenation of the
/// escapes, so a string may be written in pieces.
void append_json_escaped(std::string& out, std::string_view text);
/// `text` as a JSON string.
std::string json_string(std::string_view text);

void append_json_integer(std::string& out, std::int64_t value);
/// Appends the shortest digits that read back as the same float; null for NaN and infinities, which
/// JSON does not have.
void append_json_float(std::string& out, float value);

/// Appends `value` without white space. Its depth is bounded by the limits of its reader.
void append_json_value(std::string& out, const json::Value& value);

}  // namespace koho
