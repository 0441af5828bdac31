// SPDX-License-Identifier: Apache-2.0
// Collects the events of one request of `koho batch` and writes its line of output. Format:
// docs/batch.md.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "engine/output_stream.h"
#include "engine/request.h"

namespace koho::app {

class BatchAnswer {
 public:
  /// `id` as JSON. Keeps no reference to the request.
  BatchAnswer(std::string id, const Request& request);

  void add(const OutputEvent& event);
  /// The line without its newline. Requires: every choice has ended.
  std::string line(const Summary& summary) const;
  const std::string& id() const { return id_; }

 private:
  struct Choice {
    std::vector<Token> ids;
    std::vector<float> logprobs;
    std::vector<std::vector<TokenLogprob>> top;
    std::string text;
    FinishReason finish = FinishReason::none;
    std::string stop_reason;  // as JSON; empty: none
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
