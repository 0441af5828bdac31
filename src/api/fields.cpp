// SPDX-License-Identifier: Apache-2.0
#include "api/fields.h"

#include "api/field_table.h"

namespace koho::api {

using chat::Json;

std::string field_name(std::string_view path, std::string_view name) {
  std::string full(path);
  if (!full.empty()) full += '.';
  return full += name;
}

Result<const Json*> required_string(const Json& object,
                                    std::string_view name,
                                    std::string_view path) {
  const Json* value = object.find(name);
  if (value == nullptr)
    return make_field_error(ErrorCode::invalid_argument, field_name(path, name),
                            "{}: Field required");
  if (!value->is_string()) return wrong_kind(field_name(path, name), "a string", value);
  return value;
}

Result<std::optional<std::string>> optional_string(const Json& object,
                                                   std::string_view name,
                                                   std::string_view path) {
  const Json* value = object.given(name);
  if (value == nullptr) return std::optional<std::string>{};
  if (!value->is_string()) return wrong_kind(field_name(path, name), "a string", value);
  return std::optional<std::string>{value->text};
}

Result<bool> boolean_or(const Json& object,
                        std::string_view name,
                        std::string_view path,
                        bool otherwise) {
  const Json* value = object.given(name);
  if (value == nullptr) return otherwise;
  if (value->kind != Json::Kind::boolean)
    return wrong_kind(field_name(path, name), "true or false", value);
  return value->boolean;
}

Result<std::optional<std::int64_t>> optional_integer(const Json& object,
                                                     std::string_view name,
                                                     std::int64_t least,
                                                     std::int64_t most,
                                                     std::string_view path) {
  const Json* value = object.given(name);
  if (value == nullptr) return std::optional<std::int64_t>{};
  const std::optional<std::int64_t> parsed = whole_number(*value);
  if (!parsed && !value->is_integer())
    return wrong_kind(field_name(path, name), "an integer", value);
  if (!parsed || *parsed < least || *parsed > most)
    return make_field_error(ErrorCode::invalid_argument, field_name(path, name),
                            "{}: must be in {}..{}, found {:.24}", least, most,
                            std::string_view(value->text));
  return parsed;
}

Result<std::optional<double>> optional_number(
    const Json& object, std::string_view name, double least, double most, std::string_view path) {
  const Json* value = object.given(name);
  if (value == nullptr) return std::optional<double>{};
  if (!value->is_number()) return wrong_kind(field_name(path, name), "a number", value);
  const std::optional<double> parsed = value->as_number();
  if (!parsed || *parsed < least || *parsed > most)
    return make_field_error(ErrorCode::invalid_argument, field_name(path, name),
                            "{}: must be in [{}, {}], found {:.24}", least, most,
                            std::string_view(value->text));
  return parsed;
}

Status expect_object(const Json& body) {
  if (body.is_object()) return {};
  return make_error(ErrorCode::invalid_argument, "the request: expected an object, found {}",
                    chat::kind_name(body.kind));
}

Status read_model_name(const Json& body, std::string& model) {
  if (body.given("model") == nullptr) return {};
  KOHO_TRY_ASSIGN(const Json* name, required_string(body, "model", {}));
  model = name->text;
  return {};
}

Status refuse_mcp_servers(const Json& body) {
  constexpr std::string_view kField = "mcp_servers";
  const Json* servers = body.given(kField);
  if (servers == nullptr || (servers->is_array() && servers->items.empty())) return {};
  return make_field_error(ErrorCode::unsupported, kField,
                          "{}: not supported: this server calls no other server; have the client "
                          "offer their tools in `tools` and call them");
}

Refusal refuse_unknown_fields(const GenerationRequest& request, const Model& model) {
  if (!model.strict_fields || request.unknown_fields.empty()) return {};
  const std::string& name = request.unknown_fields.front();
  return wrong_field(name, fmt::format("{:.100}: unknown field", name), "unsupported_parameter");
}

}  // namespace koho::api
