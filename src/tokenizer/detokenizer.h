// SPDX-License-Identifier: Apache-2.0
// Token ids to text while they are sampled: gives whole characters only, and in sum exactly what
// Tokenizer::decode gives for all ids.
#pragma once

#include <cstdint>
#include <string>

#include "tokenizer/tokenizer.h"

namespace koho {

/// One sequence's stream. Threads: one at a time. The tokenizer must outlive it.
class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special = false)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  /// The text that is certain after this token; perhaps none. The first bytes of a character wait
  /// for the rest; bytes that can become no character are U+FFFD at once.
  std::string push(std::int32_t id) {
    std::string text;
    push(id, text);
    return text;
  }
  /// The same, appended to `text`: allocates only if that has to grow.
  void push(std::int32_t id, std::string& text);

  /// The end of the ids: U+FFFD for the beginning of a character that stayed alone, else nothing.
  std::string finish() {
    std::string text;
    finish(text);
    return text;
  }
  void finish(std::string& text);

  /// Whether a character's first bytes wait.
  bool is_waiting() const { return !waiting_.empty(); }

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::string waiting_;  // the cut-off beginning of a character: at most 3 bytes
};

}  // namespace koho
