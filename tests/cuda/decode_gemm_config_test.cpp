// SPDX-License-Identifier: Apache-2.0
// The configurations of Hopper's decode GEMMs: the choice is a compiled one for every number of
// tokens of the models' shapes and of others, and its CTAs all run at once or are persistent. No
// GPU.
#include <algorithm>

#include <gtest/gtest.h>

#include "base/arithmetic.h"
#include "cuda/gemm/choose_gemm.h"

namespace koho::cuda {
namespace {

constexpr int kMultiprocessors = 132;
constexpr int kDecodeTokensMax = 128;

struct Shape {
  TileType type;
  int rows;
  int width_bytes;
};

Gemm gemm_of(const Shape& shape, int tokens) {
  Gemm p;
  p.type = shape.type;
  p.rows = shape.rows;
  p.tiles = ceil_div(shape.rows, kTileRows);
  p.width_bytes = shape.width_bytes;
  p.split_k = choose_split_k(p.tiles, p.width_bytes);
  p.tokens = tokens;
  return p;
}

/// Compares what the kernel is compiled for; the number of CTAs is the launch's.
bool is_listed(const DecodeGemmConfig& config, const Gemm& p) {
  const std::vector<DecodeGemmConfig> configs = unswapped_configs(p);
  return std::any_of(configs.begin(), configs.end(), [&](const DecodeGemmConfig& of) {
    return of.columns == config.columns && of.slot_width == config.slot_width &&
           of.rows == config.rows && of.ctas_per_sm == config.ctas_per_sm &&
           of.weight_multicast == config.weight_multicast;
  });
}

void expect_possible(const Shape& shape) {
  for (int tokens = 1; tokens <= kUnswappedTokensMax; ++tokens) {
    const Gemm p = gemm_of(shape, tokens);
    const DecodeGemmConfig config = choose_decode_gemm_config(p, kMultiprocessors);
    if (tokens > kDecodeTokensMax && config.rows == 0) continue;  // a prefill kernel's
    SCOPED_TRACE(testing::Message() << shape.rows << " rows, " << shape.width_bytes << " bytes, "
                                    << tokens << " tokens: " << config.rows);
    if (config.rows == 0) {
      EXPECT_GE(config.columns, tokens);
      EXPECT_EQ(config.ctas, 0);
      continue;
    }
    EXPECT_TRUE(is_listed(config, p));
    const int blocks = ceil_div(p.rows, config.rows);
    const int slices = ceil_div(tokens, config.columns);
    if (is_persistent(config) && config.ctas > 0) {
      EXPECT_EQ(slices, 1);
      EXPECT_LE(config.ctas, kMultiprocessors);
      EXPECT_LT(config.ctas, blocks);
    } else {
      EXPECT_EQ(config.ctas, 0);
      EXPECT_TRUE(is_persistent(config) || blocks * slices <= kMultiprocessors);
    }
  }
}

TEST(DecodeGemmConfig, ExistsForTheModelsShapes) {
  for (const Shape& shape :
       {Shape{TileType::fp8, 14336, 5120}, Shape{TileType::fp8, 3584, 5120},
        Shape{TileType::fp8, 1792, 5120}, Shape{TileType::fp8, 5120, 12288},
        Shape{TileType::fp8, 5120, 3072}, Shape{TileType::fp8, 5120, 1536},
        Shape{TileType::fp8, 24576, 5120}, Shape{TileType::fp8, 6144, 5120},
        Shape{TileType::fp8, 3072, 5120}, Shape{TileType::fp8, 14336, 4096},
        Shape{TileType::fp8, 4096, 12288}, Shape{TileType::bf16, 151552, 10240},
        Shape{TileType::bf16, 37888, 10240}, Shape{TileType::bf16, 18944, 10240},
        Shape{TileType::bf16, 151552, 8192}})
    expect_possible(shape);
}

TEST(DecodeGemmConfig, ExistsForOtherShapes) {
  for (const TileType type : {TileType::bf16, TileType::fp8})
    for (int rows = 8; rows < 20000; rows += 1016)
      for (const int width_bytes : {128, 256, 1040, 1536, 2304, 3072, 10240})
        expect_possible({type, rows, width_bytes});
}

// Both kernels give the same bits, so a wrong choice would only be slow. Measured:
// docs/kernels/gemm.md.
TEST(DecodeGemmConfig, IsUnswappedWhereMeasuredFaster) {
  const auto chosen = [](int rows, int width_bytes, int tokens) {
    return choose_decode_gemm_config(gemm_of({TileType::fp8, rows, width_bytes}, tokens),
                                     kMultiprocessors);
  };
  EXPECT_EQ(chosen(3584, 5120, 16).rows, 0);
  EXPECT_EQ(chosen(3584, 5120, 32).rows, 32);
  EXPECT_EQ(chosen(3584, 5120, 64).rows, 32);
  EXPECT_EQ(chosen(3584, 5120, 128).rows, 56);
  EXPECT_EQ(chosen(3584, 5120, 128).weight_multicast, 2);
  EXPECT_EQ(chosen(6144, 5120, 32).rows, 48);
  EXPECT_EQ(chosen(6144, 5120, 128).rows, 96);
  EXPECT_EQ(chosen(5120, 1536, 64).ctas_per_sm, 2);
  EXPECT_EQ(chosen(5120, 1536, 128).rows, 80);
  EXPECT_EQ(chosen(3072, 5120, 64).rows, 24);
  EXPECT_EQ(chosen(3072, 5120, 128).rows, 48);
  EXPECT_EQ(chosen(3072, 5120, 128).weight_multicast, 2);
  EXPECT_EQ(chosen(1792, 5120, 32).rows, 0);
  EXPECT_EQ(chosen(1792, 5120, 64).rows, 24);
  EXPECT_EQ(chosen(1792, 5120, 128).rows, 32);
  EXPECT_EQ(chosen(1792, 5120, 128).weight_multicast, 1);
  EXPECT_EQ(chosen(1792, 5120, 256).rows, 56);
  EXPECT_EQ(chosen(1792, 5120, 256).columns, 64);
  EXPECT_EQ(chosen(1792, 5120, 192).rows, 48);
  EXPECT_EQ(chosen(1792, 5120, 512).columns, 128);
  EXPECT_EQ(chosen(3584, 5120, 256).rows, 56);
  EXPECT_EQ(chosen(3584, 5120, 256).columns, 128);
  EXPECT_EQ(chosen(5120, 1536, 256).rows, 80);
  EXPECT_EQ(chosen(5120, 3072, 256).rows, 80);
  EXPECT_EQ(chosen(24576, 5120, 64).ctas, 128);
  EXPECT_EQ(chosen(24576, 5120, 128).ctas, 128);
  EXPECT_EQ(chosen(14336, 5120, 64).rows, 112);
  EXPECT_EQ(chosen(14336, 5120, 64).columns, 64);
  EXPECT_EQ(chosen(14336, 5120, 128).rows, 112);
  EXPECT_EQ(chosen(14336, 5120, 128).ctas, 0);
  const auto head = [](int rows, int tokens) {
    return choose_decode_gemm_config(gemm_of({TileType::bf16, rows, 10240}, tokens),
                                     kMultiprocessors);
  };
  EXPECT_EQ(head(151552, 16).rows, 0);
  EXPECT_EQ(head(151552, 32).rows, 144);
  EXPECT_EQ(head(151552, 128).ctas, 132);
  EXPECT_EQ(head(37888, 64).ctas, 132);
  EXPECT_EQ(head(24576, 64).rows, 0);
  EXPECT_EQ(head(24576, 128).rows, 144);
  EXPECT_EQ(head(18944, 64).rows, 144);
  EXPECT_EQ(head(18944, 64).ctas, 0);
}

}  // namespace
}  // namespace koho::cuda
