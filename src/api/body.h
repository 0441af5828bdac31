// SPDX-License-Identifier: Apache-2.0
// The first look at a request's body, the same for every endpoint: UTF-8, JSON, an object.
#pragma once

#include <string>
#include <string_view>

#include "api/error.h"
#include "chat/json.h"

namespace koho::api {

/// Parses `body` into `json`. Refused with invalid_encoding: what is not UTF-8, lone surrogates;
/// with invalid_json: all else that is not one JSON object within chat/json.h's limits.
Refusal parse_body(std::string_view body, chat::Json& json);

/// Whether `id` can name a request: 1..128 visible ASCII characters, no quote and no backslash.
bool is_request_id(std::string_view id);

/// The request_id of a body, or its rid; "" if it has none. Refused: one that can name no request.
Refusal read_request_id(const chat::Json& body, std::string& id);

}  // namespace koho::api
