// SPDX-License-Identifier: Apache-2.0
// From generated ids to the text that is shown: stop tokens, stop strings, whole characters only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/sampling_flags.h"
#include "engine/stop_strings.h"
#include "tokenizer/detokenizer.h"

namespace koho::app {

class TextStream {
 public:
  /// `tokenizer` may be null: no text comes then. `eos_token_ids`: the model's own stop tokens.
  TextStream(const Tokenizer* tokenizer,
             const std::vector<std::int32_t>& eos_token_ids,
             const SamplingFlags& flags);

  /// The text that `id` makes safe to show.
  std::string push(std::int32_t id);
  /// What was held back, at the end.
  std::string finish();
  /// A stop token or a stop string has come.
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::int32_t> stop_ids_;
  std::optional<Detokenizer> detokenizer_;
  StopStrings stops_;
  bool stopped_ = false;
};

}  // namespace koho::app
