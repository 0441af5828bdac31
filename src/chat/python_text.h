// SPDX-License-Identifier: Apache-2.0
// The Python functions that the chat templates use: str.strip, str(value), repr(float). The
// templates are Jinja, so they trim and print as Python does.
#pragma once

#include <string>
#include <string_view>

namespace koho::chat {

struct Json;

/// text.strip(): removes Unicode white space (str.isspace) from both ends. Bytes that are not UTF-8
/// are not white space.
std::string_view python_strip(std::string_view text);

/// text.lstrip('\n') and text.rstrip('\n').
std::string_view strip_newlines_left(std::string_view text);
std::string_view strip_newlines_right(std::string_view text);

/// repr(value): the shortest digits that parse to the same double, in Python's notation. Requires:
/// `value` is finite.
std::string python_float(double value);

/// str(value) of the Python object that json.loads returns: a string as it is, null as None, arrays
/// and objects as repr prints them.
std::string python_str(const Json& value);

}  // namespace koho::chat
