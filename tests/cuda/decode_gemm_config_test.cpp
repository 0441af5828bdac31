// SPDX-License-Identifier: Apache-2.0
// Forms of linear layers in decode: what is chosen is one that there is, for every number of tokens
// of the models' shapes and for others; its CTAs are there at once, or take blocks in turn. No GPU.
#include <algorithm>

#include <gtest/gtest.h>

#include "base/arithmetic.h"
#include "cuda/gemm/gemm_sm90.h"

namespace koho::cuda {
namespace {

constexpr int kMultiprocessors = 132;
constexpr int kTokensMax = 128;

struct Shape {
  TileType type;
  int rows;
  int width_bytes;
};

Gemm matrix_of(const Shape& shape, int tokens) {
  Gemm p;
  p.type = shape.type;
  p.rows = shape.rows;
  p.tiles = ceil_div(shape.rows, kTileRows);
  p.width_bytes = shape.width_bytes;
  p.split_k = choose_split_k(p.tiles, p.width_bytes);
  p.tokens = tokens;
  return p;
}

/// But for what a launch may choose beside it.
bool is_listed(const DecodeGemmConfig& form, const Gemm& p) {
  const std::vector<DecodeGemmConfig> forms = unswapped_configs(p);
  return std::any_of(forms.begin(), forms.end(), [&](const DecodeGemmConfig& of) {
    return of.columns == form.columns && of.slot_width == form.slot_width && of.rows == form.rows &&
           of.ctas_per_sm == form.ctas_per_sm && of.weight_multicast == form.weight_multicast;
  });
}

void expect_possible(const Shape& shape) {
  for (int tokens = 1; tokens <= kTokensMax; ++tokens) {
    const Gemm p = matrix_of(shape, tokens);
    const DecodeGemmConfig form = choose_decode_gemm_config(p, kMultiprocessors);
    SCOPED_TRACE(testing::Message() << shape.rows << " rows, " << shape.width_bytes << " bytes, "
                                    << tokens << " tokens: " << form.rows);
    if (form.rows == 0) {
      EXPECT_GE(form.columns, tokens);
      EXPECT_EQ(form.ctas, 0);
      continue;
    }
    EXPECT_TRUE(is_listed(form, p));
    const int blocks = ceil_div(p.rows, form.rows);
    const int slices = ceil_div(tokens, form.columns);
    if (is_persistent(form) && form.ctas > 0) {
      EXPECT_EQ(slices, 1);
      EXPECT_LE(form.ctas, kMultiprocessors);
      EXPECT_LT(form.ctas, blocks);
    } else {
      EXPECT_EQ(form.ctas, 0);
      EXPECT_TRUE(is_persistent(form) || blocks * slices <= kMultiprocessors);
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

// Both forms give the same bits, so a wrong choice would be slow and nothing else: these were
// measured (docs/kernels/linear.md).
TEST(DecodeGemmConfig, IsUnswappedWhereMeasuredFaster) {
  const auto form = [](int rows, int width_bytes, int tokens) {
    return choose_decode_gemm_config(matrix_of({TileType::fp8, rows, width_bytes}, tokens),
                                     kMultiprocessors);
  };
  EXPECT_EQ(form(3584, 5120, 16).rows, 0);
  EXPECT_EQ(form(3584, 5120, 32).rows, 32);
  EXPECT_EQ(form(3584, 5120, 64).rows, 32);
  EXPECT_EQ(form(3584, 5120, 128).rows, 56);
  EXPECT_EQ(form(3584, 5120, 128).weight_multicast, 2);
  EXPECT_EQ(form(6144, 5120, 32).rows, 48);
  EXPECT_EQ(form(6144, 5120, 128).rows, 96);
  EXPECT_EQ(form(5120, 1536, 64).ctas_per_sm, 2);
  EXPECT_EQ(form(5120, 1536, 128).rows, 80);
  EXPECT_EQ(form(3072, 5120, 64).rows, 24);
  EXPECT_EQ(form(3072, 5120, 128).rows, 48);
  EXPECT_EQ(form(3072, 5120, 128).weight_multicast, 2);
  EXPECT_EQ(form(1792, 5120, 32).rows, 0);
  EXPECT_EQ(form(1792, 5120, 64).rows, 24);
  EXPECT_EQ(form(1792, 5120, 128).rows, 32);
  EXPECT_EQ(form(1792, 5120, 128).weight_multicast, 1);
  EXPECT_EQ(form(24576, 5120, 64).ctas, 128);
  EXPECT_EQ(form(24576, 5120, 128).ctas, 128);
  EXPECT_EQ(form(14336, 5120, 64).rows, 112);
  EXPECT_EQ(form(14336, 5120, 64).columns, 64);
  EXPECT_EQ(form(14336, 5120, 128).rows, 112);
  EXPECT_EQ(form(14336, 5120, 128).ctas, 0);
  const auto head = [](int rows, int tokens) {
    return choose_decode_gemm_config(matrix_of({TileType::bf16, rows, 10240}, tokens),
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
