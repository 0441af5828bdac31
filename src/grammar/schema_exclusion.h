// SPDX-License-Identifier: Apache-2.0
// The keyword `not`: what a schema allows without the values of another. Private to src/grammar.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "base/json.h"

namespace koho {

/// The most alternatives that rewriting a subschema makes of it.
inline constexpr std::size_t kAlternativesMax = 64;

/// Alternatives for the values that `schema`, an object without choices or `false`, allows and
/// `excluded` does not; none if there are no such values. nullopt: no grammar can express that.
/// Can: types, listed values beside a `type` or a list, required members, anyOf of these.
std::optional<std::vector<json::Value>> exclude(json::Value schema, const json::Value& excluded);

}  // namespace koho
