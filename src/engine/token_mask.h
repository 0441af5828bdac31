// SPDX-License-Identifier: Apache-2.0
// Which tokens a constrained choice may sample next: reasoning until its budget is spent, then what
// the grammar allows, stop tokens once the grammar may end; less what the request's own lists of
// allowed and banned tokens keep out. Updated as each token arrives, so that planning a step only
// copies a mask.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "engine/request.h"
#include "grammar/matcher.h"

namespace koho {

/// Threads: the engine's.
class TokenMask {
 public:
  /// Whether anything in the request keeps tokens out.
  static bool is_needed(const Request& request);
  /// Requires: is_needed(request), which outlives the token mask. Errors: as
  /// CompiledGrammar::start and dead_end().
  static Result<std::unique_ptr<TokenMask>> open(const Request& request, std::int32_t vocabulary);

  /// Takes the token that was sampled. Errors: internal: the mask did not allow it; as
  /// Matcher's.
  Status accept(Token token);

  /// Of the tokens that may come next; its memory stays where it is. Empty: all may, and
  /// whatever the next one is, all may come after it, too.
  std::span<const std::uint32_t> mask() const {
    return idle_ ? std::span<const std::uint32_t>() : mask_;
  }
  bool allows(Token token) const;
  /// No token may come: the answer is complete, and there is no stop token that would say so, or it
  /// has come.
  bool complete() const { return complete_; }
  /// Whether a next token exists. Errors: invalid_argument: the request's own lists leave none; the
  /// field that left none is named.
  Status dead_end() const;

 private:
  TokenMask(const Request& request, std::unique_ptr<Matcher> matcher, std::int32_t vocabulary);
  Status refresh();
  bool is_stop(Token token) const;
  void set(Token token, bool allowed);
  void keep_to_lists();
  bool has_tokens() const;
  bool restricts_every_token() const;

  const Request& request_;
  std::unique_ptr<Matcher> matcher_;
  std::vector<std::uint32_t> mask_;
  std::vector<std::uint32_t> allowed_;  // request.allowed_tokens, or empty
  std::vector<Token> last_;             // tokens, as many as a banned sequence needs …
  std::size_t last_max_ = 0;            // … at most: all but the last of the longest one
  std::int32_t tokens_ = 0;             // accepted
  std::string_view emptied_by_;         // the field whose list left no token to come next, or ""
  bool reasoning_;
  bool complete_ = false;
  bool idle_ = false;
};

}  // namespace koho
