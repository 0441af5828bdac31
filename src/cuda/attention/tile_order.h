// SPDX-License-Identifier: Apache-2.0
// The order in which the tile scheduler of attention_wgmma.cu hands out a prompt's tiles. A prompt
// without earlier context has tiles of very different lengths. Longest first is best where each SM
// gets many tiles, and where it gets two or four; with three, the last ones are too long to even
// out (4,096 tokens of 12 heads end 10 % after the mean). There some of the middle tiles come
// earlier. Results do not depend on the order.
#pragma once

namespace koho::cuda {

/// Longest first, but the `count` tiles from `from` on come at `to` (<= from).
struct TileOrder {
  int from = 0;
  int count = 0;
  int to = 0;
};

/// The tile that is handed out as number `number`; tiles are numbered longest first.
constexpr int tile_at(const TileOrder& order, int number) {
  if (number < order.to || number >= order.from + order.count) return number;
  return number < order.to + order.count ? number + order.from - order.to : number - order.count;
}

/// The tiles of a prompt: `tiles` of each of `heads` kv heads, that have `group` query heads each.
struct PrefillTiles {
  int tiles = 0;
  int heads = 0;
  int group = 0;
  int multiprocessors = 0;
  bool operator==(const PrefillTiles&) const = default;
};

/// When the last SM ends, relative to when all would end with an even share. `begin` is what a tile
/// costs besides its steps, in steps.
float simulated_makespan(const PrefillTiles& prompt, const TileOrder& order, float begin);

/// An order that ends clearly earlier than longest first, or none. Takes some hundred microseconds.
TileOrder find_tile_order(const PrefillTiles& prompt);

/// find_tile_order() of the last prompt asked for: a step's layers all ask for the same, and steps
/// without a prompt leave it. Threads: one at a time.
class TileOrderCache {
 public:
  TileOrder of(const PrefillTiles& prompt) {
    if (prompt == PrefillTiles{}) return {};
    if (!(prompt == last_)) order_ = find_tile_order(prompt);
    last_ = prompt;
    return order_;
  }

 private:
  PrefillTiles last_;
  TileOrder order_;
};

}  // namespace koho::cuda
