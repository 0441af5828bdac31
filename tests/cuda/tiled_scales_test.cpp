// SPDX-License-Identifier: Apache-2.0
// Scales lie where the kernels look for them: each row's beside its row of tiles, each block's
// beside the half tiles it covers. No GPU.
#include "cuda/load/tiled_scales.h"

#include <vector>

#include <gtest/gtest.h>

#include "cuda/gemm/tiled_layout.h"

namespace koho::cuda {
namespace {

/// A weight of no bytes and its scales.
struct Source {
  std::vector<float> scales;
  LinearSource linear;

  Source(WeightQuant quant, Shape weight, Shape scale, float first)
      : scales(static_cast<std::size_t>(scale.elements())) {
    for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = first + static_cast<float>(i);
    linear.quant = quant;
    linear.weight = ConstTensorView(TensorView(nullptr, DType::f8_e4m3, weight, {}));
    linear.scale = ConstTensorView(
        TensorView(reinterpret_cast<std::byte*>(scales.data()), DType::f32, scale, {}));
  }
};

TiledWeights tiles_of(TileType type, std::int64_t count, std::int64_t tiles, std::int64_t width) {
  TiledWeights weights;
  weights.type = type;
  weights.count = count;
  weights.tiles = tiles;
  weights.width_bytes = width;
  return weights;
}

TEST(TiledScales, OfRowsFollowTheirRows) {
  TiledScales scales(tiles_of(TileType::fp8, 2, 2, 64));
  const Source q(WeightQuant::fp8_channel, {70, 64}, {70}, 1.0F);
  const Source k(WeightQuant::fp8_tensor, {30, 64}, {1}, 500.0F);
  scales.take({.matrix = 1}, q.linear);
  scales.take({.matrix = 1, .first = 70}, k.linear);
  ASSERT_EQ(scales.of_rows().size(), 2U * 2 * kTileRows);
  EXPECT_TRUE(scales.of_blocks().empty());
  EXPECT_EQ(scales.of_rows()[127], 0.0F);
  EXPECT_EQ(scales.of_rows()[128], 1.0F);
  EXPECT_EQ(scales.of_rows()[128 + 69], 70.0F);
  EXPECT_EQ(scales.of_rows()[128 + 70], 500.0F);
  EXPECT_EQ(scales.of_rows()[128 + 99], 500.0F);
  EXPECT_EQ(scales.of_rows()[128 + 100], 0.0F);
}

TEST(TiledScales, OfGateAndUpRowsInterleaveAsTheirRowsDo) {
  TiledScales scales(tiles_of(TileType::fp8, 1, 2, 64));
  const Source gate(WeightQuant::fp8_channel, {40, 64}, {40}, 0.0F);
  const Source up(WeightQuant::fp8_channel, {40, 64}, {40}, 100.0F);
  scales.take({.interleave = 1}, gate.linear);
  scales.take({.interleave = 2}, up.linear);
  for (std::int64_t row = 0; row < 40; ++row) {
    EXPECT_EQ(scales.of_rows()[static_cast<std::size_t>(interleaved_row(row, false))],
              static_cast<float>(row));
    EXPECT_EQ(scales.of_rows()[static_cast<std::size_t>(interleaved_row(row, true))],
              100.0F + static_cast<float>(row));
  }
}

/// 200 rows by 300 columns: 2 x 3 blocks, which four tiles of 64 rows share.
TEST(TiledScales, OfBlocksCoverBothHalvesOfATile) {
  TiledScales scales(tiles_of(TileType::fp8_block, 1, 4, 320));
  const Source source(WeightQuant::fp8_block, {200, 300}, {2, 3}, 1.0F);
  scales.take({}, source.linear);
  ASSERT_EQ(scales.of_blocks().size(), 4U * 2 * 3);
  EXPECT_TRUE(scales.of_rows().empty());
  for (std::size_t tile = 0; tile < 4; ++tile)
    for (std::size_t half = 0; half < 2; ++half)
      for (std::size_t block = 0; block < 3; ++block)
        EXPECT_EQ(scales.of_blocks()[(tile * 2 + half) * 3 + block],
                  1.0F + static_cast<float>(tile / 2 * 3 + block));
}

/// A tile has 32 rows of each, so that four of them share a block of 128.
TEST(TiledScales, OfGateAndUpBlocksTakeAHalfEach) {
  TiledScales scales(tiles_of(TileType::fp8_block, 2, 5, 128));
  const Source gate(WeightQuant::fp8_block, {160, 128}, {2, 1}, 1.0F);
  const Source up(WeightQuant::fp8_block, {160, 128}, {2, 1}, 10.0F);
  scales.take({.matrix = 1, .interleave = 1}, gate.linear);
  scales.take({.matrix = 1, .interleave = 2}, up.linear);
  for (std::size_t tile = 0; tile < 5; ++tile) {
    EXPECT_EQ(scales.of_blocks()[2 * tile], 0.0F);
    EXPECT_EQ(scales.of_blocks()[2 * (5 + tile)], tile < 4 ? 1.0F : 2.0F);
    EXPECT_EQ(scales.of_blocks()[2 * (5 + tile) + 1], tile < 4 ? 10.0F : 11.0F);
  }
}

}  // namespace
}  // namespace koho::cuda
