// SPDX-License-Identifier: Apache-2.0
// The order in which prefill GEMMs take the token blocks of experts.
#pragma once

#include "cuda/gemm/gemm.h"

namespace koho::cuda {
namespace {

/// A token block, and which block of its expert's weights multiplies it.
struct ExpertTile {
  ExpertTokenBlock tokens;
  int weights;
};

/// Work tile `index` of experts with `weight_blocks` blocks of weights each. Token blocks of one
/// expert take each block of its weights together, so that memory delivers it once.
__device__ __forceinline__ ExpertTile expert_tile_at(const ExpertTokenBlock* token_blocks,
                                                     int index,
                                                     int weight_blocks) {
  const int at = index / weight_blocks;
  const ExpertTokenBlock any = token_blocks[at];
  const int first = at - any.block_of_expert;
  const int of_expert = index - first * weight_blocks;
  return {token_blocks[first + of_expert % any.blocks_of_expert], of_expert / any.blocks_of_expert};
}

}  // namespace
}  // namespace koho::cuda
