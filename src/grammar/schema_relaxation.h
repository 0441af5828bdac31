// SPDX-License-Identifier: Apache-2.0
// Drops from a schema the keywords that a grammar cannot express. For forced calls of tools that
// are not strict, where following part of the schema is better than refusing the request. The
// relaxed schema accepts every value that the original accepts.
#pragma once

#include "base/json.h"
#include "grammar/schema.h"

namespace koho {

/// Relaxes `root`, the schema of a tool's arguments. Requires: `strictness` is not strict. Does not
/// remove every fault; Schema::read() reports the rest.
void relax_schema(json::Value& root, SchemaStrictness strictness);

}  // namespace koho
