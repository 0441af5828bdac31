// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/detokenizer.h"

#include <algorithm>
#include <string_view>

#include "tokenizer/utf8.h"

namespace koho {
namespace {

/// The start of the incomplete character at the end of `bytes`; bytes.size() if there is none.
std::size_t cut_off_begin(std::string_view bytes) {
  constexpr std::size_t kCutOffBytesMax = 3;
  const std::size_t first = bytes.size() - std::min(bytes.size(), kCutOffBytesMax);
  for (std::size_t i = first; i < bytes.size(); ++i)
    if (utf8_step(bytes.substr(i)).kind == Utf8Step::Kind::cut_off) return i;
  return bytes.size();
}

}  // namespace

void Detokenizer::push(std::int32_t id, std::string& text) {
  if (skip_special_ && tokenizer_->is_special(id)) return;
  waiting_ += tokenizer_->token_bytes(id);
  const std::size_t certain = cut_off_begin(waiting_);
  append_utf8_lossy(text, std::string_view(waiting_).substr(0, certain));
  waiting_.erase(0, certain);
}

void Detokenizer::finish(std::string& text) {
  append_utf8_lossy(text, waiting_);
  waiting_.clear();
}

}  // namespace koho
