// SPDX-License-Identifier: Apache-2.0
// The structured-output fields of a line of `koho batch`: response_format (OpenAI's) and
// structured_outputs (vLLM's).
#pragma once

#include <optional>

#include "base/error.h"
#include "chat/json.h"
#include "grammar/constraint.h"

namespace koho::app {

/// Nothing if the fields constrain nothing. Errors: invalid_argument with the field's name.
Result<std::optional<Constraint>> read_constraint(const chat::Json& request);

}  // namespace koho::app
