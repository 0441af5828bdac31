// SPDX-License-Identifier: Apache-2.0
// The seam between an answer and the API it is given in: pieces in, bytes out. One responder writes
// one answer, as server-sent events while it grows or as one JSON body at its end. No sockets, no
// threads.
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

/// Why a choice ended, as far as APIs tell.
enum class Finish : std::uint8_t { none, stop, length, tool_calls };

/// What one sampled token (or the end of a choice that sampled none) brought.
struct Piece {
  std::int32_t choice = 0;                      // counted over all prompts
  const OutputEvent* event = nullptr;           // token, logprobs, text as the engine gave it
  std::string_view text{};                      // the text of a completion
  std::span<const chat::OutputEvent> parsed{};  // the same taken apart, for chats
  Finish finish = Finish::none;                 // set with the choice's last piece
  std::string_view stop_string{};               // the stop string that ended it, or ""
};

/// All choices together.
struct AnswerTotals {
  Usage usage{};
  Timings timings{};

  /// Of the answer, while it was computed; 0 if no time is known.
  double tokens_per_second() const {
    return timings.decode_us > 0 ? static_cast<double>(usage.completion_tokens) * 1e6 /
                                       static_cast<double>(timings.decode_us)
                                 : 0.0;
  }
};

/// What is known before the first token.
struct AnswerStart {
  std::string id{};  // without the API's prefix ("chatcmpl-")
  std::int64_t created = 0;
  std::int64_t prompt_tokens = 0;
};

class Responder {
 public:
  virtual ~Responder() = default;
  /// Called once, first. In a stream, what comes before the first piece.
  virtual void begin(const AnswerStart& started, std::string& out) = 0;
  virtual void piece(const Piece& piece, std::string& out) = 0;
  /// The end of a complete answer; nothing is called after it.
  virtual void end(const AnswerTotals& ended, std::string& out) = 0;
  /// The end of an answer that broke off after begin(). In a stream: the error as an event and the
  /// stream's end. Otherwise nothing was sent yet: appends nothing, the server answers with the
  /// error's own status.
  virtual void fail(const ApiError& error, std::string& out) = 0;
  /// In a stream: what keeps the connection open and a watchdog quiet.
  virtual void ping(std::string& out) = 0;
};

}  // namespace koho::api
