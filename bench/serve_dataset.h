// SPDX-License-Identifier: Apache-2.0
// The prompts of `koho bench serve`: random ones, those of a file, sessions of several turns.
// vLLM's names and rules.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "tokenizer/tokenizer.h"

namespace koho::bench {

struct DatasetOptions {
  std::string name = "random";  // random, sharegpt, custom or sessions
  std::string path;
  std::int64_t prompts = 1000;
  std::uint64_t seed = 0;
  std::int64_t random_input = 1024;  // tokens
  std::int64_t random_output = 128;
  std::int64_t random_prefix = 0;               // tokens before these, the same in all prompts
  double random_range_ratio = 0.0;              // lengths are drawn within 1 - r and 1 + r of those
  std::optional<std::int64_t> sharegpt_output;  // instead of the length of the file's answer
  std::int64_t custom_output = 256;             // -1: the file's output_tokens
  std::int64_t turns = 4;                       // of a session
  bool oversample = true;                       // a file with fewer prompts is used again
  bool shuffle = true;
};

/// What one request says.
struct Prompt {
  std::shared_ptr<const std::vector<std::string>> turns{};  // what the user says, turn by turn
  std::size_t turn = 0;                                     // of these the request's last
  std::int64_t tokens = 0;                                  // of the turn; 0: unknown
  std::int64_t output_tokens = 0;
  std::int64_t follows = -1;  // the prompt of the turn before
};

/// `tokenizer` is null where there is none: then random prompts are of common words, about one
/// token each. Errors: those of the file; invalid_argument: nothing usable in it.
Result<std::vector<Prompt>> make_prompts(const DatasetOptions& options, const Tokenizer* tokenizer);

}  // namespace koho::bench
