// SPDX-License-Identifier: Apache-2.0
// Resolves $ref and reports the first fault that the root reaches, and finds the nodes that some
// finite value satisfies ("productive" nodes). Faults in definitions that nothing refers to are no
// errors.
#include <algorithm>

#include "grammar/schema_tree.h"
#include "grammar/schema_values.h"

namespace koho {

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

Status Schema::Tree::resolve() {
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
        return fault(
            name.starts_with("#") ? kInvalidGrammar : kUnsupportedSchema, at(index).path + ".$ref",
            "\"{}\" does not resolve to a schema of this document; use \"#/$defs/NAME\"", name);
      at(index).target = found->second;
      if (name == "#" && root_name_.empty()) name_root();
      if (name != "#" && !name.starts_with("#/$defs/") && !name.starts_with("#/definitions/"))
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

void Schema::Tree::name_root() {
  const auto is_used = [&](const auto& entry) { return entry.second == root_name_; };
  root_name_ = "root";
  while (std::ranges::any_of(definition_names_, is_used)) root_name_ += '_';
}

std::int64_t Schema::Tree::number_of(const Node& node, std::string_view keyword) const {
  const Value* found = node.value->find(keyword);
  return found == nullptr ? 0 : whole_number(*found).value_or(0);
}

bool Schema::Tree::completes(const Node& node) const {
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

bool Schema::Tree::object_completes(const Node& node) const {
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
  return allows_others(node) && (node.additional < 0 || at(node.additional).productive) &&
         (node.names < 0 || !names_of(node).empty());
}

bool Schema::Tree::array_completes(const Node& node) const {
  const auto first = static_cast<std::int64_t>(num_first_items(node));
  if (number_of(node, "minItems") <= first) return true;
  return static_cast<std::size_t>(first) == node.prefix.size() &&
         (node.items < 0 || at(node.items).productive);
}

std::size_t Schema::Tree::num_first_items(const Node& node) const {
  std::size_t most = node.prefix.size();
  if (node.value->find("maxItems") != nullptr)
    most = std::min(most, static_cast<std::size_t>(number_of(node, "maxItems")));
  std::size_t count = 0;
  while (count < most && at(node.prefix[count]).productive) ++count;
  return count;
}

void Schema::Tree::find_productive() {
  for (bool changed = true; changed;) {
    changed = false;
    for (Node& node : nodes_) {
      if (node.productive || !node.reached || !completes(node)) continue;
      node.productive = true;
      changed = true;
    }
  }
  for (Node& node : nodes_) {
    if (!node.productive || node.value->object() == nullptr || !node.primary.empty()) continue;
    if (!object_completes(node)) node.types &= ~unsigned{object_type};
    if (!array_completes(node)) node.types &= ~unsigned{array_type};
  }
}

std::string_view Schema::Tree::unsatisfiable_path() const {
  for (const Node& node : nodes_)
    if (node.reached && node.impossible) return node.path;
  return at(0).path;
}

bool Schema::Tree::allows_others(const Node& node) {
  const Value* others = node.value->find("additionalProperties");
  return others == nullptr || others->boolean() != false;
}

}  // namespace koho
