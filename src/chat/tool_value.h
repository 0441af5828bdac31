// SPDX-License-Identifier: Apache-2.0
// Converts the value of a tool-call argument from the text that the model wrote to JSON.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "chat/json.h"
#include "chat/tool_schema.h"

namespace koho::chat {

/// The JSON of a value that the model wrote as `text`, for an argument of these types:
///  - only string: the string `text`, not trimmed, unquoted or parsed;
///  - string and other types: the JSON value in `text` if it has one of the other types, unless
///    `allows` (null: no) has the string but not it, else the string `text`;
///  - other types: the JSON value in `text`, else the Python literal (True, None, 'x'), else the
///    string `text`; where an integer is declared, any other number stays a string. A number is the
///    one that was written, whatever double it would be;
///  - any type: the same, but a quoted string keeps its quotation marks.
std::string value_to_json(std::string_view text,
                          TypeSet types,
                          const std::function<bool(const Json&)>& allows = nullptr);

/// The value of a Python literal (None, True, decimal numbers, plain strings, lists, tuples, dicts
/// with string keys), as ast.literal_eval reads it; nullopt for any other text.
std::optional<Json> parse_python_literal(std::string_view text);

}  // namespace koho::chat
