// SPDX-License-Identifier: Apache-2.0
// Rewrites what a schema says in several places, so that a grammar can express it: allOf of several
// schemas, keywords beside $ref, anyOf and oneOf, `not`, and uniqueItems of few values. Private to
// src/grammar.
#pragma once

#include "base/json.h"

namespace koho {

/// Rewrites every subschema of `root` that can be rewritten; leaves the others as they are, for the
/// reader to refuse by name. A value that the result allows is one that `root` allows. Cost: at
/// most some 20,000 values are copied.
void merge_schemas(json::Value& root);

}  // namespace koho
