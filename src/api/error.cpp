// SPDX-License-Identifier: Apache-2.0
#include "api/error.h"

#include "base/json_writer.h"
#include "grammar/constraint.h"
#include "tokenizer/utf8.h"

namespace koho::api {
namespace {

/// Limit of a message, which may quote a client's text.
constexpr std::size_t kMessageBytesMax = 2048;

void append_text(std::string& out, std::string_view text) {
  std::string valid;
  append_utf8_lossy(valid, text.substr(0, kMessageBytesMax));
  if (text.size() > kMessageBytesMax) valid += "…";
  append_json_string(out, valid);
}

void append_text_or_null(std::string& out, std::string_view text) {
  if (text.empty()) {
    out += "null";
  } else {
    append_text(out, text);
  }
}

}  // namespace

ErrorStyle error_style(std::string_view path) {
  constexpr std::string_view kMessages = "/v1/messages";
  const bool below =
      path.size() == kMessages.size() || path.substr(0, kMessages.size() + 1).ends_with('/');
  return path.starts_with(kMessages) && below ? ErrorStyle::anthropic : ErrorStyle::openai;
}

std::string_view error_type(ErrorStyle style, int status) {
  const bool openai = style == ErrorStyle::openai;
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return openai ? "invalid_request_error" : "not_found_error";
    case 408:
      return openai ? "invalid_request_error" : "timeout_error";
    case 413:
      return openai ? "invalid_request_error" : "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
    case 529:
      return openai ? "server_error" : "overloaded_error";
    default:
      if (status < 500) return "invalid_request_error";
      return openai ? "server_error" : "api_error";
  }
}

void append_error(std::string& out, ErrorStyle style, const ApiError& error) {
  out += style == ErrorStyle::openai ? R"({"error":{"message":)"
                                     : R"({"type":"error","error":{"type":")";
  if (style == ErrorStyle::openai) {
    append_text(out, error.message);
    out += R"(,"type":")";
    out += error_type(style, error.status);
    out += R"(","param":)";
    append_text_or_null(out, error.param);
    out += R"(,"code":)";
    append_text_or_null(out, error.code);
  } else {
    out += error_type(style, error.status);
    out += R"(","message":)";
    append_text(out, error.message);
  }
  out += "}}";
}

void name_request(std::string& error, std::string_view request_id) {
  if (!error.starts_with(R"({"type":"error",)") || !error.ends_with('}')) return;
  error.pop_back();
  error += R"(,"request_id":)";
  append_text(error, request_id);
  error += '}';
}

ApiError wrong_field(std::string_view param, std::string message, std::string_view code) {
  return {.status = 400,
          .code = std::string(code),
          .param = std::string(param),
          .message = std::move(message)};
}

ApiError to_api_error(const Error& error) {
  const int status = error_code_info(error.code).http_status;
  ApiError refused{.status = status, .code = {}, .param = {}, .message = error.message};
  switch (error.code) {
    case ErrorCode::invalid_argument:
      refused.param = error.field;
      break;
    case ErrorCode::unsupported:
      refused.param = error.field;
      refused.code =
          refused.param.starts_with("messages[") ? "unsupported_content" : "unsupported_parameter";
      break;
    case ErrorCode::resource_exhausted:
      if (error.reason == kGrammarTooComplex) {  // in the middle of an answer: again, it will be
        refused.status = 400;
        refused.code = error_reason_name(error.reason);
        break;
      }
      refused.code = "rate_limit_exceeded";
      refused.message = "the server's queue is full; retry later";
      refused.retry_after_s = 1;
      break;
    case ErrorCode::unavailable:
      refused.code = "service_unavailable";
      refused.message = "the server is not ready; retry later";
      refused.retry_after_s = 5;
      break;
    case ErrorCode::deadline_exceeded:
      refused.code = "timeout";
      refused.message = "the request's timeout has passed";
      break;
    case ErrorCode::cancelled:
      refused.code = "cancelled";
      refused.message = "the request was aborted";
      break;
    default:
      refused.status = 500;
      refused.code = error.reason == ErrorReason::numerical ? error_reason_name(error.reason)
                                                            : std::string_view("internal_error");
      refused.message = "the server failed to answer this request; see its log";
      break;
  }
  return refused;
}

}  // namespace koho::api
