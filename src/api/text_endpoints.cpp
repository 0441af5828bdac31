// SPDX-License-Identifier: Apache-2.0
#include "api/text_endpoints.h"

#include <fmt/format.h>

#include "api/chat_completions.h"
#include "api/completions.h"
#include "api/field_table.h"
#include "api/json_text.h"

namespace koho::api {
namespace {

using chat::Json;

ApiError no_tokenizer() {
  return {.status = 400,
          .code = "unsupported_parameter",
          .param = {},
          .message = "the model has no tokenizer.json"};
}

/// `body` with a model's name where the client left it out.
Json named(const Json& body, const Model& model) {
  Json made = body;
  if (made.find("model") == nullptr) made.set("model", Json::string(model.names.front()));
  return made;
}

/// A conversation rendered and tokenised; it may fill the context.
Refusal encode_chat(const Json& body, const Model& model, GenerationRequest& request) {
  if (Refusal refused = read_chat_completion(named(body, model), model, request)) return refused;
  request.tokens_max = 0;
  request.base.min_tokens = 0;
  return encode(request, model, "messages");
}

Refusal encode_prompt(const Json& body, const Model& model, GenerationRequest& request) {
  const Json* prompt = body.find("prompt");
  if (prompt == nullptr || !prompt->is_string())
    return wrong_field("prompt", "prompt must be a string, or messages an array", "invalid_prompt");
  PromptInput input{.text = prompt->text};
  if (const Json* special = body.find("allow_special"))
    if (Refusal refused =
            read_boolean({.name = "allow_special", .json = *special}, input.allow_special))
      return refused;
  if (input.text.empty()) {
    request.requests.emplace_back();
    return {};
  }
  request.prompts.push_back(std::move(input));
  request.tokens_max = 0;
  return encode(request, model, "prompt");
}

}  // namespace

Refusal answer_tokenize(const Json& body, const Model& model, std::string& out) {
  if (model.tokenizer == nullptr) return no_tokenizer();
  GenerationRequest request;
  const bool chat = body.find("messages") != nullptr;
  if (Refusal refused =
          chat ? encode_chat(body, model, request) : encode_prompt(body, model, request))
    return refused;
  bool strings = false;
  if (const Json* json = body.given("return_token_strs"))
    if (Refusal refused = read_boolean({.name = "return_token_strs", .json = *json}, strings))
      return refused;
  const std::vector<Token>& ids = request.requests.front().prompt;
  out =
      fmt::format(R"({{"count":{},"max_model_len":{},"tokens":)", ids.size(), model.context_max());
  append_ids(out, ids);
  if (strings) {
    out += R"(,"token_strs":[)";
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (i > 0) out += ',';
      chat::append_json_string(out, token_name(model, {}, ids[i]));
    }
    out += ']';
  }
  out += '}';
  return {};
}

Refusal answer_detokenize(const Json& body, const Model& model, std::string& out) {
  if (model.tokenizer == nullptr) return no_tokenizer();
  const Json* tokens = body.find("tokens");
  if (tokens == nullptr)
    return wrong_field("tokens", "tokens must be an array of token ids, found nothing");
  std::vector<Token> ids;
  constexpr std::size_t kIdsMax = std::size_t{1} << 24U;
  if (Refusal refused = read_token_ids({.name = "tokens", .json = *tokens}, model.limits.vocabulary,
                                       kIdsMax, ids))
    return refused;
  out = R"({"prompt":)";
  chat::append_json_string(out, model.tokenizer->decode(ids));
  out += '}';
  return {};
}

Refusal answer_render(const Json& body, const Model& model, std::string& out) {
  GenerationRequest request;
  if (Refusal refused = encode_chat(body, model, request)) return refused;
  const std::vector<Token>& ids = request.requests.front().prompt;
  out = R"({"prompt":)";
  chat::append_json_string(out, request.prompt_text);
  out += R"(,"prompt_token_ids":)";
  append_ids(out, ids);
  out += fmt::format(R"(,"count":{}}})", ids.size());
  return {};
}

}  // namespace koho::api
