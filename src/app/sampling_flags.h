// SPDX-License-Identifier: Apache-2.0
// The sampling flags that several commands share. A flag that is not given leaves the model's own
// default (generation_config.json).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/command_line.h"
#include "base/error.h"
#include "engine/request.h"

namespace koho::app {

/// What the flags say; nothing: not given.
struct SamplingFlags {
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<std::int64_t> top_k;
  std::optional<double> repetition_penalty;
  std::optional<double> frequency_penalty;
  std::optional<double> presence_penalty;
  std::optional<std::int64_t> seed;
  std::int32_t tokens_max = 0;
  std::vector<std::string> stop;
  std::vector<std::int32_t> stop_token_ids;
  bool ignore_eos = false;

  /// Puts what was given into `request`, which has the model's defaults.
  void apply(Request& request) const;
  /// Errors: invalid_argument, what would refuse every request of a model of `vocabulary` ids.
  Status validate(std::int32_t vocabulary) const;
};

/// Declares --max-tokens, --temperature, … on `command`; `flags` must outlive the parse.
void add_sampling_flags(CommandLine& command,
                        SamplingFlags& flags,
                        std::int32_t tokens_max_default);

}  // namespace koho::app
