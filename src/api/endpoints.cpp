// SPDX-License-Identifier: Apache-2.0
#include "api/endpoints.h"

#include "api/anthropic.h"
#include "api/chat_completions.h"
#include "api/completions.h"
#include "api/native.h"
#include "api/responses.h"
#include "api/text_endpoints.h"

namespace koho::api {
namespace {

constexpr GenerationEndpoint kGeneration[] = {
    {"/v1/chat/completions", ErrorStyle::openai, "messages", read_chat_completion,
     respond_chat_completion},
    {"/v1/completions", ErrorStyle::openai, "prompt", read_completion, respond_completion},
    {"/generate", ErrorStyle::openai, "prompt", read_generate, respond_generate},
    {"/v1/messages", ErrorStyle::anthropic, "messages", read_messages, respond_messages,
     in_anthropic_words},
    {"/v1/responses", ErrorStyle::openai, "input", read_response, respond_response},
};

constexpr TextEndpoint kText[] = {
    {"/tokenize", ErrorStyle::openai, answer_tokenize},
    {"/detokenize", ErrorStyle::openai, answer_detokenize},
    {"/v1/chat/completions/render", ErrorStyle::openai, answer_render},
    {"/v1/messages/count_tokens", ErrorStyle::anthropic, count_message_tokens},
};

}  // namespace

std::span<const GenerationEndpoint> generation_endpoints() {
  return kGeneration;
}

std::span<const TextEndpoint> text_endpoints() {
  return kText;
}

}  // namespace koho::api
