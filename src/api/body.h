// SPDX-License-Identifier: Apache-2.0
// The first look at a request's body, the same for every endpoint: UTF-8, JSON, an object.
#pragma once

#include <string_view>

#include "api/error.h"
#include "chat/json.h"

namespace koho::api {

/// Parses `body` into `json`. Refused with invalid_encoding: what is not UTF-8, lone surrogates;
/// with invalid_json: all else that is not one JSON object within chat/json.h's limits.
Refusal parse_body(std::string_view body, chat::Json& json);

}  // namespace koho::api
