// SPDX-License-Identifier: Apache-2.0
// Every HTTP API against the table of sampling parameters: what the table offers is read and
// checked there, under the name and in the range that it says; nothing else is.
#include "api/sampling_fields.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "api/body.h"
#include "api/endpoints.h"

namespace koho::api {
namespace {

struct Api {
  Interfaces which;
  std::string_view path;
  std::string_view body;  // the least that it accepts
};

constexpr Api kApis[] = {
    {kChatApi, "/v1/chat/completions",
     R"({"model": "glm", "logprobs": true, "messages": [{"role": "user", "content": "x"}]})"},
    {kCompletionsApi, "/v1/completions", R"({"model": "glm", "prompt": "x"})"},
    {kGenerateApi, "/generate", R"({"prompt": "x"})"},
    {kMessagesApi, "/v1/messages",
     R"({"model": "claude", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]})"},
    {kResponsesApi, "/v1/responses", R"({"model": "glm", "input": "x"})"},
};

Model model() {
  // One literal: GCC 12 warns of std::string + literal here, for no reason.
  static const Result<Tokenizer> loaded =
      Tokenizer::load(KOHO_SOURCE_DIR "/models/tiny/tokenizer.json");
  const Tokenizer& tokenizer = *loaded;
  Model model;
  model.tokenizer = &tokenizer;
  model.limits.vocabulary = tokenizer.vocab_size();
  model.names = {"glm", "claude"};
  model.limits.scheduler.context_max = 4096;
  model.limits.scheduler.tokens_per_page = 64;
  model.limits.scheduler.pages = 64;
  return model;
}

struct Reading {
  Refusal refused;
  GenerationRequest request;
};

/// The API's least body with one more field, read.
Reading read_with(const Api& api, std::string_view name, std::string_view value) {
  chat::Json body = *chat::parse_json(api.body);
  const chat::Json json = *chat::parse_json(value);
  const auto at = std::ranges::find(body.keys, name);
  if (at != body.keys.end())
    body.items[static_cast<std::size_t>(at - body.keys.begin())] = json;
  else
    body.set(name, json);
  const auto endpoints = generation_endpoints();
  const auto endpoint = std::ranges::find(endpoints, api.path, &GenerationEndpoint::path);
  Reading reading;
  reading.refused = endpoint->read(body, model(), reading.request);
  return reading;
}

TEST(SamplingFields, EveryApiReadsTheParametersThatItOffersAndNoOthers) {
  for (const Api& api : kApis)
    for (const SamplingParameter& row : kSamplingParameters) {
      const std::string name(name_in(row, api.which));
      const Reading reading = read_with(api, name, R"({"x": 1})");  // of no parameter's type
      if ((row.interfaces & api.which) != 0) {
        ASSERT_TRUE(reading.refused) << api.path << ' ' << name;
        EXPECT_EQ(reading.refused->param, name) << api.path << ' ' << reading.refused->message;
        continue;
      }
      EXPECT_FALSE(reading.refused) << api.path << ' ' << name << reading.refused->message;
      EXPECT_EQ(std::ranges::count(reading.request.unknown_fields, name), 1)
          << api.path << ' ' << name;
    }
}

TEST(SamplingFields, EveryApiChecksTheRangeThatTheTableSays) {
  for (const Api& api : kApis)
    for (const SamplingParameter& row : kSamplingParameters) {
      if ((row.interfaces & api.which) == 0 || !row.range_text.empty() ||
          row.type == ParameterType::boolean)
        continue;
      const std::string name(name_in(row, api.which));
      const ParameterRange range = range_in(row, api.which);
      const auto refused = [&](double value) {
        const Reading reading = read_with(api, name, fmt::format("{:.0f}", value));
        return reading.refused && reading.refused->param == name;
      };
      EXPECT_TRUE(refused(range.low - 1)) << api.path << ' ' << name;
      EXPECT_EQ(refused(range.low), range.above_low) << api.path << ' ' << name;
      EXPECT_FALSE(refused(range.high)) << api.path << ' ' << name;
      EXPECT_TRUE(refused(range.high + 1)) << api.path << ' ' << name;
    }
}

TEST(SamplingFields, IntegersMayHaveAPointOrAnExponent) {
  const Api& api = kApis[1];
  const auto seed = [&](std::string_view text) {
    const Reading reading = read_with(api, "seed", text);
    return reading.refused ? std::nullopt : reading.request.base.sampling.seed;
  };
  EXPECT_EQ(seed("7.0"), 7);
  EXPECT_EQ(seed("-0.0"), 0);
  EXPECT_EQ(seed("0e99"), 0);
  EXPECT_EQ(seed("1e18"), 1'000'000'000'000'000'000);
  EXPECT_EQ(seed("-12.5e17"), -1'250'000'000'000'000'000);
  EXPECT_EQ(seed("-9223372036854775808.0"), std::numeric_limits<std::int64_t>::min());
  for (const char* text : {"1e19", "1e-4", "7.5", "9223372036854775808.0"})
    EXPECT_EQ(seed(text), std::nullopt) << text;
  EXPECT_FALSE(read_with(api, "max_tokens", "-1.0").refused);
}

TEST(SamplingFields, StopsAreLimitedAsTheTableSays) {
  for (const Api& api : kApis) {
    const std::string four = R"(["a", "b", "c", "d"])";
    const std::string five = R"(["a", "b", "c", "d", "e"])";
    EXPECT_FALSE(read_with(api, "stop", four).refused) << api.path;
    EXPECT_TRUE(read_with(api, "stop", five).refused) << api.path;
  }
  EXPECT_FALSE(read_with(kApis[3], "stop_sequences", R"(["a", "b", "c", "d", "e"])").refused);
}

/// parse_body() makes such members of the body null, so they must not count before it, either.
TEST(SamplingFields, WhatNobodyReadsMayStandInTheBodyAndInItsSamplingParameters) {
  const auto endpoints = generation_endpoints();
  const auto endpoint = std::ranges::find(endpoints, "/generate", &GenerationEndpoint::path);
  for (const std::string_view body : {R"({"prompt":"x","odd":1,"sampling_params":{"odd":2}})",
                                      R"({"prompt":"x","sampling_params":{"odd":2},"odd":1})"}) {
    GenerationRequest whole;
    EXPECT_FALSE(endpoint->read(*chat::parse_json(body), model(), whole)) << body;
    EXPECT_EQ(whole.unknown_fields.size(), 1U);
    chat::Json json;
    ASSERT_FALSE(parse_body(body, endpoint->reads, json));
    GenerationRequest read;
    EXPECT_FALSE(endpoint->read(json, model(), read)) << body;
    EXPECT_EQ(read.unknown_fields, whole.unknown_fields);
  }
}

}  // namespace
}  // namespace koho::api
