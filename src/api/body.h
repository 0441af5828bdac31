// SPDX-License-Identifier: Apache-2.0
// Parses a request's body for every endpoint: it must be UTF-8 and one JSON object.
#pragma once

#include <string>
#include <string_view>

#include "api/error.h"
#include "chat/json.h"

namespace koho::api {

/// The most values that a body may have: a client's long histories and many tools have some tens
/// of thousands. Token ids of prompts, and members that nobody reads, do not count.
inline constexpr std::size_t kBodyValuesMax = 131'072;

/// Parses `body` into `json`; members that `reads` does not name become null. Refuses text that is
/// not UTF-8 and lone surrogates (invalid_encoding), more than kBodyValuesMax values (413,
/// request_too_large), and everything else that is not one JSON object within chat/json.h's limits
/// (invalid_json).
Refusal parse_body(std::string_view body, bool (*reads)(std::string_view name), chat::Json& json);

/// Whether `id` can name a request: 1..128 visible ASCII characters, without quotes and
/// backslashes.
bool is_request_id(std::string_view id);

/// The request_id or rid of a body; "" if it has none. Refuses one that is_request_id() does not
/// take.
Refusal read_request_id(const chat::Json& body, std::string& id);

}  // namespace koho::api
