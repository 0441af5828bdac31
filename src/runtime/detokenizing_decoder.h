// SPDX-License-Identifier: Apache-2.0
// The engine's way from tokens to text: the tokenizer's streaming detokenizer.
#pragma once

#include <memory>
#include <string>

#include "engine/request.h"
#include "engine/text_decoder.h"
#include "tokenizer/detokenizer.h"

namespace koho {

/// Text of one output, special tokens left out unless its request wants them.
class DetokenizingDecoder final : public TextDecoder {
 public:
  DetokenizingDecoder(const Tokenizer& tokenizer, bool skip_special)
      : detokenizer_(tokenizer, skip_special) {}
  void push(Token token, std::string& text) override { detokenizer_.push(token, text); }
  void flush(std::string& text) override { detokenizer_.finish(text); }

 private:
  Detokenizer detokenizer_;
};

/// `tokenizer` must outlive the decoders.
inline TextDecoderFactory detokenizing_decoders(const Tokenizer& tokenizer) {
  return [&tokenizer](const Request& request) {
    return std::make_unique<DetokenizingDecoder>(tokenizer, !request.keep_special);
  };
}

}  // namespace koho
