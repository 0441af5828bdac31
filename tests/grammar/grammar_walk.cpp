// SPDX-License-Identifier: Apache-2.0
#include "grammar_walk.h"

#include <algorithm>
#include <memory>
#include <random>

#include <gtest/gtest.h>

#include "tests/support/thread_time.h"

namespace koho::testing {

const Tokenizer& tiny_tokenizer() {
  static const Result<Tokenizer> tokenizer =
      Tokenizer::load(KOHO_SOURCE_DIR "/models/tiny/tokenizer.json");
  return *tokenizer;
}

GrammarLimits patient_limits() {
  GrammarLimits limits;
  limits.compile_us_max = 60'000'000;
  limits.step_us_max = 10'000'000;
  return limits;
}

bool is_set(const std::vector<std::uint32_t>& mask, std::int32_t token) {
  return ((mask[static_cast<std::size_t>(token) / 32] >> (token % 32)) & 1U) != 0;
}

double mask_us(const CompiledGrammar& grammar, std::string_view text) {
  const Tokenizer& tokenizer = tiny_tokenizer();
  const std::unique_ptr<Matcher> matcher = *grammar.start();
  const Result<std::vector<std::int32_t>> tokens = tokenizer.encode(text);
  for (const std::int32_t token : *tokens) EXPECT_TRUE(matcher->accept(token).ok()) << text;
  std::vector<std::uint32_t> mask(mask_words(tokenizer.vocab_size()));
  double best = 1e9;
  for (int i = 0; i < 20; ++i) {
    const double begin = thread_us();
    EXPECT_TRUE(matcher->fill_mask(mask).ok());
    best = std::min(best, thread_us() - begin);
  }
  return best;
}

Walk random_walk(const CompiledGrammar& grammar, std::uint64_t seed, int tokens_max) {
  const Tokenizer& tokenizer = tiny_tokenizer();
  std::mt19937_64 random(seed);
  std::vector<std::uint32_t> mask(mask_words(tokenizer.vocab_size()));
  const std::unique_ptr<Matcher> matcher = *grammar.start();
  std::vector<std::int32_t> ids;
  for (int i = 0; i < tokens_max; ++i) {
    EXPECT_TRUE(matcher->fill_mask(mask).ok());
    std::vector<std::int32_t> allowed;
    for (std::int32_t token = 0; token < tokenizer.vocab_size(); ++token)
      if (((mask[static_cast<std::size_t>(token) / 32] >> (token % 32)) & 1U) != 0)
        allowed.push_back(token);
    if (allowed.empty()) {
      EXPECT_TRUE(matcher->can_end()) << "a dead end after " << tokenizer.decode(ids);
      break;
    }
    if (matcher->can_end() && random() % 8 == 0) break;
    std::int32_t token = allowed[random() % allowed.size()];
    // Close strings, objects and arrays once the walk is long.
    if (i > 40)
      for (const std::int32_t other : allowed) {
        const std::string_view bytes = tokenizer.token_bytes(other);
        if (bytes == "\"" || bytes == "}" || bytes == "]") token = other;
      }
    EXPECT_TRUE(matcher->accept(token).ok());
    ids.push_back(token);
  }
  return {tokenizer.decode(ids), matcher->can_end()};
}

void expect_accept_agrees_with_mask(const CompiledGrammar& grammar,
                                    std::uint64_t seed,
                                    std::string_view bytes) {
  const Tokenizer& tokenizer = tiny_tokenizer();
  const auto vocabulary = static_cast<std::int32_t>(tokenizer.vocab_size());
  std::mt19937_64 random(seed);
  std::vector<std::uint32_t> mask(mask_words(vocabulary));
  const std::unique_ptr<Matcher> matcher = *grammar.start();
  std::vector<std::int32_t> ids;
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(matcher->fill_mask(mask).ok());
    std::vector<std::int32_t> allowed;
    std::vector<std::int32_t> controls;
    std::vector<std::int32_t> asked;
    for (std::int32_t token = 0; token < vocabulary; ++token) {
      if (is_set(mask, token)) allowed.push_back(token);
      if (tokenizer.token_bytes(token).find_first_of(bytes) != std::string_view::npos)
        asked.push_back(token);
      if (!tokenizer.is_added(token)) continue;
      asked.push_back(token);
      if (is_set(mask, token)) controls.push_back(token);
    }
    for (std::size_t k = 0; k < std::min<std::size_t>(allowed.size(), 40); ++k)
      asked.push_back(allowed[allowed.size() <= 40 ? k : random() % allowed.size()]);
    for (int k = 0; k < 40; ++k)
      asked.push_back(static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(vocabulary)));
    for (const std::int32_t token : asked) {
      const bool accepted = matcher->accept(token).ok();
      ASSERT_EQ(accepted, is_set(mask, token))
          << token << " '" << tokenizer.token_bytes(token) << "' after " << tokenizer.decode(ids);
      if (accepted) {
        ASSERT_TRUE(matcher->rollback(1).ok());
      }
    }
    if (allowed.empty()) {
      EXPECT_TRUE(matcher->can_end()) << "a dead end after " << tokenizer.decode(ids);
      return;
    }
    // Prefer control tokens: they are few, and without them no walk would reach the end of a call.
    const std::vector<std::int32_t>& next =
        !controls.empty() && random() % 3 == 0 ? controls : allowed;
    ids.push_back(next[random() % next.size()]);
    ASSERT_TRUE(matcher->accept(ids.back()).ok());
  }
}

}  // namespace koho::testing
