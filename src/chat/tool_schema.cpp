// SPDX-License-Identifier: Apache-2.0
// Derives types from type, enum, const, nullable, anyOf, oneOf, allOf and local $ref, and checks
// values by them, by bounds, items and members. A schema may be recursive, so a walk visits at most
// kNodesMax nodes, and compares at most kComparedMax values and names; what is beyond counts as any
// type, and allows every value.
#include "chat/tool_schema.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/json_pointer.h"
#include "base/text.h"
#include "chat/decimal.h"
#include "tokenizer/utf8.h"

namespace koho::chat {
namespace {

constexpr int kNodesMax = 5000;  // visited per argument, in a few milliseconds
constexpr int kRefDepthMax = 128;
constexpr std::size_t kComparedMax = 65'536;  // some milliseconds

TypeSet named_type(const Json& name) {
  constexpr std::array<std::pair<std::string_view, std::uint8_t>, 7> kNames{{
      {"string", TypeSet::string},
      {"integer", TypeSet::integer},
      {"number", TypeSet::kNumber},
      {"boolean", TypeSet::boolean},
      {"null", TypeSet::null},
      {"array", TypeSet::array},
      {"object", TypeSet::object},
  }};
  for (const auto& [known, types] : kNames)
    if (name.is_string() && name.text == known) return types;
  return TypeSet::kAny;
}

/// Whether `size` is within the bounds of that name in `schema`.
bool within(const Json& schema, std::string_view least, std::string_view most, double size) {
  const Json* low = schema.find(least);
  const Json* high = schema.find(most);
  return (low == nullptr || size >= low->as_number().value_or(size)) &&
         (high == nullptr || size <= high->as_number().value_or(size));
}

/// Bounds of a number; one that doubles do not tell from a bound is within it.
bool number_fits(const Json& schema, const Json& number) {
  const double huge = number.text.starts_with('-') ? -HUGE_VAL : HUGE_VAL;
  const double value = number.as_number().value_or(huge);
  const bool exact = std::abs(value) < 0x1p53;
  if (!within(schema, "minimum", "maximum", value)) return false;
  if (const Json* low = schema.find("exclusiveMinimum");
      low != nullptr && exact && low->as_number() && value <= *low->as_number())
    return false;
  if (const Json* high = schema.find("exclusiveMaximum");
      high != nullptr && exact && high->as_number() && value >= *high->as_number())
    return false;
  const Json* step = schema.find("multipleOf");
  const std::optional<std::int64_t> divisor = step == nullptr ? std::nullopt : step->as_integer();
  return !divisor || *divisor <= 0 || !exact ||
         std::fmod(value, static_cast<double>(*divisor)) == 0;
}

/// One walk over the parameters of a tool.
class Walk {
 public:
  explicit Walk(const Json& root) : root_(root) {}

  /// Adds the schemas of the property `key` of `schema`, all of which hold: of several choices that
  /// declare it, those of the first.
  void declarations(const Json& schema,
                    std::string_view key,
                    std::vector<const Json*>& found,
                    int depth = 0) {
    if (!visit(depth)) return;
    const Json* properties = schema.find("properties");
    const Json* others = schema.find("additionalProperties");
    if (const Json* own = properties == nullptr ? nullptr : properties->find(key)) {
      found.push_back(own);
      is_named_ = true;
    } else if (others != nullptr && others->is_object()) {
      found.push_back(others);
    }
    if (const Json* required = schema.find("required");
        required != nullptr && required->is_array()) {
      num_names_ += required->items.size();
      is_named_ |= num_names_ <= kComparedMax &&
                   std::ranges::find(required->items, key, &Json::text) != required->items.end();
    }
    if (const Json* target = reference(schema)) declarations(*target, key, found, depth + 1);
    for (const std::string_view combiner : {"allOf", "anyOf", "oneOf"}) {
      const Json* parts = schema.find(combiner);
      if (parts == nullptr || !parts->is_array()) continue;
      const std::size_t before = found.size();
      for (const Json& part : parts->items)
        if (combiner == "allOf" || found.size() == before)
          declarations(part, key, found, depth + 1);
    }
  }

  /// Whether declarations() has found the property by its name.
  bool is_named() const { return is_named_; }

  TypeSet types(const Json& schema, int depth = 0) {
    if (!schema.is_object() || !visit(depth)) return TypeSet::kAny;
    TypeSet result = own_types(schema);
    if (const Json* target = reference(schema)) result = result & types(*target, depth + 1);
    for (const std::string_view combiner : {"anyOf", "oneOf"}) {
      const Json* parts = schema.find(combiner);
      if (parts == nullptr || !parts->is_array()) continue;
      TypeSet combined = 0;
      for (const Json& part : parts->items) combined = combined | types(part, depth + 1);
      result = result & combined;
    }
    if (const Json* parts = schema.find("allOf"); parts != nullptr && parts->is_array())
      for (const Json& part : parts->items) result = result & types(part, depth + 1);
    return result.empty() ? TypeSet(TypeSet::kAny)
                          : result;  // a contradictory schema restricts nothing
  }

  /// Whether `value` is valid. Keywords that it does not know allow it.
  bool allows(const Json& schema, const Json& value, int depth = 0) {
    if (schema.kind == Json::Kind::boolean) return schema.boolean;
    if (!schema.is_object() || !visit(depth)) return true;
    if ((own_types(schema) & type_of(value)).empty()) return false;
    if (const Json* one = schema.find("const"); one != nullptr && !equal(*one, value)) return false;
    if (const Json* list = schema.find("enum");
        list != nullptr && list->is_array() &&
        std::ranges::none_of(list->items, [&](const Json& one) { return equal(one, value); }))
      return false;
    if (value.is_number() && !number_fits(schema, value)) return false;
    if (value.is_string() && !length_fits(schema, value.text)) return false;
    if (value.is_array() && !items_fit(schema, value, depth)) return false;
    if (value.is_object() && !members_fit(schema, value, depth)) return false;
    return choices_allow(schema, value, depth);
  }

 private:
  bool visit(int depth) { return depth < kRefDepthMax && ++num_visited_ < kNodesMax; }

  /// Counts `values` that are compared. false: enough.
  bool compare(std::size_t values = 1) {
    num_compared_ += values;
    return num_compared_ <= kComparedMax;
  }

  /// Whether two values are equal: 1 and 1.0 are.
  bool equal(const Json& a, const Json& b) {
    if (!compare(1 + b.keys.size() * a.keys.size())) return true;
    if (a.is_number() && b.is_number())
      return a.text == b.text || decimal_of(a.text) == decimal_of(b.text);
    if (a.kind != b.kind || a.boolean != b.boolean || a.text != b.text ||
        a.items.size() != b.items.size())
      return false;
    for (std::size_t i = 0; i < a.items.size(); ++i) {
      const Json* other = a.is_object() ? b.find(a.keys[i]) : &b.items[i];
      if (other == nullptr || !equal(a.items[i], *other)) return false;
    }
    return true;
  }

  bool length_fits(const Json& schema, std::string_view text) {
    if (schema.find("minLength") == nullptr && schema.find("maxLength") == nullptr) return true;
    constexpr std::size_t kBytesOfOne = 1024;  // take as long as a comparison
    return !compare(1 + text.size() / kBytesOfOne) ||
           within(schema, "minLength", "maxLength",
                  static_cast<double>(std::ranges::count_if(text, begins_character)));
  }

  bool choices_allow(const Json& schema, const Json& value, int depth) {
    const auto allowed = [&](const Json& part) { return allows(part, value, depth + 1); };
    if (const Json* target = reference(schema); target != nullptr && !allowed(*target))
      return false;
    for (const std::string_view combiner : {"anyOf", "oneOf"})
      if (const Json* parts = schema.find(combiner);
          parts != nullptr && parts->is_array() && std::ranges::none_of(parts->items, allowed))
        return false;
    const Json* all = schema.find("allOf");
    if (all != nullptr && all->is_array() && !std::ranges::all_of(all->items, allowed))
      return false;
    const Json* excluded = schema.find("not");
    return excluded == nullptr || !reads_all(*excluded) || !allowed(*excluded) || is_beyond();
  }

  bool is_beyond() const { return num_visited_ >= kNodesMax || num_compared_ > kComparedMax; }

  /// Whether allows() judges each keyword of what a `not` holds.
  bool reads_all(const Json& schema) {
    constexpr std::array<std::string_view, 8> kRead{"type",     "const",   "enum",    "anyOf",
                                                    "required", "minimum", "maximum", "not"};
    const Json* parts = schema.find("anyOf");
    const Json* excluded = schema.find("not");
    return std::ranges::all_of(schema.keys,
                               [&](const std::string& key) {
                                 return std::ranges::find(kRead, key) != kRead.end();
                               }) &&
           (excluded == nullptr || (compare() && reads_all(*excluded))) &&
           (parts == nullptr || std::ranges::all_of(parts->items, [&](const Json& part) {
              return compare() && reads_all(part);
            }));
  }

  bool items_fit(const Json& schema, const Json& value, int depth) {
    if (!within(schema, "minItems", "maxItems", static_cast<double>(value.items.size())))
      return false;
    const Json* unique = schema.find("uniqueItems");
    for (std::size_t i = 1; unique != nullptr && unique->boolean && i < value.items.size(); ++i)
      for (std::size_t j = 0; j < i; ++j)
        if (equal(value.items[i], value.items[j])) return is_beyond();
    const Json* first = schema.find("prefixItems");
    const Json* others = schema.find("items");
    if (others != nullptr && others->is_array()) first = std::exchange(others, nullptr);
    const std::size_t num_first = first == nullptr ? 0 : first->items.size();
    for (std::size_t i = 0; i < value.items.size(); ++i) {
      const Json* item = i < num_first ? &first->items[i] : others;
      if (item != nullptr && !allows(*item, value.items[i], depth + 1)) return false;
    }
    return true;
  }

  /// Whether no other schema holds for the members of an object.
  static bool stands_alone(const Json& schema) {
    constexpr std::array<std::string_view, 4> kOthers{"$ref", "allOf", "anyOf", "oneOf"};
    return std::ranges::none_of(kOthers,
                                [&](std::string_view key) { return schema.find(key) != nullptr; });
  }

  bool members_fit(const Json& schema, const Json& value, int depth) {
    if (!within(schema, "minProperties", "maxProperties", static_cast<double>(value.keys.size())))
      return false;
    if (const Json* names = schema.find("required"); names != nullptr && names->is_array())
      for (const Json& name : names->items) {
        if (!compare(value.keys.size())) return true;
        if (name.is_string() && value.find(name.text) == nullptr) return false;
      }
    const Json* declared = schema.find("properties");
    const bool closed = schema.find("patternProperties") == nullptr;
    const Json* others = closed ? schema.find("additionalProperties") : nullptr;
    if (others == nullptr && closed && stands_alone(schema))
      others = schema.find("unevaluatedProperties");
    const Json* names = schema.find("propertyNames");
    for (std::size_t i = 0; i < value.keys.size(); ++i) {
      if (names != nullptr && !allows(*names, Json::string(value.keys[i]), depth + 1)) return false;
      if (declared != nullptr && !compare(declared->keys.size())) return true;
      const Json* member = declared == nullptr ? nullptr : declared->find(value.keys[i]);
      if (member == nullptr) member = others;
      if (member != nullptr && !allows(*member, value.items[i], depth + 1)) return false;
    }
    return true;
  }

  TypeSet own_types(const Json& schema) {
    TypeSet result = TypeSet::kAny;
    if (const Json* type = schema.find("type")) {
      if (type->is_array()) {
        result = 0;
        for (const Json& one : type->items) result = result | named_type(one);
      } else {
        result = named_type(*type);
      }
    }
    if (const Json* nullable = schema.find("nullable"); nullable != nullptr && nullable->boolean)
      result = result | TypeSet::null;
    if (const Json* value = schema.find("const")) result = result & type_of(*value);
    if (const Json* values = schema.find("enum"); values != nullptr && values->is_array()) {
      TypeSet combined = 0;
      for (const Json& value : values->items) {
        if (!compare()) return result;
        combined = combined | type_of(value);
      }
      result = result & combined;
    }
    return result;
  }

  /// The target of a local `$ref` ("#", "#/$defs/x"), behind those that are nothing but another; or
  /// nullptr.
  const Json* reference(const Json& schema) {
    const Json* target = &schema;
    do {
      const Json* ref = target->find("$ref");
      if (ref == nullptr || !ref->is_string()) return nullptr;
      const std::optional<std::vector<std::string>> steps = pointer_steps(ref->text);
      if (!steps) return nullptr;
      target = &root_;
      for (const std::string& step : *steps) {
        target = child(*target, step);
        if (target == nullptr) return nullptr;
      }
    } while (target->keys.size() == 1 && target->keys[0] == "$ref" && visit(0));
    return target;
  }

  static const Json* child(const Json& node, const std::string& step) {
    if (!node.is_array()) return node.find(step);
    const auto index = parse_integer<std::uint64_t>(step);
    return index && *index < node.items.size() ? &node.items[*index] : nullptr;
  }

  const Json& root_;
  bool is_named_ = false;
  int num_visited_ = 0;
  std::size_t num_compared_ = 0;
  std::size_t num_names_ = 0;  // of lists of required ones
};

}  // namespace

TypeSet type_of(const Json& value) {
  switch (value.kind) {
    case Json::Kind::null:
      return TypeSet::null;
    case Json::Kind::boolean:
      return TypeSet::boolean;
    case Json::Kind::string:
      return TypeSet::string;
    case Json::Kind::array:
    case Json::Kind::token_ids:
      return TypeSet::array;
    case Json::Kind::object:
      return TypeSet::object;
    case Json::Kind::number:
      break;
  }
  return decimal_of(value.text).is_integer() ? TypeSet::integer : TypeSet::fraction;
}

ToolSchemas::ToolSchemas(const std::vector<Json>& tools) {
  for (const Json& tool : tools) {
    const Json* function = tool.find("function");
    const Json& body = function != nullptr && function->is_object() ? *function : tool;
    const Json* name = body.find("name");
    if (name == nullptr || !name->is_string() || name->text.empty() || has(name->text)) continue;
    const Json* parameters = body.find("parameters");
    if (parameters == nullptr) parameters = body.find("input_schema");
    tools_.push_back({name->text, parameters == nullptr ? Json{} : *parameters});
  }
}

bool ToolSchemas::has(std::string_view tool) const {
  return parameters_of(tool) != nullptr;
}

const Json* ToolSchemas::parameters_of(std::string_view tool) const {
  const auto found = std::ranges::find(tools_, tool, &Tool::name);
  return found == tools_.end() ? nullptr : &found->parameters;
}

std::string_view ToolSchemas::name_at_start(std::string_view text) const {
  std::string_view longest;
  for (const Tool& tool : tools_)
    if (text.starts_with(tool.name) && tool.name.size() > longest.size()) longest = tool.name;
  return longest;
}

bool ToolSchemas::allows(std::string_view tool, std::string_view key, const Json& value) const {
  const Json* parameters = parameters_of(tool);
  if (parameters == nullptr) return true;
  Walk walk(*parameters);
  std::vector<const Json*> declared;
  walk.declarations(*parameters, key, declared);
  return std::ranges::all_of(declared,
                             [&](const Json* schema) { return walk.allows(*schema, value); });
}

bool ToolSchemas::names_argument(std::string_view tool, std::string_view key) const {
  const Json* parameters = parameters_of(tool);
  if (parameters == nullptr) return false;
  Walk walk(*parameters);
  std::vector<const Json*> declared;
  walk.declarations(*parameters, key, declared);
  return walk.is_named();
}

TypeSet ToolSchemas::argument_types(std::string_view tool, std::string_view key) const {
  const Json* parameters = parameters_of(tool);
  if (parameters == nullptr) return TypeSet::kAny;
  Walk walk(*parameters);
  std::vector<const Json*> declared;
  walk.declarations(*parameters, key, declared);
  TypeSet types = TypeSet::kAny;
  for (const Json* schema : declared) types = types & walk.types(*schema);
  return types.empty() ? TypeSet(TypeSet::kAny) : types;
}

}  // namespace koho::chat
