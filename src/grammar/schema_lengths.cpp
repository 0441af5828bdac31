// SPDX-License-Identifier: Apache-2.0
// Builds the LengthPlan of a schema (string_lengths.h): which strings at which places of the JSON
// text have length bounds that LengthTracker can count. A place is a set of leaf nodes: the schemas
// without $ref and anyOf that apply there.
#include <algorithm>
#include <map>
#include <utility>

#include "grammar/schema_tree.h"

namespace koho {
namespace {

/// Whether all schemas of a place have the same bounds, or all none.
struct Agreement {
  std::optional<LengthBounds> bounds;  // of the first
  bool holds = true;
  bool first = true;

  void add(std::optional<LengthBounds> own) {
    if (std::exchange(first, false)) bounds = own;
    holds = holds && bounds == own;
  }
};

}  // namespace

LengthBounds Schema::Tree::lengths_of(const Node& node) const {
  constexpr std::int64_t kMost = 1 << 30U;  // more characters than any answer has
  LengthBounds bounds;
  bounds.least = static_cast<std::int32_t>(std::min(number_of(node, "minLength"), kMost));
  if (node.value->find("maxLength") != nullptr)
    bounds.most = static_cast<std::int32_t>(std::min(number_of(node, "maxLength"), kMost));
  return bounds;
}

std::optional<LengthBounds> Schema::Tree::bounds_of(const Node& node) const {
  if (!node.productive || node.value->object() == nullptr || !node.primary.empty() ||
      (node.types & string_type) == 0)
    return std::nullopt;
  if (const Value* pattern = node.value->find("pattern")) {
    const std::optional<CountedPattern> counted = counted_pattern(*pattern->string());
    return counted ? std::optional(counted->bounds) : std::nullopt;
  }
  const std::optional<FormatPattern> form = format_of(node, true);
  const LengthBounds bounds = lengths_of(node);
  if (bounds == LengthBounds{} || (form && !form->counted)) return std::nullopt;
  return bounds;
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
      const bool any = node.primary.empty() && allows_all(node);
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
    if (std::ranges::all_of(leaves, [&](int leaf) { return leaf == kAnything || lists(leaf); }))
      return LengthPlan::kNowhere;
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
    agreed = settle_names(leaves, place.names) && agreed;
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

bool Schema::Tree::listed_fit(const std::vector<int>& leaves, LengthBounds bounds) const {
  bool fit = true;
  for (const int leaf : leaves) {
    if (leaf == kAnything || !lists(leaf)) continue;
    for_each_value(at(leaf), [&](const Value& value) {
      if (value.string() == nullptr) return;
      const auto characters =
          static_cast<std::int32_t>(std::ranges::count_if(*value.string(), begins_character));
      // A bounded string has no escapes.
      fit = fit && json_string(*value.string()).size() == value.string()->size() + 2 &&
            characters >= bounds.least && (bounds.most < 0 || characters <= bounds.most);
    });
  }
  return fit;
}

bool Schema::Tree::settle_text(const std::vector<int>& leaves, std::optional<LengthBounds>& text) {
  constexpr std::int32_t kInGrammarMax = 64;  // a state each
  Agreement agreement;
  bool large = false;
  bool free = true;  // each leaf leaves its lengths open, or has bounds that are counted
  LengthBounds all;  // what satisfies the bounds of all leaves
  for (const int leaf : leaves) {
    if (leaf != kAnything && ((at(leaf).types & string_type) == 0 || lists(leaf))) continue;
    const std::optional<LengthBounds> own = leaf == kAnything ? std::nullopt : at(leaf).counted;
    agreement.add(own);
    free = free && (own || leaf == kAnything || pattern_of(at(leaf)).empty());
    if (!own) continue;
    large = large || std::max(own->least, own->most) > kInGrammarMax;
    all.least = std::max(all.least, own->least);
    if (own->most >= 0) all.most = all.most < 0 ? own->most : std::min(all.most, own->most);
  }
  text = agreement.bounds;
  if (agreement.holds && (!text || listed_fit(leaves, *text))) return true;
  // A counted format reaches a dead end within other bounds than it was made for.
  const bool formats_fit = std::ranges::all_of(leaves, [&](int leaf) {
    if (leaf == kAnything || !at(leaf).counted || !format_of(at(leaf), true)) return true;
    const std::string& format = *at(leaf).value->find("format")->string();
    const std::optional<FormatPattern> form = pattern_of_format(format, all, true);
    return form && form->counted && form->pattern == pattern_of(at(leaf));
  });
  if (large && free && formats_fit && (all.most < 0 || all.least <= all.most) &&
      listed_fit(leaves, all)) {
    text = all;
    return true;
  }
  for (const int leaf : leaves)
    if (leaf != kAnything) at(leaf).counted.reset();
  return false;
}

bool Schema::Tree::settle_names(const std::vector<int>& leaves,
                                std::optional<LengthBounds>& names) {
  Agreement agreement;
  std::vector<int> schemas;  // of names: leaves of propertyNames
  for (const int leaf : leaves) {
    if (leaf == kAnything) {
      agreement.add(std::nullopt);
    } else if ((at(leaf).types & object_type) != 0 && at(leaf).names >= 0) {
      for (const int schema : leaves_of({at(leaf).names})) {
        if (schema != kAnything && (at(schema).types & string_type) == 0) continue;
        schemas.push_back(schema);
        agreement.add(schema == kAnything ? std::nullopt : at(schema).counted);
      }
    } else if ((at(leaf).types & object_type) != 0) {
      agreement.add(at(leaf).counted_names);
    }
  }
  names = agreement.bounds;
  if (agreement.holds) return true;
  schemas.insert(schemas.end(), leaves.begin(), leaves.end());
  for (const int one : schemas)
    if (one != kAnything) {
      at(one).counted_names.reset();
      if (std::ranges::find(leaves, one) == leaves.end()) at(one).counted.reset();
    }
  return false;
}

}  // namespace koho
