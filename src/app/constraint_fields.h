// SPDX-License-Identifier: Apache-2.0
// The fields of a request that hold an answer to a form: response_format as OpenAI's API has it,
// structured_outputs as vLLM's.
#pragma once

#include <optional>

#include "base/error.h"
#include "chat/json.h"
#include "grammar/constraint.h"

namespace koho::app {

/// Nothing if the fields ask for nothing. Errors: invalid_argument naming the field.
Result<std::optional<Constraint>> read_constraint(const chat::Json& request);

}  // namespace koho::app
