// SPDX-License-Identifier: Apache-2.0
// What a request demands of its answer: a JSON schema, a regular expression, a choice of strings, a
// grammar, tool calls. Plain data: the server, `koho run` and `koho batch` fill it from a request's
// fields, grammar/grammar_compiler.h compiles it, and the engine applies the result to each token.
// Knows neither HTTP nor a JSON library: a schema stays the JSON text that the client sent.
//
// A request has at most one Constraint. Its fields become one as follows:
//   response_format json_object                        json_object()
//   response_format json_schema                        json_schema(json_schema.schema)
//   response_format structural_tag                     structural_tag(text)
//   structured_outputs.json, guided_json               json_schema(text)
//   structured_outputs.regex, .choice, .grammar        regex(), choice(), ebnf()
//   structured_outputs.json_object: true               json_object()
//   structured_outputs.structural_tag                  structural_tag(text)
//   tool_choice "required"                             tool_calls(tools, at_least_one)
//   tool_choice names a tool                           tool_calls({that tool}, exactly_one)
//   tool_choice "auto", a tool has "strict": true      tool_calls(tools, when_called)
//   tool_choice "auto", parallel_tool_calls false      tool_calls(tools, when_called)
//   tool_choice "allowed_tools"                        as "auto" or "required", with these tools
//   tool_choice "none", or "auto" otherwise            no Constraint
//   any of the first seven, and tools with "auto"      union_of({it, tool_calls(tools,
//                                                      instead_of_text)})
// parallel_tool_calls false sets `one_call`: the answer ends after its first call.
//
// A Constraint does not cover reasoning: with Request::starts_in_reasoning the model reasons
// freely, and the constraint starts after </think>. The engine allows no stop token before the
// constraint is fulfilled.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace koho {

/// A tool that the answer may call.
struct ToolGrammar {
  std::string name;
  std::string parameters;  // JSON schema of the arguments; empty: no arguments
  /// true: the arguments follow the schema, and a schema that no grammar can express is an error.
  /// false: where the request forces a call (at_least_one, exactly_one), the arguments follow as
  /// much of the schema as a grammar can express; where the model decides to call (when_called,
  /// instead_of_text), the arguments are free.
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
    when_called,      // free text; a call within it names one of `tools`, and its arguments follow
                      // the schema if that tool is strict
    instead_of_text,  // only calls, with arguments as for when_called
    at_least_one,     // only calls
    exactly_one       // only one call
  };

  Kind kind = Kind::json_object;
  /// By kind: the JSON text of a schema; a regular expression that the whole answer matches; a
  /// grammar in EBNF (the GBNF dialect) whose start rule is `root`; the JSON text of a structural
  /// tag.
  std::string text;
  std::vector<std::string> choices;
  std::vector<ToolGrammar> tools;
  Calls calls = Calls::at_least_one;
  bool compact = false;   // JSON with one space after each comma and colon, no other white space
  bool one_call = false;  // at most one call
  bool newline_after_tags = false;  // GLM-4.5 and 4.6 write calls with newlines (TemplateStyle)
  std::vector<Constraint> alternatives;  // of union_of: the answer follows one of these

  static Constraint json_object();
  static Constraint json_schema(std::string schema);
  static Constraint regex(std::string pattern);
  static Constraint choice(std::vector<std::string> choices);
  static Constraint ebnf(std::string grammar);
  static Constraint structural_tag(std::string tag);
  static Constraint tool_calls(std::vector<ToolGrammar> tools, Calls calls);
  static Constraint union_of(std::vector<Constraint> alternatives);
};

/// Why a constraint is refused. Each invalid_argument error of this folder carries one of these
/// reasons, and its message starts with the reason's name and ": ".
inline constexpr ErrorReason kInvalidGrammar = ErrorReason::invalid_grammar;
inline constexpr ErrorReason kUnsupportedSchema = ErrorReason::unsupported_schema;
inline constexpr ErrorReason kGrammarTooComplex = ErrorReason::grammar_too_complex;
inline constexpr ErrorReason kUnsatisfiableSchema = ErrorReason::unsatisfiable_schema;

/// Whether `error` carries one of these reasons.
bool is_grammar_error(const Error& error);
/// An invalid_argument error with the message "REASON: message".
Error refused(ErrorReason reason, std::string_view message);
/// Adds `place` to an error: "REASON: place: message" for a grammar error, "place: message" for any
/// other.
Error placed(std::string_view place, Error error);
/// placed() with `tool "NAME"` as the place and "tools" as the field.
Error placed_at_tool(std::string_view name, Error error);

/// The key of the grammar cache: equal for two constraints exactly if they are the same.
std::string cache_key(const Constraint& constraint);

}  // namespace koho
