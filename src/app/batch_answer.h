// SPDX-License-Identifier: Apache-2.0
// Collects the events of one request of `koho batch` and writes its line of output; a chat's answer
// apart: reasoning, tool calls, text. Format: docs/batch.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "app/answer_display.h"
#include "base/error.h"
#include "engine/output_stream.h"
#include "engine/request.h"

namespace koho::app {

class BatchAnswer {
 public:
  /// `id` as JSON; `parser` of a chat. Keeps no reference to the request.
  BatchAnswer(std::string id,
              const Request& request,
              const std::optional<chat::OutputParserOptions>& parser);

  void add(const OutputEvent& event);
  /// The line without its newline. Requires: every choice has ended.
  std::string line(const Summary& summary) const;
  /// Whether a choice ended at its length.
  bool is_cut() const;
  const std::string& id() const { return id_; }

 private:
  struct Choice {
    std::vector<Token> ids;
    std::vector<float> logprobs;
    std::vector<std::vector<TokenLogprob>> top;
    std::string text;
    FinishReason finish = FinishReason::none;
    std::string stop_reason;  // as JSON; empty: none
    std::optional<AnswerDisplay> chat;
  };

  void append_choice(std::string& out, const Choice& choice) const;

  std::string id_;
  bool wants_logprobs_;
  std::vector<std::string> stop_strings_;
  std::vector<Choice> choices_;
};

/// The line of a request that got no answer. `id` as JSON, `number` its line of the input.
std::string error_line(std::string_view id, std::int64_t number, const Error& error);

}  // namespace koho::app
