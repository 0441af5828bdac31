// SPDX-License-Identifier: Apache-2.0
#include "api/body.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/core.h>

#include "tokenizer/utf8.h"

namespace koho::api {
namespace {

ApiError refused(std::string_view code, std::string message) {
  return {.status = 400, .code = std::string(code), .param = {}, .message = std::move(message)};
}

}  // namespace

Refusal parse_body(std::string_view body, bool (*reads)(std::string_view name), chat::Json& json) {
  if (const std::size_t valid = utf8_valid_bytes(body); valid != body.size())
    return refused("invalid_encoding",
                   fmt::format("the body is not valid UTF-8 at byte {}", valid));
  constexpr std::array<std::string_view, 4> kOfIds{"prompt", "ids", "input_ids", "tokens"};
  const auto packs = [&kOfIds](std::string_view name) {
    return std::ranges::find(kOfIds, name) != kOfIds.end();
  };
  Result<chat::Json> parsed =
      chat::parse_json(body, {.values_max = kBodyValuesMax, .needs = reads, .packs = packs});
  if (!parsed.ok() && parsed.error().reason == ErrorReason::too_long) {
    ApiError error = refused("request_too_large", parsed.error().message);
    error.status = 413;
    return error;
  }
  if (!parsed.ok()) {
    ApiError error = to_api_error(parsed.error());
    const bool encoding = parsed.error().reason == ErrorReason::invalid_encoding;
    error.code = encoding ? "invalid_encoding" : "invalid_json";
    return error;
  }
  if (!parsed->is_object())
    return refused("invalid_json", fmt::format("the body must be a JSON object, found {}",
                                               chat::kind_name(parsed->kind)));
  json = std::move(*parsed);
  return {};
}

bool is_request_id(std::string_view id) {
  constexpr std::size_t kIdBytesMax = 128;
  const auto is_plain = [](char c) { return c > ' ' && c < '\x7f' && c != '"' && c != '\\'; };
  return !id.empty() && id.size() <= kIdBytesMax && std::ranges::all_of(id, is_plain);
}

Refusal read_request_id(const chat::Json& body, std::string& id) {
  for (const std::string_view name : {"request_id", "rid"}) {
    const chat::Json* given = body.given(name);
    if (given == nullptr) continue;
    if (!given->is_string() || !is_request_id(given->text))
      return wrong_field(name, fmt::format("{} must be a string of 1..128 visible ASCII "
                                           "characters without quotes and backslashes",
                                           name));
    id = given->text;
    return {};
  }
  return {};
}

}  // namespace koho::api
