// SPDX-License-Identifier: Apache-2.0
// The cut of a prompt's tokens: every token once, no slice longer than a form has room for, and no
// more rounds of items than the fewest slices need by half. No GPU.
#include "cuda/prompt_slices.h"

#include <gtest/gtest.h>

namespace koho::cuda {
namespace {

constexpr int kMultiprocessors = 132;  // of an H200

PromptCut cut_of(int tokens, int rows) {
  Matmul matrix;
  matrix.tokens = tokens;
  matrix.rows = rows;
  matrix.tiles = ceil_div(rows, kTileRows);
  return prefill_cut(matrix, kPrefillColumns, kMultiprocessors);
}

TEST(PromptSlices, HaveEachTokenOnceAndRoomForAll) {
  for (const int rows : {16, 1792, 3584, 5120, 24576})
    for (int tokens = 1; tokens < 20000; tokens += tokens < 400 ? 1 : 397) {
      const PromptSlices slices = cut_prompt(cut_of(tokens, rows));
      ASSERT_GE(slices.count, 1);
      EXPECT_EQ(prompt_slice_begin(tokens, slices, 0), 0);
      EXPECT_EQ(prompt_slice_begin(tokens, slices, slices.count), tokens);
      for (int slice = 0; slice < slices.count; ++slice) {
        const int begin = prompt_slice_begin(tokens, slices, slice);
        const int end = prompt_slice_begin(tokens, slices, slice + 1);
        EXPECT_EQ(begin % kPrefillStep, 0);
        EXPECT_GT(end, begin) << tokens << " tokens, slice " << slice << " of " << slices.count;
        EXPECT_LE(end - begin, kPrefillColumns);
      }
    }
}

/// 5120x1536 and 1792x5120 at 4,096 tokens: 22 slices of 186 and of 192 tokens would take 7 and 3
/// rounds too, of longer items.
TEST(PromptSlices, FillTheLastRound) {
  EXPECT_EQ(prompt_slices(cut_of(4096, 5120)), 23);
  EXPECT_EQ(prompt_slices(cut_of(4096, 1792)), 28);
}

/// What was timed beside cuBLASLt on an H200 (docs/kernels/linear.md): the first two lost, the
/// others won.
TEST(PromptSlices, KeepClustersBusyWhereTheKernelIsTheFasterOne) {
  EXPECT_LT(prompt_share(cut_of(2048, 1792)), kPromptShare);
  EXPECT_LT(prompt_share(cut_of(1024, 3584)), kPromptShare);
  EXPECT_GT(prompt_share(cut_of(512, 5120)), kPromptShare);
  EXPECT_GT(prompt_share(cut_of(2048, 3584)), kPromptShare);
  EXPECT_GT(prompt_share(cut_of(4096, 1792)), kPromptShare);
}

TEST(PromptSlices, AreTheFewestWhereAllCostTheSame) {
  PromptCut cut = cut_of(4096, 5120);
  cut.most = 128;
  cut.least = 128;
  EXPECT_EQ(prompt_slices(cut), 32);
}

}  // namespace
}  // namespace koho::cuda
