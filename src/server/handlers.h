// SPDX-License-Identifier: Apache-2.0
// The table of routes, and the checks of a request's head: API key, host, method, media type. No
// sockets.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "api/endpoints.h"
#include "server/core.h"
#include "server/http_message.h"

namespace koho::server {

/// A request with the route that answers it.
struct RoutedRequest {
  const RequestHead& head;
  std::string_view rest;  // the part of the path that * stands for
  std::string_view body;
  const ApiKey* key = nullptr;  // null: none was needed
};

/// One row of the table.
struct Route {
  std::string_view method;   // GET also answers HEAD
  std::string_view path;     // "/v1/models/*" takes everything below, "/v1/files/*/content" a part
  bool open = false;         // needs no API key
  bool needs_model = false;  // 503 while the model loads
  Response (*answer)(Core& core,
                     const RoutedRequest& call) = nullptr;  // null: another member answers
  const api::GenerationEndpoint* generation = nullptr;
  const api::TextEndpoint* text = nullptr;
  std::string_view about;  // for the documentation
  /// Instead of an answer: an event every time.feed_ms, until the client leaves.
  std::string (*feed)(const Core& core) = nullptr;
  bool takes_form = false;      // the body is multipart/form-data instead of JSON
  bool waits_for_disk = false;  // a thread of the pool answers
};

std::span<const Route> routes();

/// The route for `head`, or the refusal. Called before the body arrives, so that a refused request
/// costs no body.
std::variant<const Route*, Response> find_route(Core& core, const RequestHead& head);

/// The key that the request was sent with, null if none is needed, or the refusal; `route` may be
/// null. Asked again when the body has arrived: the key may have been taken away in the meantime.
std::variant<std::shared_ptr<ApiKey>, Response> key_for(const Core& core,
                                                        const Route* route,
                                                        const RequestHead& head);

/// Answers a route without generation.
Response answer_route(Core& core,
                      const Route& route,
                      const RequestHead& head,
                      std::string_view body,
                      const ApiKey* key);

/// Adds the request's id to the header fields, and to the body of an error in Anthropic's form.
void add_request_id(const RequestHead& head, std::string_view id, Response& response);

/// Adds the CORS fields of an answer to `head`.
void add_cors(const Core& core, const RequestHead& head, Response& response);

/// The client's X-Request-Id if it is a valid id (1 to 128 visible characters), else "".
std::string_view client_request_id(const RequestHead& head);

}  // namespace koho::server
