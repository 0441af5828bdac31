// SPDX-License-Identifier: Apache-2.0
// Typed access to the fields of a request's JSON. Errors have the field's path
// ("messages.2.content"). A field that is null counts as missing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "api/generation.h"
#include "base/error.h"
#include "chat/json.h"

namespace koho::api {

/// `name` within `path`: "messages.0.role", or `name` alone where `path` is empty.
std::string field_name(std::string_view path, std::string_view name);

// Errors of all functions below: invalid_argument with the field's name.

Result<const chat::Json*> required_string(const chat::Json& object,
                                          std::string_view name,
                                          std::string_view path);
Result<std::optional<std::string>> optional_string(const chat::Json& object,
                                                   std::string_view name,
                                                   std::string_view path = {});
Result<bool> boolean_or(const chat::Json& object,
                        std::string_view name,
                        std::string_view path,
                        bool otherwise);
/// Within [least, most].
Result<std::optional<std::int64_t>> optional_integer(const chat::Json& object,
                                                     std::string_view name,
                                                     std::int64_t least,
                                                     std::int64_t most,
                                                     std::string_view path = {});
/// Within [least, most].
Result<std::optional<double>> optional_number(const chat::Json& object,
                                              std::string_view name,
                                              double least,
                                              double most,
                                              std::string_view path = {});

/// Refuses a body that is no object.
Status expect_object(const chat::Json& body);

/// Sets `model` to the body's "model"; leaves it, the served one's name, if the body has none.
Status read_model_name(const chat::Json& body, std::string& model);

/// Refuses a `mcp_servers` that names any. Errors: unsupported.
Status refuse_mcp_servers(const chat::Json& body);

/// Refuses the first unknown field if the model has strict_fields.
Refusal refuse_unknown_fields(const GenerationRequest& request, const Model& model);

}  // namespace koho::api
