// SPDX-License-Identifier: Apache-2.0
#include "cuda/load/tiled_scales.h"

#include "base/arithmetic.h"
#include "cuda/gemm/tiled_layout.h"
#include "tensor/number.h"

namespace koho::cuda {
namespace {

/// Element [row, column] of a small f32 or bf16 host tensor, whatever its rank and strides.
float scale_at(const ConstTensorView& scale, std::int64_t row, std::int64_t column) {
  std::int64_t at = scale.shape.rank() > 0 ? row * scale.stride(0) : 0;
  if (scale.shape.rank() > 1) at += column * scale.stride(1);
  return scale.dtype == DType::bf16 ? to_float(scale.as<BFloat16>()[at]) : scale.as<float>()[at];
}

}  // namespace

TiledScales::TiledScales(const TiledWeights& weights)
    : tiles_(weights.tiles),
      width_blocks_(ceil_div<std::int64_t>(weights.width_bytes, kBlockWidth)) {
  const std::int64_t tiles = weights.count * tiles_;
  if (weights.type == TileType::fp8) rows_.resize(static_cast<std::size_t>(tiles * kTileRows));
  if (weights.type == TileType::fp8_block)
    blocks_.resize(static_cast<std::size_t>(tiles * 2 * width_blocks_));
}

void TiledScales::take(const RowDestination& place, const LinearSource& source) {
  const bool interleaved = place.interleave != 0;
  const std::int64_t first_tile = place.matrix * tiles_;
  for (std::int64_t row = 0; !rows_.empty() && row < source.out_features(); ++row) {
    const std::int64_t placed =
        place.first + (interleaved ? interleaved_row(row, place.interleave == 2) : row);
    rows_[static_cast<std::size_t>(first_tile * kTileRows + placed)] =
        scale_at(source.scale, source.quant == WeightQuant::fp8_tensor ? 0 : row, 0);
  }
  // A half is 8 of every 16 rows: gate's or up's, or both of one source.
  const std::int64_t source_rows = interleaved ? kPairRows : kTileRows;  // in a tile
  for (std::int64_t row = 0; !blocks_.empty() && row < source.out_features(); row += source_rows)
    for (int half = 0; half < 2; ++half) {
      if (interleaved && half != place.interleave - 1) continue;
      const std::int64_t tile = first_tile + place.first / kTileRows + row / source_rows;
      for (std::int64_t block = 0; block < width_blocks_; ++block)
        blocks_[static_cast<std::size_t>((tile * 2 + half) * width_blocks_ + block)] =
            scale_at(source.scale, row / kQuantBlock, block);
    }
}

}  // namespace koho::cuda
