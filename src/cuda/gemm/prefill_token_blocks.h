// SPDX-License-Identifier: Apache-2.0
// Into how many token blocks the prefill GEMM divides a linear layer's tokens: few, since each
// block costs something beside its tokens, but so many that every cluster gets nearly the same
// number of work tiles. Results do not depend on it. Needs no GPU.
#pragma once

#include <cstdint>

#include "base/arithmetic.h"
#include "cuda/gemm/gemm_sm90.h"

namespace koho::cuda {

struct PrefillTiling {
  int tokens = 0;
  int step = 0;      // blocks begin at multiples of this
  int most = 0;      // tokens of a block at most, a multiple of step
  int least = 0;     // tokens that a block costs at least: the narrowest MMA
  int blocks = 0;    // of weight rows, each multiplied by every token block
  int clusters = 0;  // that take work tiles (weight block, token block) in turn
};

/// What a work tile costs beside its tokens, counted in tokens: 32 KB of weights into and out
/// of shared memory for each 128 bytes of K, where a token takes 384 bytes, and 1,400 cycles of
/// epilogue.
constexpr int kTileOverheadTokens = 110;

/// How long the cluster with the most work tiles takes, counted in tokens of one work tile.
constexpr double prefill_cost(const PrefillTiling& cut, int token_blocks) {
  const double tokens = static_cast<double>(cut.tokens) / token_blocks;
  return ceil_div(token_blocks * cut.blocks, cut.clusters) *
         (kTileOverheadTokens + (tokens > cut.least ? tokens : static_cast<double>(cut.least)));
}

constexpr int num_prefill_token_blocks(const PrefillTiling& cut) {
  const int steps = ceil_div(cut.tokens, cut.step);
  const int least = ceil_div(steps, cut.most / cut.step);
  int best = least;
  for (int token_blocks = least + 1; token_blocks <= 2 * least && token_blocks <= steps;
       ++token_blocks)
    if (prefill_cost(cut, token_blocks) < prefill_cost(cut, best)) best = token_blocks;
  return best;
}

/// The share of that time in which all clusters multiply tokens. It is low where the last wave of
/// work tiles is not full, or token blocks are short.
constexpr double prefill_utilization(const PrefillTiling& cut) {
  return static_cast<double>(cut.tokens) * cut.blocks /
         (cut.clusters * prefill_cost(cut, num_prefill_token_blocks(cut)));
}

/// The most work tiles that a cluster takes.
constexpr int prefill_waves(const PrefillTiling& cut) {
  return ceil_div(num_prefill_token_blocks(cut) * cut.blocks, cut.clusters);
}

/// From this share on the prefill kernel is faster than cuBLASLt (docs/kernels/gemm.md).
constexpr double kPrefillUtilizationMin = 0.55;

/// A linear layer in the prefill kernel, whose clusters multiply kPrefillTiles weight tiles at a
/// time.
constexpr int kPrefillTiles = 4;
constexpr PrefillTiling prefill_tiling(const Gemm& parameters, int columns, int multiprocessors) {
  return {.tokens = parameters.tokens,
          .step = kPrefillTokenStep,
          .most = columns,
          .least = prefill_width(columns, 0),
          .blocks = ceil_div(parameters.tiles, kPrefillTiles),
          .clusters = multiprocessors / 2};
}

/// A linear layer's token blocks: no two differ by more than a step.
struct TokenBlocks {
  int count = 0;
  int length = 0;  // steps of each in 65,536ths, rounded up, so that the GPU need not divide
};
constexpr TokenBlocks prefill_token_blocks(const PrefillTiling& cut) {
  const int count = num_prefill_token_blocks(cut);
  const std::int64_t steps = ceil_div(cut.tokens, cut.step);
  return {.count = count, .length = static_cast<int>(ceil_div<std::int64_t>(steps << 16U, count))};
}

/// Where token block `block` begins, up to `tokens`.
constexpr int token_block_begin(int tokens, const TokenBlocks& token_blocks, int block) {
  const auto step =
      static_cast<int>((static_cast<std::int64_t>(block) * token_blocks.length) >> 16U);
  const int begin = step * kPrefillTokenStep;
  return begin < tokens ? begin : tokens;
}

}  // namespace koho::cuda
