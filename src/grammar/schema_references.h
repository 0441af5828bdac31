// SPDX-License-Identifier: Apache-2.0
// References within a document, as every JSON pointer that a schema may have: "#/$defs/a~1b",
// "#/$defs/List%5Bint%5D", "#/properties/a/anyOf/0". Private to src/grammar.
#pragma once

#include "base/json.h"

namespace koho {

/// Makes every $ref that names a subschema one to "#/$defs/NAME", "#/definitions/NAME" or "#": what
/// others name gets a definition of its own, with what it holds. References that name nothing stay.
/// false: these definitions would be too large together; the schema is then unusable.
[[nodiscard]] bool define_references(json::Value& root);

}  // namespace koho
