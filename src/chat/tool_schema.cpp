// SPDX-License-Identifier: Apache-2.0
// Derives types from type, enum, const, nullable, anyOf, oneOf, allOf and local $ref. A schema may
// be recursive, so a walk visits at most kNodesMax nodes; nodes beyond count as any type.
#include "chat/tool_schema.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/text.h"

namespace koho::chat {
namespace {

constexpr int kNodesMax = 1000;  // visited per argument
constexpr int kRefDepthMax = 32;

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

/// One walk over the parameters of a tool.
class Walk {
 public:
  explicit Walk(const Json& root) : root_(root) {}

  /// The schema of the property `key` of `schema`, or nullptr.
  const Json* property(const Json& schema, std::string_view key, int depth = 0) {
    if (!visit(depth)) return nullptr;
    if (const Json* properties = schema.find("properties"))
      if (const Json* found = properties->find(key)) return found;
    if (const Json* target = reference(schema))
      if (const Json* found = property(*target, key, depth + 1)) return found;
    for (const std::string_view combiner : {"allOf", "anyOf", "oneOf"}) {
      const Json* parts = schema.find(combiner);
      if (parts == nullptr || !parts->is_array()) continue;
      for (const Json& part : parts->items)
        if (const Json* found = property(part, key, depth + 1)) return found;
    }
    const Json* others = schema.find("additionalProperties");
    return others != nullptr && others->is_object() ? others : nullptr;
  }

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

 private:
  bool visit(int depth) { return depth < kRefDepthMax && ++num_visited_ < kNodesMax; }

  static TypeSet own_types(const Json& schema) {
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
      for (const Json& value : values->items) combined = combined | type_of(value);
      result = result & combined;
    }
    return result;
  }

  /// The target of a local `$ref` ("#", "#/$defs/x", with the escapes ~0 and ~1), or nullptr.
  const Json* reference(const Json& schema) const {
    const Json* ref = schema.find("$ref");
    if (ref == nullptr || !ref->is_string() || !ref->text.starts_with('#')) return nullptr;
    const Json* target = &root_;
    std::string_view path = std::string_view(ref->text).substr(1);
    while (target != nullptr && path.starts_with('/')) {
      path.remove_prefix(1);
      const std::string_view raw = path.substr(0, path.find('/'));
      path.remove_prefix(raw.size());
      std::string step;
      for (std::size_t i = 0; i < raw.size(); ++i) {
        const bool escaped = raw[i] == '~' && i + 1 < raw.size();
        if (escaped) ++i;
        step += !escaped ? raw[i] : raw[i] == '1' ? '/' : '~';
      }
      target = child(*target, step);
    }
    return path.empty() ? target : nullptr;
  }

  static const Json* child(const Json& node, const std::string& step) {
    if (!node.is_array()) return node.find(step);
    const auto index = parse_integer<std::uint64_t>(step);
    return index && *index < node.items.size() ? &node.items[*index] : nullptr;
  }

  const Json& root_;
  int num_visited_ = 0;
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
  const std::optional<double> number = value.as_number();  // nullopt: an integer beyond double
  return !number || *number == std::floor(*number) ? TypeSet::integer : TypeSet::fraction;
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
  return std::any_of(tools_.begin(), tools_.end(), [&](const Tool& t) { return t.name == tool; });
}

std::string_view ToolSchemas::name_at_start(std::string_view text) const {
  std::string_view longest;
  for (const Tool& tool : tools_)
    if (text.starts_with(tool.name) && tool.name.size() > longest.size()) longest = tool.name;
  return longest;
}

TypeSet ToolSchemas::argument_types(std::string_view tool, std::string_view key) const {
  for (const Tool& one : tools_) {
    if (one.name != tool) continue;
    Walk walk(one.parameters);
    const Json* schema = walk.property(one.parameters, key);
    return schema == nullptr ? TypeSet(TypeSet::kAny) : walk.types(*schema);
  }
  return TypeSet::kAny;
}

}  // namespace koho::chat
