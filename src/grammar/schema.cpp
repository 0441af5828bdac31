// SPDX-License-Identifier: Apache-2.0
#include "grammar/schema.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/json.h"
#include "grammar/constraint.h"
#include "grammar/json_text.h"
#include "grammar/schema_keywords.h"
#include "grammar/schema_relaxation.h"

namespace koho {
namespace {

using json::Kind;
using json::Value;

// ---- types

constexpr std::array<std::pair<std::string_view, unsigned>, 7> kTypeNames{{
    {"string", string_type},
    {"integer", integer_type},
    {"number", number_type},
    {"boolean", boolean_type},
    {"null", null_type},
    {"array", array_type},
    {"object", object_type},
}};

unsigned type_named(std::string_view name) {
  for (const auto& [known, type] : kTypeNames)
    if (known == name) return type;
  return 0;
}

/// Whether `value` is one of `types`: 3.0 is an integer, as JSON Schema has it.
bool has_type(const Value& value, unsigned types) {
  switch (value.kind()) {
    case Kind::null:
      return (types & null_type) != 0;
    case Kind::boolean:
      return (types & boolean_type) != 0;
    case Kind::integer:
      return (types & (integer_type | number_type)) != 0;
    case Kind::real: {
      const double real = *value.number();
      const bool whole =
          real == static_cast<double>(static_cast<std::int64_t>(std::clamp(real, -9.0e18, 9.0e18)));
      return (types & number_type) != 0 || (whole && (types & integer_type) != 0);
    }
    case Kind::string:
      return (types & string_type) != 0;
    case Kind::array:
      return (types & array_type) != 0;
    case Kind::object:
      return (types & object_type) != 0;
  }
  return false;
}

// ---- keywords

/// The formats that xgrammar holds a string to; others say nothing about it.
constexpr std::array<std::string_view, 14> kFormats{"email",         "date",
                                                    "time",          "date-time",
                                                    "duration",      "ipv4",
                                                    "ipv6",          "hostname",
                                                    "uuid",          "uri",
                                                    "uri-reference", "uri-template",
                                                    "json-pointer",  "relative-json-pointer"};
constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kBounds{{
    {"minLength", "maxLength"},
    {"minimum", "maximum"},
    {"minItems", "maxItems"},
    {"minProperties", "maxProperties"},
}};

/// Of e-mail addresses: xgrammar's own form takes tens of milliseconds a mask at 150,000 tokens.
constexpr std::string_view kEmail =
    R"(^[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@[A-Za-z0-9]+(-[A-Za-z0-9]+)*(\.[A-Za-z0-9]+(-[A-Za-z0-9]+)*)+$)";

constexpr std::string_view kPatternTrouble =
    "a pattern that asks for quotation marks or backslashes, or mixes characters beyond ASCII with "
    "\".\" or \"[^\", is not supported";

// ---- writing

/// Writes an object's members one by one.
class ObjectWriter {
 public:
  explicit ObjectWriter(std::string& out) : out_(out) { out_ += '{'; }
  std::string& key(std::string_view name) {
    if (!first_) out_ += ',';
    first_ = false;
    append_json_string(out_, name);
    out_ += ':';
    return out_;
  }
  void end() { out_ += '}'; }

 private:
  std::string& out_;
  bool first_ = true;
};

/// Whether xgrammar keeps a pattern's strings within what JSON writes without escapes. It does for
/// patterns in ASCII that do not ask for a quotation mark or a backslash, and beyond ASCII if no
/// part stands for "any character but".
bool stays_unescaped(std::string_view pattern) {
  bool in_class = false;
  bool negated = false;
  bool ascii = true;
  bool wide = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    ascii = ascii && static_cast<unsigned char>(c) < 0x80;
    if (c == '"' && !(in_class && negated)) return false;
    if (c == '\\') {
      const char escaped = ++i < pattern.size() ? pattern[i] : '\\';
      if (escaped == '\\' && !(in_class && negated)) return false;
      wide = wide || escaped == 'S' || escaped == 'W' || escaped == 'D';
    } else if (c == '[' && !in_class) {
      in_class = true;
      negated = pattern.substr(i).starts_with("[^");
      wide = wide || negated;
    } else if (c == ']') {
      in_class = false;
    } else if (c == '.' && !in_class) {
      wide = true;
    }
  }
  return ascii || !wide;
}

template <typename... Args>
Error fault(ErrorReason reason,
            std::string_view path,
            fmt::format_string<Args...> format,
            Args&&... args) {
  return refused(reason,
                 fmt::format("{}: {}", path, fmt::format(format, std::forward<Args>(args)...)));
}

}  // namespace

/// The schemas of a text, each a node. Nodes are named by index.
class Schema::Tree {
 public:
  static Result<std::unique_ptr<Tree>> read(std::string_view text,
                                            const SchemaLimits& limits,
                                            SchemaStrictness strictness) {
    auto tree = std::make_unique<Tree>();
    if (text.size() > limits.bytes_max)
      return fault(kGrammarTooComplex, "$", "a schema has at most {} bytes, found {}",
                   limits.bytes_max, text.size());
    Result<Value> root = json::parse(text, {.depth_max = limits.depth_max});
    if (!root.ok())
      return fault(
          root.error().reason == ErrorReason::too_deep ? kGrammarTooComplex : kInvalidGrammar, "$",
          "{}", root.error().message);
    tree->root_ = std::move(root).value();
    if (strictness != SchemaStrictness::strict) relax_schema(tree->root_, strictness);
    tree->add(tree->root_, "$", "#");
    KOHO_TRY(tree->resolve());
    tree->find_discriminators();
    tree->find_productive();
    KOHO_TRY(tree->check_disjoint());
    if (!tree->nodes_[0].productive)
      return fault(kUnsatisfiableSchema, tree->unsatisfiable_path(),
                   "no value of finite length is valid");
    return tree;
  }

  std::string text() const {
    std::string out;
    write(out, 0, kAnyType, true);
    return out;
  }

  std::optional<LengthPlan> take_lengths() {
    for (const Node& node : nodes_)
      if (node.reached && node.names >= 0) return std::nullopt;  // names are strings, too
    for (Node& node : nodes_) node.counted = bounds_of(node);
    // Each round leaves bounds to the grammar that differ from others of their place.
    constexpr int kRoundsMax = 16;
    for (int round = 0; round < kRoundsMax; ++round) {
      LengthPlan plan;
      bool agreed = true;
      if (!place_all(plan, agreed)) break;
      if (!agreed) continue;
      if (std::ranges::none_of(plan.places,
                               [](const auto& place) { return place.text.has_value(); }))
        break;
      return plan;
    }
    for (Node& node : nodes_) node.counted.reset();
    return std::nullopt;
  }

  int num_parts() const { return static_cast<int>(nodes_.size()); }

  std::optional<Part> part(int index) const {
    const Node& node = at(index);
    if (!node.reached || !node.productive) return std::nullopt;
    Part part;
    part.path = node.path;
    for (const std::string_view keyword : {"pattern", "multipleOf"})
      if (node.value->find(keyword) != nullptr) part.path += fmt::format(".{}", keyword);
    write(part.text, index, kAnyType, false);
    part.refers = part.text.find(R"("$ref")") != part.text.npos;
    if (part.refers) part.text = standing_alone(index, kAnyType);
    return part;
  }

  bool open() const {
    const Node& node = nodes_[static_cast<std::size_t>(follow(0))];
    return node.properties.empty() && allows_others(node);
  }

  Result<std::vector<SchemaProperty>> properties() const {
    const int index = follow(0);
    const Node& node = at(index);
    if (node.types == kAnyType && node.value->object() != nullptr && node.primary.empty() &&
        node.properties.empty())
      return std::vector<SchemaProperty>{};
    if (node.types != object_type || !node.primary.empty() || node.pattern_properties >= 0)
      return fault(kUnsupportedSchema, node.path,
                   "a tool's parameters are an object described by its properties");
    if (refers_beyond_definitions_)
      return fault(kUnsupportedSchema, node.path,
                   "a tool's parameters may refer to $defs and definitions only");
    std::vector<SchemaProperty> found;
    for (const Property& property : node.properties) {
      if (!at(property.node).productive) continue;
      SchemaProperty& entry = found.emplace_back();
      entry.name = property.name;
      entry.required = property.always_comes();
      std::vector<int> seen;
      add_forms(property.node, entry.forms, seen);
    }
    return found;
  }

 private:
  struct Property {
    std::string name;
    int node = -1;
    bool required = false;
    bool discriminates = false;  // between options: it always comes, whether it must or not
    bool always_comes() const { return required || discriminates; }
  };
  struct Node {
    const Value* value = nullptr;  // an object or a boolean
    std::string path;
    std::string pointer;
    std::optional<Error> error;  // counts if the node is reached from the root
    std::string primary;         // its keyword of kPrimary, or empty
    unsigned types = kAnyType;
    bool impossible = false;
    std::vector<Property> properties;
    std::vector<int> options;  // of anyOf, oneOf, allOf
    std::vector<int> prefix;   // of prefixItems
    int items = -1;
    int additional = -1;  // additionalProperties, if a schema
    int names = -1;
    int pattern_properties = -1;                           // the only one
    std::vector<std::pair<std::string, int>> definitions;  // "$defs" or "definitions", name: below
    int target = -1;                                       // of $ref
    bool reached = false;
    bool productive = false;
    std::optional<LengthBounds> counted;  // bounds of a string that text() leaves open
  };

  const Node& at(int index) const { return nodes_[static_cast<std::size_t>(index)]; }
  Node& at(int index) { return nodes_[static_cast<std::size_t>(index)]; }

  // ---- reading: one node a schema; depth is bounded by the parser's

  /// `types`: what the schema is about if it does not say.
  int add(const Value& value, std::string path, std::string pointer, unsigned types = kAnyType) {
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
          fault(kInvalidGrammar, at(index).path, "a schema is an object or a boolean");
    } else if (Status status = read_members(index); !status.ok()) {
      at(index).error = std::move(status).error();
    }
    return index;
  }

  /// A pointer can name what lies under plain names only.
  std::string pointer_below(const Node& node, std::string_view keyword, std::string_view name) {
    if (node.pointer.empty() || name.empty() || name.find_first_of("/~%") != name.npos) return {};
    return fmt::format("{}/{}/{}", node.pointer, keyword, name);
  }

  int add_below(int index, const Value& value, std::string_view keyword, std::string_view name) {
    return add(value, fmt::format("{}.{}.{}", at(index).path, keyword, name),
               pointer_below(at(index), keyword, name));
  }

  Status read_members(int index) {
    const Value& value = *at(index).value;
    // Children first: they are found by their pointers whatever is wrong with this one.
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

  Status read_types(int index) {
    Node& node = at(index);
    for (const json::Member& member : *node.value->object()) {
      if (is_one_of(kUnsupported, member.name))
        return fault(kUnsupportedSchema, node.path, "{} is not supported", member.name);
      if (member.name == "uniqueItems" && member.value.boolean().value_or(true))
        return fault(kUnsupportedSchema, node.path, "uniqueItems is not supported");
      if (member.name == "unevaluatedProperties" && member.value.boolean().value_or(true))
        return fault(kUnsupportedSchema, node.path,
                     "unevaluatedProperties is not supported, unless false");
    }
    const Value* type = node.value->find("type");
    if (type == nullptr) {
      const bool object = node.value->find("properties") != nullptr ||
                          node.value->find("additionalProperties") != nullptr ||
                          node.value->find("patternProperties") != nullptr;
      const bool array =
          node.value->find("items") != nullptr || node.value->find("prefixItems") != nullptr;
      if (object && array)
        return fault(kUnsupportedSchema, node.path, "a schema of objects and arrays needs a type");
      if (object) node.types = object_type;
      if (array) node.types = array_type;
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
                       "a type is string, integer, number, boolean, null, array or object");
        types |= one;
      }
    }
    if (types == 0)
      return fault(kInvalidGrammar, node.path + ".type",
                   "a type is string, integer, number, boolean, null, array or object, or a list "
                   "of these");
    node.types = types;
    return {};
  }

  Status read_primary(int index) {
    const Value& value = *at(index).value;
    for (const json::Member& member : *value.object()) {
      if (!is_one_of(kPrimary, member.name)) continue;
      if (!at(index).primary.empty())
        return fault(kUnsupportedSchema, at(index).path, "{} beside {} is not supported",
                     at(index).primary, member.name);
      at(index).primary = member.name;
    }
    const std::string primary = at(index).primary;
    const bool lists_values = primary == "const" || primary == "enum";
    for (const json::Member& member : *value.object()) {
      const unsigned type = limits_type(member.name);
      if (!primary.empty() && (type != 0 || (member.name == "type" && !lists_values)))
        return fault(kUnsupportedSchema, at(index).path, "{} beside {} is not supported",
                     member.name, primary);
      if (primary.empty() && type != 0 && value.find("type") == nullptr &&
          at(index).types == kAnyType)
        return fault(kUnsupportedSchema, at(index).path, "{} needs a type beside it", member.name);
    }
    if (primary.empty()) return {};
    const Value& content = *value.find(primary);
    if (primary == "$ref") {
      if (content.string() == nullptr)
        return fault(kInvalidGrammar, at(index).path + ".$ref", "a reference is a string");
      return {};
    }
    if (primary == "const") {
      at(index).impossible = !has_type(content, at(index).types);
      return {};
    }
    const Value::Array* list = content.array();
    if (list == nullptr || list->empty())
      return fault(kInvalidGrammar, at(index).path + "." + primary,
                   "{} is a list that is not empty", primary);
    if (primary == "enum") {
      at(index).impossible = std::ranges::none_of(
          *list, [&](const Value& one) { return has_type(one, at(index).types); });
      return {};
    }
    if (primary == "allOf" && list->size() != 1)
      return fault(kUnsupportedSchema, at(index).path + ".allOf",
                   "allOf of more than one schema is not supported");
    for (std::size_t i = 0; i < list->size(); ++i) {
      const int option = add((*list)[i], fmt::format("{}.{}[{}]", at(index).path, primary, i), {});
      at(index).options.push_back(option);
    }
    return {};
  }

  Status read_object(int index) {
    const Value& value = *at(index).value;
    if (const Value* properties = value.find("properties")) {
      if (properties->object() == nullptr)
        return fault(kInvalidGrammar, at(index).path + ".properties", "properties is an object");
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
                     "propertyNames beside properties is not supported");
      const int child = add(*names, at(index).path + ".propertyNames", {}, string_type);
      at(index).names = child;
    }
    if (const Value* patterns = value.find("patternProperties")) {
      if (patterns->object() == nullptr)
        return fault(kInvalidGrammar, at(index).path + ".patternProperties",
                     "patternProperties is an object");
      if (patterns->object()->size() > 1 || !at(index).properties.empty() || at(index).names >= 0)
        return fault(kUnsupportedSchema, at(index).path,
                     "patternProperties is supported with one pattern, and alone");
      for (const json::Member& member : *patterns->object()) {
        if (!stays_unescaped(member.name))
          return fault(kUnsupportedSchema, at(index).path + ".patternProperties", "{}",
                       kPatternTrouble);
        const int child = add_below(index, member.value, "patternProperties", member.name);
        at(index).pattern_properties = child;
      }
    }
    KOHO_TRY(read_required(index));
    return check_names(index);
  }

  /// Where any name may come, it may come twice, which readers of JSON count as one.
  Status check_names(int index) {
    const Node& node = at(index);
    const bool free =
        node.pattern_properties >= 0 || (node.properties.empty() && allows_others(node));
    if (!free || number_of(node, "minProperties") < 2) return {};
    return fault(kUnsupportedSchema, node.path,
                 "minProperties above 1 is supported beside properties only");
  }

  Status read_required(int index) {
    const Value* required = at(index).value->find("required");
    if (required == nullptr) return {};
    if (required->array() == nullptr)
      return fault(kInvalidGrammar, at(index).path + ".required", "required is a list of names");
    for (const Value& name : *required->array()) {
      if (name.string() == nullptr)
        return fault(kInvalidGrammar, at(index).path + ".required", "required is a list of names");
      const auto same = [&](const Property& property) { return property.name == *name.string(); };
      auto found = std::ranges::find_if(at(index).properties, same);
      if (found == at(index).properties.end()) {
        if (at(index).pattern_properties >= 0 || at(index).names >= 0)
          return fault(kUnsupportedSchema, at(index).path + ".required",
                       "\"{}\" is not one of properties", *name.string());
        const Value* others = at(index).value->find("additionalProperties");
        if (others != nullptr && others->boolean() == false) {
          at(index).impossible = true;
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

  Status read_array(int index) {
    const Value& value = *at(index).value;
    if (const Value* prefix = value.find("prefixItems")) {
      if (prefix->array() == nullptr)
        return fault(kInvalidGrammar, at(index).path + ".prefixItems", "prefixItems is a list");
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
                   "items is a schema (a list of schemas is prefixItems)");
    const int child = add(*items, at(index).path + ".items",
                          at(index).pointer.empty() ? "" : at(index).pointer + "/items");
    at(index).items = child;
    return {};
  }

  Status read_text(int index) {
    const Value& value = *at(index).value;
    const Value* format = value.find("format");
    const Value* pattern = value.find("pattern");
    if (format != nullptr && format->string() == nullptr)
      return fault(kInvalidGrammar, at(index).path + ".format", "format is a string");
    if (pattern != nullptr && pattern->string() == nullptr)
      return fault(kInvalidGrammar, at(index).path + ".pattern", "pattern is a string");
    if (pattern != nullptr && !stays_unescaped(*pattern->string()))
      return fault(kUnsupportedSchema, at(index).path + ".pattern", "{}", kPatternTrouble);
    const bool length = value.find("minLength") != nullptr || value.find("maxLength") != nullptr;
    if (pattern != nullptr && length)
      return fault(kUnsupportedSchema, at(index).path,
                   "minLength and maxLength beside pattern are not supported");
    return {};
  }

  Status read_bounds(int index) {
    const Value& value = *at(index).value;
    for (const json::Member& member : *value.object()) {
      const std::string_view name = member.name;
      const bool count = name.starts_with("min") || name.starts_with("max");
      const bool bound = name.starts_with("exclusiveM") || name == "multipleOf" ||
                         name == "minimum" || name == "maximum";
      if (limits_type(name) == 0 || !(count || bound)) continue;
      if (bound ? !member.value.number() : !member.value.integer() || *member.value.integer() < 0)
        return fault(kInvalidGrammar, fmt::format("{}.{}", at(index).path, name), "{} is a {}",
                     name, bound ? "number" : "whole number from 0 on");
    }
    for (const auto& [low, high] : kBounds) {
      const Value* least = value.find(low);
      const Value* most = value.find(high);
      if (least == nullptr || most == nullptr || *least->number() <= *most->number()) continue;
      return fault(kUnsatisfiableSchema, at(index).path, "{} is greater than {}", low, high);
    }
    return {};
  }

  /// A node for "any value", made once.
  int anything() {
    if (anything_ < 0) {
      anything_value_ = Value(true);
      anything_ = add(anything_value_, "$", {});
    }
    return anything_;
  }

  // ---- references, faults

  /// Follows references from the root and reports the first fault that is reached.
  Status resolve() {
    std::vector<int> open{0};
    at(0).reached = true;
    const auto reach = [&](int child) {
      if (child < 0 || at(child).reached) return;
      at(child).reached = true;
      open.push_back(child);
    };
    while (!open.empty()) {
      const int index = open.back();
      open.pop_back();
      if (at(index).error) return *at(index).error;
      if (at(index).primary == "$ref") {
        const std::string& name = *at(index).value->find("$ref")->string();
        const auto found = by_pointer_.find(name);
        if (found == by_pointer_.end())
          return fault(name.starts_with("#") ? kInvalidGrammar : kUnsupportedSchema,
                       at(index).path + ".$ref",
                       "\"{}\" names no schema of this document that can be referred to", name);
        at(index).target = found->second;
        if (!name.starts_with("#/$defs/") && !name.starts_with("#/definitions/"))
          refers_beyond_definitions_ = true;
        reach(at(index).target);
        continue;
      }
      for (const int option : at(index).options) reach(option);
      for (const Property& property : at(index).properties) reach(property.node);
      for (const int item : at(index).prefix) reach(item);
      for (const int child :
           {at(index).items, at(index).additional, at(index).names, at(index).pattern_properties})
        reach(child);
    }
    return {};
  }

  // ---- what can be completed

  std::int64_t number_of(const Node& node, std::string_view keyword) const {
    const Value* found = node.value->find(keyword);
    return found == nullptr ? 0 : found->integer().value_or(0);
  }

  /// Whether a value of finite length is valid, given what is known of the other nodes.
  bool completes(const Node& node) const {
    if (node.impossible || node.error) return false;
    if (node.value->object() == nullptr) return true;
    if (node.primary == "$ref") return node.target >= 0 && at(node.target).productive;
    if (!node.options.empty())
      return std::ranges::any_of(node.options, [&](int i) { return at(i).productive; });
    if (!node.primary.empty()) return true;
    if ((node.types & ~(array_type | object_type)) != 0) return true;
    return ((node.types & object_type) != 0 && object_completes(node)) ||
           ((node.types & array_type) != 0 && array_completes(node));
  }

  bool object_completes(const Node& node) const {
    if (!std::ranges::all_of(node.properties, [&](const Property& property) {
          return !property.always_comes() || at(property.node).productive;
        }))
      return false;
    if (number_of(node, "minProperties") == 0) return true;
    if (node.pattern_properties >= 0) return at(node.pattern_properties).productive;
    if (!node.properties.empty())
      return std::ranges::count_if(node.properties, [&](const Property& property) {
               return at(property.node).productive;
             }) >= number_of(node, "minProperties");
    return allows_others(node) && (node.additional < 0 || at(node.additional).productive);
  }

  bool array_completes(const Node& node) const {
    if (!std::ranges::all_of(node.prefix, [&](int item) { return at(item).productive; }))
      return false;
    const auto prefix = static_cast<std::int64_t>(node.prefix.size());
    return number_of(node, "minItems") <= prefix ||
           (node.items < 0 ? node.prefix.empty() : at(node.items).productive);
  }

  void find_productive() {
    for (bool changed = true; changed;) {
      changed = false;
      for (Node& node : nodes_) {
        if (node.productive || !node.reached || !completes(node)) continue;
        node.productive = true;
        changed = true;
      }
    }
  }

  /// The deepest place to blame for the root's failure.
  std::string_view unsatisfiable_path() const {
    for (const Node& node : nodes_)
      if (node.reached && node.impossible) return node.path;
    return at(0).path;
  }

  static bool allows_others(const Node& node) {
    const Value* others = node.value->find("additionalProperties");
    return others == nullptr || others->boolean() != false;
  }

  // ---- oneOf: whatever is written for an option must not be valid by another

  /// OpenAPI's discriminator names a property that tells the options apart.
  void find_discriminators() {
    for (const Node& node : nodes_) {
      if (!node.reached || node.options.empty()) continue;
      const Value* discriminator = node.value->find("discriminator");
      const Value* name = discriminator == nullptr ? nullptr : discriminator->find("propertyName");
      if (name == nullptr || name->string() == nullptr) continue;
      int work = 0;
      for (const int option : node.options)
        for (const int end : ends_of(option, work))
          for (Property& property : at(end).properties)
            if (property.name == *name->string()) property.discriminates = true;
    }
  }

  Status check_disjoint() const {
    int work = 0;
    for (const Node& node : nodes_) {
      if (!node.reached || node.primary != "oneOf") continue;
      for (std::size_t i = 0; i < node.options.size(); ++i)
        for (std::size_t j = i + 1; j < node.options.size(); ++j) {
          if (all_excluded(node.options[i], node.options[j], 0, work) &&
              all_excluded(node.options[j], node.options[i], 0, work))
            continue;
          return fault(kUnsupportedSchema, node.path,
                       "a value may be valid by both oneOf[{}] and oneOf[{}], or it takes long to "
                       "tell: give each a required property whose const or enum differs, or use "
                       "anyOf",
                       i, j);
        }
    }
    return {};
  }

  /// The nodes without references and choices that a node stands for.
  std::vector<int> ends_of(int index, int& work) const {
    std::vector<int> ends;
    std::set<int> seen{index};
    std::vector<int> open{index};
    while (!open.empty()) {
      ++work;
      const int next = open.back();
      open.pop_back();
      const Node& node = at(next);
      const auto visit = [&](int child) {
        if (seen.insert(child).second) open.push_back(child);
      };
      if (node.primary == "$ref") {
        visit(node.target);
      } else if (!node.options.empty()) {
        for (const int option : node.options) visit(option);
      } else if (!node.impossible) {
        ends.push_back(next);
      }
    }
    return ends;
  }

  /// Whether nothing that is written for node `written` is valid by node `other`. False: unknown.
  bool all_excluded(int written, int other, int depth, int& work) const {
    constexpr int kDepthMax = 8;
    if (depth > kDepthMax) return false;
    const std::vector<int> others = ends_of(other, work);
    for (const int one : ends_of(written, work))
      for (const int two : others)
        if (!excluded(at(one), at(two), depth, work)) return false;
    return true;
  }

  bool excluded(const Node& written, const Node& other, int depth, int& work) const {
    constexpr int kWorkMax = 200'000;  // some 10 ms
    if (++work > kWorkMax || other.value->object() == nullptr) return false;
    const bool lists = !written.primary.empty();
    const bool other_lists = !other.primary.empty();
    // A schema that names no type says nothing of values of other types than it describes.
    const unsigned other_types = other.value->find("type") != nullptr ? other.types : kAnyType;
    bool apart = true;
    if (lists && other_lists) {
      for_each_value(written, [&](const Value& one) {
        for_each_value(other, [&](const Value& two) {
          apart = apart && ++work <= kWorkMax && surely_differ(one, two);
        });
      });
      return apart;
    }
    if (lists || other_lists) {
      for_each_value(lists ? written : other, [&](const Value& value) {
        apart = apart && !has_type(value, lists ? other_types : written.types);
      });
      return apart;
    }
    unsigned shared = written.types & other_types;
    constexpr unsigned kNumbers = integer_type | number_type;
    if ((written.types & kNumbers) != 0 && (other_types & kNumbers) != 0) shared |= number_type;
    if (shared == 0) return true;
    return shared == object_type && object_excluded(written, other, depth, work);
  }

  /// Of objects alone. What is written has the properties of its schema and no others, if there are
  /// any.
  bool object_excluded(const Node& written, const Node& other, int depth, int& work) const {
    const auto named = [](const Node& node, const std::string& name) {
      return std::ranges::find(node.properties, name, &Property::name);
    };
    const auto closed = [](const Node& node) {
      return node.pattern_properties < 0 && !allows_others(node);
    };
    for (const Property& property : written.properties) {
      if (!property.always_comes()) continue;
      const auto same = named(other, property.name);
      const bool has = same != other.properties.end();
      if (has ? all_excluded(property.node, same->node, depth + 1, work) : closed(other))
        return true;
    }
    if (written.properties.empty() && !closed(written)) return false;
    return std::ranges::any_of(other.properties, [&](const Property& property) {
      return property.required && named(written, property.name) == written.properties.end();
    });
  }

  static bool surely_differ(const Value& one, const Value& two) {
    if (one.string() != nullptr && two.string() != nullptr) return *one.string() != *two.string();
    if (one.number() && two.number()) return *one.number() != *two.number();
    if (one.number() || two.number() || one.kind() != two.kind()) return one.kind() != two.kind();
    return one.kind() == Kind::boolean && *one.boolean() != *two.boolean();
  }

  // ---- writing

  void write_child(std::string& out, int index) const { write(out, index, kAnyType, true); }

  /// The schema of a node, for values of `types` alone.
  void write(std::string& out, int index, unsigned types, bool with_definitions) const {
    const Node& node = at(index);
    if (node.value->object() == nullptr) {
      if (types == kAnyType) {
        out += "{}";
      } else {
        ObjectWriter object(out);
        write_types(object.key("type"), types);
        object.end();
      }
      return;
    }
    ObjectWriter object(out);
    if (with_definitions) write_definitions(object, node);
    if (node.primary == "$ref") {
      append_json_string(object.key("$ref"), *node.value->find("$ref")->string());
    } else if (node.primary == "const" || node.primary == "enum") {
      write_values(object.key("enum"), node, types);
    } else if (!node.options.empty()) {
      // Options of oneOf have been found disjoint.
      std::string& list = object.key("anyOf");
      char before = '[';
      for (const int option : node.options) {
        if (!at(option).productive) continue;
        list += before;
        write_child(list, option);
        before = ',';
      }
      list += ']';
    } else if ((node.types & types) != kAnyType) {
      write_typed(object, node, node.types & types);
    }
    object.end();
  }

  void write_definitions(ObjectWriter& object, const Node& node) const {
    for (const std::string_view keyword : {"$defs", "definitions"}) {
      if (std::ranges::none_of(node.definitions,
                               [&](const auto& entry) { return entry.first == keyword; }))
        continue;
      std::string& out = object.key(keyword);
      ObjectWriter list(out);
      for (const auto& [where, child] : node.definitions)
        if (where == keyword && at(child).reached && at(child).productive)
          write_child(list.key(definition_names_.at(child)), child);
      list.end();
    }
  }

  static void write_types(std::string& out, unsigned types) {
    // A number may be an integer: one of the two says it.
    if ((types & number_type) != 0) types &= ~static_cast<unsigned>(integer_type);
    char before = '[';
    for (const auto& [name, type] : kTypeNames) {
      if ((types & type) == 0) continue;
      out += before;
      append_json_string(out, name);
      before = ',';
    }
    out += ']';
  }

  void write_values(std::string& out, const Node& node, unsigned types) const {
    char before = '[';
    for_each_value(node, [&](const Value& value) {
      if (!has_type(value, types)) return;
      out += before;
      append_json_value(out, value);
      before = ',';
    });
    out += ']';
  }

  template <typename Use>
  void for_each_value(const Node& node, Use use) const {
    const Value& content = *node.value->find(node.primary);
    if (node.primary == "const") {
      use(content);
      return;
    }
    for (const Value& value : *content.array())
      if (has_type(value, node.types)) use(value);
  }

  void write_typed(ObjectWriter& object, const Node& node, unsigned types) const {
    const bool single = (types & (types - 1)) == 0;
    if (single) {
      for (const auto& [name, type] : kTypeNames)
        if (type == types) append_json_string(object.key("type"), name);
    } else {
      write_types(object.key("type"), types);
    }
    for (const json::Member& member : *node.value->object()) {
      const std::string_view name = member.name;
      if ((limits_type(name) & types) == 0) continue;
      const bool written_below = name == "items" || name == "prefixItems" || name == "properties" ||
                                 name == "required" || name == "additionalProperties" ||
                                 name == "patternProperties" || name == "propertyNames";
      const bool says_nothing = name == "format" && (node.value->find("pattern") != nullptr ||
                                                     node.value->find("minLength") != nullptr ||
                                                     node.value->find("maxLength") != nullptr ||
                                                     !is_one_of(kFormats, *member.value.string()));
      if (name == "format" && !says_nothing && *member.value.string() == "email") {
        append_json_string(object.key("pattern"), kEmail);
        continue;
      }
      // As a pattern: xgrammar's own form lets control characters through.
      const bool length =
          name == "minLength" || name == "maxLength" || (name == "pattern" && node.counted);
      if (!written_below && !says_nothing && !length)
        append_json_value(object.key(name), member.value);
    }
    const bool longest = node.value->find("maxLength") != nullptr;
    if ((types & string_type) != 0 && node.counted) {
      if (const Value* pattern = node.value->find("pattern"))
        append_json_string(object.key("pattern"), counted_pattern(*pattern->string())->unbounded);
    } else if ((types & string_type) != 0 && (longest || number_of(node, "minLength") > 0)) {
      const std::string most = longest ? std::to_string(number_of(node, "maxLength")) : "";
      append_json_string(object.key("pattern"), fmt::format(R"(^[^"\\\x00-\x1f]{{{},{}}}$)",
                                                            number_of(node, "minLength"), most));
    }
    if ((types & array_type) != 0) write_array(object, node);
    if ((types & object_type) != 0) write_object(object, node);
  }

  void write_array(ObjectWriter& object, const Node& node) const {
    if (!node.prefix.empty()) {
      std::string& list = object.key("prefixItems");
      char before = '[';
      for (const int item : node.prefix) {
        list += before;
        write_child(list, item);
        before = ',';
      }
      list += ']';
    }
    if (node.items < 0) {
      object.key("items") += node.prefix.empty() ? "{}" : "false";
    } else if (!at(node.items).productive) {
      object.key("items") += "false";
    } else {
      write_child(object.key("items"), node.items);
    }
  }

  void write_object(ObjectWriter& object, const Node& node) const {
    if (node.pattern_properties >= 0) {
      const json::Member& member = node.value->find("patternProperties")->object()->front();
      ObjectWriter patterns(object.key("patternProperties"));
      if (at(node.pattern_properties).productive)
        write_child(patterns.key(member.name), node.pattern_properties);
      patterns.end();
      object.key("additionalProperties") += "false";
      return;
    }
    if (node.properties.empty()) {
      if (node.names >= 0) write_child(object.key("propertyNames"), node.names);
      std::string& others = object.key("additionalProperties");
      if (!allows_others(node) || (node.additional >= 0 && !at(node.additional).productive)) {
        others += "false";
      } else if (node.additional >= 0) {
        write_child(others, node.additional);
      } else {
        others += "true";
      }
      return;
    }
    ObjectWriter properties(object.key("properties"));
    for (const Property& property : node.properties)
      if (at(property.node).productive) write_child(properties.key(property.name), property.node);
    properties.end();
    std::string& required = object.key("required");
    char before = '[';
    for (const Property& property : node.properties) {
      if (!property.always_comes()) continue;
      required += before;
      append_json_string(required, property.name);
      before = ',';
    }
    required += before == '[' ? "[]" : "]";
    object.key("additionalProperties") += "false";
  }

  // ---- lengths

  /// A leaf that stands for any value.
  static constexpr int kAnything = -1;

  std::optional<LengthBounds> bounds_of(const Node& node) const {
    if (!node.productive || node.value->object() == nullptr || !node.primary.empty() ||
        (node.types & string_type) == 0)
      return std::nullopt;
    if (const Value* pattern = node.value->find("pattern")) {
      const std::optional<CountedPattern> counted = counted_pattern(*pattern->string());
      return counted ? std::optional(counted->bounds) : std::nullopt;
    }
    constexpr std::int64_t kMost = 1 << 30U;  // nobody reaches it
    LengthBounds bounds;
    bounds.least = static_cast<std::int32_t>(std::min(number_of(node, "minLength"), kMost));
    if (node.value->find("maxLength") != nullptr)
      bounds.most = static_cast<std::int32_t>(std::min(number_of(node, "maxLength"), kMost));
    return bounds == LengthBounds{} ? std::nullopt : std::optional(bounds);
  }

  /// What values of `nodes` may be: nodes without a reference or a choice, or kAnything; sorted.
  std::vector<int> leaves_of(std::vector<int> open) {
    std::vector<int> leaves;
    std::vector<bool> seen(nodes_.size());
    while (!open.empty()) {
      ++lengths_work_;
      const int index = open.back();
      open.pop_back();
      if (index == kAnything) {
        leaves.push_back(index);
        continue;
      }
      const Node& node = at(index);
      if (seen[static_cast<std::size_t>(index)] || !node.productive) continue;
      seen[static_cast<std::size_t>(index)] = true;
      if (node.primary == "$ref") {
        open.push_back(node.target);
      } else if (!node.options.empty()) {
        open.insert(open.end(), node.options.begin(), node.options.end());
      } else {
        // What an enum lists is text of its own.
        const bool any =
            node.value->object() == nullptr || node.types == kAnyType || !node.primary.empty();
        leaves.push_back(any ? kAnything : index);
      }
    }
    std::ranges::sort(leaves);
    // Not ranges::unique, which clang 14 cannot read (the fuzz preset).
    leaves.erase(std::unique(leaves.begin(), leaves.end()), leaves.end());
    return leaves;
  }

  /// What a member of an object may be; without a name: a member of any other name.
  static std::optional<int> member_of(const Node& node, const std::string* name) {
    if (node.pattern_properties >= 0) return node.pattern_properties;
    if (!node.properties.empty()) {
      for (const Property& property : node.properties)
        if (name != nullptr && property.name == *name) return property.node;
      return std::nullopt;
    }
    if (!allows_others(node)) return std::nullopt;
    return node.additional >= 0 ? node.additional : kAnything;
  }

  /// What an item of an array may be.
  static std::optional<int> item_of(const Node& node, std::size_t index) {
    if (index < node.prefix.size()) return node.prefix[index];
    if (node.items >= 0) return node.items;
    return node.prefix.empty() ? std::optional(kAnything) : std::nullopt;
  }

  /// What may stand inside of values that are `leaves`, by what `inner` says of a node of `type`.
  template <typename Inner>
  std::vector<int> inside(const std::vector<int>& leaves, unsigned type, const Inner& inner) const {
    std::vector<int> nodes;
    for (const int leaf : leaves) {
      std::optional<int> found = kAnything;
      if (leaf != kAnything) found = (at(leaf).types & type) != 0 ? inner(at(leaf)) : std::nullopt;
      if (found) nodes.push_back(*found);
    }
    return nodes;
  }

  /// All places that can be reached. False: too many. `agreed`: the strings of each place have one
  /// bound; where not, they are no longer counted.
  bool place_all(LengthPlan& plan, bool& agreed) {
    constexpr std::size_t kPlacesMax = 2000;
    constexpr std::int64_t kWorkMax = 200'000;  // some 10 ms
    std::map<std::vector<int>, int> known;
    std::vector<std::vector<int>> open;
    const auto place_of = [&](const std::vector<int>& nodes) {
      std::vector<int> leaves = leaves_of(nodes);
      if (leaves.empty() || leaves == std::vector<int>{kAnything}) return LengthPlan::kNowhere;
      const auto [found, is_new] = known.emplace(leaves, static_cast<int>(known.size()));
      if (is_new) open.push_back(std::move(leaves));
      return found->second;
    };
    if (place_of({0}) == LengthPlan::kNowhere) return false;
    for (std::size_t i = 0; i < open.size(); ++i) {
      if (i == kPlacesMax || lengths_work_ > kWorkMax) return false;
      const std::vector<int> leaves = open[i];
      const auto member_place = [&](const std::string* name) {
        return place_of(
            inside(leaves, object_type, [&](const Node& node) { return member_of(node, name); }));
      };
      const auto item_place = [&](std::size_t index) {
        return place_of(
            inside(leaves, array_type, [&](const Node& node) { return item_of(node, index); }));
      };
      LengthPlan::Place place;
      agreed = settle_text(leaves, place.text) && agreed;
      std::size_t prefix = 0;
      for (const int leaf : leaves) {
        if (leaf == kAnything) continue;
        prefix = std::max(prefix, at(leaf).prefix.size());
        for (const Property& property : at(leaf).properties)
          if (!place.members.contains(property.name))
            place.members.emplace(property.name, member_place(&property.name));
      }
      place.others = member_place(nullptr);
      for (std::size_t item = 0; item < prefix; ++item) place.prefix.push_back(item_place(item));
      place.items = item_place(prefix);
      plan.places.push_back(std::move(place));
    }
    return true;
  }

  bool settle_text(const std::vector<int>& leaves, std::optional<LengthBounds>& text) {
    bool first = true;
    bool same = true;
    for (const int leaf : leaves) {
      if (leaf != kAnything && (at(leaf).types & string_type) == 0) continue;
      const std::optional<LengthBounds> own = leaf == kAnything ? std::nullopt : at(leaf).counted;
      if (first) text = own;
      same = same && text == own;
      first = false;
    }
    if (same) return true;
    for (const int leaf : leaves)
      if (leaf != kAnything) at(leaf).counted.reset();
    return false;
  }

  // ---- tools

  /// The node that a chain of references, or of allOf with one schema, ends at.
  int follow(int index) const {
    for (std::size_t steps = 0; steps <= nodes_.size(); ++steps) {
      const Node& node = at(index);
      if (node.primary == "$ref") {
        index = node.target;
      } else if (node.primary == "allOf") {
        index = node.options[0];
      } else {
        return index;
      }
    }
    return index;  // unproductive: not reached by callers
  }

  /// A node as a schema that stands by itself: with the root's definitions.
  std::string standing_alone(int index, unsigned types) const {
    std::string body;
    write(body, index, types, false);
    std::string out;
    ObjectWriter object(out);
    write_definitions(object, at(0));
    if (out.size() > 1 && body.size() > 2) out += ',';
    return out + body.substr(1);
  }

  void add_forms(int index,
                 std::vector<SchemaProperty::Form>& forms,
                 std::vector<int>& seen) const {
    using Form = SchemaProperty::Form;
    index = follow(index);
    if (std::ranges::find(seen, index) != seen.end()) return;
    seen.push_back(index);
    const Node& node = at(index);
    if (node.primary == "anyOf" || node.primary == "oneOf") {
      for (const int option : node.options)
        if (at(option).productive) add_forms(option, forms, seen);
      return;
    }
    if (node.primary == "const" || node.primary == "enum") {
      for_each_value(node, [&](const Value& value) {
        std::string text;
        if (value.string() != nullptr)
          text = *value.string();
        else
          append_json_value(text, value);
        forms.push_back({Form::Kind::literal, std::move(text)});
      });
      return;
    }
    const bool any = node.value->object() == nullptr || node.types == kAnyType;
    if (any || (node.types & string_type) != 0) {
      Form& form = forms.emplace_back();
      form.kind = Form::Kind::text;
      if (!any) {
        if (const Value* pattern = node.value->find("pattern")) {
          form.kind = Form::Kind::pattern;
          form.value = *pattern->string();
        }
        form.length_min = number_of(node, "minLength");
        if (node.value->find("maxLength") != nullptr)
          form.length_max = number_of(node, "maxLength");
      }
    }
    const unsigned others = any ? 0 : node.types & ~static_cast<unsigned>(string_type);
    if (others != 0) forms.push_back({Form::Kind::json, standing_alone(index, others)});
  }

  Value root_;
  Value anything_value_;
  int anything_ = -1;
  std::vector<Node> nodes_;
  std::map<std::string, int, std::less<>> by_pointer_;
  std::map<int, std::string> definition_names_;
  bool refers_beyond_definitions_ = false;
  std::int64_t lengths_work_ = 0;
};

Schema::Schema(std::unique_ptr<Tree> tree) : tree_(std::move(tree)) {}
Schema::Schema(Schema&&) noexcept = default;
Schema& Schema::operator=(Schema&&) noexcept = default;
Schema::~Schema() = default;

Result<Schema> Schema::read(std::string_view text,
                            const SchemaLimits& limits,
                            SchemaStrictness strictness) {
  KOHO_TRY_ASSIGN(std::unique_ptr<Tree> tree, Tree::read(text, limits, strictness));
  return Schema(std::move(tree));
}

std::string Schema::text() const {
  return tree_->text();
}

std::optional<LengthPlan> Schema::take_lengths() {
  return tree_->take_lengths();
}

Result<std::vector<SchemaProperty>> Schema::properties() const {
  return tree_->properties();
}

bool Schema::open() const {
  return tree_->open();
}

int Schema::num_parts() const {
  return tree_->num_parts();
}

std::optional<Schema::Part> Schema::part(int index) const {
  return tree_->part(index);
}

}  // namespace koho
