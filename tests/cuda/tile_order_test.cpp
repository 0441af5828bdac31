// SPDX-License-Identifier: Apache-2.0
// Orders of a prompt's tiles: each tile is taken once, and simulated, none is worse than longest
// first. No GPU.
#include "cuda/attention/tile_order.h"

#include <set>

#include <gtest/gtest.h>

namespace koho::cuda {
namespace {

PrefillTiles prompt_of(int tokens, int group, int heads) {
  return {.tiles = (tokens * group + 127) / 128,
          .heads = heads,
          .group = group,
          .multiprocessors = 132};
}

TEST(TileOrder, TakesEachTileOnceAndEndsNoLater) {
  for (const int heads : {1, 2})
    for (int tokens = 1; tokens < 9000; tokens += 479) {
      const PrefillTiles prompt = prompt_of(tokens, 12, heads);
      const TileOrder order = find_tile_order(prompt);
      const int all = prompt.tiles * heads;
      std::set<int> taken;
      for (int number = 0; number < all; ++number) taken.insert(tile_at(order, number));
      EXPECT_EQ(static_cast<int>(taken.size()), all);
      EXPECT_EQ(*taken.begin(), 0);
      EXPECT_EQ(*taken.rbegin(), all - 1);
      EXPECT_LE(simulated_makespan(prompt, order, 1.0F), simulated_makespan(prompt, {}, 1.0F))
          << tokens;
    }
}

TEST(TileOrder, EvensOutThreeTilesAMultiprocessor) {
  const PrefillTiles prompt = prompt_of(4096, 12, 1);
  EXPECT_GT(simulated_makespan(prompt, {}, 1.2F), 1.09F);
  EXPECT_LT(simulated_makespan(prompt, find_tile_order(prompt), 1.2F), 1.03F);
}

}  // namespace
}  // namespace koho::cuda
