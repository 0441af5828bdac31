// SPDX-License-Identifier: Apache-2.0
// Tool calls in GLM's own form as a grammar: xgrammar's structural tag, a JSON text. The tags are
// single tokens, by id: spelled in pieces they would be text to chat/output_parser.h. Arguments
// come in the order of the schema, strings as they are, all else as JSON.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "grammar/constraint.h"
#include "grammar/schema.h"
#include "tokenizer/tokenizer.h"

namespace koho {

/// Whether calls of `tool`, one of the constraint's, follow its schema; else their arguments are
/// free.
bool has_schema(const Constraint& constraint, const ToolGrammar& tool);

/// Requires: constraint.kind is tool_calls. Errors: unsupported: the tokenizer lacks a tag;
/// invalid_argument: as Schema::read, with the tool's name; no tool, a name twice or empty.
Result<std::string> tool_call_tag(const Constraint& constraint,
                                  const Tokenizer& tokenizer,
                                  const SchemaLimits& limits);

}  // namespace koho
