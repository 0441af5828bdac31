// SPDX-License-Identifier: Apache-2.0
#include "api/event_writer.h"

#include "base/json_writer.h"
#include "chat/json.h"

namespace koho::api {

void begin_event(std::string& out, std::string_view name) {
  out += "event: ";
  out += name;
  out += "\ndata: ";
}

void end_event(std::string& out) {
  out += "\n\n";
}

void append_field(std::string& out, std::string_view key, std::string_view text) {
  out += '"';
  out += key;
  out += "\":";
  append_json_string(out, text);
}

std::string complete_arguments(std::string_view arguments) {
  for (const std::string_view end : {"", "}", "\"}"}) {
    std::string closed = std::string(arguments) + std::string(end);
    const Result<chat::Json> parsed = chat::parse_json(closed, {.exact_numbers = true});
    if (parsed.ok() && parsed->is_object()) return closed;
  }
  return "{}";
}

}  // namespace koho::api
