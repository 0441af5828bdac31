// SPDX-License-Identifier: Apache-2.0
#include "engine/token_gate.h"

#include <algorithm>

namespace koho {

Result<std::unique_ptr<TokenGate>> TokenGate::open(const Request& request,
                                                   std::int32_t vocabulary) {
  KOHO_TRY_ASSIGN(std::unique_ptr<Matcher> matcher, request.grammar->start());
  std::unique_ptr<TokenGate> gate(new TokenGate(request, std::move(matcher), vocabulary));
  KOHO_TRY(gate->refresh());
  return gate;
}

TokenGate::TokenGate(const Request& request,
                     std::unique_ptr<Matcher> matcher,
                     std::int32_t vocabulary)
    : request_(request),
      matcher_(std::move(matcher)),
      mask_(mask_words(vocabulary)),
      thinking_(request.begins_in_reasoning && request.reasoning_end >= 0) {}

bool TokenGate::is_stop(Token token) const {
  return std::ranges::find(request_.stop_tokens, token) != request_.stop_tokens.end();
}

bool TokenGate::allows(Token token) const {
  const auto at = static_cast<std::size_t>(token);
  return ((mask_[at / 32] >> (at % 32)) & 1U) != 0;
}

void TokenGate::set(Token token, bool allowed) {
  const auto at = static_cast<std::size_t>(token);
  const std::uint32_t bit = 1U << (at % 32);
  mask_[at / 32] = allowed ? mask_[at / 32] | bit : mask_[at / 32] & ~bit;
}

Status TokenGate::accept(Token token) {
  if (!allows(token))
    return make_error(ErrorCode::internal, "token {} was sampled, which the grammar forbids",
                      token);
  ++tokens_;
  if (thinking_) {
    thinking_ = token != request_.reasoning_end;
    return thinking_ ? Status() : refresh();
  }
  if (is_stop(token)) {
    complete_ = true;
    return {};
  }
  KOHO_TRY(matcher_->accept(token));
  return refresh();
}

Status TokenGate::refresh() {
  if (thinking_) {
    std::ranges::fill(mask_, ~0U);
    for (const Token stop : request_.stop_tokens) set(stop, false);
    return {};
  }
  KOHO_TRY(matcher_->fill_mask(mask_));
  for (const Token stop : request_.stop_tokens) set(stop, false);
  const bool more = std::ranges::any_of(mask_, [](std::uint32_t word) { return word != 0; });
  const bool may_end = matcher_->can_end() && (!more || tokens_ >= request_.min_tokens);
  if (may_end)
    for (const Token stop : request_.stop_tokens) set(stop, true);
  complete_ = may_end && !more && request_.stop_tokens.empty();
  if (more || may_end) return {};
  return make_error(ErrorCode::internal, "the grammar allows no token after {}", tokens_);
}

}  // namespace koho
