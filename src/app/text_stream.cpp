// SPDX-License-Identifier: Apache-2.0
#include "app/text_stream.h"

#include <algorithm>

namespace koho::app {

TextStream::TextStream(const LoadedModel& model, const SamplingFlags& flags)
    : stop_ids_(flags.stop_token_ids), stops_(flags.stop) {
  if (!flags.ignore_eos)
    stop_ids_.insert(stop_ids_.end(), model.stop_ids().begin(), model.stop_ids().end());
  if (model.tokenizer) detokenizer_.emplace(*model.tokenizer, /*skip_special=*/true);
}

std::string TextStream::feed(std::int32_t id) {
  if (std::find(stop_ids_.begin(), stop_ids_.end(), id) != stop_ids_.end()) {
    finished_ = true;
    return {};
  }
  if (!detokenizer_) return {};
  std::string text = stops_.feed(detokenizer_->feed(id));
  finished_ = stops_.matched();
  return text;
}

std::string TextStream::flush() {
  if (!detokenizer_) return {};
  std::string text = stops_.feed(detokenizer_->flush());
  return text + stops_.flush();
}

}  // namespace koho::app
