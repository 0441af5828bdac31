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

/// How closely calls that must come follow the schemas of tools that did not ask for it.
enum class ToolStrictness : std::uint8_t {
  best_effort,     // as far as a grammar can say them
  structure_only,  // SchemaStrictness::structure_only
  names_only       // free arguments
};

/// Whether calls of `tool`, one of the constraint's, must come though it is not strict: they follow
/// its schema only as far as that can be said.
bool may_be_relaxed(const Constraint& constraint, const ToolGrammar& tool);
/// Whether calls of `tool` follow its schema; else their arguments are free.
bool has_schema(const Constraint& constraint, const ToolGrammar& tool, ToolStrictness strictness);

/// Requires: constraint.kind is tool_calls. Errors: unsupported: the tokenizer lacks a tag;
/// invalid_argument: as Schema::read of a strict tool, with its name; no tool, a name twice or
/// empty.
Result<std::string> tool_call_tag(const Constraint& constraint,
                                  const Tokenizer& tokenizer,
                                  const SchemaLimits& limits,
                                  ToolStrictness strictness);

}  // namespace koho
