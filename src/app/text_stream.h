// SPDX-License-Identifier: Apache-2.0
// From generated ids to the text that is shown: stop tokens, stop strings, whole characters only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/loaded_model.h"
#include "app/sampling_flags.h"
#include "engine/stop_strings.h"
#include "tokenizer/detokenizer.h"

namespace koho::app {

class TextStream {
 public:
  /// `model` must outlive the stream. Without a tokenizer no text comes.
  TextStream(const LoadedModel& model, const SamplingFlags& flags);

  /// The text that `id` makes safe to show.
  std::string feed(std::int32_t id);
  /// What was held back, at the end.
  std::string flush();
  /// A stop token or a stop string has come.
  bool finished() const { return finished_; }

 private:
  std::vector<std::int32_t> stop_ids_;
  std::optional<Detokenizer> detokenizer_;
  StopStrings stops_;
  bool finished_ = false;
};

}  // namespace koho::app
