// SPDX-License-Identifier: Apache-2.0
#include "grammar/constraint.h"

#include <string_view>
#include <utility>

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

std::string_view grammar_error_code(const Error& error) {
  if (error.code != ErrorCode::invalid_argument) return {};
  const std::string_view message = error.message;
  for (const std::string_view code :
       {kInvalidGrammar, kUnsupportedSchema, kGrammarTooComplex, kUnsatisfiableSchema})
    if (message.starts_with(code) && message.substr(code.size()).starts_with(": ")) return code;
  return {};
}

bool names_tool(const Error& error) {
  const std::string_view code = grammar_error_code(error);
  return !code.empty() &&
         std::string_view(error.message).substr(code.size()).starts_with(": tool \"");
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
