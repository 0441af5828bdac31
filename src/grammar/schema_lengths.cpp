// SPDX-License-Identifier: Apache-2.0
// Builds the LengthPlan of a schema (string_lengths.h): which strings at which places of the JSON
// text have length bounds that LengthTracker can count. A place is a set of leaf nodes: the schemas
// without $ref and anyOf that apply there.
#include <algorithm>
#include <map>

#include "grammar/schema_tree.h"

namespace koho {

std::optional<LengthBounds> Schema::Tree::bounds_of(const Node& node) const {
  if (!node.productive || node.value->object() == nullptr || !node.primary.empty() ||
      (node.types & string_type) == 0)
    return std::nullopt;
  if (const Value* pattern = node.value->find("pattern")) {
    const std::optional<CountedPattern> counted = counted_pattern(*pattern->string());
    return counted ? std::optional(counted->bounds) : std::nullopt;
  }
  constexpr std::int64_t kMost = 1 << 30U;  // more characters than any answer has
  LengthBounds bounds;
  bounds.least = static_cast<std::int32_t>(std::min(number_of(node, "minLength"), kMost));
  if (node.value->find("maxLength") != nullptr)
    bounds.most = static_cast<std::int32_t>(std::min(number_of(node, "maxLength"), kMost));
  return bounds == LengthBounds{} ? std::nullopt : std::optional(bounds);
}

std::vector<int> Schema::Tree::leaves_of(std::vector<int> open) {
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
      // Strings that an enum lists have no bounds of their own.
      const bool any =
          node.value->object() == nullptr || node.types == kAnyType || !node.primary.empty();
      leaves.push_back(any ? kAnything : index);
    }
  }
  std::ranges::sort(leaves);
  // Not std::ranges::unique: clang 14, which the fuzz preset uses, cannot compile it.
  leaves.erase(std::unique(leaves.begin(), leaves.end()), leaves.end());
  return leaves;
}

std::optional<int> Schema::Tree::member_of(const Node& node, const std::string* name) {
  if (node.pattern_properties >= 0) return node.pattern_properties;
  if (!node.properties.empty()) {
    for (const Property& property : node.properties)
      if (name != nullptr && property.name == *name) return property.node;
    return std::nullopt;
  }
  if (!allows_others(node)) return std::nullopt;
  return node.additional >= 0 ? node.additional : kAnything;
}

std::optional<int> Schema::Tree::item_of(const Node& node, std::size_t index) {
  if (index < node.prefix.size()) return node.prefix[index];
  if (node.items >= 0) return node.items;
  return node.prefix.empty() ? std::optional(kAnything) : std::nullopt;
}

bool Schema::Tree::place_all(LengthPlan& plan, bool& agreed) {
  constexpr std::size_t kPlacesMax = 2000;
  constexpr std::int64_t kWorkMax = 200'000;  // about 10 ms
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

bool Schema::Tree::settle_text(const std::vector<int>& leaves, std::optional<LengthBounds>& text) {
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

}  // namespace koho
