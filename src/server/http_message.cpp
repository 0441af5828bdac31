// SPDX-License-Identifier: Apache-2.0
#include "server/http_message.h"

#include <algorithm>
#include <cctype>

#include "base/text.h"

namespace koho::server {

std::string_view RequestHead::field(std::string_view name) const {
  const auto found =
      std::ranges::find_if(fields, [name](const auto& entry) { return entry.first == name; });
  return found == fields.end() ? std::string_view() : std::string_view(found->second);
}

bool RequestHead::has(std::string_view name) const {
  return std::ranges::any_of(fields, [name](const auto& entry) { return entry.first == name; });
}

bool is_token(std::string_view text) {
  const auto is_token_character = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
  };
  return !text.empty() && std::ranges::all_of(text, is_token_character);
}

std::string_view reason_phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 302:
      return "Found";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 414:
      return "URI Too Long";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 500:
      return "Internal Server Error";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
    case 529:
      return "Overloaded";
    default:
      return "Status";
  }
}

Response error_response(api::ErrorStyle style, const api::ApiError& error) {
  Response response{.status = error.status};
  append_error(response.body, style, error);
  if (error.retry_after_s > 0) {
    response.fields.emplace_back("Retry-After", std::to_string(error.retry_after_s));
    response.fields.emplace_back("retry-after-ms", std::to_string(1000 * error.retry_after_s));
  }
  // A timeout that the client asked for: OpenAI's and Anthropic's clients would send it again.
  if (error.code == "timeout") response.fields.emplace_back("x-should-retry", "false");
  if (error.status == 401) response.fields.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

std::string query_value(const RequestHead& head, std::string_view name) {
  std::string_view query = head.target;
  for (std::size_t at = query.find('?'); at != std::string_view::npos; at = query.find('&')) {
    query.remove_prefix(at + 1);
    const std::string_view pair = query.substr(0, query.find('&'));
    const std::size_t equals = std::min(pair.find('='), pair.size());
    std::string value;
    if (pair.substr(0, equals) == name &&
        decode_percent(pair.substr(std::min(equals + 1, pair.size())), value))
      return value;
  }
  return {};
}

bool decode_percent(std::string_view text, std::string& out) {
  out.clear();
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    if (i + 2 >= text.size()) return false;
    const auto value = parse_integer<std::uint32_t>(text.substr(i + 1, 2), 16);
    if (!value) return false;
    out += static_cast<char>(*value);
    i += 2;
  }
  return true;
}

}  // namespace koho::server
