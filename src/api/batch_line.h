// SPDX-License-Identifier: Apache-2.0
// OpenAI's batch files, line by line: requests in, answers and errors out. No files, no engine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "api/endpoints.h"
#include "api/error.h"

namespace koho::api {

/// Longest line of a batch file, in bytes.
inline constexpr std::size_t kBatchLineBytesMax = 8U << 20U;
inline constexpr std::size_t kCustomIdBytesMax = 512;

/// A request: {"custom_id": …, "method": "POST", "url": …, "body": {…}}.
struct BatchLine {
  std::int64_t number = 0;  // in its file, from 1
  std::string custom_id{};
  const GenerationEndpoint* endpoint = nullptr;
  std::string body{};  // JSON, not checked yet
};

/// Whether `line` is to be skipped.
bool is_blank_line(std::string_view line);

/// Whether `line` is meant as one of these, however wrong it is; nothing: it does not tell.
std::optional<bool> is_batch_line(std::string_view line);

/// Of a line that has more bytes.
ApiError line_too_long();

/// Reads line `number`. A refusal's `param` is the member that is wrong, and its code what a
/// batch's `errors` calls it; then `read` has the custom_id, if that could be read.
Refusal read_batch_line(std::string_view line, std::int64_t number, BatchLine& read);

/// The line of an answer, without its newline. `body` is the answer's or the error's JSON.
std::string batch_answer_line(const BatchLine& line,
                              int status,
                              std::string_view request_id,
                              std::string_view body);
/// The line of a request that was not sent; a custom_id "" is null.
std::string batch_error_line(const BatchLine& line, const ApiError& error);

/// What an earlier run wrote: the line's number in the input, its custom_id as JSON, and whether
/// the request was answered.
struct BatchOutcome {
  std::int64_t number = 0;
  std::string custom_id{};
  bool answered = false;
};
/// False: not a line that the two functions above wrote.
bool read_batch_outcome(std::string_view line, BatchOutcome& outcome);

}  // namespace koho::api
