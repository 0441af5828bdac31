// SPDX-License-Identifier: Apache-2.0
#include "grammar/constraint.h"

#include <string_view>
#include <utility>

#include <fmt/core.h>

namespace koho {
namespace {

Constraint of_text(Constraint::Kind kind, std::string text) {
  Constraint constraint;
  constraint.kind = kind;
  constraint.text = std::move(text);
  return constraint;
}

void append(std::string& key, std::string_view part) {
  key += std::to_string(part.size());
  key += ':';
  key += part;
}

}  // namespace

Constraint Constraint::json_object() {
  return of_text(Kind::json_object, {});
}

Constraint Constraint::json_schema(std::string schema) {
  return of_text(Kind::json_schema, std::move(schema));
}

Constraint Constraint::regex(std::string pattern) {
  return of_text(Kind::regex, std::move(pattern));
}

Constraint Constraint::choice(std::vector<std::string> choices) {
  Constraint constraint = of_text(Kind::choice, {});
  constraint.choices = std::move(choices);
  return constraint;
}

Constraint Constraint::ebnf(std::string grammar) {
  return of_text(Kind::ebnf, std::move(grammar));
}

Constraint Constraint::structural_tag(std::string tag) {
  return of_text(Kind::structural_tag, std::move(tag));
}

Constraint Constraint::tool_calls(std::vector<ToolGrammar> tools, Calls calls) {
  Constraint constraint = of_text(Kind::tool_calls, {});
  constraint.tools = std::move(tools);
  constraint.calls = calls;
  return constraint;
}

Constraint Constraint::union_of(std::vector<Constraint> alternatives) {
  Constraint constraint = of_text(Kind::union_of, {});
  constraint.alternatives = std::move(alternatives);
  return constraint;
}

bool is_grammar_error(const Error& error) {
  return error.reason == kInvalidGrammar || error.reason == kUnsupportedSchema ||
         error.reason == kGrammarTooComplex || error.reason == kUnsatisfiableSchema;
}

Error refused(ErrorReason reason, std::string_view message) {
  return make_error(ErrorCode::invalid_argument, reason, "{}: {}", error_reason_name(reason),
                    message);
}

Error placed(std::string_view place, Error error) {
  const std::size_t prefix =
      is_grammar_error(error) ? error_reason_name(error.reason).size() + 2 : 0;
  error.message.insert(prefix, fmt::format("{}: ", place));
  return error;
}

Error placed_at_tool(std::string_view name, Error error) {
  error = placed(fmt::format("tool \"{}\"", name), std::move(error));
  error.field = "tools";
  return error;
}

std::string cache_key(const Constraint& constraint) {
  std::string key = std::to_string(static_cast<int>(constraint.kind));
  append(key, constraint.text);
  for (const std::string& choice : constraint.choices) append(key, choice);
  key += std::to_string(static_cast<int>(constraint.calls));
  key += constraint.compact ? 'c' : '-';
  key += constraint.one_call ? '1' : 'n';
  key += constraint.newline_after_tags ? 'l' : '-';
  for (const ToolGrammar& tool : constraint.tools) {
    append(key, tool.name);
    append(key, tool.parameters);
    key += tool.strict ? 's' : '-';
  }
  for (const Constraint& alternative : constraint.alternatives) append(key, cache_key(alternative));
  return key;
}

}  // namespace koho
