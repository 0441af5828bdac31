// SPDX-License-Identifier: Apache-2.0
// Into how many slices the kernel of many tokens cuts those of one matrix: few, since a slice costs
// something beside its tokens, but so many that every cluster has as many items as the others.
// Results do not depend on it. No GPU.
#pragma once

#include "base/arithmetic.h"

namespace koho::cuda {

struct PromptCut {
  int tokens = 0;
  int step = 0;      // slices begin at multiples of this
  int most = 0;      // tokens of a slice, a multiple of step
  int least = 0;     // tokens that a slice costs at least
  int blocks = 0;    // of weight rows, each multiplied by every slice
  int clusters = 0;  // that take items, a block and a slice each, in turn
};

/// What an item costs beside its tokens, in tokens: 32 KB of weights to and from shared memory for
/// each 128 bytes of K, where a token takes 384 bytes, and 1,400 cycles at its end (docs/kernels).
constexpr int kItemTokens = 110;

constexpr int prompt_slices(const PromptCut& cut) {
  const int steps = ceil_div(cut.tokens, cut.step);
  const int least = ceil_div(steps, cut.most / cut.step);
  int best = least;
  double best_cost = 0.0;
  for (int slices = least; slices <= 2 * least && slices <= steps; ++slices) {
    const double tokens = static_cast<double>(cut.tokens) / slices;
    const double cost =
        ceil_div(slices * cut.blocks, cut.clusters) *
        (kItemTokens + (tokens > cut.least ? tokens : static_cast<double>(cut.least)));
    if (slices > least && cost >= best_cost) continue;
    best = slices;
    best_cost = cost;
  }
  return best;
}

/// Where slice `slice` of `slices` begins, up to cut.tokens: no two differ by more than a step.
constexpr int prompt_slice_begin(int tokens, int step, int slice, int slices) {
  const int begin = ceil_div(tokens, step) * slice / slices * step;
  return begin < tokens ? begin : tokens;
}

}  // namespace koho::cuda
