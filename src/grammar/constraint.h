// SPDX-License-Identifier: Apache-2.0
// What a request may ask of an answer's form: plain data, made by whoever reads requests (server,
// koho run, koho batch), compiled by grammar/grammar_compiler.h, obeyed token by token in
// engine/. Knows no HTTP and no JSON library: schemas travel as the JSON text they came as.
//
// How a request's fields become one Constraint (at most one a request):
//   response_format {"type": "json_object"}                   json_object()
//   response_format {"type": "json_schema", ...}              json_schema(text of
//   .json_schema.schema) structured_outputs {"json": ...} / guided_json json_schema(text)
//   structured_outputs {"regex" | "choice" | "grammar": ...}  regex(...), choice(...), ebnf(...)
//   structured_outputs {"json_object": true}                  json_object()
//   response_format {"type": "structural_tag", ...}, structured_outputs {"structural_tag": ...}
//                                                             structural_tag(text)
//   tool_choice "required"                                    tool_calls(tools, at_least_one)
//   tool_choice a named tool                                  tool_calls({that tool}, exactly_one)
//   tool_choice "auto" and some tool has "strict": true       tool_calls(tools, when_called)
//   tool_choice "auto" with parallel_tool_calls false         tool_calls(tools, when_called)
//   tool_choice "allowed_tools"                               as "auto" or "required", with these
//   tool_choice "none", else "auto"                           no Constraint
//   one of the forms above and tools with tool_choice "auto"  union_of({the form,
//                                                             tool_calls(tools, instead_of_text)})
// With parallel_tool_calls false, `one_call` is set: the answer ends behind its first call.
//
// Thinking is no part of it: with Request::starts_in_reasoning the engine lets the model think
// freely and the constraint begins behind </think>. No token of stop_tokens comes before the
// constraint is fulfilled.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace koho {

/// A tool whose calls are constrained.
struct ToolGrammar {
  std::string name;
  std::string parameters;  // JSON schema of the arguments; empty: no arguments
  /// Arguments follow the schema, and one that a grammar cannot say is an error. Else those of
  /// calls that must come (at_least_one, exactly_one) follow it as far as a grammar can say it, and
  /// those of calls that the model makes by itself (when_called, instead_of_text) are free.
  bool strict = true;
};

struct Constraint {
  enum class Kind : std::uint8_t {
    json_object,
    json_schema,
    regex,
    choice,
    ebnf,
    tool_calls,
    structural_tag,
    union_of
  };
  enum class Calls : std::uint8_t {
    when_called,      // free text; a call in it is one of `tools`, with arguments by its schema if
                      // the tool is strict
    instead_of_text,  // nothing but calls, with arguments as when_called
    at_least_one,     // nothing but calls
    exactly_one       // nothing but one call
  };

  Kind kind = Kind::json_object;
  /// The JSON text of a schema; a regular expression, which the whole answer matches; a grammar in
  /// EBNF (GBNF's form) whose first rule is `root`; the JSON text of a structural tag.
  std::string text;
  std::vector<std::string> choices;
  std::vector<ToolGrammar> tools;
  Calls calls = Calls::at_least_one;
  bool compact = false;   // JSON with one space behind each comma and colon, no other white space
  bool one_call = false;  // one at most
  bool newline_after_tags = false;  // GLM-4.5 and 4.6 write calls with newlines (TemplateStyle)
  std::vector<Constraint> alternatives;  // of union_of: the answer follows one of them

  static Constraint json_object();
  static Constraint json_schema(std::string schema);
  static Constraint regex(std::string pattern);
  static Constraint choice(std::vector<std::string> choices);
  static Constraint ebnf(std::string grammar);
  static Constraint structural_tag(std::string tag);
  static Constraint tool_calls(std::vector<ToolGrammar> tools, Calls calls);
  static Constraint union_of(std::vector<Constraint> alternatives);
};

/// What is wrong with a constraint: each invalid_argument error of this folder has one of these as
/// its reason, and its message begins with the reason's name and ": ".
inline constexpr ErrorReason kInvalidGrammar = ErrorReason::invalid_grammar;
inline constexpr ErrorReason kUnsupportedSchema = ErrorReason::unsupported_schema;
inline constexpr ErrorReason kGrammarTooComplex = ErrorReason::grammar_too_complex;
inline constexpr ErrorReason kUnsatisfiableSchema = ErrorReason::unsatisfiable_schema;

/// Whether the reason of `error` is one of these.
bool is_grammar_error(const Error& error);
/// The refusal "REASON: message".
Error refused(ErrorReason reason, std::string_view message);
/// A refusal with `place` between its reason's name and the rest; another error with `place` before
/// its message.
Error placed(std::string_view place, Error error);
/// placed(`tool "NAME"`), and "tools" as the field.
Error placed_at_tool(std::string_view name, Error error);

/// A text that two constraints share if and only if they are the same.
std::string cache_key(const Constraint& constraint);

}  // namespace koho
