// SPDX-License-Identifier: Apache-2.0
// The keyword uniqueItems, for arrays of few values. Private to src/grammar.
#pragma once

#include <optional>

#include "base/json.h"

namespace koho {

/// An array of different values of a list of at most 8 scalars, as the choice of all such arrays;
/// of more than 5 values, of those in the list's order. `items`: its items' schema, behind $ref;
/// null: it has none. nullopt: `schema` is no such array.
std::optional<json::Value> without_unique_items(const json::Value& schema,
                                                const json::Value* items);

}  // namespace koho
