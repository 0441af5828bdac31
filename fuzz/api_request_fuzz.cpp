// SPDX-License-Identifier: Apache-2.0
// Bodies of the generating endpoints: a refusal has a 4xx status and valid JSON; an accepted body
// becomes a request that the engine's own check accepts, and every answer to it is valid JSON or a
// well-formed stream.
// Input: a byte that chooses the endpoint, then the body. The tokenizer is the tests' small one.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <string_view>

#include "api/answer.h"
#include "api/body.h"
#include "api/endpoints.h"
#include "base/check.h"

namespace koho::api {
namespace {

struct Loaded {
  Tokenizer tokenizer;
  Model model;

  Loaded() : tokenizer(load()) {
    model.names = {"m", "other"};
    model.fingerprint = "fp_1";
    model.tokenizer = &tokenizer;
    model.tag_ids = tag_ids_of(tokenizer);
    model.limits.vocabulary = tokenizer.vocab_size();
    model.limits.requests_max = 64;
    Limits& scheduler = model.limits.scheduler;
    scheduler.tokens_per_page = 16;
    scheduler.pages = 64;
    scheduler.context_max = 512;
    scheduler.sequences_max = 8;
    scheduler.live_max = 128;
    scheduler.step_tokens_max = 64;
    scheduler.mixed_prefill_tokens_max = 32;
    KOHO_CHECK(validate(model.limits).ok());
    model.defaults.stop_tokens = {model.limits.vocabulary - 1};
    model.defaults.reasoning_begin = model.tag_ids[0];
    model.turns = std::make_shared<TurnMemory>(1U << 16U);
    model.journal = std::make_shared<PromptJournal>(4, 1U << 12U);
  }

  static Tokenizer load() {
    Result<Tokenizer> tokenizer =
        Tokenizer::load(KOHO_SOURCE_DIR "/tests/tokenizer/data/small/tokenizer.json");
    KOHO_CHECK(tokenizer.ok());
    return std::move(*tokenizer);
  }
};

void check_refusal(const ApiError& error) {
  KOHO_CHECK(error.status >= 400 && error.status < 500);
  KOHO_CHECK(!error.message.empty());
  for (const ErrorStyle style : {ErrorStyle::openai, ErrorStyle::anthropic}) {
    std::string text;
    append_error(text, style, error);
    const Result<chat::Json> json = chat::parse_json(text);
    KOHO_CHECK(json.ok() && json->find("error") != nullptr);
  }
}

/// What the engine could have sampled, one token a choice after another.
std::string play(const GenerationEndpoint& endpoint,
                 const GenerationRequest& request,
                 const Model& model,
                 std::uint32_t seed) {
  Answer answer(model, request, endpoint.respond(request, model));
  std::string out;
  std::minstd_rand random(seed + 1U);
  const auto vocabulary = static_cast<std::uint32_t>(model.limits.vocabulary);
  answer.begin({.id = "1", .created = 1, .prompt_tokens = 3}, out);
  for (std::size_t prompt = 0; prompt < request.requests.size(); ++prompt) {
    for (std::int32_t choice = 0; choice < request.base.choices; ++choice) {
      const std::uint32_t tokens = random() % 12U;
      for (std::uint32_t i = 0; i <= tokens; ++i) {
        OutputEvent event;
        event.choice = choice;
        // Half of what matters are tags.
        event.token = random() % 2U == 0 ? static_cast<Token>(random() % vocabulary)
                                         : model.tag_ids[random() % model.tag_ids.size()];
        event.logprob = -0.5F;
        for (int top = 0; top < request.output.logprobs.value_or(0); ++top)
          event.top.push_back({static_cast<Token>(random() % vocabulary), -1.0F});
        event.text = model.tokenizer->decode({&event.token, 1});
        if (i == tokens) event.finish = i % 2 == 0 ? FinishReason::stop : FinishReason::length;
        if (event.finish == FinishReason::stop && !request.base.stop_strings.empty())
          event.stop_string = 0;
        answer.add(prompt, event, out);
        if (i % 5 == 4) answer.ping(out);
      }
    }
    if (seed % 7U == 0) {
      answer.fail(to_api_error(make_error(ErrorCode::device_error, "lost")), out);
      return out;
    }
    answer.end(prompt, Summary{}, out);
  }
  return out;
}

void check_answer(std::string_view out, bool stream) {
  if (!stream) {
    const Result<chat::Json> json = chat::parse_json(out);
    KOHO_CHECK(out.empty() || (json.ok() && json->is_object()));
    return;
  }
  KOHO_CHECK(out.ends_with("\n\n"));
  while (!out.empty()) {
    const std::string_view line = out.substr(0, out.find('\n'));
    out.remove_prefix(line.size() + 1);
    // A comment, which pings are, begins with a colon.
    if (line.empty() || line.starts_with(':') || line.starts_with("event: ")) continue;
    KOHO_CHECK(line.starts_with("data: "));
    const std::string_view data = line.substr(6);
    KOHO_CHECK(data == "[DONE]" || chat::parse_json(data).ok());
  }
}

void check_body(const GenerationEndpoint& endpoint, std::string_view body) {
  static const Loaded loaded;
  const Model& model = loaded.model;
  chat::Json json;
  if (const Refusal refused = parse_body(body, endpoint.reads, json)) {
    check_refusal(*refused);
    return;
  }
  GenerationRequest request;
  Refusal refused = endpoint.read(json, model, request);
  // Members that nobody reads, and packed ids, change nothing.
  GenerationRequest plain_request;
  const Result<chat::Json> plain = chat::parse_json(body);
  if (plain.ok()) {
    const Refusal plain_refused = endpoint.read(*plain, model, plain_request);
    KOHO_CHECK_EQ(plain_refused.has_value(), refused.has_value());
    if (refused) KOHO_CHECK(plain_refused->message == refused->message);
    KOHO_CHECK(plain_request.unknown_fields == request.unknown_fields);
    KOHO_CHECK_EQ(plain_request.prompts.size(), request.prompts.size());
    for (std::size_t i = 0; i < request.prompts.size(); ++i) {
      KOHO_CHECK(plain_request.prompts[i].ids == request.prompts[i].ids);
      KOHO_CHECK(plain_request.prompts[i].text == request.prompts[i].text);
    }
  }
  if (!refused) {
    refused = encode(request, model, endpoint.prompt_field);
    if (refused && endpoint.reword != nullptr)
      refused = endpoint.reword(std::move(*refused), request, model);
  }
  if (refused) {
    check_refusal(*refused);
    return;
  }
  KOHO_CHECK(!request.requests.empty());
  // The engine alone knows how many tokens a top_k can keep.
  const bool keeps_more = request.base.sampling.top_k > model.limits.vocabulary;
  for (const Request& one : request.requests) {
    const Status valid = validate(one, model.limits);
    KOHO_CHECK_EQ(valid.ok(), !keeps_more);
    if (keeps_more) KOHO_CHECK(valid.error().field == "top_k");
  }
  if (keeps_more) return;
  constexpr std::size_t kPlayedMax = 8;
  if (request.requests.size() * static_cast<std::size_t>(request.base.choices) > kPlayedMax) return;
  if (request.wants_prompt_logprobs())
    for (const Request& one : request.requests)
      request.prompt_logprobs.emplace_back(one.prompt.size() - 1);
  check_answer(play(endpoint, request, model, static_cast<std::uint32_t>(body.size())),
               request.stream);
}

}  // namespace
}  // namespace koho::api

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto endpoints = koho::api::generation_endpoints();
  koho::api::check_body(endpoints[data[0] % endpoints.size()],
                        {reinterpret_cast<const char*>(data) + 1, size - 1});
  return 0;
}
