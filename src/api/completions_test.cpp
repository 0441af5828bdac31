// SPDX-License-Identifier: Apache-2.0
#include "api/completions.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "api/json_text.h"
#include "api/responder.h"
#include "tests/support/thread_time.h"

namespace koho::api {
namespace {

TEST(CompletionLogprobs, TokensOfOneNameAreOneKey) {
  const Tokenizer tokenizer =
      *Tokenizer::load(std::string(KOHO_SOURCE_DIR) + "/models/tiny/tokenizer.json");
  Model model;
  model.tokenizer = &tokenizer;
  GenerationRequest request;
  request.output.logprobs = 3;
  request.requests.resize(1);
  // Parts of characters show as U+FFFD, whichever they are.
  std::vector<TokenLogprob> top;
  for (Token token = 0; token < tokenizer.vocab_size() && top.size() < 2; ++token)
    if (token_name(model, {}, token) == "\xef\xbf\xbd")
      top.push_back({token, -1.0F - static_cast<float>(top.size())});
  ASSERT_EQ(top.size(), 2U);
  top.push_back({tokenizer.encode("a")->front(), -3.0F});
  OutputEvent event;
  event.token = top.front().token;
  event.top = top;
  const std::unique_ptr<Responder> responder = respond_completion(request, model);
  std::string out;
  responder->begin({.id = "1"}, out);
  responder->piece({.event = &event, .finish = Finish::length}, out);
  responder->end({}, out);
  const Result<chat::Json> json = chat::parse_json(out);  // refuses a key that appears twice
  ASSERT_TRUE(json.ok()) << json.error().message << out;
  EXPECT_NE(out.find("\"top_logprobs\":[{\"\xef\xbf\xbd\":-1,\"a\":-3}]"), std::string::npos)
      << out;
}

TEST(CompletionLogprobs, ChoicesShareTheirPrompts) {
  const Tokenizer tokenizer =
      *Tokenizer::load(std::string(KOHO_SOURCE_DIR) + "/models/tiny/tokenizer.json");
  Model model;
  model.tokenizer = &tokenizer;
  const auto cost_of = [&](std::int32_t choices) {
    GenerationRequest request;
    request.output.echo = true;
    request.output.logprobs = 20;
    request.base.choices = choices;
    request.requests.resize(1);
    request.requests.front().prompt.assign(1000, tokenizer.encode("a")->front());
    request.prompts.push_back({.is_text = false, .text = {}, .ids = request.requests[0].prompt});
    PromptLogprob scored;
    for (Token token = 0; token < 20; ++token) scored.top.push_back({token, -0.125F});
    request.prompt_logprobs.assign(1, {999, scored});
    const std::unique_ptr<Responder> responder = respond_completion(request, model);
    std::string out;
    const double begin = testing::thread_seconds();
    responder->begin({.id = "1"}, out);
    return testing::thread_seconds() - begin;
  };
  const double one = cost_of(1);
  EXPECT_LT(cost_of(128), 40 * one);  // what is told of a prompt was made for each choice
}

/// An answer that its grammar ended was told that the server is full, and clients tried again.
TEST(ApiErrors, AGrammarThatPassesItsLimitIsTheClients) {
  Error error{ErrorCode::resource_exhausted, "the grammar takes 11 ms a token"};
  EXPECT_EQ(to_api_error(error).status, 429);
  error.reason = kGrammarTooComplex;
  const ApiError refused = to_api_error(error);
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.code, "grammar_too_complex");
  EXPECT_EQ(refused.message, "the grammar takes 11 ms a token");
  EXPECT_EQ(refused.retry_after_s, 0);
}

}  // namespace
}  // namespace koho::api
