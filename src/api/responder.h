// SPDX-License-Identifier: Apache-2.0
// The interface between an answer and its API: pieces in, bytes out. A responder writes one answer,
// as server-sent events or as one JSON body at its end. No sockets, no threads.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "api/error.h"
#include "api/generation.h"
#include "chat/output_parser.h"
#include "engine/output_stream.h"

namespace koho::api {

/// Why a choice ended, as far as the APIs report it.
enum class Finish : std::uint8_t { none, stop, length, tool_calls };

/// The result of one sampled token, or of the end of a choice.
struct Piece {
  std::int32_t choice = 0;                      // counted over all prompts
  const OutputEvent* event = nullptr;           // the engine's event: token, logprobs, text
  std::string_view text{};                      // the text of a completion
  std::span<const chat::OutputEvent> parsed{};  // the same text, parsed, for chats
  Finish finish = Finish::none;                 // set with the choice's last piece
  std::string_view stop_string{};               // the stop string that ended it, or ""
};

/// Totals over all choices.
struct AnswerTotals {
  Usage usage{};
  Timings timings{};

  /// Decode speed of the answer; 0 if its time is unknown.
  double tokens_per_second() const {
    return timings.decode_us > 0 ? static_cast<double>(usage.completion_tokens) * 1e6 /
                                       static_cast<double>(timings.decode_us)
                                 : 0.0;
  }
};

/// Facts that are known before the first token.
struct AnswerStart {
  std::string id{};  // without the API's prefix ("chatcmpl-")
  std::int64_t created = 0;
  std::int64_t prompt_tokens = 0;
};

class Responder {
 public:
  virtual ~Responder() = default;
  /// Called once, first. In a stream: appends the events before the first piece.
  virtual void begin(const AnswerStart& started, std::string& out) = 0;
  virtual void piece(const Piece& piece, std::string& out) = 0;
  /// The end of a complete answer; the last call.
  virtual void end(const AnswerTotals& ended, std::string& out) = 0;
  /// The end of an answer that failed after begin(). In a stream: appends the error as an event and
  /// the stream's end. Otherwise appends nothing, and the server answers with the error's status.
  virtual void fail(const ApiError& error, std::string& out) = 0;
  /// In a stream: appends a keep-alive comment or event.
  virtual void ping(std::string& out) = 0;
};

}  // namespace koho::api
