// SPDX-License-Identifier: Apache-2.0
// From a request's head to who answers it: the table of routes, keys, hosts, methods. Pure but for
// what it asks of the core.
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

/// What an answer needs of its request beside the body.
struct RoutedRequest {
  const RequestHead& head;
  std::string_view rest;  // of the path, behind a route that ends in *
  std::string_view body;
};

/// One row of the table.
struct Route {
  std::string_view method;   // GET also answers HEAD
  std::string_view path;     // "/v1/models/*" takes everything below
  bool open = false;         // without a key
  bool needs_model = false;  // 503 while the model loads
  Response (*answer)(Core& core, const RoutedRequest& call) = nullptr;  // null: one of the others
  const api::GenerationEndpoint* generation = nullptr;
  const api::TextEndpoint* text = nullptr;
  std::string_view about;  // for the documentation
  /// Instead of an answer: an event every time.feed_ms, until the client leaves.
  std::string (*feed)(const Core& core) = nullptr;
};

std::span<const Route> routes();

/// Who answers, or why nobody does. Called when the head has come, before the body: a refusal
/// costs no body.
std::variant<const Route*, Response> find_route(Core& core, const RequestHead& head);

/// Answers a route that generates nothing.
Response answer_route(Core& core,
                      const Route& route,
                      const RequestHead& head,
                      std::string_view body);

/// The fields that name the request; an error of Anthropic's form names it in its body, too.
void add_request_id(const RequestHead& head, std::string_view id, Response& response);

/// The CORS fields that an answer to `head` carries.
void add_cors(const Core& core, const RequestHead& head, Response& response);

/// The client's X-Request-Id if it is fit to be shown, else "".
std::string_view client_request_id(const RequestHead& head);

}  // namespace koho::server
