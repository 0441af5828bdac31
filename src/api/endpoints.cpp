// SPDX-License-Identifier: Apache-2.0
#include "api/endpoints.h"

#include "api/anthropic.h"
#include "api/chat_completions.h"
#include "api/completions.h"
#include "api/llama.h"
#include "api/native.h"
#include "api/responses.h"
#include "api/text_endpoints.h"

namespace koho::api {
namespace {

constexpr GenerationEndpoint kGeneration[] = {
    {"/v1/chat/completions", "messages", read_chat_completion, respond_chat_completion},
    {"/v1/completions", "prompt", read_completion, respond_completion},
    {"/generate", "prompt", read_generate, respond_generate},
    {"/completion", "prompt", read_llama_completion, respond_llama_completion},
    {"/v1/messages", "messages", read_messages, respond_messages, reword_for_anthropic},
    {"/v1/responses", "input", read_response, respond_response},
};

constexpr TextEndpoint kText[] = {
    {"/tokenize", answer_tokenize},
    {"/detokenize", answer_detokenize},
    {"/v1/chat/completions/render", answer_render},
    {"/v1/messages/count_tokens", count_message_tokens},
};

}  // namespace

std::span<const GenerationEndpoint> generation_endpoints() {
  return kGeneration;
}

std::span<const TextEndpoint> text_endpoints() {
  return kText;
}

}  // namespace koho::api
