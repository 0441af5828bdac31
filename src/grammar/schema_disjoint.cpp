// SPDX-License-Identifier: Apache-2.0
// Shows that no value is valid by two options of a oneOf, so that schema_writer.cpp may write it as
// anyOf. Options differ by type, by const and enum, by a property whose values differ, or by a
// property that one requires and the other cannot have. A oneOf for which this cannot be shown
// within kWorkMax steps is refused.
#include <algorithm>
#include <set>

#include "grammar/schema_tree.h"

namespace koho {

void Schema::Tree::find_discriminators() {
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

Status Schema::Tree::check_disjoint() const {
  int work = 0;
  for (const Node& node : nodes_) {
    if (!node.reached || node.primary != "oneOf") continue;
    for (std::size_t i = 0; i < node.options.size(); ++i)
      for (std::size_t j = i + 1; j < node.options.size(); ++j) {
        if (all_excluded(node.options[i], node.options[j], 0, work) &&
            all_excluded(node.options[j], node.options[i], 0, work))
          continue;
        return fault(kUnsupportedSchema, node.path,
                     "oneOf[{}] and oneOf[{}] may both match a value, or it takes too long to "
                     "tell: give each a required property whose const or enum differs, or use "
                     "anyOf",
                     i, j);
      }
  }
  return {};
}

std::vector<int> Schema::Tree::ends_of(int index, int& work) const {
  std::vector<int> ends;
  std::set<int> seen{index};
  std::vector<int> open{index};
  while (!open.empty()) {
    ++work;
    const int next = open.back();
    open.pop_back();
    const Node& node = at(next);
    // Without a `type`, values of the types that its keywords do not concern are valid.
    const auto is_open = [](const Node& one) {
      return one.value->object() != nullptr && one.primary.empty() &&
             one.value->find("type") == nullptr;
    };
    const auto visit = [&](int child) {
      if (seen.insert(child).second) open.push_back(child);
    };
    if (node.primary == "$ref") {
      visit(node.target);
    } else if (!node.options.empty()) {
      for (const int option : node.options) visit(option);
    } else if (!node.impossible || is_open(node)) {
      ends.push_back(next);
    }
  }
  return ends;
}

bool Schema::Tree::all_excluded(int written, int other, int depth, int& work) const {
  constexpr int kDepthMax = 8;
  if (depth > kDepthMax) return false;
  const std::vector<int> others = ends_of(other, work);
  for (const int one : ends_of(written, work))
    for (const int two : others)
      if (!excluded(at(one), at(two), depth, work)) return false;
  return true;
}

bool Schema::Tree::excluded(const Node& written, const Node& other, int depth, int& work) const {
  constexpr int kWorkMax = 200'000;  // about 10 ms
  if (++work > kWorkMax || other.value->object() == nullptr) return false;
  const bool lists = !written.primary.empty();
  const bool other_lists = !other.primary.empty();
  // A schema without `type` accepts every value of the types that its keywords do not concern.
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

bool Schema::Tree::object_excluded(const Node& written,
                                   const Node& other,
                                   int depth,
                                   int& work) const {
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
    if (has ? all_excluded(property.node, same->node, depth + 1, work) : closed(other)) return true;
  }
  if (written.properties.empty() && !closed(written)) return false;
  return std::ranges::any_of(other.properties, [&](const Property& property) {
    return property.required && named(written, property.name) == written.properties.end();
  });
}

bool Schema::Tree::surely_differ(const Value& one, const Value& two) {
  if (one.string() != nullptr && two.string() != nullptr) return *one.string() != *two.string();
  if (one.number() && two.number()) return *one.number() != *two.number();
  if (one.number() || two.number() || one.kind() != two.kind()) return one.kind() != two.kind();
  return one.kind() == Kind::boolean && *one.boolean() != *two.boolean();
}

}  // namespace koho
