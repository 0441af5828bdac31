// SPDX-License-Identifier: Apache-2.0
// The mask after each token: the grammar's, or reasoning's, then the request's own lists.
#include "engine/token_mask.h"

#include <algorithm>

namespace koho {
namespace {

constexpr std::string_view kStopTokenIds = "stop_token_ids";

}  // namespace

bool TokenMask::is_needed(const Request& request) {
  const bool budget = request.starts_in_reasoning && request.reasoning_end >= 0 &&
                      request.reasoning_tokens_max >= 0;
  return request.grammar != nullptr || budget || !request.allowed_tokens.empty() ||
         !request.banned_sequences.empty();
}

Result<std::unique_ptr<TokenMask>> TokenMask::open(const Request& request,
                                                   std::int32_t vocabulary) {
  std::unique_ptr<Matcher> matcher;
  if (request.grammar != nullptr) {
    KOHO_TRY_ASSIGN(matcher, request.grammar->start());
  }
  std::unique_ptr<TokenMask> token_mask(new TokenMask(request, std::move(matcher), vocabulary));
  KOHO_TRY(token_mask->refresh());
  KOHO_TRY(token_mask->dead_end());
  return token_mask;
}

TokenMask::TokenMask(const Request& request,
                     std::unique_ptr<Matcher> matcher,
                     std::int32_t vocabulary)
    : request_(request),
      matcher_(std::move(matcher)),
      mask_(mask_words(vocabulary)),
      reasoning_(request.starts_in_reasoning && request.reasoning_end >= 0) {
  for (const std::vector<Token>& sequence : request.banned_sequences)
    last_max_ = std::max(last_max_, sequence.size() - 1);
  if (request.allowed_tokens.empty()) return;
  for (const Token token : request.allowed_tokens) set(token, true);
  allowed_ = mask_;
}

bool TokenMask::is_stop(Token token) const {
  return std::ranges::find(request_.stop_tokens, token) != request_.stop_tokens.end();
}

bool TokenMask::allows(Token token) const {
  const auto at = static_cast<std::size_t>(token);
  return idle_ || ((mask_[at / 32] >> (at % 32)) & 1U) != 0;
}

void TokenMask::set(Token token, bool allowed) {
  const auto at = static_cast<std::size_t>(token);
  const std::uint32_t bit = 1U << (at % 32);
  mask_[at / 32] = allowed ? mask_[at / 32] | bit : mask_[at / 32] & ~bit;
}

bool TokenMask::has_tokens() const {
  return std::ranges::any_of(mask_, [](std::uint32_t word) { return word != 0; });
}

bool TokenMask::restricts_every_token() const {
  return matcher_ != nullptr || !allowed_.empty() || !request_.banned_sequences.empty();
}

Status TokenMask::accept(Token token) {
  if (!allows(token))
    return make_error(ErrorCode::internal, "token {} was sampled, which the request forbids",
                      token);
  ++tokens_;
  if (last_max_ > 0) {
    if (last_.size() == last_max_) last_.erase(last_.begin());
    last_.push_back(token);
  }
  if (reasoning_) {
    reasoning_ = token != request_.reasoning_end;
    // Only a budget and banned sequences look at what the reasoning is.
    const bool changes = !reasoning_ || request_.reasoning_tokens_max >= 0 || matcher_ == nullptr;
    return changes ? refresh() : Status();
  }
  if (is_stop(token)) {
    complete_ = true;
    return {};
  }
  if (matcher_ != nullptr) {
    Status taken = matcher_->accept(token);
    if (!taken.ok() && taken.error().code == ErrorCode::invalid_argument)
      return make_error(ErrorCode::internal, "the grammar's mask allows what it refuses: {}",
                        taken.error().message);
    KOHO_TRY(std::move(taken));
  }
  return refresh();
}

void TokenMask::keep_to_lists() {
  if (!allowed_.empty())
    for (std::size_t i = 0; i < mask_.size(); ++i) mask_[i] &= allowed_[i];
  emptied_by_ = {};
  const bool any = has_tokens();
  for (const std::vector<Token>& sequence : request_.banned_sequences) {
    const auto before = static_cast<std::ptrdiff_t>(sequence.size()) - 1;
    if (static_cast<std::ptrdiff_t>(last_.size()) >= before &&
        std::equal(last_.end() - before, last_.end(), sequence.begin()))
      set(sequence.back(), false);
  }
  if (!has_tokens()) emptied_by_ = any ? "bad_words" : "allowed_token_ids";
}

Status TokenMask::dead_end() const {
  if (emptied_by_.empty()) return {};
  if (emptied_by_ == kStopTokenIds)
    return make_field_error(ErrorCode::invalid_argument, emptied_by_,
                            "{}: after {} tokens of the answer its grammar goes on with these "
                            "tokens only; a stop token comes when the grammar may end",
                            tokens_);
  return make_field_error(ErrorCode::invalid_argument, emptied_by_,
                          "{}: allowed_token_ids, bad_words and min_tokens together leave no token "
                          "to sample after {} tokens of the answer",
                          tokens_);
}

Status TokenMask::refresh() {
  const std::int32_t budget = reasoning_ ? request_.reasoning_tokens_max : -1;
  if (budget >= 0 && tokens_ >= budget) {
    idle_ = false;
    std::ranges::fill(mask_, 0U);
    set(request_.reasoning_end, true);
    return {};
  }
  // The mask of the token after the next one may be asked for before the next one is known.
  idle_ = !restricts_every_token() && tokens_ >= request_.min_tokens &&
          (budget < 0 || tokens_ + 1 < budget);
  if (idle_) return {};
  if (reasoning_ || matcher_ == nullptr) {
    std::ranges::fill(mask_, ~0U);
    if (matcher_ != nullptr || tokens_ < request_.min_tokens)
      for (const Token stop : request_.stop_tokens) set(stop, false);
    if (reasoning_ && matcher_ != nullptr && request_.reasoning_banned >= 0)
      set(request_.reasoning_banned, false);
    keep_to_lists();
    return {};
  }
  KOHO_TRY(matcher_->fill_mask(mask_));
  const bool goes_on = has_tokens();
  for (const Token stop : request_.stop_tokens) set(stop, false);
  const bool more = has_tokens();
  const bool may_end = matcher_->can_end() && (!more || tokens_ >= request_.min_tokens);
  if (may_end)
    for (const Token stop : request_.stop_tokens) set(stop, true);
  complete_ = may_end && !more && request_.stop_tokens.empty();
  if (more || may_end) return {};
  if (goes_on) {
    emptied_by_ = kStopTokenIds;
    return {};
  }
  return make_error(ErrorCode::internal, "the grammar allows no token after {}", tokens_);
}

}  // namespace koho
