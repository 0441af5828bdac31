// SPDX-License-Identifier: Apache-2.0
// Tokens to text for one output: the engine needs it for stop strings and hands the text on.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "kvcache/prefix_cache.h"

namespace koho {

struct Request;

/// One output's streaming decoder. Threads: the engine's thread only.
class TextDecoder {
 public:
  virtual ~TextDecoder() = default;
  /// Appends the text that `token` completes: whole UTF-8 characters, possibly none.
  virtual void push(Token token, std::string& text) = 0;
  /// Appends what an incomplete character at the end stands for.
  virtual void flush(std::string& text) = 0;
};

/// Makes a decoder for a new output of a request.
using TextDecoderFactory = std::function<std::unique_ptr<TextDecoder>(const Request&)>;

}  // namespace koho
