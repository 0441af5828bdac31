// SPDX-License-Identifier: Apache-2.0
// The ids of a text. Of a text with more than a caller can use, only the first ids are kept and the
// others counted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace koho {

struct TokenList {
  std::vector<std::int32_t> ids{};
  std::size_t ids_max = ~std::size_t{0};
  std::size_t dropped = 0;

  /// Drops the ids beyond ids_max. Whoever appends many calls it now and then.
  void keep() {
    if (ids.size() <= ids_max) return;
    dropped += ids.size() - ids_max;
    ids.resize(ids_max);
  }
};

}  // namespace koho
