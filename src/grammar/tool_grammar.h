// SPDX-License-Identifier: Apache-2.0
// Writes tool calls in GLM's format as an xgrammar structural tag (JSON text):
//   <tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value>...</tool_call>
// Each tag is its one added token, named by id: the same letters in ordinary tokens are text to
// chat/output_parser.h. Arguments come in the schema's order; optional ones may be missing. A
// string is written as it is, any other value as JSON.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "grammar/constraint.h"
#include "grammar/grammar_compiler.h"
#include "tokenizer/tokenizer.h"

namespace koho {

/// How closely a forced call of a tool that is not strict follows the tool's schema.
enum class ToolStrictness : std::uint8_t {
  best_effort,     // as SchemaStrictness::best_effort
  structure_only,  // as SchemaStrictness::structure_only
  names_only       // the arguments are free
};

/// Whether the constraint forces calls and `tool` is not strict: then relaxing its schema is better
/// than refusing the request.
bool may_be_relaxed(const Constraint& constraint, const ToolGrammar& tool);
/// Whether calls of `tool` follow its schema; otherwise their arguments are free.
bool has_schema(const Constraint& constraint, const ToolGrammar& tool, ToolStrictness strictness);

/// The structural tag of the calls that `constraint` allows.
/// Requires: constraint.kind is tool_calls. Errors: unsupported: the tokenizer has no token for a
/// tag; invalid_argument: there is no tool, a name is empty or appears twice, Schema::read() fails
/// for a strict tool (the message names it), or the schemas of all strict tools take longer than
/// until `end_ns` of the thread's time, or some megabytes. Arguments of other tools are free then.
Result<std::string> tool_call_tag(const Constraint& constraint,
                                  const Tokenizer& tokenizer,
                                  const GrammarLimits& limits,
                                  ToolStrictness strictness,
                                  std::int64_t end_ns);

}  // namespace koho
