// SPDX-License-Identifier: Apache-2.0
// An error as a client sees it: one struct, written in OpenAI's or Anthropic's form. The messages
// come from where the reason is known.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace koho::api {

struct ApiError {
  int status = 500;                // HTTP status; decides the type
  std::string code{};              // "" is null
  std::string param{};             // the wrong field; "" is null
  std::string message{};           // may quote the client's text
  std::int32_t retry_after_s = 0;  // 0: no Retry-After
};

/// No value: the request is accepted.
using Refusal = std::optional<ApiError>;

/// Whose form an error has.
enum class ErrorStyle : std::uint8_t { openai, anthropic };

/// The form for a path, known or unknown.
ErrorStyle error_style(std::string_view path);

/// "invalid_request_error", …: the API's error type for this status.
std::string_view error_type(ErrorStyle style, int status);

/// Appends the error's JSON object. Replaces text that is not UTF-8.
void append_error(std::string& out, ErrorStyle style, const ApiError& error);

/// Adds "request_id" to an error in Anthropic's form; leaves others as they are.
void name_request(std::string& error, std::string_view request_id);

/// A wrong value of a request's field: 400.
ApiError wrong_field(std::string_view param, std::string message, std::string_view code = {});

/// Converts an error of the engine or of parsing. Internal and device errors get a general message:
/// the details are in the log. A message that begins with "FIELD: " or "FIELD must " sets `param`.
ApiError to_api_error(const Error& error);

}  // namespace koho::api
