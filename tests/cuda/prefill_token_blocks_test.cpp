// SPDX-License-Identifier: Apache-2.0
// The cut of a prompt's tokens: every token once, no block longer than a form has room for, and no
// more rounds of items than the fewest blocks need by half. No GPU.
#include "cuda/gemm/prefill_token_blocks.h"

#include <gtest/gtest.h>

namespace koho::cuda {
namespace {

constexpr int kMultiprocessors = 132;  // of an H200

PrefillTiling cut_of(int tokens, int rows) {
  Gemm matrix;
  matrix.tokens = tokens;
  matrix.rows = rows;
  matrix.tiles = ceil_div(rows, kTileRows);
  return prefill_tiling(matrix, kPrefillTokensMax, kMultiprocessors);
}

TEST(TokenBlocks, HaveEachTokenOnceAndRoomForAll) {
  for (const int rows : {16, 1792, 3584, 5120, 24576})
    for (int tokens = 1; tokens < 20000; tokens += tokens < 400 ? 1 : 397) {
      const TokenBlocks blocks = prefill_token_blocks(cut_of(tokens, rows));
      ASSERT_GE(blocks.count, 1);
      EXPECT_EQ(token_block_begin(tokens, blocks, 0), 0);
      EXPECT_EQ(token_block_begin(tokens, blocks, blocks.count), tokens);
      for (int block = 0; block < blocks.count; ++block) {
        const int begin = token_block_begin(tokens, blocks, block);
        const int end = token_block_begin(tokens, blocks, block + 1);
        EXPECT_EQ(begin % kPrefillTokenStep, 0);
        EXPECT_GT(end, begin) << tokens << " tokens, block " << block << " of all " << blocks.count;
        EXPECT_LE(end - begin, kPrefillTokensMax);
      }
    }
}

/// 5120x1536 and 1792x5120 at 4,096 tokens: 22 blocks of 186 and of 192 tokens would take 7 and 3
/// rounds too, of longer items.
TEST(TokenBlocks, FillTheLastWave) {
  EXPECT_EQ(num_prefill_token_blocks(cut_of(4096, 5120)), 23);
  EXPECT_EQ(num_prefill_token_blocks(cut_of(4096, 1792)), 28);
}

/// What was timed beside cuBLASLt on an H200 (docs/kernels/gemm.md): the first two lost, the
/// others won.
TEST(TokenBlocks, KeepClustersBusyWhereThePrefillGemmIsFaster) {
  EXPECT_LT(prefill_utilization(cut_of(2048, 1792)), kPrefillUtilizationMin);
  EXPECT_LT(prefill_utilization(cut_of(1024, 3584)), kPrefillUtilizationMin);
  EXPECT_GT(prefill_utilization(cut_of(512, 5120)), kPrefillUtilizationMin);
  EXPECT_GT(prefill_utilization(cut_of(2048, 3584)), kPrefillUtilizationMin);
  EXPECT_GT(prefill_utilization(cut_of(4096, 1792)), kPrefillUtilizationMin);
}

TEST(TokenBlocks, AreTheFewestWhereAllCostTheSame) {
  PrefillTiling cut = cut_of(4096, 5120);
  cut.most = 128;
  cut.least = 128;
  EXPECT_EQ(num_prefill_token_blocks(cut), 32);
}

}  // namespace
}  // namespace koho::cuda
