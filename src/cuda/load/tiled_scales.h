// SPDX-License-Identifier: Apache-2.0
// Arranges the scales of tiled weights on the host in the order in which GEMM kernels read them:
// one per row (Gemm::row_scales), or one per 128 columns of each half of a tile
// (Gemm::block_scales).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cuda/load/placed_weights.h"
#include "ops/weights.h"

namespace koho::cuda {

class TiledScales {
 public:
  explicit TiledScales(const TiledWeights& weights);

  /// Takes those of a source whose rows lie at `place`.
  void take(const RowDestination& place, const LinearSource& source);
  /// Empty, or one for each row of every tile.
  std::span<const float> of_rows() const { return rows_; }
  /// Empty, or [tile, half, block of columns].
  std::span<const float> of_blocks() const { return blocks_; }

 private:
  std::int64_t tiles_;  // of a matrix
  std::int64_t width_blocks_;
  std::vector<float> rows_;
  std::vector<float> blocks_;
};

}  // namespace koho::cuda
