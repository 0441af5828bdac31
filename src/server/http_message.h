// SPDX-License-Identifier: Apache-2.0
// One HTTP exchange as plain data.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/error.h"
#include "base/descriptor.h"

namespace koho::server {

struct RequestHead {
  std::string method;  // "GET"
  std::string target;  // as sent
  std::string path;    // the target without query, percent escapes decoded
  bool http_1_0 = false;
  bool keep_alive = true;
  std::vector<std::pair<std::string, std::string>> fields;  // names in lower case

  /// The value of the first field of that name (lower case), or "".
  std::string_view field(std::string_view name) const;
  bool has(std::string_view name) const;
};

/// An open file that is a response's body, from its current place on.
struct FileBody {
  Descriptor file;
  std::int64_t left = 0;  // bytes that are not read yet
};

/// A complete response.
struct Response {
  int status = 200;
  std::string_view content_type = "application/json";
  std::vector<std::pair<std::string_view, std::string>> fields{};
  std::string body{};
  std::shared_ptr<FileBody> file{};  // instead of `body`
  bool close = false;                // close the connection after it
};

/// The value of the query's parameter `name`, decoded; "" if there is none or it is invalid.
std::string query_value(const RequestHead& head, std::string_view name);

/// Whether `text` is an HTTP token, such as a method or a field name.
bool is_token(std::string_view text);

/// "OK", "Not Found", …
std::string_view reason_phrase(int status);

/// The response for an error.
Response error_response(api::ErrorStyle style, const api::ApiError& error);

/// Decodes %XX; false if an escape is invalid.
bool decode_percent(std::string_view text, std::string& out);

}  // namespace koho::server
