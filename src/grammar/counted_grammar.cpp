// SPDX-License-Identifier: Apache-2.0
#include "grammar/counted_grammar.h"

#include <algorithm>
#include <utility>

namespace koho {
namespace {

/// Masks exist for up to this many characters. A string with an upper bound never takes a longer
/// token.
constexpr std::size_t kCharactersMax = 255;

void set(std::vector<std::uint32_t>& mask, std::size_t token) {
  mask[token / 32] |= 1U << (token % 32);
}

void intersect(std::span<std::uint32_t> mask, const std::vector<std::uint32_t>& with) {
  for (std::size_t i = 0; i < mask.size(); ++i) mask[i] &= with[i];
}

void unite(std::vector<std::uint32_t>& mask, const std::vector<std::uint32_t>& with) {
  for (std::size_t i = 0; i < mask.size(); ++i) mask[i] |= with[i];
}

class CountedMatcher final : public Matcher {
 public:
  CountedMatcher(std::unique_ptr<Matcher> inner,
                 const LengthPlan& plan,
                 const CountedTokens& tokens)
      : inner_(std::move(inner)), plan_(plan), tokens_(tokens), tracker_(plan), trial_(plan) {}

  Status accept(std::int32_t token) override {
    trial_ = tracker_;
    if (!trial_.feed(tokens_.bytes(token)))
      return make_error(ErrorCode::invalid_argument, "token {} breaks a length bound of the schema",
                        token);
    KOHO_TRY(inner_->accept(token));
    std::swap(tracker_, trial_);
    accepted_.push_back(token);
    return {};
  }

  Status rollback(std::int32_t tokens) override {
    KOHO_TRY(inner_->rollback(tokens));
    accepted_.resize(accepted_.size() - static_cast<std::size_t>(tokens));
    tracker_ = LengthTracker(plan_);
    for (const std::int32_t token : accepted_) tracker_.feed(tokens_.bytes(token));
    return {};
  }

  Status fill_mask(std::span<std::uint32_t> mask) override {
    KOHO_TRY(inner_->fill_mask(mask));
    if (tracker_.counts()) {
      if (tracker_.left() >= 0)
        tokens_.keep_within(mask, tracker_.left());
      else
        tokens_.keep_plain(mask);
      if (tracker_.missing() > 0 && !plan_.whole) tokens_.keep_open(mask, tracker_.missing());
    }
    if (plan_.whole) return {};
    if (!tracker_.in_string()) keep_short_openings(mask);
    // A token with several quotation marks may close one string and open another: run the tracker
    // over each such token.
    for (const std::int32_t token :
         tracker_.in_string() ? tokens_.twice_quoted() : tokens_.quoted()) {
      const auto at = static_cast<std::size_t>(token);
      const std::uint32_t bit = 1U << (at % 32);
      if ((mask[at / 32] & bit) == 0) continue;
      trial_ = tracker_;
      if (!trial_.feed(tokens_.bytes(token))) mask[at / 32] &= ~bit;
    }
    return {};
  }

  bool can_end() const override {
    return inner_->can_end() && !(plan_.whole && tracker_.missing() > 0);
  }

 private:
  void keep_short_openings(std::span<std::uint32_t> mask) const {
    const std::optional<LengthBounds> bounds = tracker_.next_bounds();
    if (!bounds) return;
    for (const CountedTokens::Opening& opening : tokens_.openings()) {
      const bool fits = bounds->most < 0 || opening.characters <= bounds->most;
      if (fits && !opening.escapes) continue;
      const auto at = static_cast<std::size_t>(opening.token);
      mask[at / 32] &= ~(1U << (at % 32));
    }
  }

  std::unique_ptr<Matcher> inner_;
  const LengthPlan& plan_;
  const CountedTokens& tokens_;
  LengthTracker tracker_;
  LengthTracker trial_;
  std::vector<std::int32_t> accepted_;
};

class CountedGrammar final : public CompiledGrammar {
 public:
  CountedGrammar(std::shared_ptr<const CompiledGrammar> inner,
                 LengthPlan plan,
                 std::shared_ptr<const CountedTokens> tokens)
      : inner_(std::move(inner)), plan_(std::move(plan)), tokens_(std::move(tokens)) {}

  Result<std::unique_ptr<Matcher>> start() const override {
    KOHO_TRY_ASSIGN(std::unique_ptr<Matcher> inner, inner_->start());
    return std::unique_ptr<Matcher>(
        std::make_unique<CountedMatcher>(std::move(inner), plan_, *tokens_));
  }
  std::size_t bytes() const override {
    std::size_t members = 0;
    for (const LengthPlan::Place& place : plan_.places)
      members += place.members.size() + place.prefix.size();
    constexpr std::size_t kMemberBytes = 100;  // roughly
    return inner_->bytes() + plan_.places.size() * sizeof(LengthPlan::Place) +
           members * kMemberBytes;
  }

 private:
  std::shared_ptr<const CompiledGrammar> inner_;
  LengthPlan plan_;
  std::shared_ptr<const CountedTokens> tokens_;
};

}  // namespace

CountedTokens::CountedTokens(const Tokenizer& tokenizer, std::int64_t vocabulary, bool strings)
    : tokenizer_(&tokenizer) {
  struct Token {
    std::size_t characters = 0;  // within the string
    std::size_t quotes = 0;
    bool escapes = false;  // a backslash before the end of the string
  };
  const std::size_t words = mask_words(vocabulary);
  std::vector<Token> tokens(
      static_cast<std::size_t>(std::min<std::int64_t>(tokenizer.vocab_size(), vocabulary)));
  std::size_t most = 0;
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    if (!tokenizer.is_token(static_cast<std::int32_t>(id))) continue;
    for (const char c : tokenizer.token_bytes(static_cast<std::int32_t>(id))) {
      if (strings && c == '"') ++tokens[id].quotes;
      if (tokens[id].quotes > 0) continue;
      if (begins_character(c)) ++tokens[id].characters;
      tokens[id].escapes = tokens[id].escapes || (strings && c == '\\');
    }
    const std::string_view bytes = tokenizer.token_bytes(static_cast<std::int32_t>(id));
    if (tokens[id].quotes == 1 && bytes[0] == '"') {
      const auto characters = std::ranges::count_if(bytes.substr(1), begins_character);
      openings_.push_back({static_cast<std::int32_t>(id), static_cast<std::int32_t>(characters),
                           bytes.find('\\') != bytes.npos});
    } else if (tokens[id].quotes > 0) {
      quoted_.push_back(static_cast<std::int32_t>(id));
    }
    if (tokens[id].quotes > 1) twice_quoted_.push_back(static_cast<std::int32_t>(id));
    if (tokens[id].characters <= kCharactersMax) most = std::max(most, tokens[id].characters);
  }
  plain_.assign(words, 0);
  within_.assign(most + 1, Mask(words));
  open_.assign(most + 2, Mask(words));
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    const bool usual = tokens[id].characters <= most;
    if (!tokens[id].escapes) set(plain_, id);
    if (usual && !tokens[id].escapes) set(within_[tokens[id].characters], id);
    const std::size_t characters = usual ? tokens[id].characters : 0;
    set(open_[tokens[id].quotes == 0 ? open_.size() - 1 : characters], id);
  }
  for (std::size_t n = 1; n < within_.size(); ++n) unite(within_[n], within_[n - 1]);
  for (std::size_t n = open_.size() - 1; n > 0; --n) unite(open_[n - 1], open_[n]);
}

void CountedTokens::keep_plain(std::span<std::uint32_t> mask) const {
  intersect(mask, plain_);
}

void CountedTokens::keep_within(std::span<std::uint32_t> mask, std::int32_t left) const {
  intersect(mask, within_[std::min(static_cast<std::size_t>(left), within_.size() - 1)]);
}

void CountedTokens::keep_open(std::span<std::uint32_t> mask, std::int32_t missing) const {
  intersect(mask, open_[std::min(static_cast<std::size_t>(missing), open_.size() - 1)]);
}

std::shared_ptr<const CompiledGrammar> count_lengths(std::shared_ptr<const CompiledGrammar> grammar,
                                                     LengthPlan plan,
                                                     std::shared_ptr<const CountedTokens> tokens) {
  return std::make_shared<const CountedGrammar>(std::move(grammar), std::move(plan),
                                                std::move(tokens));
}

}  // namespace koho
