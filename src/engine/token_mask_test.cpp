// SPDX-License-Identifier: Apache-2.0
// What a token mask without a grammar allows. With one: tests/grammar, tests/simulation.
#include "engine/token_mask.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "grammar/forced_tokens.h"

namespace koho {
namespace {

constexpr std::int32_t kVocabulary = 40;
constexpr Token kThinkEnd = 7;
constexpr Token kStop = 9;

Request request() {
  Request request;
  request.prompt = {1};
  request.max_tokens = 20;
  request.stop_tokens = {kStop};
  request.reasoning_end = kThinkEnd;
  return request;
}

std::vector<Token> allowed(const TokenMask& token_mask) {
  std::vector<Token> tokens;
  for (Token token = 0; token < kVocabulary; ++token)
    if (token_mask.allows(token)) tokens.push_back(token);
  return tokens;
}

TEST(TokenMask, ABudgetEndsTheReasoningAndNothingElse) {
  Request thinking = request();
  thinking.reasoning_tokens_max = 3;
  EXPECT_FALSE(TokenMask::is_needed(thinking)) << "it does not think";
  thinking.starts_in_reasoning = true;
  ASSERT_TRUE(TokenMask::is_needed(thinking));
  const std::unique_ptr<TokenMask> token_mask = *TokenMask::open(thinking, kVocabulary);
  EXPECT_TRUE(token_mask->mask().empty());
  ASSERT_TRUE(token_mask->accept(1).ok());
  EXPECT_TRUE(token_mask->mask().empty());
  ASSERT_TRUE(token_mask->accept(2).ok());
  // The token behind the next one has a mask, which is asked for before that is known.
  EXPECT_FALSE(token_mask->mask().empty());
  EXPECT_EQ(allowed(*token_mask).size(), static_cast<std::size_t>(kVocabulary));
  ASSERT_TRUE(token_mask->accept(3).ok());
  EXPECT_EQ(allowed(*token_mask), std::vector<Token>{kThinkEnd});
  EXPECT_EQ(token_mask->accept(4).error().code, ErrorCode::internal);
  ASSERT_TRUE(token_mask->accept(kThinkEnd).ok());
  EXPECT_TRUE(token_mask->mask().empty());
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(token_mask->accept(5).ok());
  EXPECT_FALSE(token_mask->complete());
  ASSERT_TRUE(token_mask->accept(kStop).ok());
  EXPECT_TRUE(token_mask->complete());
}

TEST(TokenMask, ABudgetOfZeroEndsTheReasoningAtOnce) {
  Request thinking = request();
  thinking.starts_in_reasoning = true;
  thinking.reasoning_tokens_max = 0;
  EXPECT_EQ(allowed(**TokenMask::open(thinking, kVocabulary)), std::vector<Token>{kThinkEnd});
}

TEST(TokenMask, ReasoningThatEndsByItselfLeavesNoBudget) {
  Request thinking = request();
  thinking.starts_in_reasoning = true;
  thinking.reasoning_tokens_max = 2;
  const std::unique_ptr<TokenMask> token_mask = *TokenMask::open(thinking, kVocabulary);
  ASSERT_TRUE(token_mask->accept(kThinkEnd).ok());
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(token_mask->mask().empty());
    ASSERT_TRUE(token_mask->accept(1).ok());
  }
}

/// A grammar at fault: its mask allows what it then refuses.
class FaultyGrammar final : public CompiledGrammar {
 public:
  Result<std::unique_ptr<Matcher>> start() const override {
    return std::unique_ptr<Matcher>(std::make_unique<FaultyMatcher>());
  }
  std::size_t bytes() const override { return 0; }

 private:
  class FaultyMatcher final : public Matcher {
   public:
    Status accept(std::int32_t token) override {
      return make_error(ErrorCode::invalid_argument, "token {} is not allowed here", token);
    }
    Status rollback(std::int32_t /*tokens*/) override { return {}; }
    Status fill_mask(std::span<std::uint32_t> mask) override {
      std::ranges::fill(mask, ~0U);
      return {};
    }
    bool can_end() const override { return false; }
  };
};

TEST(TokenMask, AGrammarsFaultIsNotTheRequests) {
  Request constrained = request();
  constrained.grammar = std::make_shared<const FaultyGrammar>();
  const std::unique_ptr<TokenMask> token_mask = *TokenMask::open(constrained, kVocabulary);
  ASSERT_TRUE(token_mask->allows(3));
  EXPECT_EQ(token_mask->accept(3).error().code, ErrorCode::internal);
}

TEST(TokenMask, AStopTokenThatTheGrammarNeedsIsTheRequestsFault) {
  Request constrained = request();
  const std::vector<Token> forced{4, 5};
  constrained.grammar = forced_tokens(forced);
  constrained.stop_tokens.push_back(5);
  const std::unique_ptr<TokenMask> token_mask = *TokenMask::open(constrained, kVocabulary);
  ASSERT_TRUE(token_mask->accept(4).ok());
  const Status dead = token_mask->dead_end();
  ASSERT_FALSE(dead.ok());
  EXPECT_EQ(dead.error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(dead.error().field, "stop_token_ids");
  EXPECT_TRUE(dead.error().message.starts_with("stop_token_ids: after 1 tokens"))
      << dead.error().message;
  constrained.stop_tokens.push_back(4);
  EXPECT_EQ(TokenMask::open(constrained, kVocabulary).error().field, "stop_token_ids");
}

TEST(TokenMask, ReasoningBeforeAGrammarDoesNotContainABannedToken) {
  Request constrained = request();
  constrained.starts_in_reasoning = true;
  constrained.grammar = std::make_shared<const FaultyGrammar>();
  constrained.reasoning_banned = 5;
  const std::unique_ptr<TokenMask> token_mask = *TokenMask::open(constrained, kVocabulary);
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(token_mask->allows(5));
    EXPECT_TRUE(token_mask->allows(6));
    ASSERT_TRUE(token_mask->accept(6).ok());
  }
  ASSERT_TRUE(token_mask->accept(kThinkEnd).ok());
  EXPECT_TRUE(token_mask->allows(5));
}

TEST(TokenMask, AListAllowsItsTokensAlone) {
  Request listed = request();
  listed.allowed_tokens = {4, 31, 33};
  ASSERT_TRUE(TokenMask::is_needed(listed));
  const std::unique_ptr<TokenMask> token_mask = *TokenMask::open(listed, kVocabulary);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(allowed(*token_mask), (std::vector<Token>{4, 31, 33}));
    ASSERT_TRUE(token_mask->accept(31).ok());
  }
}

TEST(TokenMask, ListsThatLeaveNoTokenNameTheirField) {
  Request dead = request();
  dead.allowed_tokens = {5};
  dead.banned_sequences = {{5, 5}};
  const std::unique_ptr<TokenMask> token_mask = *TokenMask::open(dead, kVocabulary);
  ASSERT_TRUE(token_mask->dead_end().ok());
  ASSERT_TRUE(token_mask->accept(5).ok());
  EXPECT_EQ(token_mask->dead_end().error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(token_mask->dead_end().error().field, "bad_words");
  dead.banned_sequences = {};
  dead.allowed_tokens = {kStop};
  dead.min_tokens = 1;
  EXPECT_EQ(TokenMask::open(dead, kVocabulary).error().field, "allowed_token_ids");
}

TEST(TokenMask, ABannedSequenceIsNotCompleted) {
  Request banned = request();
  banned.banned_sequences = {{5}, {1, 2, 3}};
  banned.min_tokens = 2;
  const std::unique_ptr<TokenMask> token_mask = *TokenMask::open(banned, kVocabulary);
  EXPECT_FALSE(token_mask->allows(5));
  EXPECT_FALSE(token_mask->allows(kStop)) << "min_tokens";
  EXPECT_TRUE(token_mask->allows(3));
  for (const Token token : {1, 1, 2}) ASSERT_TRUE(token_mask->accept(token).ok());
  EXPECT_FALSE(token_mask->allows(3));
  EXPECT_TRUE(token_mask->allows(2));
  EXPECT_TRUE(token_mask->allows(kStop));
  ASSERT_TRUE(token_mask->accept(4).ok());
  EXPECT_TRUE(token_mask->allows(3));
}

}  // namespace
}  // namespace koho
