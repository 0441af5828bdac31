// SPDX-License-Identifier: Apache-2.0
// Leaves out of a schema what no grammar can say: for calls of tools that did not ask to be strict,
// which come all the same. What is left takes more values, never fewer.
#pragma once

#include "base/json.h"
#include "grammar/schema.h"

namespace koho {

/// `root` describes a tool's arguments. Requires: `strictness` is not everything. Some faults stay, for
/// Schema::read to find.
void relax_schema(json::Value& root, SchemaStrictness strictness);

}  // namespace koho
