// SPDX-License-Identifier: Apache-2.0
// The sampling parameters as fields of a body: names, ranges and meanings come from
// sampling/parameter_table.h, what is read beside one number from here.
#pragma once

#include <initializer_list>
#include <span>
#include <string_view>

#include "api/shared_fields.h"
#include "sampling/parameter_table.h"

namespace koho::api {

/// Those that every completion API reads under the same name.
std::span<const RequestField> sampling_fields();

/// For an API with error messages of its own shape (Anthropic's messages, OpenAI's responses):
/// reads the parameters `names`, each one number, with the range that `api` checks.
/// Errors: invalid_argument naming the field.
Status read_sampling_numbers(const chat::Json& body,
                             Interfaces api,
                             std::initializer_list<std::string_view> names,
                             SamplingParameters& sampling);

}  // namespace koho::api
