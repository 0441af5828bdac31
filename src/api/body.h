// SPDX-License-Identifier: Apache-2.0
// Parses a request's body for every endpoint: it must be UTF-8 and one JSON object.
#pragma once

#include <string>
#include <string_view>

#include "api/error.h"
#include "chat/json.h"

namespace koho::api {

/// Parses `body` into `json`. Refuses text that is not UTF-8 and lone surrogates
/// (invalid_encoding), and everything else that is not one JSON object within chat/json.h's limits
/// (invalid_json).
Refusal parse_body(std::string_view body, chat::Json& json);

/// Whether `id` can name a request: 1..128 visible ASCII characters, without quotes and
/// backslashes.
bool is_request_id(std::string_view id);

/// The request_id or rid of a body; "" if it has none. Refuses one that is_request_id() does not
/// take.
Refusal read_request_id(const chat::Json& body, std::string& id);

}  // namespace koho::api
