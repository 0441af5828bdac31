// SPDX-License-Identifier: Apache-2.0
#include "plan/step_result.h"

#include <gtest/gtest.h>

namespace koho {
namespace {

constexpr std::int32_t kElsewhere = kSampledElsewhere;

StepResult answer(std::vector<std::int32_t> tokens, std::int64_t step = 7) {
  StepResult result;
  result.step = step;
  result.ends.assign(tokens.size(), RowEnd::none);
  result.tokens = std::move(tokens);
  return result;
}

/// The error's message, or empty.
std::string refusal(std::vector<StepResult> ranks, RowOwners owners) {
  StepResult merged;
  const Status status = merge_results(ranks, owners, merged);
  return status.ok() ? "" : status.error().message;
}

TEST(MergeResults, EqualAnswersAreOneAnswer) {
  std::vector<StepResult> ranks{answer({3, -1, 5}), answer({3, -1, 5})};
  StepResult merged;
  ASSERT_TRUE(merge_results(ranks, RowOwners::all_ranks, merged).ok());
  EXPECT_EQ(merged.tokens, (std::vector<std::int32_t>{3, -1, 5}));
  EXPECT_EQ(merged.step, 7);
}

TEST(MergeResults, TheFirstTokenThatDiffersIsNamed) {
  EXPECT_NE(refusal({answer({3, 4}), answer({3, 4}), answer({3, 6})}, RowOwners::all_ranks)
                .find("rank 2 sampled token 6 in row 1 of step 7, rank 0 token 4"),
            std::string::npos);
  EXPECT_NE(refusal({answer({3}), answer({3}, 8)}, RowOwners::all_ranks), "");
  EXPECT_NE(refusal({answer({3}), answer({3, 4})}, RowOwners::all_ranks), "");
  EXPECT_NE(refusal({answer({kElsewhere}), answer({kElsewhere})}, RowOwners::all_ranks), "");
}

TEST(MergeResults, RanksAgreeOnWhatEnds) {
  std::vector<StepResult> ranks{answer({3, 4}), answer({3, 4})};
  ranks[0].ends[1] = RowEnd::ended;
  EXPECT_NE(refusal(ranks, RowOwners::all_ranks).find("whether token 4 ends row 1"),
            std::string::npos);
  ranks[1].ends[1] = RowEnd::ended;
  StepResult merged;
  ASSERT_TRUE(merge_results(ranks, RowOwners::all_ranks, merged).ok());
  EXPECT_EQ(merged.ends, (std::vector<RowEnd>{RowEnd::none, RowEnd::ended}));
}

TEST(MergeResults, EachRowComesFromTheRankThatSampledIt) {
  std::vector<StepResult> ranks{answer({kElsewhere, 4, kElsewhere}),
                                answer({kElsewhere, kElsewhere, 5}),
                                answer({-1, kElsewhere, kElsewhere})};
  ranks[1].ends[2] = RowEnd::ended;
  // Only rank 1's row wants logprobs.
  ranks[1].logprobs = {0.0F, 0.0F, -0.5F};
  ranks[1].top_ids.assign(3 * StepResult::kTop, 0);
  ranks[1].top_ids[2 * StepResult::kTop] = 5;
  ranks[1].top_logprobs.assign(3 * StepResult::kTop, -0.25F);
  StepResult merged;
  ASSERT_TRUE(merge_results(ranks, RowOwners::one_rank, merged).ok());
  EXPECT_EQ(merged.tokens, (std::vector<std::int32_t>{-1, 4, 5}));
  EXPECT_EQ(merged.ends, (std::vector<RowEnd>{RowEnd::none, RowEnd::none, RowEnd::ended}));
  ASSERT_EQ(merged.logprobs.size(), 3U);
  EXPECT_EQ(merged.logprobs[2], -0.5F);
  ASSERT_EQ(merged.top_ids.size(), 3U * StepResult::kTop);
  EXPECT_EQ(merged.top_ids[2 * StepResult::kTop], 5);
  EXPECT_EQ(merged.top_logprobs[3 * StepResult::kTop - 1], -0.25F);
}

TEST(MergeResults, LogitsComeFromWhicheverRankHasThem) {
  std::vector<StepResult> ranks{answer({1, 2, 3}), answer({1, 2, 3}), answer({1, 2, 3})};
  ranks[0].logits_rows = {1};
  ranks[0].logits = {10, 11};
  ranks[2].logits_rows = {0, 2};
  ranks[2].logits = {0, 1, 20, 21};
  StepResult merged;
  ASSERT_TRUE(merge_results(ranks, RowOwners::all_ranks, merged).ok());
  EXPECT_EQ(merged.logits_rows, (std::vector<std::int32_t>{0, 1, 2}));
  EXPECT_EQ(merged.logits, (std::vector<float>{0, 1, 10, 11, 20, 21}));

  std::vector<StepResult> twice{answer({1, 2}), answer({1, 2})};
  for (StepResult& rank : twice) {
    rank.logits_rows = {1};
    rank.logits = {10, 11};
  }
  EXPECT_NE(refusal(twice, RowOwners::all_ranks).find("logits of row 1"), std::string::npos);
  twice[1].logits_rows = {0};
  twice[1].logits = {0};
  EXPECT_NE(refusal(twice, RowOwners::all_ranks).find("logits of row 1"), std::string::npos);
}

TEST(MergeResults, ARowOfNoRankOrOfTwoIsAnError) {
  EXPECT_NE(
      refusal({answer({1, kElsewhere}), answer({kElsewhere, kElsewhere})}, RowOwners::one_rank)
          .find("row 1 of step 7 was sampled by no rank"),
      std::string::npos);
  EXPECT_NE(refusal({answer({1, kElsewhere}), answer({1, 2})}, RowOwners::one_rank)
                .find("row 0 of step 7 was sampled by rank 1, too"),
            std::string::npos);
}

}  // namespace
}  // namespace koho
