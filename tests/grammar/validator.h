// SPDX-License-Identifier: Apache-2.0
// A JSON Schema validator of the tests' own, for the keywords that src/grammar supports: the
// referee of what grammars let through. Shares no code with it but the JSON reader.
#pragma once

#include <string>

#include "base/json.h"

namespace koho::testing {

/// What is wrong with `value`, or empty. Formats say nothing, as by JSON Schema's default.
std::string validate_json(const json::Value& root, const json::Value& value);

}  // namespace koho::testing
