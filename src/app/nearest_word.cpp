// SPDX-License-Identifier: Apache-2.0
#include "app/nearest_word.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

namespace koho::app {
namespace {

/// Letters inserted, left out, changed, or swapped with the next one.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  // Of the prefixes of b and of a's prefix at hand, of the one before, of the one before that.
  std::vector<std::size_t> row(b.size() + 1);
  std::vector<std::size_t> above(b.size() + 1);
  std::vector<std::size_t> above_that(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    above_that.swap(above);
    above.swap(row);
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      row[j + 1] = std::min({above[j + 1] + 1, row[j] + 1, above[j] + (a[i] == b[j] ? 0U : 1U)});
      if (i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j])
        row[j + 1] = std::min(row[j + 1], above_that[j - 1] + 1);
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
