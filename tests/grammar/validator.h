// SPDX-License-Identifier: Apache-2.0
// A JSON Schema validator for the keywords that src/grammar supports. Tests use it to judge the
// texts that grammars allow, so it shares no code with src/grammar except the JSON parser.
#pragma once

#include <string>

#include "base/json.h"

namespace koho::testing {

/// Why `value` is not valid by `root`; "" if it is. Ignores `format`, as JSON Schema does by
/// default.
std::string validate_json(const json::Value& root, const json::Value& value);

}  // namespace koho::testing
