// SPDX-License-Identifier: Apache-2.0
// What the API needs to know about the loaded model: names, tokenizer and template, defaults,
// limits. The server fills it in.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "api/prompt_journal.h"
#include "api/turn_memory.h"
#include "chat/output_parser.h"
#include "chat/template.h"
#include "engine/request.h"
#include "tokenizer/tokenizer.h"

namespace koho::api {

/// Whether the reasoning of earlier turns stays in the prompt if a request does not set
/// clear_thinking.
enum class PreserveThinking : std::uint8_t { automatic, always, never };  // automatic: with tools

struct Model {
  std::vector<std::string> names;  // at least one; answers have the first
  bool any_name = false;           // every name is served
  std::int64_t created = 0;        // seconds since 1970
  std::string fingerprint;         // of weights, build and options

  const Tokenizer* tokenizer = nullptr;  // null: token ids only
  chat::TemplateStyle style = chat::TemplateStyle::glm_4_7;
  chat::TagIds tag_ids = chat::kNoTagIds;

  Request defaults;                     // sampling, stop tokens, thinking's tokens
  std::int32_t tokens_max_default = 0;  // where a request gives none; 0: as its API has it
  EngineLimits limits;

  PreserveThinking preserve_thinking = PreserveThinking::automatic;
  bool enable_thinking = true;  // default of requests
  /// Sampled answers, and requests for /debug/cache; null: none are kept.
  std::shared_ptr<TurnMemory> turns;
  std::shared_ptr<PromptJournal> journal;

  bool strict_fields = false;  // refuse unknown fields

  /// Largest number of tokens of prompt and answer of a request.
  std::int32_t context_max() const;
  bool serves(std::string_view name) const;
  /// What an answer to a request for `asked` is from: the first of `names` for all of them, and
  /// the name itself where any is served.
  std::string answer_name(const std::string& asked) const;
};

/// The ids of the tags that structure an answer.
chat::TagIds tag_ids_of(const Tokenizer& tokenizer);

}  // namespace koho::api
