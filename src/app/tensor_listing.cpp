// SPDX-License-Identifier: Apache-2.0
#include "app/tensor_listing.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "base/printable.h"
#include "base/text.h"

namespace koho::app {
namespace {

constexpr std::string_view kLayers = "model.layers.";
constexpr std::string_view kExperts = "experts.";

/// Removes a number and a dot from the front of `text` and returns the number, or -1.
std::int64_t take_number(std::string_view& text) {
  const std::size_t dot = text.find('.');
  const auto number = parse_integer<std::int64_t>(text.substr(0, dot));
  if (dot == std::string_view::npos || !number) return -1;
  text.remove_prefix(dot + 1);
  return *number;
}

/// Collects tensors by layer.
class Listing {
 public:
  void add(std::string_view name, const std::string& kind) {
    std::int64_t layer = -1;
    if (name.substr(0, kLayers.size()) == kLayers) {
      std::string_view rest = name.substr(kLayers.size());
      layer = take_number(rest);
      if (layer >= 0) name = rest;
    }
    std::string shown(name);
    if (const std::size_t at = name.find(kExperts); at != std::string_view::npos) {
      std::string_view rest = name.substr(at + kExperts.size());
      if (take_number(rest) >= 0)
        shown = std::string(name.substr(0, at + kExperts.size())) + "*." + std::string(rest);
    }
    ++layers_[layer][{printable(shown), kind}];
  }

  std::vector<ListedGroup> groups() const {
    std::vector<ListedGroup> groups;
    for (const auto& [layer, counts] : layers_) {
      std::vector<ListedTensor> tensors;
      for (const auto& [key, count] : counts) tensors.push_back({key.first, key.second, count});
      const bool continues = !groups.empty() && layer > 0 && groups.back().last == layer - 1 &&
                             groups.back().first >= 0 && groups.back().tensors == tensors;
      if (continues)
        groups.back().last = layer;
      else
        groups.push_back({layer, layer, std::move(tensors)});
    }
    return groups;
  }

 private:
  using Counts = std::map<std::pair<std::string, std::string>, std::int64_t>;
  std::map<std::int64_t, Counts> layers_;
};

}  // namespace

std::vector<ListedGroup> list_tensors(const Checkpoint& checkpoint) {
  Listing listing;
  for (const CheckpointTensor& tensor : checkpoint.tensors())
    listing.add(tensor.name, describe(tensor));
  return listing.groups();
}

std::vector<ListedGroup> list_tensors(const std::vector<ExpectedWeight>& rows) {
  Listing listing;
  for (const ExpectedWeight& row : rows) {
    listing.add(row.name, to_string(row.shape));
    if (row.bias)
      listing.add(row.name.substr(0, row.name.rfind('.')) + ".bias",
                  to_string(Shape{row.shape[0]}));
  }
  return listing.groups();
}

}  // namespace koho::app
