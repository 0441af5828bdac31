// SPDX-License-Identifier: Apache-2.0
#include "api/extension_fields.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "api/chat_completions.h"
#include "api/shared_fields.h"
#include "sampling/parameter_table.h"

namespace koho::api {
namespace {

/// Fields of chat completions that these APIs also take.
constexpr std::array<std::string_view, 5> kOfChat{"thinking", "enable_thinking", "clear_thinking",
                                                  "chat_template_kwargs", "reasoning_effort"};

/// Shared fields that these APIs do not take, because their answers have no member for the result.
constexpr std::array<std::string_view, 4> kWithoutPlace{
    "return_token_ids", "return_tokens_as_token_ids", "timings", "stream_options"};

bool holds(std::span<const std::string_view> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

/// Whether those APIs take a shared field: their answers have a place for it, and the table of
/// sampling parameters offers it there.
bool is_taken(std::string_view name) {
  const SamplingParameter* row = find_parameter(name);
  return row != nullptr ? (row->interfaces & (kMessagesApi | kResponsesApi)) != 0
                        : !holds(kWithoutPlace, name);
}

}  // namespace

bool reads_extension(std::string_view name) {
  const std::span<const RequestField> shared = shared_fields();
  return holds(kOfChat, name) ||
         std::ranges::find(shared, name, &RequestField::name) != shared.end();
}

Refusal read_extensions(const chat::Json& body, const Model& model, GenerationRequest& request) {
  RequestBuilder builder{.model = model, .request = request};
  const auto read = [&](const RequestField& field) -> Refusal {
    const auto at = std::ranges::find(request.unknown_fields, field.name);
    if (at == request.unknown_fields.end()) return {};
    request.unknown_fields.erase(at);
    const chat::Json* json = body.given(field.name);
    return json == nullptr ? Refusal{} : field.read({.name = field.name, .json = *json}, builder);
  };
  for (const RequestField& field : shared_fields())
    if (is_taken(field.name))
      if (Refusal refused = read(field)) return refused;
  for (const RequestField& field : chat_completion_fields())
    if (holds(kOfChat, field.name))
      if (Refusal refused = read(field)) return refused;
  return settle(builder);
}

}  // namespace koho::api
