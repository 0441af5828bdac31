// SPDX-License-Identifier: Apache-2.0
// The API as an OpenAPI document and as a page, made of the table of routes and of the readers'
// tables of fields.
#pragma once

#include "server/handlers.h"

namespace koho::server {

/// The document, OpenAPI 3.1.
const std::string& openapi_json();

Response answer_openapi(Core& core, const RoutedRequest& call);
/// The page, which needs no script.
Response answer_docs(Core& core, const RoutedRequest& call);
Response answer_docs_style(Core& core, const RoutedRequest& call);

}  // namespace koho::server
