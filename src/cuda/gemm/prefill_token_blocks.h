// SPDX-License-Identifier: Apache-2.0
// Into how many slices the kernel of many tokens cuts those of one matrix: few, since a slice costs
// something beside its tokens, but so many that every cluster has as many items as the others.
// Results do not depend on it. No GPU.
#pragma once

#include <cstdint>

#include "base/arithmetic.h"
#include "cuda/gemm/gemm_sm90.h"

namespace koho::cuda {

struct PrefillTiling {
  int tokens = 0;
  int step = 0;      // slices begin at multiples of this
  int most = 0;      // tokens of a slice, a multiple of step
  int least = 0;     // tokens that a slice costs at least
  int blocks = 0;    // of weight rows, each multiplied by every slice
  int clusters = 0;  // that take items, a block and a slice each, in turn
};

/// What an item costs beside its tokens, in tokens: 32 KB of weights to and from shared memory for
/// each 128 bytes of K, where a token takes 384 bytes, and 1,400 cycles at its end (docs/kernels).
constexpr int kTileOverheadTokens = 110;

/// What the cluster with the most items takes, in the time of one token of one item.
constexpr double prefill_cost(const PrefillTiling& cut, int slices) {
  const double tokens = static_cast<double>(cut.tokens) / slices;
  return ceil_div(slices * cut.blocks, cut.clusters) *
         (kTileOverheadTokens + (tokens > cut.least ? tokens : static_cast<double>(cut.least)));
}

constexpr int num_prefill_token_blocks(const PrefillTiling& cut) {
  const int steps = ceil_div(cut.tokens, cut.step);
  const int least = ceil_div(steps, cut.most / cut.step);
  int best = least;
  for (int slices = least + 1; slices <= 2 * least && slices <= steps; ++slices)
    if (prefill_cost(cut, slices) < prefill_cost(cut, best)) best = slices;
  return best;
}

/// The part of that time in which all clusters together multiply tokens: less where the last round
/// of items is not full, or slices are short.
constexpr double prefill_utilization(const PrefillTiling& cut) {
  return static_cast<double>(cut.tokens) * cut.blocks /
         (cut.clusters * prefill_cost(cut, num_prefill_token_blocks(cut)));
}

/// From this share on the kernel is faster than cuBLASLt (docs/kernels/linear.md).
constexpr double kPrefillUtilizationMin = 0.55;

/// One matrix in the kernel of many tokens, whose clusters multiply kPrefillTiles tiles of weight
/// rows at a time.
constexpr int kPrefillTiles = 4;
constexpr PrefillTiling prefill_tiling(const Gemm& parameters, int columns, int multiprocessors) {
  return {.tokens = parameters.tokens,
          .step = kPrefillTokenStep,
          .most = columns,
          .least = prefill_width(columns, 0),
          .blocks = ceil_div(parameters.tiles, kPrefillTiles),
          .clusters = multiprocessors / 2};
}

/// The slices of one matrix' tokens: no two differ by more than a step.
struct TokenBlocks {
  int count = 0;
  int length = 0;  // steps of each, in 65,536ths, rounded up: a GPU finds borders without dividing
};
constexpr TokenBlocks prefill_token_blocks(const PrefillTiling& cut) {
  const int count = num_prefill_token_blocks(cut);
  const std::int64_t steps = ceil_div(cut.tokens, cut.step);
  return {.count = count, .length = static_cast<int>(ceil_div<std::int64_t>(steps << 16U, count))};
}

/// Where slice `slice` begins, up to `tokens`.
constexpr int token_block_begin(int tokens, const TokenBlocks& slices, int slice) {
  const auto step = static_cast<int>((static_cast<std::int64_t>(slice) * slices.length) >> 16U);
  const int begin = step * kPrefillTokenStep;
  return begin < tokens ? begin : tokens;
}

}  // namespace koho::cuda
