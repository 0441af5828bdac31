// SPDX-License-Identifier: Apache-2.0
// Which kernel runs a linear layer's GEMM: the table of docs/kernels/gemm.md. No GPU.
#include "cuda/gemm/choose_gemm.h"

#include <gtest/gtest.h>

#include "base/arithmetic.h"

namespace koho::cuda {
namespace {

constexpr GemmSupport kHopper{.wgmma = true, .cublaslt = true, .multiprocessors = 132};
constexpr GemmSupport kHopperDeterministic{.wgmma = true, .multiprocessors = 132};
constexpr GemmSupport kOther{.cublaslt = true, .prefill_portable = true, .multiprocessors = 148};
constexpr GemmSupport kOtherDeterministic{.prefill_portable = true, .multiprocessors = 148};

Gemm qkv_of(int tokens, TileType type = TileType::fp8) {
  Gemm p;
  p.type = type;
  p.rows = 3584;
  p.tiles = ceil_div(p.rows, kTileRows);
  p.width_bytes = 5120;
  p.x_stride_bytes = p.width_bytes;
  p.out_stride = p.rows;
  p.tokens = tokens;
  return p;
}

Gemm head_of(int tokens) {
  Gemm p = qkv_of(tokens, TileType::bf16);
  p.rows = 151552;
  p.tiles = p.rows / kTileRows;
  p.width_bytes = 10240;
  p.epilogue = Epilogue::f32;
  return p;
}

TEST(ChooseGemm, RunsDecodeKernelsUpTo128TokensOnHopper) {
  for (const GemmSupport& support : {kHopper, kHopperDeterministic})
    for (const int tokens : {1, 16, 17, 64, 128}) {
      EXPECT_EQ(choose_gemm(qkv_of(tokens), support), GemmKernel::decode) << tokens;
      EXPECT_EQ(choose_gemm(head_of(tokens), support), GemmKernel::decode) << tokens;
    }
}

TEST(ChooseGemm, RunsPrefillOnHopperWhereItKeepsItsClustersBusyElseCublasLt) {
  EXPECT_EQ(choose_gemm(qkv_of(4096), kHopper), GemmKernel::prefill_192);
  EXPECT_EQ(choose_gemm(qkv_of(513), kHopper), GemmKernel::cublaslt);
}

/// Its CTAs all run at once: narrow weights, up to 512 tokens.
TEST(ChooseGemm, RunsTheUnswappedDecodeKernelBeyond128TokensWhereItIsOneWave) {
  for (const GemmSupport& support : {kHopper, kHopperDeterministic}) {
    for (const int tokens : {129, 192, 256, 384})
      EXPECT_EQ(choose_gemm(qkv_of(tokens), support), GemmKernel::decode) << tokens;
    EXPECT_NE(choose_gemm(qkv_of(512), support), GemmKernel::decode);  // more than one wave
    Gemm wide = qkv_of(256);
    wide.rows = 14336;
    wide.tiles = wide.rows / kTileRows;
    EXPECT_NE(choose_gemm(wide, support), GemmKernel::decode);
    Gemm few = qkv_of(256);  // a shared expert's slice, on half of the multiprocessors
    few.rows = 384;
    few.tiles = few.rows / kTileRows;
    EXPECT_EQ(choose_gemm(few, support), GemmKernel::decode);
    few.rows = 256;  // on a third
    few.tiles = few.rows / kTileRows;
    EXPECT_NE(choose_gemm(few, support), GemmKernel::decode);
  }
}

/// GLM-4.5-Air's, of 56 blocks of 256 rows: K is not split, and one token block is one wave.
TEST(ChooseGemm, RunsPrefillWhereOneWaveTakesAWholeWeight) {
  Gemm wide = qkv_of(129);
  wide.rows = 14336;
  wide.tiles = wide.rows / kTileRows;
  wide.width_bytes = 4096;
  for (const int tokens : {129, 192}) {
    wide.tokens = tokens;
    EXPECT_EQ(choose_gemm(wide, kHopper), GemmKernel::prefill_192) << tokens;
  }
  wide.tokens = 256;
  EXPECT_EQ(choose_gemm(wide, kHopper), GemmKernel::cublaslt);
  EXPECT_EQ(choose_gemm(wide, kHopperDeterministic), GemmKernel::prefill_192);
}

TEST(ChooseGemm, LeavesCublasLtOutUnderDeterministic) {
  for (const int tokens : {513, 1024, 4096}) {
    EXPECT_EQ(choose_gemm(qkv_of(tokens), kHopperDeterministic), GemmKernel::prefill_128) << tokens;
    // 28 pairs of weight tiles, and 5, 8 and 32 token blocks.
    EXPECT_EQ(choose_gemm(qkv_of(tokens), kOtherDeterministic),
              tokens < 600 ? GemmKernel::grouped_decode : GemmKernel::prefill_portable)
        << tokens;
  }
}

TEST(ChooseGemm, RunsThePortablePrefillKernelWhereItMayAndEveryMultiprocessorHasWork) {
  EXPECT_EQ(choose_gemm(qkv_of(641), kOtherDeterministic), GemmKernel::prefill_portable);
  EXPECT_EQ(choose_gemm(qkv_of(640), kOtherDeterministic), GemmKernel::grouped_decode);
  GemmSupport support = kOtherDeterministic;
  support.prefill_portable = false;
  EXPECT_EQ(choose_gemm(qkv_of(4096), support), GemmKernel::grouped_decode);
  Gemm few = qkv_of(128);
  few.tiles = 2048;
  EXPECT_EQ(choose_gemm(few, kOtherDeterministic), GemmKernel::grouped_decode);
  Gemm unaligned = qkv_of(4096);
  unaligned.out_stride += 4;
  EXPECT_EQ(choose_gemm(unaligned, kOtherDeterministic), GemmKernel::grouped_decode);
}

TEST(ChooseGemm, RunsGroupedDecodeOnOtherGpusAndCublasLtBeyond128Tokens) {
  for (const int tokens : {1, 64, 128})
    EXPECT_EQ(choose_gemm(qkv_of(tokens), kOther), GemmKernel::grouped_decode) << tokens;
  EXPECT_EQ(choose_gemm(qkv_of(4096), kOther), GemmKernel::cublaslt);
}

/// A row has its decode bits in a prompt too: where K is split, prefill_128 adds the splits.
TEST(ChooseGemm, RunsHoppersKernelsForBlockScales) {
  Gemm p = qkv_of(1, TileType::fp8_block);
  for (const int tokens : {1, 64, 128, 4096}) {
    p.tokens = tokens;
    EXPECT_EQ(choose_gemm(p, kHopperDeterministic),
              tokens <= 128 ? GemmKernel::decode : GemmKernel::prefill_128)
        << tokens;
    EXPECT_EQ(choose_gemm(p, kOtherDeterministic), GemmKernel::grouped_decode) << tokens;
  }
  for (const int tokens : {17, 32, 33, 128}) {
    p.tokens = tokens;
    EXPECT_EQ(choose_unswapped_config(p, kHopper.multiprocessors).rows > 0, tokens > 32) << tokens;
  }
  p.tokens = 4096;
  p.rows = 14336;
  p.tiles = p.rows / kTileRows;
  EXPECT_EQ(choose_gemm(p, kHopperDeterministic), GemmKernel::prefill_192);
  p.epilogue = Epilogue::f32;
  EXPECT_EQ(choose_gemm(p, kHopperDeterministic), GemmKernel::grouped_decode);
}

TEST(ChooseGemm, RunsOnlyOwnKernelsForF32OutputAndUnalignedRows) {
  EXPECT_EQ(choose_gemm(head_of(256), kHopper), GemmKernel::prefill_128);
  EXPECT_EQ(choose_gemm(head_of(256), kOther), GemmKernel::grouped_decode);
  Gemm unaligned = qkv_of(4096);
  unaligned.out_stride += 4;
  EXPECT_EQ(choose_gemm(unaligned, kHopper), GemmKernel::prefill_128);
}

TEST(ChooseGemm, SplitsKByTheWeightsShapeAlone) {
  EXPECT_EQ(choose_split_k(56, 5120), 4);
  EXPECT_EQ(choose_split_k(80, 1536), 1);
  EXPECT_EQ(choose_split_k(224, 5120), 1);
  EXPECT_EQ(choose_split_k(1, 256), 1);
}

}  // namespace
}  // namespace koho::cuda
