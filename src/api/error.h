// SPDX-License-Identifier: Apache-2.0
// A refusal as a client sees it: one struct, and the two forms in which it is written. Nothing here
// knows why; every message is written where the reason is known.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace koho::api {

struct ApiError {
  int status = 500;                // of HTTP; decides the type
  std::string code{};              // "" is null
  std::string param{};             // the field that is wrong; "" is null
  std::string message{};           // may hold what the client sent
  std::int32_t retry_after_s = 0;  // 0: no Retry-After
};

/// Nothing: all is well.
using Refusal = std::optional<ApiError>;

/// Whose clients read it.
enum class ErrorStyle : std::uint8_t { openai, anthropic };

/// Whose clients ask at a path, known or not.
ErrorStyle error_style(std::string_view path);

/// "invalid_request_error", …: what either API calls an error of this status.
std::string_view error_type(ErrorStyle style, int status);

/// Appends the error's JSON object. Text that is not UTF-8 is replaced.
void append_error(std::string& out, ErrorStyle style, const ApiError& error);

/// Adds the request's name, "request_id", to an error of Anthropic's form; another one stays.
void name_request(std::string& error, std::string_view request_id);

/// A wrong value of a request's field: 400.
ApiError wrong_field(std::string_view param, std::string message, std::string_view code = {});

/// An error of the engine or of reading, as its client sees it. What only the operator may know is
/// left out (internal errors, device errors). A message that begins "field: " or "field must "
/// names its field.
ApiError to_api_error(const Error& error);

}  // namespace koho::api
