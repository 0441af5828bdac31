// SPDX-License-Identifier: Apache-2.0
// The fields that constrain an output's text to a schema, a pattern or a grammar: OpenAI's
// response_format, vLLM's structured_outputs and its older names, SGLang's names. Each becomes one
// Constraint; what a constraint means is grammar/constraint.h.
#pragma once

#include <span>

#include "api/shared_fields.h"

namespace koho::api {

std::span<const RequestField> structured_output_fields();

}  // namespace koho::api
