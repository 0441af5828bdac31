// SPDX-License-Identifier: Apache-2.0
#include "grammar/structural_tag.h"

#include <algorithm>
#include <array>
#include <limits>

#include "base/json.h"
#include "base/json_writer.h"
#include "grammar/pattern_rewrite.h"
#include "grammar/schema_values.h"
#include "grammar/text_limits.h"
#include "tokenizer/utf8.h"

namespace koho {
namespace {

using json::Value;

/// The kind of value that a field of a format holds.
enum class Holds : std::uint8_t {
  text,     // a string
  words,    // an array of non-empty strings
  ends,     // a string or an array of strings
  boolean,  // true or false
  count,    // 0..2^31-1; the `max` of `repeat` may be -1: no bound
  schema,   // a JSON schema
  style,    // how arguments are written; only "json"
  pattern,  // a regular expression
  grammar,  // EBNF
  format,   // an object with a type
  formats,  // an array of formats
  tags,     // an array of formats of type tag
  rules     // an array of [string, format]
};

struct Field {
  std::string_view name;
  Holds holds;
  bool required = true;
};

struct FormatKind {
  std::string_view name;
  std::array<Field, 5> fields;  // an entry without a name is unused
};

constexpr Field kContent{"content", Holds::format};
constexpr Field kElements{"elements", Holds::formats};
constexpr Field kTags{"tags", Holds::tags};
constexpr Field kExcludes{"excludes", Holds::words, false};
constexpr Field kAtLeastOne{"at_least_one", Holds::boolean, false};
constexpr Field kStopAfterFirst{"stop_after_first", Holds::boolean, false};

constexpr FormatKind kFormats[] = {
    {"const_string", {{{"value", Holds::text}}}},
    {"json_schema", {{{"json_schema", Holds::schema}, {"style", Holds::style, false}}}},
    {"grammar", {{{"grammar", Holds::grammar}}}},
    {"regex", {{{"pattern", Holds::pattern}}}},
    {"any_text", {{kExcludes, {"max_chars", Holds::count, false}}}},
    {"sequence", {{kElements}}},
    {"or", {{kElements}}},
    {"optional", {{kContent}}},
    {"plus", {{kContent}}},
    {"star", {{kContent}}},
    {"repeat", {{{"min", Holds::count}, {"max", Holds::count}, kContent}}},
    {"tag", {{{"begin", Holds::text}, kContent, {"end", Holds::ends}}}},
    {"triggered_tags",
     {{{"triggers", Holds::words}, kTags, kExcludes, kAtLeastOne, kStopAfterFirst}}},
    {"tags_with_separator", {{kTags, {"separator", Holds::text}, kAtLeastOne, kStopAfterFirst}}},
    {"dispatch", {{{"rules", Holds::rules}, {"loop", Holds::boolean, false}, kExcludes}}}};

Error wrong(std::string_view path, std::string_view what) {
  return refused(kInvalidGrammar, fmt::format("{}: {}", path, what));
}

/// Checks formats and writes them for xgrammar. Recursive; the JSON parser has bounded the depth.
class TagWriter {
 public:
  explicit TagWriter(const GrammarLimits& limits) : limits_(limits) {}

  Status format(const Value& value, const std::string& path, std::string_view only = {}) {
    const Value* type = value.find("type");
    if (type == nullptr || type->string() == nullptr)
      return wrong(path, "a format must be an object with the string \"type\"");
    const auto* kind = std::ranges::find(kFormats, *type->string(), &FormatKind::name);
    if (kind == std::end(kFormats) || (!only.empty() && kind->name != only))
      return wrong(path, fmt::format("the type \"{:.40}\" is not supported here{}", *type->string(),
                                     only.empty() ? "" : fmt::format("; it must be \"{}\"", only)));
    for (const json::Member& member : *value.object())
      if (member.name != "type" && !is_unset(member.value) &&
          std::ranges::find(kind->fields, member.name, &Field::name) == kind->fields.end())
        return wrong(path, fmt::format("\"{:.40}\" is not a supported field of {}", member.name,
                                       kind->name));
    out_ += fmt::format(R"({{"type":"{}")", kind->name);
    for (const Field& one : kind->fields) {
      if (one.name.empty()) continue;
      const Value* held = value.find(one.name);
      const bool absent = held == nullptr || held->is_null() ||
                          (!one.required && held->array() != nullptr && held->array()->empty());
      if (absent) {
        if (one.required)
          return wrong(path, fmt::format("{} requires \"{}\"", kind->name, one.name));
        continue;
      }
      out_ += fmt::format(R"(,"{}":)", one.name);
      KOHO_TRY(field(one.holds, *held, fmt::format("{}.{}", path, one.name)));
    }
    if (kind->name == "json_schema")
      out_ += fmt::format(R"(,"max_whitespace_cnt":{})", limits_.whitespace_max);
    out_ += '}';
    return {};
  }

  /// Writes one element of "structures" as a tag.
  Status structure(const Value& value, const std::string& path) {
    const Value* begin = value.find("begin");
    const Value* end = value.find("end");
    if (begin == nullptr || end == nullptr)
      return wrong(path, "a structure must be an object with \"begin\", \"schema\" and \"end\"");
    out_ += R"({"type":"tag","begin":)";
    KOHO_TRY(text(*begin, path + ".begin"));
    out_ += R"(,"content":{"type":"json_schema","json_schema":)";
    const Value* given = value.find("schema");
    if (given == nullptr || given->is_null())
      out_ += "true";
    else
      KOHO_TRY(schema(*given, path + ".schema"));
    out_ += fmt::format(R"(,"max_whitespace_cnt":{}}},"end":)", limits_.whitespace_max);
    KOHO_TRY(text(*end, path + ".end"));
    out_ += '}';
    return {};
  }

  /// Writes the older form, structures with triggers, as triggered_tags.
  Status triggered(const Value& structures, const Value& triggers) {
    out_ += R"({"type":"triggered_tags","triggers":)";
    KOHO_TRY(words(triggers, "$.triggers"));
    out_ += R"(,"tags":)";
    KOHO_TRY(list(structures, "$.structures", [&](const Value& value, const std::string& path) {
      return structure(value, path);
    }));
    out_ += '}';
    return {};
  }

  std::string take() { return fmt::format(R"({{"type":"structural_tag","format":{}}})", out_); }

 private:
  /// null, false and []: serializers write these for fields that the client left unset.
  static bool is_unset(const Value& value) {
    return value.is_null() || value.boolean() == false ||
           (value.array() != nullptr && value.array()->empty());
  }

  Status field(Holds holds, const Value& value, const std::string& path) {
    const auto any_format = [&](const Value& one, const std::string& place) {
      return format(one, place);
    };
    const auto tag = [&](const Value& one, const std::string& place) {
      return format(one, place, "tag");
    };
    const auto rule = [&](const Value& one, const std::string& place) { return pair(one, place); };
    switch (holds) {
      case Holds::text:
        return text(value, path);
      case Holds::words:
        return words(value, path);
      case Holds::ends:
        if (value.array() == nullptr) return text(value, path);
        return list(value, path,
                    [&](const Value& one, const std::string& place) { return text(one, place); });
      case Holds::boolean:
        if (!value.boolean()) return wrong(path, "must be true or false");
        out_ += *value.boolean() ? "true" : "false";
        return {};
      case Holds::count: {
        const std::int64_t count = whole_number(value).value_or(-2);
        if (count < -1 || count > std::numeric_limits<std::int32_t>::max() ||
            (count == -1 && !path.ends_with(".max")))
          return wrong(path,
                       "must be an integer from 0 to 2147483647; the max of repeat may be -1");
        out_ += std::to_string(count);
        return {};
      }
      case Holds::schema:
        return schema(value, path);
      case Holds::style:
        if (value.string() == nullptr || *value.string() != "json")
          return wrong(path, "must be \"json\": other styles are not supported");
        out_ += R"("json")";
        return {};
      case Holds::pattern: {
        if (value.string() == nullptr) return wrong(path, "must be a string");
        KOHO_TRY(check_text(path, *value.string(), limits_));
        Result<std::string> rewritten = patterns_.rewrite(*value.string(), false);
        if (!rewritten.ok()) return placed(path, std::move(rewritten).error());
        append_json_string(out_, *rewritten);
        return {};
      }
      case Holds::grammar: {
        KOHO_TRY(text(value, path));
        KOHO_TRY(check_text(path, *value.string(), limits_));
        Status status = check_grammar_escapes(*value.string());
        if (!status.ok()) return placed(path, std::move(status).error());
        return {};
      }
      case Holds::format:
        return format(value, path);
      case Holds::formats:
        return list(value, path, any_format);
      case Holds::tags:
        return list(value, path, tag);
      case Holds::rules:
        return list(value, path, rule);
    }
    return {};
  }

  Status text(const Value& value, const std::string& path) {
    if (value.string() == nullptr) return wrong(path, "must be a string");
    if (value.string()->find('\0') != std::string::npos)
      return wrong(path, "must not contain U+0000");
    append_json_string(out_, *value.string());
    return {};
  }

  Status words(const Value& value, const std::string& path) {
    return list(value, path, [&](const Value& one, const std::string& place) -> Status {
      if (one.string() != nullptr && one.string()->empty())
        return wrong(place, "must not be empty");
      return text(one, place);
    });
  }

  Status schema(const Value& value, const std::string& path) {
    std::string written;
    append_json_value(written, value);
    Result<Schema> read = Schema::read(written, limits_.schema);
    if (!read.ok()) return placed(path, std::move(read).error());
    out_ += read->text();
    return {};
  }

  /// Writes one element of "rules": [trigger, format].
  Status pair(const Value& value, const std::string& path) {
    if (value.array() == nullptr || value.array()->size() != 2)
      return wrong(path, "a rule must be an array of a string and a format");
    const Value& trigger = (*value.array())[0];
    if (trigger.string() == nullptr || trigger.string()->empty())
      return wrong(path, "the first element of a rule must be a non-empty string");
    out_ += '[';
    KOHO_TRY(text(trigger, path + "[0]"));
    out_ += ',';
    KOHO_TRY(format((*value.array())[1], path + "[1]"));
    out_ += ']';
    return {};
  }

  /// Writes a non-empty array.
  template <typename Write>
  Status list(const Value& value, const std::string& path, const Write& write) {
    if (value.array() == nullptr || value.array()->empty())
      return wrong(path, "must be a non-empty array");
    char before = '[';
    for (std::size_t i = 0; i < value.array()->size(); ++i) {
      out_ += before;
      KOHO_TRY(write((*value.array())[i], fmt::format("{}[{}]", path, i)));
      before = ',';
    }
    out_ += ']';
    return {};
  }

  PatternRewriter patterns_;
  const GrammarLimits& limits_;
  std::string out_;
};

}  // namespace

Result<std::string> structural_tag_text(std::string_view text, const GrammarLimits& limits) {
  KOHO_TRY(check_text("structural_tag", text, limits));
  const Result<Value> read = json::parse(
      text, {.depth_max = limits.schema.depth_max, .string_bytes_max = limits.schema.bytes_max});
  if (!read.ok()) return wrong("structural_tag", read.error().message);
  const Value* type = read->find("type");
  if (type == nullptr || type->string() == nullptr || *type->string() != "structural_tag")
    return wrong("$.type", "must be \"structural_tag\"");
  TagWriter writer(limits);
  if (const Value* format = read->find("format")) {
    KOHO_TRY(writer.format(*format, "$.format"));
    return writer.take();
  }
  const Value* structures = read->find("structures");
  const Value* triggers = read->find("triggers");
  if (structures == nullptr || triggers == nullptr)
    return wrong("$", "a structural tag must have \"format\", or \"structures\" and \"triggers\"");
  KOHO_TRY(writer.triggered(*structures, *triggers));
  return writer.take();
}

Result<std::string> choice_tag(const Constraint& constraint, const GrammarLimits& limits) {
  if (constraint.choices.empty()) return refused(kInvalidGrammar, "choice: must not be empty");
  if (constraint.choices.size() > static_cast<std::size_t>(limits.choices_max))
    return refused(kGrammarTooComplex,
                   fmt::format("choice: at most {} strings are supported, found {}",
                               limits.choices_max, constraint.choices.size()));
  std::string list;
  for (const std::string& choice : constraint.choices) {
    if (choice.empty() || choice.find('\0') != choice.npos ||
        utf8_valid_bytes(choice) != choice.size())
      return refused(kInvalidGrammar,
                     "choice: each must be a non-empty UTF-8 string without U+0000");
    list += fmt::format(R"({}{{"type":"const_string","value":{}}})", list.empty() ? "" : ",",
                        json_string(choice));
  }
  if (list.size() > limits.schema.bytes_max)
    return refused(kGrammarTooComplex,
                   fmt::format("choice: the strings have {} bytes in total; the limit is {}",
                               list.size(), limits.schema.bytes_max));
  if (constraint.choices.size() == 1)
    return fmt::format(R"({{"type":"structural_tag","format":{}}})", list);
  return fmt::format(R"({{"type":"structural_tag","format":{{"type":"or","elements":[{}]}}}})",
                     list);
}

}  // namespace koho
