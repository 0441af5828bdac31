// SPDX-License-Identifier: Apache-2.0
#include "grammar/tool_grammar.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/json_writer.h"
#include "grammar/schema.h"

namespace koho {
namespace {

/// The token ids of a call's tags.
struct CallTags {
  std::int32_t call_begin, call_end, key_begin, key_end, value_begin, value_end;
};

Result<CallTags> find_tags(const Tokenizer& tokenizer) {
  CallTags tags{};
  for (const auto& [text, id] :
       {std::pair{"<tool_call>", &CallTags::call_begin},
        std::pair{"</tool_call>", &CallTags::call_end},
        std::pair{"<arg_key>", &CallTags::key_begin}, std::pair{"</arg_key>", &CallTags::key_end},
        std::pair{"<arg_value>", &CallTags::value_begin},
        std::pair{"</arg_value>", &CallTags::value_end}}) {
    const std::optional<std::int32_t> found = tokenizer.id_of(text);
    if (!found)
      return make_error(ErrorCode::unsupported,
                        "the tokenizer has no added token {}, which tool calls need", text);
    tags.*id = *found;
  }
  return tags;
}

// Formats of a structural tag, as JSON text.

std::string token(std::int32_t id) {
  return fmt::format(R"({{"type":"token","token":{}}})", id);
}

std::string text(std::string_view value) {
  return fmt::format(R"({{"type":"const_string","value":{}}})", json_string(value));
}

std::string joined(std::string_view type, const std::vector<std::string>& elements) {
  if (elements.size() == 1) return elements[0];
  std::string list;
  for (const std::string& element : elements) {
    if (!list.empty()) list += ',';
    list += element;
  }
  return fmt::format(R"({{"type":"{}","elements":[{}]}})", type, list);
}

std::string around(std::string_view type, std::string_view content) {
  return fmt::format(R"({{"type":"{}","content":{}}})", type, content);
}

std::string grammar(std::string_view ebnf) {
  return fmt::format(R"({{"type":"grammar","grammar":{}}})", json_string(ebnf));
}

/// Any text without control tokens.
std::string any_text(std::int64_t length_min, std::int64_t length_max) {
  if (length_min == 0 && length_max < 0) return grammar("root ::= [^]*");
  return grammar(fmt::format("root ::= [^]{{{},{}}}", length_min,
                             length_max < 0 ? "" : std::to_string(length_max)));
}

/// What reading the schemas of all tools may take. Each argument has the definitions of its tool's
/// schema beside it: 900 in one of 64 KiB are 60 MB.
struct Budget {
  std::int64_t us_max = 0;
  std::int64_t end_ns = 0;
  std::size_t bytes_left = 8UL << 20U;
};

class CallWriter {
 public:
  CallWriter(const CallTags& tags, bool newlines, std::int32_t whitespace_max)
      : tags_(tags), newlines_(newlines), whitespace_max_(whitespace_max) {}

  /// The start of a call of the tool: its name.
  std::string name(const ToolGrammar& tool) const {
    return text(tool.name + (newlines_ ? "\n" : ""));
  }

  /// One call after its opening tag; `name` is a tool's name, or a choice of several.
  std::string body(std::string name, const std::vector<std::string>& arguments) const {
    std::vector<std::string> parts{std::move(name)};
    parts.insert(parts.end(), arguments.begin(), arguments.end());
    parts.push_back(token(tags_.call_end));
    return joined("sequence", parts);
  }

  std::string argument(const std::string& key, const std::string& value) const {
    std::vector<std::string> parts{token(tags_.key_begin), key, token(tags_.key_end)};
    if (newlines_) parts.push_back(text("\n"));
    parts.insert(parts.end(), {token(tags_.value_begin), value, token(tags_.value_end)});
    if (newlines_) parts.push_back(text("\n"));
    return joined("sequence", parts);
  }

  /// An argument with any key and any value.
  std::string free_argument() const { return argument(any_text(1, -1), any_text(0, -1)); }

  Result<std::vector<std::string>> arguments(const ToolGrammar& tool,
                                             const SchemaLimits& limits,
                                             SchemaStrictness strictness,
                                             Budget& budget) const {
    std::vector<std::string> found;
    if (tool.parameters.empty()) return found;
    if (thread_ns() > budget.end_ns)
      return refused(kGrammarTooComplex,
                     fmt::format("reading the schemas of all tools takes more than {} ms",
                                 budget.us_max / 1000));
    KOHO_TRY_ASSIGN(const Schema schema, Schema::read(tool.parameters, limits, strictness));
    KOHO_TRY_ASSIGN(const std::vector<SchemaProperty> properties,
                    schema.properties(budget.bytes_left));
    for (const SchemaProperty& property : properties) {
      if (property.any_name) {
        found.push_back(around("star", argument(any_text(1, -1), value(property))));
        continue;
      }
      std::string one = argument(text(property.name), value(property));
      found.push_back(property.required ? std::move(one) : around("optional", one));
    }
    if (properties.empty() && schema.open() && is_map(tool.parameters))
      found.push_back(around("star", free_argument()));
    return found;
  }

 private:
  /// Whether the parameters mention additionalProperties. An object without properties then takes
  /// any arguments; otherwise the tool takes none.
  static bool is_map(std::string_view parameters) {
    return parameters.find("additionalProperties") != parameters.npos;
  }

  std::string value(const SchemaProperty& property) const {
    using Alternative = SchemaProperty::Alternative;
    std::vector<std::string> alternatives;
    for (const Alternative& alternative : property.alternatives) {
      switch (alternative.kind) {
        case Alternative::Kind::text:
          alternatives.push_back(any_text(alternative.length_min, alternative.length_max));
          break;
        case Alternative::Kind::pattern:
          alternatives.push_back(
              fmt::format(R"({{"type":"regex","pattern":{}}})", json_string(alternative.value)));
          break;
        case Alternative::Kind::literal:
          alternatives.push_back(text(alternative.value));
          break;
        case Alternative::Kind::json:
          alternatives.push_back(
              fmt::format(R"({{"type":"json_schema","json_schema":{},"max_whitespace_cnt":{}}})",
                          alternative.value, whitespace_max_));
          break;
      }
    }
    return joined("or", alternatives);
  }

  CallTags tags_;
  bool newlines_;
  std::int32_t whitespace_max_;
};

std::string list_of(const std::vector<std::int32_t>& ids) {
  std::string list;
  for (const std::int32_t id : ids) {
    if (!list.empty()) list += ',';
    list += std::to_string(id);
  }
  return list;
}

/// All added tokens except <tool_call>: the model must not sample them in free text.
std::vector<std::int32_t> other_controls(const Tokenizer& tokenizer, const CallTags& tags) {
  std::vector<std::int32_t> ids;
  for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    if (tokenizer.is_added(id) && id != tags.call_begin) ids.push_back(id);
  return ids;
}

Status check(const Constraint& constraint) {
  if (constraint.tools.empty()) return refused(kInvalidGrammar, "tools: must not be empty");
  std::set<std::string_view> names;
  for (const ToolGrammar& tool : constraint.tools)
    if (tool.name.empty() || !names.insert(tool.name).second)
      return refused(kInvalidGrammar,
                     fmt::format("tools: names must be unique and not empty, found \"{}\"{}",
                                 tool.name, tool.name.empty() ? "" : " twice"));
  return {};
}

}  // namespace

bool may_be_relaxed(const Constraint& constraint, const ToolGrammar& tool) {
  using Calls = Constraint::Calls;
  const bool asked_for =
      constraint.calls == Calls::at_least_one || constraint.calls == Calls::exactly_one;
  return asked_for && !tool.strict;
}

bool has_schema(const Constraint& constraint, const ToolGrammar& tool, ToolStrictness strictness) {
  return tool.strict ||
         (may_be_relaxed(constraint, tool) && strictness != ToolStrictness::names_only);
}

Result<std::string> tool_call_tag(const Constraint& constraint,
                                  const Tokenizer& tokenizer,
                                  const GrammarLimits& limits,
                                  ToolStrictness strictness,
                                  std::int64_t end_ns) {
  using Calls = Constraint::Calls;
  KOHO_TRY(check(constraint));
  KOHO_TRY_ASSIGN(const CallTags tags, find_tags(tokenizer));
  const CallWriter writer(tags, constraint.newline_after_tags, limits.whitespace_max);
  Budget budget{.us_max = limits.compile_us_max, .end_ns = end_ns};
  std::vector<std::string> bodies;
  std::vector<std::string> free_names;
  for (const ToolGrammar& tool : constraint.tools) {
    if (!has_schema(constraint, tool, strictness)) {
      free_names.push_back(writer.name(tool));
      continue;
    }
    const SchemaStrictness schema_strictness = tool.strict ? SchemaStrictness::strict
                                               : strictness == ToolStrictness::best_effort
                                                   ? SchemaStrictness::best_effort
                                                   : SchemaStrictness::structure_only;
    Result<std::vector<std::string>> arguments =
        writer.arguments(tool, limits.schema, schema_strictness, budget);
    if (!arguments.ok() && schema_strictness == SchemaStrictness::best_effort)
      arguments = writer.arguments(tool, limits.schema, SchemaStrictness::structure_only, budget);
    if (!arguments.ok() && !tool.strict) {
      free_names.push_back(writer.name(tool));
      continue;
    }
    if (!arguments.ok()) return placed_at_tool(tool.name, std::move(arguments).error());
    bodies.push_back(writer.body(writer.name(tool), *arguments));
  }
  if (!free_names.empty())
    bodies.push_back(
        writer.body(joined("or", free_names), {around("star", writer.free_argument())}));
  const std::string body = joined("or", bodies);
  std::string format;
  if (constraint.calls == Calls::when_called) {
    format = fmt::format(
        R"({{"type":"token_dispatch","rules":[[{},{}]],"loop":{},"exclude_tokens":[{}]}})",
        tags.call_begin, body, !constraint.one_call, list_of(other_controls(tokenizer, tags)));
  } else {
    const std::string call = joined("sequence", {token(tags.call_begin), body});
    const bool one = constraint.calls == Calls::exactly_one || constraint.one_call;
    const std::string next =
        constraint.newline_after_tags ? joined("sequence", {text("\n"), call}) : call;
    format = one ? call : joined("sequence", {call, around("star", next)});
  }
  return fmt::format(R"({{"type":"structural_tag","format":{}}})", format);
}

}  // namespace koho
