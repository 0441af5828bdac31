// SPDX-License-Identifier: Apache-2.0
#include "grammar/union_grammar.h"

#include <algorithm>
#include <utility>

namespace koho {
namespace {

/// A matcher that refuses a token keeps its state and is ignored from then on; rollback() past that
/// token brings it back.
class UnionMatcher final : public Matcher {
 public:
  explicit UnionMatcher(std::vector<std::unique_ptr<Matcher>> matchers) {
    for (std::unique_ptr<Matcher>& matcher : matchers) paths_.push_back({std::move(matcher), 0});
  }

  Status accept(std::int32_t token) override {
    bool taken = false;
    for (Path& path : paths_) {
      if (!follows(path)) continue;
      Status status = path.matcher->accept(token);
      if (status.ok()) {
        ++path.accepted;
        taken = true;
      } else if (status.error().code != ErrorCode::invalid_argument) {
        return status;
      }
    }
    if (!taken)
      return make_error(ErrorCode::invalid_argument, "none of the grammars allows token {}", token);
    ++accepted_;
    return {};
  }

  Status rollback(std::int32_t tokens) override {
    accepted_ -= tokens;
    for (Path& path : paths_) {
      if (path.accepted <= accepted_) continue;
      KOHO_TRY(path.matcher->rollback(path.accepted - accepted_));
      path.accepted = accepted_;
    }
    return {};
  }

  Status fill_mask(std::span<std::uint32_t> mask) override {
    bool first = true;
    for (Path& path : paths_) {
      if (!follows(path)) continue;
      if (std::exchange(first, false)) {
        KOHO_TRY(path.matcher->fill_mask(mask));
        continue;
      }
      other_.resize(mask.size());
      KOHO_TRY(path.matcher->fill_mask(other_));
      for (std::size_t i = 0; i < mask.size(); ++i) mask[i] |= other_[i];
    }
    return {};
  }

  bool can_end() const override {
    return std::ranges::any_of(
        paths_, [this](const Path& path) { return follows(path) && path.matcher->can_end(); });
  }

 private:
  struct Path {
    std::unique_ptr<Matcher> matcher;
    std::int32_t accepted = 0;  // tokens that this matcher has accepted
  };

  bool follows(const Path& path) const { return path.accepted == accepted_; }

  std::vector<Path> paths_;
  std::vector<std::uint32_t> other_;
  std::int32_t accepted_ = 0;
};

class UnionGrammar final : public CompiledGrammar {
 public:
  explicit UnionGrammar(std::vector<std::shared_ptr<const CompiledGrammar>> grammars)
      : grammars_(std::move(grammars)) {}

  Result<std::unique_ptr<Matcher>> start() const override {
    std::vector<std::unique_ptr<Matcher>> matchers;
    for (const std::shared_ptr<const CompiledGrammar>& grammar : grammars_) {
      KOHO_TRY_ASSIGN(std::unique_ptr<Matcher> matcher, grammar->start());
      matchers.push_back(std::move(matcher));
    }
    return std::unique_ptr<Matcher>(std::make_unique<UnionMatcher>(std::move(matchers)));
  }

  std::size_t bytes() const override {
    std::size_t bytes = 0;
    for (const std::shared_ptr<const CompiledGrammar>& grammar : grammars_)
      bytes += grammar->bytes();
    return bytes;
  }

 private:
  std::vector<std::shared_ptr<const CompiledGrammar>> grammars_;
};

}  // namespace

std::shared_ptr<const CompiledGrammar> union_of(
    std::vector<std::shared_ptr<const CompiledGrammar>> grammars) {
  return std::make_shared<const UnionGrammar>(std::move(grammars));
}

}  // namespace koho
