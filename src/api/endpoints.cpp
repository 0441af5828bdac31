// SPDX-License-Identifier: Apache-2.0
#include "api/endpoints.h"

#include <fmt/format.h>

#include "api/anthropic.h"
#include "api/body.h"
#include "api/chat_completions.h"
#include "api/completions.h"
#include "api/llama.h"
#include "api/native.h"
#include "api/responses.h"
#include "api/text_endpoints.h"

namespace koho::api {
namespace {

constexpr GenerationEndpoint kGeneration[] = {
    {"/v1/chat/completions", true, "messages", reads_of_chat, read_chat_completion,
     respond_chat_completion},
    {"/v1/completions", true, "prompt", reads_of_completions, read_completion, respond_completion},
    {"/generate", false, "prompt", reads_of_generate, read_generate, respond_generate},
    {"/completion", false, "prompt", reads_of_llama_completion, read_llama_completion,
     respond_llama_completion},
    {"/v1/messages", false, "messages", reads_of_messages, read_messages, respond_messages,
     reword_for_anthropic},
    {"/v1/responses", true, "input", reads_of_responses, read_response, respond_response},
};

constexpr TextEndpoint kText[] = {
    {"/tokenize", reads_of_tokenize, answer_tokenize},
    {"/detokenize", reads_of_detokenize, answer_detokenize},
    {"/v1/chat/completions/render", reads_of_chat, answer_render},
    {"/v1/messages/count_tokens", reads_of_messages, count_message_tokens},
};

}  // namespace

std::span<const GenerationEndpoint> generation_endpoints() {
  return kGeneration;
}

std::span<const TextEndpoint> text_endpoints() {
  return kText;
}

const GenerationEndpoint* find_batch_endpoint(std::string_view path) {
  for (const GenerationEndpoint& endpoint : kGeneration)
    if (endpoint.in_batches && endpoint.path == path) return &endpoint;
  return nullptr;
}

std::string batch_paths() {
  std::string all;
  for (const GenerationEndpoint& endpoint : kGeneration)
    if (endpoint.in_batches) all += fmt::format("{}{}", all.empty() ? "" : ", ", endpoint.path);
  return all;
}

Refusal answer_text(const TextEndpoint& endpoint,
                    std::string_view body,
                    const Model& model,
                    const KeyRules& key,
                    std::string& out) {
  chat::Json json;
  if (Refusal refused = parse_body(body, endpoint.reads, json)) return refused;
  return endpoint.answer(json, model, key, out);
}

}  // namespace koho::api
