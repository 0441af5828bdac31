// SPDX-License-Identifier: Apache-2.0
#include "api/text_endpoints.h"

#include <utility>
#include <vector>

#include <fmt/format.h>

#include "api/chat_completions.h"
#include "api/completions.h"
#include "api/field_table.h"
#include "api/json_text.h"
#include "api/shared_fields.h"
#include "base/json_writer.h"

namespace koho::api {
namespace {

using chat::Json;

ApiError no_tokenizer() {
  return {.status = 400,
          .code = "unsupported_parameter",
          .param = {},
          .message = "this model has no tokenizer.json: it takes and returns token ids only"};
}

/// Of a text that these endpoints write as ids, or of ids that they write as text: a token may be
/// 128 bytes of it.
constexpr std::size_t kIdsMax = std::size_t{1} << 20U;

Refusal check_count(std::int64_t tokens, std::string_view field) {
  if (tokens <= static_cast<std::int64_t>(kIdsMax)) return {};
  return wrong_field(field, fmt::format("{} has {} tokens; this endpoint takes at most {}", field,
                                        tokens, kIdsMax));
}

/// The model, if the client names one, must be served.
Refusal check_model(const Json& body, const Model& model) {
  GenerationRequest request;
  return read_model(body, model, request);
}

/// Renders and tokenises a conversation.
Refusal encode_chat(const Json& body,
                    const Model& model,
                    const KeyRules& key,
                    GenerationRequest& request) {
  if (Refusal refused = read_chat_completion(body, model, request)) return refused;
  if (key) key(request);
  request.keeps_prompt_text = true;
  request.ids_max = kIdsMax;
  request.tokens_max = 0;
  request.base.min_tokens = 0;
  return encode(request, model, "messages");
}

/// The same, but a conversation longer than the context is not refused.
Refusal tokenise_chat(const Json& body,
                      const Model& model,
                      const KeyRules& key,
                      std::vector<Token>& ids) {
  GenerationRequest request;
  Refusal refused = encode_chat(body, model, key, request);
  if (refused && refused->code != "context_length_exceeded") return refused;
  if (Refusal beyond = check_count(request.prompt_tokens.value_or(0), "messages")) return beyond;
  ids = refused ? request.prompts.front().ids : request.requests.front().prompt;
  return {};
}

Refusal tokenise_prompt(const Json& body, const Model& model, std::vector<Token>& ids) {
  if (Refusal refused = check_model(body, model)) return refused;
  const Json* prompt = body.find("prompt");
  if (prompt == nullptr || !prompt->is_string())
    return wrong_field("prompt", "prompt must be a string, or give messages, found neither",
                       "invalid_prompt");
  bool allow_special = true;
  if (const Json* json = body.given("allow_special"))
    if (Refusal refused = read_boolean({.name = "allow_special", .json = *json}, allow_special))
      return refused;
  std::size_t total = 0;
  Result<std::vector<Token>> encoded = tokenize(
      {.text = prompt->text, .allow_special = allow_special}, model.tokenizer, kIdsMax, total);
  if (!encoded.ok()) return to_api_error(encoded.error());
  if (Refusal beyond = check_count(static_cast<std::int64_t>(total), "prompt")) return beyond;
  ids = std::move(*encoded);
  return {};
}

}  // namespace

bool reads_of_tokenize(std::string_view name) {
  return name == "prompt" || name == "allow_special" || name == "return_token_strs" ||
         reads_of_chat(name);
}

bool reads_of_detokenize(std::string_view name) {
  return name == "model" || name == "tokens" || name == "skip_special_tokens";
}

Refusal answer_tokenize(const Json& body,
                        const Model& model,
                        const KeyRules& key,
                        std::string& out) {
  if (model.tokenizer == nullptr) return no_tokenizer();
  std::vector<Token> ids;
  const bool chat = body.given("messages") != nullptr;
  if (Refusal refused =
          chat ? tokenise_chat(body, model, key, ids) : tokenise_prompt(body, model, ids))
    return refused;
  bool strings = false;
  if (const Json* json = body.given("return_token_strs"))
    if (Refusal refused = read_boolean({.name = "return_token_strs", .json = *json}, strings))
      return refused;
  out =
      fmt::format(R"({{"count":{},"max_model_len":{},"tokens":)", ids.size(), model.context_max());
  append_ids(out, ids);
  if (strings) {
    out += R"(,"token_strs":[)";
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (i > 0) out += ',';
      append_json_string(out, token_name(model, {}, ids[i]));
    }
    out += ']';
  }
  out += '}';
  return {};
}

Refusal answer_detokenize(const Json& body,
                          const Model& model,
                          const KeyRules& /*key*/,
                          std::string& out) {
  if (model.tokenizer == nullptr) return no_tokenizer();
  if (Refusal refused = check_model(body, model)) return refused;
  const Json* tokens = body.find("tokens");
  if (tokens == nullptr)
    return wrong_field("tokens", "tokens must be an array of token ids, found nothing");
  std::vector<Token> ids;
  if (Refusal refused = read_token_ids({.name = "tokens", .json = *tokens}, model.limits.vocabulary,
                                       kIdsMax, ids))
    return refused;
  bool skip_special = false;
  if (const Json* json = body.given("skip_special_tokens"))
    if (Refusal refused =
            read_boolean({.name = "skip_special_tokens", .json = *json}, skip_special))
      return refused;
  out = R"({"prompt":)";
  append_json_string(out, model.tokenizer->decode(ids, skip_special));
  out += '}';
  return {};
}

Refusal answer_render(const Json& body, const Model& model, const KeyRules& key, std::string& out) {
  GenerationRequest request;
  if (Refusal refused = encode_chat(body, model, key, request)) return refused;
  const std::vector<Token>& ids = request.requests.front().prompt;
  out = R"({"prompt":)";
  append_json_string(out, request.prompt_text);
  out += R"(,"prompt_token_ids":)";
  append_ids(out, ids);
  out += fmt::format(R"(,"count":{}}})", ids.size());
  return {};
}

}  // namespace koho::api
