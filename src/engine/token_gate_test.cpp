// SPDX-License-Identifier: Apache-2.0
// What a gate without a grammar lets through. With one: tests/grammar, tests/simulation.
#include "engine/token_gate.h"

#include <algorithm>

#include <gtest/gtest.h>

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

std::vector<Token> allowed(const TokenGate& gate) {
  std::vector<Token> tokens;
  for (Token token = 0; token < kVocabulary; ++token)
    if (gate.allows(token)) tokens.push_back(token);
  return tokens;
}

TEST(TokenGate, ABudgetEndsTheThoughtsAndNothingElse) {
  Request thinking = request();
  thinking.reasoning_tokens_max = 3;
  EXPECT_FALSE(TokenGate::is_needed(thinking)) << "it does not think";
  thinking.begins_in_reasoning = true;
  ASSERT_TRUE(TokenGate::is_needed(thinking));
  const std::unique_ptr<TokenGate> gate = *TokenGate::open(thinking, kVocabulary);
  EXPECT_TRUE(gate->mask().empty());
  ASSERT_TRUE(gate->accept(1).ok());
  EXPECT_TRUE(gate->mask().empty());
  ASSERT_TRUE(gate->accept(2).ok());
  // The token behind the next one has a mask, which is asked for before that is known.
  EXPECT_FALSE(gate->mask().empty());
  EXPECT_EQ(allowed(*gate).size(), static_cast<std::size_t>(kVocabulary));
  ASSERT_TRUE(gate->accept(3).ok());
  EXPECT_EQ(allowed(*gate), std::vector<Token>{kThinkEnd});
  EXPECT_EQ(gate->accept(4).error().code, ErrorCode::internal);
  ASSERT_TRUE(gate->accept(kThinkEnd).ok());
  EXPECT_TRUE(gate->mask().empty());
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(gate->accept(5).ok());
  EXPECT_FALSE(gate->complete());
  ASSERT_TRUE(gate->accept(kStop).ok());
  EXPECT_TRUE(gate->complete());
}

TEST(TokenGate, ABudgetOfNothingEndsThemAtOnce) {
  Request thinking = request();
  thinking.begins_in_reasoning = true;
  thinking.reasoning_tokens_max = 0;
  EXPECT_EQ(allowed(**TokenGate::open(thinking, kVocabulary)), std::vector<Token>{kThinkEnd});
}

TEST(TokenGate, ThoughtsThatEndByThemselvesLeaveNoBudget) {
  Request thinking = request();
  thinking.begins_in_reasoning = true;
  thinking.reasoning_tokens_max = 2;
  const std::unique_ptr<TokenGate> gate = *TokenGate::open(thinking, kVocabulary);
  ASSERT_TRUE(gate->accept(kThinkEnd).ok());
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(gate->mask().empty());
    ASSERT_TRUE(gate->accept(1).ok());
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

TEST(TokenGate, AGrammarsFaultIsNotTheRequests) {
  Request constrained = request();
  constrained.grammar = std::make_shared<const FaultyGrammar>();
  const std::unique_ptr<TokenGate> gate = *TokenGate::open(constrained, kVocabulary);
  ASSERT_TRUE(gate->allows(3));
  EXPECT_EQ(gate->accept(3).error().code, ErrorCode::internal);
}

TEST(TokenGate, ThoughtsBeforeAGrammarDoNotHoldWhatTheyMayNot) {
  Request constrained = request();
  constrained.begins_in_reasoning = true;
  constrained.grammar = std::make_shared<const FaultyGrammar>();
  constrained.reasoning_banned = 5;
  const std::unique_ptr<TokenGate> gate = *TokenGate::open(constrained, kVocabulary);
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(gate->allows(5));
    EXPECT_TRUE(gate->allows(6));
    ASSERT_TRUE(gate->accept(6).ok());
  }
  ASSERT_TRUE(gate->accept(kThinkEnd).ok());
  EXPECT_TRUE(gate->allows(5));
}

TEST(TokenGate, AListAllowsItsTokensAlone) {
  Request listed = request();
  listed.allowed_tokens = {4, 31, 33};
  ASSERT_TRUE(TokenGate::is_needed(listed));
  const std::unique_ptr<TokenGate> gate = *TokenGate::open(listed, kVocabulary);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(allowed(*gate), (std::vector<Token>{4, 31, 33}));
    ASSERT_TRUE(gate->accept(31).ok());
  }
}

TEST(TokenGate, ABannedSequenceIsNotCompleted) {
  Request banned = request();
  banned.banned_sequences = {{5}, {1, 2, 3}};
  banned.min_tokens = 2;
  const std::unique_ptr<TokenGate> gate = *TokenGate::open(banned, kVocabulary);
  EXPECT_FALSE(gate->allows(5));
  EXPECT_FALSE(gate->allows(kStop)) << "min_tokens";
  EXPECT_TRUE(gate->allows(3));
  for (const Token token : {1, 1, 2}) ASSERT_TRUE(gate->accept(token).ok());
  EXPECT_FALSE(gate->allows(3));
  EXPECT_TRUE(gate->allows(2));
  EXPECT_TRUE(gate->allows(kStop));
  ASSERT_TRUE(gate->accept(4).ok());
  EXPECT_TRUE(gate->allows(3));
}

}  // namespace
}  // namespace koho
