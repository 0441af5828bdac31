// SPDX-License-Identifier: Apache-2.0
#include "grammar/json_text.h"

namespace koho {

void append_json_value(std::string& out, const json::Value& value) {
  switch (value.kind()) {
    case json::Kind::null:
      out += "null";
      return;
    case json::Kind::boolean:
      out += *value.boolean() ? "true" : "false";
      return;
    case json::Kind::integer:
      out += std::to_string(*value.integer());
      return;
    case json::Kind::real:
      out += fmt::format("{}", *value.number());
      return;
    case json::Kind::string:
      append_json_string(out, *value.string());
      return;
    case json::Kind::array: {
      char before = '[';
      for (const json::Value& item : *value.array()) {
        out += before;
        append_json_value(out, item);
        before = ',';
      }
      out += before == '[' ? "[]" : "]";
      return;
    }
    case json::Kind::object: {
      char before = '{';
      for (const json::Member& member : *value.object()) {
        out += before;
        append_json_string(out, member.name);
        out += ':';
        append_json_value(out, member.value);
        before = ',';
      }
      out += before == '{' ? "{}" : "}";
      return;
    }
  }
}

}  // namespace koho
