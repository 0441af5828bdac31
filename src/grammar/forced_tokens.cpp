// SPDX-License-Identifier: Apache-2.0
#include "grammar/forced_tokens.h"

#include <algorithm>
#include <utility>

namespace koho {
namespace {

class ForcedMatcher final : public Matcher {
 public:
  explicit ForcedMatcher(const std::vector<std::int32_t>& tokens) : tokens_(tokens) {}

  Status accept(std::int32_t token) override {
    if (can_end() || token != tokens_[next_])
      return make_error(ErrorCode::invalid_argument,
                        "token {} is not the next token of the forced sequence", token);
    ++next_;
    return {};
  }
  Status rollback(std::int32_t tokens) override {
    next_ -= static_cast<std::size_t>(tokens);
    return {};
  }
  Status fill_mask(std::span<std::uint32_t> mask) override {
    std::ranges::fill(mask, 0U);
    if (can_end()) return {};
    const auto token = static_cast<std::size_t>(tokens_[next_]);
    if (token / 32 >= mask.size())
      return make_error(ErrorCode::invalid_argument, "token {} lies outside the vocabulary", token);
    mask[token / 32] |= 1U << (token % 32);
    return {};
  }
  bool can_end() const override { return next_ == tokens_.size(); }

 private:
  const std::vector<std::int32_t>& tokens_;
  std::size_t next_ = 0;
};

class ForcedGrammar final : public CompiledGrammar {
 public:
  explicit ForcedGrammar(std::vector<std::int32_t> tokens) : tokens_(std::move(tokens)) {}
  Result<std::unique_ptr<Matcher>> start() const override {
    return std::unique_ptr<Matcher>(std::make_unique<ForcedMatcher>(tokens_));
  }
  std::size_t bytes() const override { return sizeof *this + 4 * tokens_.size(); }

 private:
  std::vector<std::int32_t> tokens_;
};

}  // namespace

std::shared_ptr<const CompiledGrammar> forced_tokens(std::vector<std::int32_t> tokens) {
  return std::make_shared<const ForcedGrammar>(std::move(tokens));
}

}  // namespace koho
