// SPDX-License-Identifier: Apache-2.0
#include "app/nearest_word.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

namespace koho::app {
namespace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t above = row[j + 1];
      row[j + 1] =
          std::min({above + 1, row[j] + 1, diagonal + std::size_t{a[i] == b[j] ? 0U : 1U}});
      diagonal = above;
    }
  }
  return row.back();
}

}  // namespace

std::string nearest_word(std::string_view given, std::span<const std::string> known) {
  std::string_view best;
  std::size_t least = ~std::size_t{0};
  for (const std::string& word : known) {
    const std::size_t distance = edit_distance(given, word);
    if (distance >= least) continue;
    least = distance;
    best = word;
  }
  const bool near = least <= std::max<std::size_t>(2, std::max(given.size(), best.size()) / 3);
  return std::string(near ? best : std::string_view());
}

std::string hyphenated(std::string_view flag) {
  std::string made(flag);
  if (!made.starts_with("--")) return made;
  const auto end =
      made.begin() + static_cast<std::ptrdiff_t>(std::min(made.find('='), made.size()));
  std::replace(made.begin(), end, '_', '-');
  return made;
}

}  // namespace koho::app
