// SPDX-License-Identifier: Apache-2.0
// Decodes token ids to text while they are sampled. Returns whole characters only; all pieces
// together equal Tokenizer::decode() of all ids.
#pragma once

#include <cstdint>
#include <string>

#include "tokenizer/tokenizer.h"

namespace koho {

/// The decoder of one sequence. Requires: the tokenizer outlives it. Threads: one at a time.
class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special = false)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  /// The text that this token completes, perhaps none. The first bytes of a character wait for the
  /// rest; bytes that cannot become a character are U+FFFD at once.
  std::string push(std::int32_t id) {
    std::string text;
    push(id, text);
    return text;
  }
  /// The same, appended to `text`. Allocates only if `text` must grow.
  void push(std::int32_t id, std::string& text);

  /// Ends the sequence: U+FFFD for a character that stayed incomplete, else "".
  std::string finish() {
    std::string text;
    finish(text);
    return text;
  }
  void finish(std::string& text);

  /// Whether the first bytes of a character wait.
  bool is_waiting() const { return !waiting_.empty(); }

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::string waiting_;  // the first bytes of a character, at most 3
};

}  // namespace koho
