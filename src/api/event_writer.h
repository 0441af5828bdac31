// SPDX-License-Identifier: Apache-2.0
// Small appenders for the bytes of answers: server-sent events and JSON fields.
#pragma once

#include <string>
#include <string_view>

namespace koho::api {

/// "event: NAME\ndata: "; the caller appends one line of JSON and end_event().
void begin_event(std::string& out, std::string_view name);
void end_event(std::string& out);

/// `"key":` and the quoted text, no comma.
void append_field(std::string& out, std::string_view key, std::string_view text);

/// The JSON object of a call's arguments. Arguments that were cut off are closed or shortened, so
/// that the result is always a complete object.
std::string complete_arguments(std::string_view arguments);

}  // namespace koho::api
