// SPDX-License-Identifier: Apache-2.0
#include "app/text_stream.h"

#include <algorithm>

namespace koho::app {

TextStream::TextStream(const Tokenizer* tokenizer,
                       const std::vector<std::int32_t>& eos_token_ids,
                       const SamplingFlags& flags)
    : stop_ids_(flags.stop_token_ids), stops_(flags.stop) {
  if (!flags.ignore_eos)
    stop_ids_.insert(stop_ids_.end(), eos_token_ids.begin(), eos_token_ids.end());
  if (tokenizer != nullptr) detokenizer_.emplace(*tokenizer, /*skip_special=*/true);
}

std::string TextStream::push(std::int32_t id) {
  if (std::find(stop_ids_.begin(), stop_ids_.end(), id) != stop_ids_.end()) {
    stopped_ = true;
    return {};
  }
  if (!detokenizer_) return {};
  std::string text = stops_.feed(detokenizer_->push(id));
  stopped_ = stops_.matched();
  return text;
}

std::string TextStream::finish() {
  if (!detokenizer_) return {};
  std::string text = stops_.feed(detokenizer_->finish());
  text += stops_.flush();
  return text;
}

}  // namespace koho::app
