// SPDX-License-Identifier: Apache-2.0
// Turns the JSON of a schema into nodes: the keywords of each subschema, the types that they
// concern, and the first fault of each. A fault counts only if the root reaches the node
// (schema_check.cpp).
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "grammar/pattern_rewrite.h"
#include "grammar/schema_tree.h"
#include "grammar/schema_values.h"

namespace koho {
namespace {

unsigned type_named(std::string_view name) {
  for (const auto& [known, type] : kTypeNames)
    if (known == name) return type;
  return 0;
}

constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kBounds{{
    {"minLength", "maxLength"},
    {"minItems", "maxItems"},
    {"minProperties", "maxProperties"},
}};

constexpr std::string_view kUnsupportedPattern =
    "a pattern that requires a quotation mark, a backslash or a control character, or combines "
    "non-ASCII characters with \".\", \"[^\", \"\\S\", \"\\W\", \"\\D\" or a control character's "
    "escape, is not supported";

/// Whether xgrammar limits a pattern to strings that JSON writes without escapes. It does if the
/// pattern requires no quotation mark, no backslash and no control character, and is all ASCII or
/// has no part that matches "any character except" or a control character.
bool stays_unescaped(std::string_view pattern) {
  bool in_class = false;
  bool negated = false;
  bool ascii = true;
  bool wide = false;
  std::size_t first = 0;  // of a class's members
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    ascii = ascii && static_cast<unsigned char>(c) < 0x80;
    if ((c == '"' && !(in_class && negated)) || (c >= 0 && c < ' ')) return false;
    if (c == '\\') {
      const char escaped = ++i < pattern.size() ? pattern[i] : '\\';
      if (escaped == '\\' && !(in_class && negated)) return false;
      constexpr std::string_view kWide = "SWDabcefnrtv0\"";
      constexpr std::string_view kWideBegin[] = {"u{",    "u000",  "u001", "x0",  "x1", "u0022",
                                                 "u005c", "u005C", "x22",  "x5c", "x5C"};
      const std::string_view rest = pattern.substr(std::min(i, pattern.size()));
      wide = wide || kWide.find(escaped) != kWide.npos ||
             std::ranges::any_of(kWideBegin, [&](auto begin) { return rest.starts_with(begin); });
    } else if (c == '[' && !in_class) {
      in_class = true;
      negated = pattern.substr(i).starts_with("[^");
      wide = wide || negated;
      first = i + (negated ? 2 : 1);
    } else if (c == '-' && in_class && i > first && i + 1 < pattern.size() &&
               pattern[i + 1] != ']') {
      const auto low = static_cast<unsigned char>(pattern[i - 1]);
      const auto high = static_cast<unsigned char>(pattern[i + 1]);
      wide = wide || (low <= '"' && high >= '"') || (low <= '\\' && high >= '\\');
    } else if (c == ']') {
      in_class = false;
    } else if (c == '.' && !in_class) {
      wide = true;
    }
  }
  return ascii || !wide;
}

/// Whether some number, or integer, is within the bounds of a schema.
bool has_number(const Value& schema, bool whole) {
  constexpr long double kNone = std::numeric_limits<long double>::infinity();
  // The upper bounds with their signs changed are lower ones.
  const auto lower = [&](std::string_view at_least, std::string_view above, long double sign) {
    const auto bound = [&](std::string_view name) {
      const Value* given = schema.find(name);
      return given == nullptr ? -kNone : sign * *exact_number(*given);
    };
    const long double least = bound(at_least);
    const long double less = bound(above);
    const bool open = less >= least && less != -kNone;
    if (!whole) return std::pair(std::max(least, less), open);
    return std::pair(std::max(std::ceil(least), std::floor(less) + 1), false);
  };
  const auto [low, low_open] = lower("minimum", "exclusiveMinimum", 1);
  const auto [high, high_open] = lower("maximum", "exclusiveMaximum", -1);
  return low < -high || (low == -high && !low_open && !high_open);
}

constexpr double kBoundMax = 9.2e18;  // of a number: xgrammar compares within 64 bits

/// What to write in place of a keyword that a grammar cannot express.
std::string_view instead_of(std::string_view keyword) {
  if (keyword == "not")
    return ", except of a type, of values beside a `type` or an enum, of required members, and of "
           "anyOf of these; write what is allowed in place of what is not";
  if (keyword == "if" || keyword == "then" || keyword == "else")
    return "; write the cases as anyOf, each with a required property whose const or enum differs";
  if (keyword.starts_with("depend"))
    return "; write the cases as anyOf, one with all of the members, one without them";
  if (keyword.ends_with("ontains")) return "; give the item its place with prefixItems";
  if (keyword == "additionalItems") return "; use items beside prefixItems";
  if (keyword.starts_with("$")) return "; use $defs and $ref";
  return "";
}

}  // namespace

int Schema::Tree::add(const Value& value, std::string path, std::string pointer, unsigned types) {
  const int index = static_cast<int>(nodes_.size());
  nodes_.emplace_back();
  at(index).value = &value;
  at(index).types = types;
  at(index).path = std::move(path);
  at(index).pointer = pointer;
  if (!pointer.empty()) by_pointer_.emplace(std::move(pointer), index);
  if (value.kind() == Kind::boolean) {
    at(index).impossible = !*value.boolean();
  } else if (value.object() == nullptr) {
    at(index).error =
        fault(kInvalidGrammar, at(index).path, "a schema must be an object or a boolean");
  } else if (Status status = read_members(index); !status.ok()) {
    at(index).error = std::move(status).error();
  }
  return index;
}

std::string Schema::Tree::pointer_below(const Node& node,
                                        std::string_view keyword,
                                        std::string_view name) {
  if (node.pointer.empty() || name.empty() || name.find_first_of("/~%") != name.npos) return {};
  return fmt::format("{}/{}/{}", node.pointer, keyword, name);
}

int Schema::Tree::add_below(int index,
                            const Value& value,
                            std::string_view keyword,
                            std::string_view name) {
  return add(value, fmt::format("{}.{}.{}", at(index).path, keyword, name),
             pointer_below(at(index), keyword, name));
}

Status Schema::Tree::read_members(int index) {
  const Value& value = *at(index).value;
  // Definitions come first, so that a $ref finds them even if this schema has a fault.
  for (const std::string_view keyword : {"$defs", "definitions"}) {
    const Value* list = value.find(keyword);
    if (list == nullptr || list->object() == nullptr) continue;
    for (const json::Member& member : *list->object()) {
      const int child = add_below(index, member.value, keyword, member.name);
      at(index).definitions.emplace_back(std::string(keyword), child);
      definition_names_.emplace(child, member.name);
    }
  }
  KOHO_TRY(read_types(index));
  KOHO_TRY(read_primary(index));
  if ((at(index).types & object_type) != 0) KOHO_TRY(read_object(index));
  if ((at(index).types & array_type) != 0) KOHO_TRY(read_array(index));
  if ((at(index).types & string_type) != 0) KOHO_TRY(read_text(index));
  return read_bounds(index);
}

Status Schema::Tree::read_types(int index) {
  Node& node = at(index);
  for (const json::Member& member : *node.value->object()) {
    if (is_one_of(kUnsupported, member.name))
      return fault(kUnsupportedSchema, node.path,
                   "{} is not supported: a grammar cannot express it{}", member.name,
                   instead_of(member.name));
    if (member.name == "uniqueItems" && member.value.boolean().value_or(true))
      return fault(kUnsupportedSchema, node.path,
                   "uniqueItems is not supported: a grammar cannot express it, except where items "
                   "has an enum of at most 8 scalars, or maxItems is 1; leave it out, and check "
                   "the answer");
    if (member.name == "unevaluatedProperties" && member.value.boolean().value_or(true))
      return fault(kUnsupportedSchema, node.path, "unevaluatedProperties must be false or absent");
  }
  const Value* type = node.value->find("type");
  if (type == nullptr) {
    const bool object = node.value->find("properties") != nullptr ||
                        node.value->find("additionalProperties") != nullptr ||
                        node.value->find("patternProperties") != nullptr;
    const bool array =
        node.value->find("items") != nullptr || node.value->find("prefixItems") != nullptr;
    if (object && array)
      return fault(kUnsupportedSchema, node.path,
                   "`type` is required where both object and array keywords are used");
    if (object) node.types &= object_type;
    if (array) node.types &= array_type;
    node.impossible = node.types == 0;
    return {};
  }
  unsigned types = 0;
  if (const std::string* name = type->string()) {
    types = type_named(*name);
  } else if (const Value::Array* names = type->array()) {
    for (const Value& one_name : *names) {
      const unsigned one = one_name.string() == nullptr ? 0 : type_named(*one_name.string());
      if (one == 0)
        return fault(kInvalidGrammar, node.path + ".type",
                     "each type must be one of string, integer, number, boolean, null, array and "
                     "object");
      types |= one;
    }
  }
  if (types == 0)
    return fault(kInvalidGrammar, node.path + ".type",
                 "type must be one of string, integer, number, boolean, null, array and object, or "
                 "a non-empty array of these");
  node.types &= types;  // the names of members are strings, whatever else the schema allows
  node.impossible = node.types == 0;
  return {};
}

Status Schema::Tree::read_primary(int index) {
  const Value& value = *at(index).value;
  for (const json::Member& member : *value.object()) {
    if (!is_one_of(kPrimary, member.name)) continue;
    if (!at(index).primary.empty())
      return fault(kUnsupportedSchema, at(index).path, "{} together with {} is not supported",
                   at(index).primary, member.name);
    at(index).primary = member.name;
  }
  const std::string primary = at(index).primary;
  const bool lists_values = primary == "const" || primary == "enum";
  for (const json::Member& member : *value.object()) {
    const unsigned type = limits_type(member.name);
    if (!primary.empty() && (type != 0 || (member.name == "type" && !lists_values)))
      return fault(kUnsupportedSchema, at(index).path, "{} together with {} is not supported{}",
                   member.name, primary,
                   lists_values ? ""
                                : " here: two patterns, formats or tuples, recursion, or too many "
                                  "alternatives cannot be merged");
    if (primary.empty() && type != 0 && value.find("type") == nullptr &&
        at(index).types == kAnyType)
      return fault(kUnsupportedSchema, at(index).path, "{} requires `type`", member.name);
  }
  if (primary.empty()) return {};
  const Value& content = *value.find(primary);
  if (primary == "$ref") {
    if (content.string() == nullptr)
      return fault(kInvalidGrammar, at(index).path + ".$ref", "$ref must be a string");
    return {};
  }
  if (primary == "const") {
    at(index).impossible = !has_type(content, at(index).types);
    return {};
  }
  const Value::Array* list = content.array();
  if (list == nullptr || list->empty())
    return fault(kInvalidGrammar, at(index).path + "." + primary, "{} must be a non-empty array",
                 primary);
  if (primary == "enum") {
    at(index).impossible = std::ranges::none_of(
        *list, [&](const Value& one) { return has_type(one, at(index).types); });
    return {};
  }
  if (primary == "allOf" && list->size() != 1)
    return fault(
        kUnsupportedSchema, at(index).path + ".allOf",
        "these {} schemas cannot be merged (two patterns, formats or tuples, recursion, or "
        "too many alternatives): write one schema in their place",
        list->size());
  for (std::size_t i = 0; i < list->size(); ++i) {
    const int option =
        add((*list)[i], fmt::format("{}.{}[{}]", at(index).path, primary, i), {}, at(index).types);
    at(index).options.push_back(option);
  }
  return {};
}

Status Schema::Tree::read_object(int index) {
  const Value& value = *at(index).value;
  if (const Value* properties = value.find("properties")) {
    if (properties->object() == nullptr)
      return fault(kInvalidGrammar, at(index).path + ".properties", "properties must be an object");
    for (const json::Member& member : *properties->object()) {
      const int child = add_below(index, member.value, "properties", member.name);
      at(index).properties.push_back({.name = member.name, .node = child});
    }
  }
  if (const Value* additional = value.find("additionalProperties");
      additional != nullptr && additional->kind() != Kind::boolean) {
    const int child = add(*additional, at(index).path + ".additionalProperties", {});
    at(index).additional = child;
  }
  if (const Value* names = value.find("propertyNames")) {
    if (!at(index).properties.empty())
      return fault(kUnsupportedSchema, at(index).path,
                   "propertyNames together with properties is not supported");
    const int child = add(*names, at(index).path + ".propertyNames", {}, string_type);
    at(index).names = child;
  }
  if (const Value* patterns = value.find("patternProperties")) {
    if (patterns->object() == nullptr)
      return fault(kInvalidGrammar, at(index).path + ".patternProperties",
                   "patternProperties must be an object");
    if (patterns->object()->size() > 1 || !at(index).properties.empty() || at(index).names >= 0)
      return fault(kUnsupportedSchema, at(index).path,
                   "patternProperties must have one pattern, without properties and propertyNames");
    for (const json::Member& member : *patterns->object()) {
      Result<std::string> rewritten = PatternRewriter().rewrite(member.name, true);
      if (!rewritten.ok())
        return placed(at(index).path + ".patternProperties", std::move(rewritten).error());
      if (!stays_unescaped(member.name))
        return fault(kUnsupportedSchema, at(index).path + ".patternProperties", "{}",
                     kUnsupportedPattern);
      const int child = add_below(index, member.value, "patternProperties", member.name);
      at(index).pattern_properties = child;
    }
  }
  KOHO_TRY(read_required(index));
  return check_names(index);
}

Status Schema::Tree::check_names(int index) {
  const Node& node = at(index);
  const bool free =
      node.pattern_properties >= 0 || (node.properties.empty() && allows_others(node));
  if (!free || number_of(node, "minProperties") < 2) return {};
  return fault(kUnsupportedSchema, node.path,
               "minProperties above 1 requires properties: a grammar cannot keep other names from "
               "appearing twice");
}

Status Schema::Tree::read_required(int index) {
  const Value* required = at(index).value->find("required");
  if (required == nullptr) return {};
  if (required->array() == nullptr)
    return fault(kInvalidGrammar, at(index).path + ".required",
                 "required must be an array of strings");
  for (const Value& name : *required->array()) {
    if (name.string() == nullptr)
      return fault(kInvalidGrammar, at(index).path + ".required",
                   "required must be an array of strings");
    const auto same = [&](const Property& property) { return property.name == *name.string(); };
    auto found = std::ranges::find_if(at(index).properties, same);
    if (found == at(index).properties.end()) {
      if (at(index).pattern_properties >= 0 || at(index).names >= 0)
        return fault(kUnsupportedSchema, at(index).path + ".required",
                     "\"{}\" is not in properties: required together with patternProperties or "
                     "propertyNames is not supported",
                     *name.string());
      const Value* others = at(index).value->find("additionalProperties");
      if (others != nullptr && others->boolean() == false) {
        at(index).types &= ~unsigned{object_type};
        at(index).impossible = at(index).types == 0;
        return {};
      }
      const int child = at(index).additional >= 0 ? at(index).additional : anything();
      at(index).properties.push_back({.name = *name.string(), .node = child});
      found = at(index).properties.end() - 1;
    }
    found->required = true;
  }
  return {};
}

Status Schema::Tree::read_array(int index) {
  const Value& value = *at(index).value;
  if (const Value* prefix = value.find("prefixItems")) {
    if (prefix->array() == nullptr)
      return fault(kInvalidGrammar, at(index).path + ".prefixItems",
                   "prefixItems must be an array of schemas");
    for (std::size_t i = 0; i < prefix->array()->size(); ++i) {
      const int child =
          add((*prefix->array())[i], fmt::format("{}.prefixItems[{}]", at(index).path, i), {});
      at(index).prefix.push_back(child);
    }
  }
  const Value* items = value.find("items");
  if (items == nullptr) return {};
  if (items->kind() != Kind::boolean && items->object() == nullptr)
    return fault(kUnsupportedSchema, at(index).path + ".items",
                 "items must be a schema; for a tuple use prefixItems");
  const int child = add(*items, at(index).path + ".items",
                        at(index).pointer.empty() ? "" : at(index).pointer + "/items");
  at(index).items = child;
  return {};
}

Status Schema::Tree::read_text(int index) {
  const Value& value = *at(index).value;
  const Value* format = value.find("format");
  const Value* pattern = value.find("pattern");
  if (format != nullptr && format->string() == nullptr)
    return fault(kInvalidGrammar, at(index).path + ".format", "format must be a string");
  if (pattern != nullptr && pattern->string() == nullptr)
    return fault(kInvalidGrammar, at(index).path + ".pattern", "pattern must be a string");
  if (pattern != nullptr) {
    Result<std::string> rewritten = PatternRewriter().rewrite(*pattern->string(), true);
    if (!rewritten.ok()) return placed(at(index).path + ".pattern", std::move(rewritten).error());
  }
  if (pattern != nullptr && !stays_unescaped(*pattern->string()))
    return fault(kUnsupportedSchema, at(index).path + ".pattern", "{}", kUnsupportedPattern);
  const bool length = value.find("minLength") != nullptr || value.find("maxLength") != nullptr;
  if (pattern != nullptr && length)
    return fault(
        kUnsupportedSchema, at(index).path,
        "minLength and maxLength together with pattern are not supported: write the bounds "
        "into the pattern, as in ^[a-z]{{1,64}}$");
  // Beside a pattern, a format restricts nothing, as JSON Schema lets it.
  if (format == nullptr || pattern != nullptr || !is_known_format(*format->string())) return {};
  if (!pattern_of_format(*format->string(), lengths_of(at(index)), false))
    return fault(kUnsupportedSchema, at(index).path,
                 "minLength {} and maxLength {} together with format {} are not supported: leave "
                 "out the lengths, or write a pattern in place of format",
                 value.find("minLength") == nullptr ? 0 : number_of(at(index), "minLength"),
                 value.find("maxLength") == nullptr
                     ? "none"
                     : std::to_string(number_of(at(index), "maxLength")),
                 *format->string());
  return {};
}

Status Schema::Tree::read_bounds(int index) {
  const Value& value = *at(index).value;
  for (const json::Member& member : *value.object()) {
    const std::string_view name = member.name;
    const bool count = name.starts_with("min") || name.starts_with("max");
    const bool bound = name.starts_with("exclusiveM") || name == "multipleOf" ||
                       name == "minimum" || name == "maximum";
    if (limits_type(name) == 0 || !(count || bound)) continue;
    if (bound && member.value.number() && std::abs(*member.value.number()) > kBoundMax)
      return fault(kUnsupportedSchema, fmt::format("{}.{}", at(index).path, name),
                   "{} must be within -2^63 and 2^63 (64 bits): leave it out to allow any number",
                   name);
    if (bound ? !member.value.number() : whole_number(member.value).value_or(-1) < 0)
      return fault(kInvalidGrammar, fmt::format("{}.{}", at(index).path, name), "{} must be a {}",
                   name, bound ? "number" : "non-negative integer");
  }
  unsigned types = at(index).types;
  for (const auto& [low, high] : kBounds) {
    const Value* least = value.find(low);
    const Value* most = value.find(high);
    if (least != nullptr && most != nullptr && *least->number() > *most->number())
      types &= ~limits_type(low);
  }
  if (!has_number(value, /*whole=*/false)) types &= ~unsigned{number_type | integer_type};
  const bool whole = (types & number_type) == 0;
  if (whole && !has_number(value, /*whole=*/true)) types &= ~unsigned{integer_type};
  at(index).types = types;
  at(index).impossible = at(index).impossible || types == 0;
  return {};
}

int Schema::Tree::anything() {
  if (anything_ < 0) {
    anything_value_ = Value(true);
    anything_ = add(anything_value_, "$", {});
  }
  return anything_;
}

}  // namespace koho
