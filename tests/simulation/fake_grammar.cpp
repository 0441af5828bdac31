// SPDX-License-Identifier: Apache-2.0
// The hash that decides which tokens are allowed and where the grammar may end.
#include "fake_grammar.h"

#include <algorithm>

#include "random.h"

namespace koho::simulation {
namespace {

class FakeMatcher final : public Matcher {
 public:
  explicit FakeMatcher(const FakeGrammar& grammar) : grammar_(grammar) {}

  Status accept(std::int32_t token) override {
    if (!grammar_.allows(tokens_, token))
      return make_error(ErrorCode::invalid_argument, "token {} is not allowed", token);
    tokens_.push_back(token);
    return {};
  }
  Status rollback(std::int32_t tokens) override {
    tokens_.resize(tokens_.size() - static_cast<std::size_t>(tokens));
    return {};
  }
  Status fill_mask(std::span<std::uint32_t> mask) override {
    std::ranges::fill(mask, 0U);
    for (std::int32_t token = 0; token < grammar_.vocabulary(); ++token)
      if (grammar_.allows(tokens_, token))
        mask[static_cast<std::size_t>(token) / 32] |= 1U << (token % 32);
    return {};
  }
  bool can_end() const override { return grammar_.can_end(tokens_); }

 private:
  const FakeGrammar& grammar_;
  std::vector<std::int32_t> tokens_;
};

}  // namespace

Result<std::unique_ptr<Matcher>> FakeGrammar::start() const {
  return std::unique_ptr<Matcher>(std::make_unique<FakeMatcher>(*this));
}

bool FakeGrammar::allows(std::span<const std::int32_t> tokens, std::int32_t token) const {
  if (tokens.size() >= static_cast<std::size_t>(length_)) return false;
  const std::uint64_t last = tokens.empty() ? 0 : static_cast<std::uint64_t>(tokens.back()) + 1;
  const std::uint64_t state = mix(seed_, last * 4096 + tokens.size());
  // One more than a request has stop tokens: some token always goes on.
  const auto vocabulary = static_cast<std::uint64_t>(vocabulary_);
  const std::uint64_t after =
      (static_cast<std::uint64_t>(token) + vocabulary - state % vocabulary) % vocabulary;
  return after < 4 || mix(state, static_cast<std::uint64_t>(token)) % 3 == 0;
}

bool FakeGrammar::can_end(std::span<const std::int32_t> tokens) const {
  return tokens.size() >= static_cast<std::size_t>(length_) || mix(seed_, tokens.size()) % 4 == 0;
}

}  // namespace koho::simulation
