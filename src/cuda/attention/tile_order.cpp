// SPDX-License-Identifier: Apache-2.0
#include "cuda/attention/tile_order.h"

#include <algorithm>
#include <functional>
#include <vector>

namespace koho::cuda {
namespace {

constexpr float kBegin = 1.2F;  // steps that a tile costs besides its own, as measured
constexpr float kBeginLeast = 0.8F;
constexpr float kBeginMost = 1.8F;
constexpr float kClearly = 0.985F;

/// Lengths of tiles, longest first, and how many SMs take them.
struct Tiles {
  std::vector<float> lengths;
  int takers = 0;
};

/// When the last SM ends, if whichever is idle first takes the next tile.
float end_of(const Tiles& tiles, const TileOrder& order) {
  std::vector<float> ends(static_cast<std::size_t>(tiles.takers),
                          0.0F);  // a heap, the first on top
  const int count = static_cast<int>(tiles.lengths.size());
  for (int number = 0; number < count; ++number) {
    std::pop_heap(ends.begin(), ends.end(), std::greater<>());
    ends.back() += tiles.lengths[static_cast<std::size_t>(tile_at(order, number))];
    std::push_heap(ends.begin(), ends.end(), std::greater<>());
  }
  return *std::max_element(ends.begin(), ends.end());
}

/// The prompt's tiles, or as many as `takers` of its multiprocessors have.
Tiles tiles_of(const PrefillTiles& prompt, int takers, float begin) {
  const int all = prompt.tiles * prompt.heads;
  Tiles tiles;
  tiles.takers = takers;
  tiles.lengths.resize(static_cast<std::size_t>(all) * static_cast<std::size_t>(takers) /
                       static_cast<std::size_t>(prompt.multiprocessors));
  const int count = static_cast<int>(tiles.lengths.size());
  for (int i = 0; i < count; ++i) {
    const int longer = static_cast<int>((2LL * i + 1) * all / (2LL * count)) / prompt.heads;
    // 128 rows are 128 / group tokens, a step is 128 tokens.
    const int steps = (prompt.tiles - longer + prompt.group - 1) / prompt.group;
    tiles.lengths[static_cast<std::size_t>(i)] = static_cast<float>(steps) + begin;
  }
  return tiles;
}

}  // namespace

float simulated_makespan(const PrefillTiles& prompt, const TileOrder& order, float begin) {
  const Tiles tiles = tiles_of(prompt, prompt.multiprocessors, begin);
  float sum = 0.0F;
  for (const float length : tiles.lengths) sum += length;
  return end_of(tiles, order) * static_cast<float>(prompt.multiprocessors) / sum;
}

TileOrder find_tile_order(const PrefillTiles& prompt) {
  constexpr int kMany = 6;  // tiles a multiprocessor, from which on longest first is near the mean
  constexpr int kTakers = 22;
  constexpr int kFroms = 12;
  constexpr int kCounts = 6;
  const int all = prompt.tiles * prompt.heads;
  if (prompt.multiprocessors < kTakers || all <= 2 * prompt.multiprocessors ||
      all >= kMany * prompt.multiprocessors)
    return {};
  const Tiles few = tiles_of(prompt, kTakers, kBegin);
  const int count = static_cast<int>(few.lengths.size());
  TileOrder best;
  float least = end_of(few, best);
  for (const int to : {kTakers / 2, kTakers}) {
    for (int from = 0; from < kFroms; ++from) {
      for (int part = 1; part <= kCounts; ++part) {
        const TileOrder order{to + (count - to) * from / kFroms, kTakers * part / kCounts, to};
        if (order.from + order.count > count) continue;
        const float end = end_of(few, order);
        if (end >= least) continue;
        least = end;
        best = order;
      }
    }
  }
  const auto scaled = [&](int value) { return value * prompt.multiprocessors / kTakers; };
  best = {scaled(best.from), scaled(best.count), scaled(best.to)};
  for (const float begin : {kBeginLeast, kBegin, kBeginMost})
    if (simulated_makespan(prompt, best, begin) > kClearly * simulated_makespan(prompt, {}, begin))
      return {};
  return best;
}

}  // namespace koho::cuda
