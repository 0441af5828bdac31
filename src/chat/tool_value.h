// SPDX-License-Identifier: Apache-2.0
// One argument value of a tool call, from the raw text that the model wrote to JSON.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "chat/json.h"
#include "chat/tool_schema.h"

namespace koho::chat {

/// The JSON text of a value that the model wrote as `text`, for an argument of these types:
///  - a string only: `text` itself, nothing trimmed, unquoted or parsed;
///  - strings among other types: the JSON value in `text` when it is of one of the others, else the
///    string `text`;
///  - other types: the JSON value in `text`, else the Python literal in it (True, None, 'x'), else
///    the string `text`; a number that is no integer stays a string where an integer was declared;
///  - any type: as other types, but a quoted string stays as it stands, quotes and all.
std::string value_to_json(std::string_view text, TypeSet types);

/// The value of a Python literal (None, True, decimal numbers, plain strings, lists, tuples, dicts
/// with string keys), as ast.literal_eval reads it; nothing for any other text.
std::optional<Json> parse_python_literal(std::string_view text);

}  // namespace koho::chat
