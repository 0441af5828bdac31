// SPDX-License-Identifier: Apache-2.0
// The sampling flags that several commands share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "sampling/parameters.h"

namespace koho::app {

/// What the flags set.
struct SamplingFlags {
  SamplingParameters parameters;
  std::int64_t seed = -1;  // -1: none given
  std::int64_t tokens_max = 0;
  std::vector<std::string> stop;
  std::vector<std::int32_t> stop_token_ids;
  bool ignore_eos = false;
};

/// Declares --max-tokens, --temperature, … on `command`; `flags` must outlive the parse.
void add_sampling_flags(CLI::App& command, SamplingFlags& flags, std::int64_t tokens_max_default);

}  // namespace koho::app
