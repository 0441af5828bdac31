// SPDX-License-Identifier: Apache-2.0
// The sampling flags that koho run and koho batch share: those of sampling/parameter_table.h that
// are one number, and stops, lengths and the seed. A flag that is not given leaves the model's own
// default (generation_config.json).
#pragma once

#include <array>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "app/command_line.h"
#include "base/error.h"
#include "engine/request.h"
#include "sampling/parameter_table.h"

namespace koho::app {

/// What the flags say; nothing: not given.
struct SamplingFlags {
  /// One a row of kSamplingParameters: of the rows that are one number.
  std::array<std::optional<double>, std::size(kSamplingParameters)> numbers;
  std::array<std::optional<std::int64_t>, std::size(kSamplingParameters)> integers;
  std::optional<std::int64_t> seed;
  std::int32_t tokens_max = -1;  // -1: until the model stops or the context is full
  std::vector<std::string> stop;
  std::vector<std::int32_t> stop_token_ids;
  bool ignore_eos = false;

  /// Puts what was given into `request`, which has the model's defaults; a max_tokens of -1 is the
  /// caller's to replace.
  void apply(Request& request) const;
  /// Errors: invalid_argument, if every request of a model of `vocabulary` ids would be refused.
  Status validate(std::int32_t vocabulary) const;
};

/// Declares --max-tokens, --temperature, … on `command`; `flags` must outlive the parse.
void add_sampling_flags(CommandLine& command, SamplingFlags& flags);

}  // namespace koho::app
