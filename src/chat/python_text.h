// SPDX-License-Identifier: Apache-2.0
// The few pieces of Python that the chat templates lean on: str.strip, str(value), repr(float).
// The templates are Jinja, so what they print and trim is what Python prints and trims.
#pragma once

#include <string>
#include <string_view>

namespace koho::chat {

struct Json;

/// text.strip(): Unicode whitespace (str.isspace) off both ends. Bytes that
/// are not UTF-8 are not whitespace.
std::string_view python_strip(std::string_view text);

/// text.lstrip('\n') and text.rstrip('\n').
std::string_view strip_newlines_left(std::string_view text);
std::string_view strip_newlines_right(std::string_view text);

/// repr(value): the shortest digits that read back the same, in Python's notation. Requires:
/// finite.
std::string python_float(double value);

/// str(value) of the Python value that json.loads makes of it: a string is itself, null is None,
/// arrays and objects are their repr.
std::string python_str(const Json& value);

}  // namespace koho::chat
