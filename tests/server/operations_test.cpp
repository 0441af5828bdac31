// SPDX-License-Identifier: Apache-2.0
// Endpoints for operators: health, models, metrics, tokenize, keys.
#include <fstream>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "client.h"
#include "tiny_server.h"

namespace koho::server {
namespace {

TEST(Operations, ListsModels) {
  const Reply reply = get(shared_server().port(), "/v1/models");
  ASSERT_EQ(reply.status, 200);
  EXPECT_EQ(text_at(reply.json(), "data.0.id"), "tiny");
  EXPECT_EQ(text_at(reply.json(), "data.1.id"), "other/name");
  EXPECT_EQ(text_at(reply.json(), "data.0.max_model_len"), "2048");
  EXPECT_EQ(get(shared_server().port(), "/v1/models/tiny").status, 200);
  EXPECT_EQ(text_at(get(shared_server().port(), "/v1/models/other%2Fname").json(), "id"),
            "other/name");
  EXPECT_EQ(get(shared_server().port(), "/v1/models/nothing").status, 404);
}

TEST(Operations, TellsAnthropicsClientsTheModelsInTheirForm) {
  const std::uint16_t port = shared_server().port();
  const std::string version = "anthropic-version: 2023-06-01\r\n";
  const chat::Json list = get(port, "/v1/models", version).json();
  EXPECT_EQ(text_at(list, "has_more"), "false");
  EXPECT_EQ(text_at(list, "first_id"), "tiny");
  EXPECT_EQ(text_at(list, "last_id"), "other/name");
  EXPECT_EQ(list.find("object"), nullptr);
  EXPECT_EQ(text_at(list, "data.0.type"), "model");
  EXPECT_EQ(text_at(list, "data.0.id"), "tiny");
  EXPECT_EQ(text_at(list, "data.0.display_name"), "tiny");
  const std::string created = text_at(list, "data.0.created_at");
  ASSERT_EQ(created.size(), 20U) << created;
  EXPECT_EQ(created.substr(0, 2) + created[4] + created[10] + created[19], "20-TZ");
  // Anthropic's endpoint serves any model named claude-...; it returns the same model.
  EXPECT_EQ(text_at(get(port, "/v1/models/claude-x", version).json(), "id"), "claude-x");
  EXPECT_EQ(text_at(get(port, "/v1/models/claude-x").json(), "root"), "tiny");
  const Reply unknown = get(port, "/v1/models/nothing", version);
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(text_at(unknown.json(), "error.type"), "not_found_error");
  EXPECT_EQ(text_at(unknown.json(), "request_id"), unknown.fields.at("request-id"));
  const Reply refused = post(port, "/v1/messages", R"({"model":"claude-x","messages":[]})");
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(text_at(refused.json(), "type"), "error");
  EXPECT_EQ(text_at(refused.json(), "request_id"), refused.fields.at("request-id"));
  EXPECT_EQ(get(port, "/v1/models/nothing").json().find("request_id"), nullptr);
}

TEST(Operations, TheRootLeadsToTheDashboard) {
  TinyServer server([](ServerSettings& settings) { settings.api_keys = {"k"}; });
  const Reply reply = get(server.port(), "/");
  EXPECT_EQ(reply.status, 302);
  EXPECT_EQ(reply.fields.at("location"), "/ui");
  EXPECT_EQ(get(server.port(), "/ui").status, 200);
}

TEST(Operations, TellsItsHealth) {
  for (const char* path : {"/health", "/healthz", "/livez", "/readyz", "/ping", "/version",
                           "/server_info", "/load", "/metrics"})
    EXPECT_EQ(get(shared_server().port(), path).status, 200) << path;
}

TEST(Operations, CountsFromTheFirstScrape) {
  TinyServer server;
  ASSERT_TRUE(server.becomes_idle());  // the tests before this one share its engine
  const Reply reply = get(server.port(), "/metrics");
  ASSERT_EQ(reply.status, 200);
  EXPECT_EQ(reply.fields.at("content-type"), "text/plain; version=0.0.4; charset=utf-8");
  const std::string labels = R"({model_name="tiny",engine="0")";
  for (const std::string& row :
       {"vllm:num_requests_running" + labels + "} 0", "vllm:num_requests_waiting" + labels + "} 0",
        "vllm:kv_cache_usage_perc" + labels + "} 0", "koho_disconnects_total" + labels + "} 0",
        "koho_requests_live" + labels + "} 0", "koho_pages_used" + labels + "} 0",
        "koho_admission_rejections_total" + labels + R"(,reason="queue_full"} 0)",
        "koho_http_responses_total" + labels + R"(,path="/v1/completions",status="5xx"} 0)",
        "koho_http_responses_total" + labels + R"(,path="/v1/models",status="2xx"} 0)",
        "koho_http_responses_total" + labels + R"(,path="/metrics",status="5xx"} 0)",
        "koho_http_responses_total" + labels + R"(,path="refused",status="4xx"} 0)"})
    EXPECT_NE(reply.body.find(row + "\n"), std::string::npos) << row;
  for (const char* name :
       {"vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:num_preemptions_total",
        "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total",
        "vllm:request_success_total", "vllm:time_to_first_token_seconds_bucket",
        "vllm:inter_token_latency_seconds_sum", "vllm:e2e_request_latency_seconds_count",
        "vllm:request_queue_time_seconds_bucket", "vllm:request_prefill_time_seconds_bucket",
        "vllm:request_decode_time_seconds_bucket", "vllm:cache_config_info"})
    EXPECT_NE(reply.body.find(std::string("\n") + name + labels), std::string::npos) << name;
  EXPECT_EQ(post(server.port(), "/v1/completions",
                 R"({"model":"tiny","prompt":"a","max_tokens":3,"ignore_eos":true})")
                .status,
            200);
  ASSERT_TRUE(server.becomes_idle());
  EXPECT_NE(get(server.port(), "/metrics")
                .body.find("koho_http_responses_total" + labels +
                           R"(,path="/v1/completions",status="2xx"} 1)"),
            std::string::npos);
}

/// The value of metric `name` with these additional labels.
double metric(const std::string& page, const std::string& name, const std::string& labels = "") {
  const std::string row = "\n" + name + R"({model_name="tiny",engine="0")" + labels + "} ";
  const std::size_t at = page.find(row);
  EXPECT_NE(at, std::string::npos) << row;
  return at == std::string::npos ? -1.0 : std::stod(page.substr(at + row.size()));
}

constexpr const char* kSizes[] = {"vllm:request_inference_time_seconds",
                                  "vllm:request_time_per_output_token_seconds",
                                  "vllm:request_prompt_tokens",
                                  "vllm:request_generation_tokens",
                                  "vllm:request_max_num_generation_tokens",
                                  "vllm:request_params_n",
                                  "vllm:request_params_max_tokens",
                                  "koho_iteration_tokens"};

TEST(Operations, MeasuresRequestsAndStepsAsVllmDoes) {
  TinyServer server;
  ASSERT_TRUE(server.becomes_idle());
  const std::string before = get(server.port(), "/metrics").body;
  EXPECT_EQ(post(server.port(), "/v1/completions",
                 R"({"model":"tiny","prompt":[5,6,7],"max_tokens":7,"n":2,"ignore_eos":true})")
                .status,
            200);
  EXPECT_EQ(post(server.port(), "/v1/completions",
                 R"({"model":"tiny","prompt":[8,9],"max_tokens":1,"ignore_eos":true})")
                .status,
            200);
  ASSERT_TRUE(server.becomes_idle());
  const std::string after = get(server.port(), "/metrics").body;
  const auto grown = [&](const std::string& name, const std::string& labels = "") {
    return metric(after, name, labels) - metric(before, name, labels);
  };
  const auto expect = [&](const std::string& name, double count, double sum) {
    EXPECT_EQ(grown(name + "_count"), count) << name;
    EXPECT_NEAR(grown(name + "_sum"), sum, 1e-6) << name;
    EXPECT_EQ(grown(name + "_bucket", R"(,le="+Inf")"), count) << name;
  };
  expect("vllm:request_prompt_tokens", 2, 3 + 2);
  expect("vllm:request_generation_tokens", 3, 7 + 7 + 1);
  expect("vllm:request_max_num_generation_tokens", 2, 7 + 1);
  expect("vllm:request_params_n", 2, 2 + 1);
  expect("vllm:request_params_max_tokens", 2, 7 + 1);
  expect("koho_iteration_tokens", grown("koho_steps_total"), grown("koho_computed_tokens_total"));
  const double decode = grown("vllm:request_decode_time_seconds_sum");
  EXPECT_GT(decode, 0.0);
  expect("vllm:request_inference_time_seconds", 2,
         grown("vllm:request_prefill_time_seconds_sum") + decode);
  // An answer of one token has no inter-token latency.
  expect("vllm:request_time_per_output_token_seconds", 1, decode / 6);
  EXPECT_EQ(grown("vllm:request_generation_tokens_bucket", R"(,le="1.0")"), 1);
  EXPECT_EQ(grown("vllm:request_generation_tokens_bucket", R"(,le="5.0")"), 1);
  EXPECT_EQ(grown("vllm:request_generation_tokens_bucket", R"(,le="10.0")"), 3);
  EXPECT_EQ(grown("vllm:request_params_n_bucket", R"(,le="1.0")"), 1);
  EXPECT_EQ(grown("vllm:request_params_n_bucket", R"(,le="2.0")"), 2);
  EXPECT_EQ(grown("vllm:request_prompt_tokens_bucket", R"(,le="200000.0")"), 2);
}

TEST(Operations, TellsEveryMetricBeforeTheModelIsThere) {
  SteadyClock clock;
  ServerSettings settings;
  settings.host = "127.0.0.1";
  settings.port = 0;
  settings.model_name = "tiny";
  auto server = Server::start(settings, clock);
  ASSERT_TRUE(server.ok()) << server.error().message;
  const std::string page = get((*server)->port(), "/metrics").body;
  for (const std::string name : kSizes) {
    EXPECT_EQ(metric(page, name + "_count"), 0);
    EXPECT_EQ(metric(page, name + "_sum"), 0);
    EXPECT_EQ(metric(page, name + "_bucket", R"(,le="+Inf")"), 0);
  }
  for (const char* bound : {"0.3", "0.8", "15.0", "7680.0"})
    EXPECT_EQ(metric(page, "vllm:request_inference_time_seconds_bucket",
                     std::string(",le=\"") + bound + '"'),
              0);
  EXPECT_EQ(metric(page, "vllm:request_time_per_output_token_seconds_bucket", R"(,le="0.025")"), 0);
  EXPECT_EQ(metric(page, "koho_iteration_tokens_bucket", R"(,le="16384.0")"), 0);
  // docs/metrics.md has a row with name, type and help of each metric.
  std::ifstream file(std::string(KOHO_SOURCE_DIR) + "/docs/metrics.md");
  std::stringstream documentation;
  documentation << file.rdbuf();
  std::istringstream lines(page);
  std::string line;
  int count = 0;
  for (std::string help; std::getline(lines, line);) {
    if (line.starts_with("# HELP ")) help = line.substr(line.find(' ', 7) + 1);
    if (!line.starts_with("# TYPE ")) continue;
    const std::size_t type = line.find(' ', 7);
    const std::string row =
        "| `" + line.substr(7, type - 7) + "` | " + line.substr(type + 1) + " | " + help + " |\n";
    EXPECT_NE(documentation.str().find(row), std::string::npos) << row;
    ++count;
  }
  EXPECT_GT(count, 50);
}

TEST(Operations, TokenizesAndBack) {
  const std::uint16_t port = shared_server().port();
  const Reply tokens = post(port, "/tokenize", R"({"prompt":"Hello w\u00f6rld <|user|>"})");
  ASSERT_EQ(tokens.status, 200) << tokens.body;
  const chat::Json ids = at(tokens.json(), "tokens");
  EXPECT_EQ(std::to_string(ids.items.size()), text_at(tokens.json(), "count"));
  EXPECT_EQ(text_at(tokens.json(), "max_model_len"), "2048");
  const Reply text = post(port, "/detokenize", R"({"tokens":)" + chat::dump_json(ids) + "}");
  EXPECT_EQ(text_at(text.json(), "prompt"), "Hello w\u00f6rld <|user|>");
  const Reply plain = post(
      port, "/tokenize", R"({"prompt":"<|user|>","allow_special":false,"return_token_strs":true})");
  EXPECT_GT(std::stoi(text_at(plain.json(), "count")), 1);
  EXPECT_EQ(at(plain.json(), "token_strs").items.size(), at(plain.json(), "tokens").items.size());
  EXPECT_EQ(post(port, "/tokenize", R"({"prompt":"a","messages":null})").status, 200);
  EXPECT_EQ(post(port, "/tokenize", R"({"prompt":7})").status, 400);
  EXPECT_EQ(post(port, "/detokenize", R"({"tokens":[-1]})").status, 400);
  EXPECT_EQ(post(port, "/detokenize", "[]").status, 400);
  // A text longer than the context is counted, not refused. The pool handles this long body.
  std::string words;
  for (int i = 0; i < 5'000; ++i) words += "word ";
  for (const std::string& field : {R"("prompt":")" + words + '"',
                                   R"("messages":[{"role":"user","content":")" + words + "\"}]"}) {
    const Reply counted = post(port, "/tokenize", "{" + field + "}");
    ASSERT_EQ(counted.status, 200) << counted.body.substr(0, 300);
    EXPECT_GT(std::stoi(text_at(counted.json(), "count")), 2048);
    EXPECT_EQ(at(counted.json(), "tokens").items.size(),
              std::stoul(text_at(counted.json(), "count")));
    EXPECT_EQ(text_at(counted.json(), "max_model_len"), "2048");
  }
  for (const auto& [path, field] :
       {std::pair{"/tokenize", R"("prompt":"a")"}, std::pair{"/detokenize", R"("tokens":[1])"},
        std::pair{"/tokenize", R"("messages":[{"role":"user","content":"a"}])"}}) {
    const Reply other = post(port, path, R"({"model":"other",)" + std::string(field) + "}");
    EXPECT_EQ(other.status, 404) << path;
    EXPECT_EQ(text_at(other.json(), "error.code"), "model_not_found") << path;
    EXPECT_EQ(post(port, path, R"({"model":"tiny",)" + std::string(field) + "}").status, 200);
  }
  const std::string special =
      chat::dump_json(at(post(port, "/tokenize", R"({"prompt":"a<|user|>b"})").json(), "tokens"));
  for (const auto& [skip, expected] : {std::pair{"true", "ab"}, std::pair{"false", "a<|user|>b"}})
    EXPECT_EQ(text_at(post(port, "/detokenize",
                           R"({"skip_special_tokens":)" + std::string(skip) + R"(,"tokens":)" +
                               special + "}")
                          .json(),
                      "prompt"),
              expected);
  EXPECT_EQ(post(port, "/detokenize", R"({"tokens":[1],"skip_special_tokens":1})").status, 400);
}

TEST(Operations, RendersWithoutGenerating) {
  const std::uint16_t port = shared_server().port();
  const std::string body =
      R"({"messages":[{"role":"user","content":"What is 5 + 6?"}],"enable_thinking":false})";
  const Reply rendered = post(port, "/v1/chat/completions/render", body);
  ASSERT_EQ(rendered.status, 200) << rendered.body;
  EXPECT_EQ(text_at(rendered.json(), "prompt"),
            "[gMASK]<sop><|user|>What is 5 + 6?<|assistant|></think>");
  const Reply answered =
      post(port, "/v1/chat/completions",
           R"({"model":"tiny","max_tokens":1,"return_token_ids":true,)" + body.substr(1));
  EXPECT_EQ(text_at(answered.json(), "prompt_token_ids"),
            text_at(rendered.json(), "prompt_token_ids"));
}

TEST(Operations, AMissingModelIsTheServedOneAndMinusOneIsAsManyAsFit) {
  const std::uint16_t port = shared_server().port();
  for (const auto& [path, body] :
       {std::pair<std::string, std::string>("/v1/chat/completions",
                                            R"("messages":[{"role":"user","content":"hi"}])"),
        {"/v1/completions", R"("prompt":"Once upon a time")"},
        {"/v1/responses", R"("input":"hi")"},
        {"/v1/messages", R"("max_tokens":9,"messages":[{"role":"user","content":"hi"}])"}})
    for (const char* model : {"", R"(,"model":null)"})
      EXPECT_EQ(post(port, path, R"({"temperature":0,)" + body + model + "}").status, 200)
          << path << model;
  // Unasked a completion has 16 tokens; -1 and null are as many as fit, here until the model stops.
  const auto tokens = [port](const std::string& more) {
    const Reply reply = post(port, "/v1/completions",
                             R"({"prompt":"Once upon a time","temperature":0)" + more + "}");
    EXPECT_EQ(reply.status, 200) << reply.body;
    return std::stoi(text_at(reply.json(), "usage.completion_tokens"));
  };
  EXPECT_EQ(tokens(""), 16);
  EXPECT_GT(tokens(R"(,"max_tokens":-1)"), 16);
  EXPECT_EQ(tokens(R"(,"max_tokens":null)"), tokens(R"(,"max_tokens":-1)"));
}

/// What a client reads of them is what it would read of /v1/completions.
TEST(Operations, TellsLlamaCppsClientsTokensAndProbabilities) {
  using chat::Json;
  const std::uint16_t port = shared_server().port();
  const std::string asked = R"({"prompt":"Once upon a time","temperature":0,"stop":["qx"],)";
  const Json reference = post(port, "/v1/completions",
                              asked + R"("max_tokens":5,"logprobs":2,"return_token_ids":true})")
                             .json();
  for (const char* more : {"", R"("stream":true,)"}) {
    std::vector<Json> tokens;
    std::vector<Json> probabilities;
    const Reply reply = post(port, "/completion",
                             asked + more + R"("n_predict":5,"n_probs":2,"return_tokens":true})");
    for (const std::string& event : *more == 0 ? std::vector{reply.body} : reply.events()) {
      const Json json = *chat::parse_json(event);
      const Json ids = at(json, "tokens");
      const Json told = at(json, "completion_probabilities");
      tokens.insert(tokens.end(), ids.items.begin(), ids.items.end());
      probabilities.insert(probabilities.end(), told.items.begin(), told.items.end());
    }
    EXPECT_EQ(tokens, at(reference, "choices.0.token_ids").items) << reply.body;
    ASSERT_EQ(probabilities.size(), 5U) << reply.body;
    for (std::size_t i = 0; i < 5; ++i) {
      const Json& one = probabilities[i];
      const std::string place = "." + std::to_string(i);
      EXPECT_EQ(text_at(one, "id"), tokens[i].text);
      EXPECT_EQ(text_at(one, "token"), text_at(reference, "choices.0.logprobs.tokens" + place));
      EXPECT_EQ(text_at(one, "logprob"),
                text_at(reference, "choices.0.logprobs.token_logprobs" + place));
      const Json top = at(one, "top_logprobs");
      const Json expected = at(reference, "choices.0.logprobs.top_logprobs" + place);
      ASSERT_EQ(top.items.size(), expected.items.size());
      for (std::size_t k = 0; k < top.items.size(); ++k)
        EXPECT_EQ(text_at(top.items[k], "logprob"),
                  text_at(expected, text_at(top.items[k], "token")));
    }
  }
  for (const char* path : {"/completion", "/generate"})
    EXPECT_EQ(text_at(post(port, path, R"({"prompt":"a","max_tokens":1,"echo":true})").json(),
                      "error.param"),
              "echo");
}

TEST(Operations, AnswersLlamaCppsClients) {
  using chat::Json;
  const std::string kGreedy =
      R"({"prompt":"Once upon a time","n_predict":1,"temperature":0,"n_probs":1,"return_tokens":true)";
  const std::uint16_t port = shared_server().port();
  const Reply whole =
      post(port, "/completion", R"({"prompt":"Once upon a time","n_predict":5,"temperature":0})");
  EXPECT_EQ(whole.status, 200) << whole.body;
  EXPECT_EQ(text_at(whole.json(), "stop"), "true");
  EXPECT_EQ(text_at(whole.json(), "stop_type"), "limit");
  EXPECT_EQ(text_at(whole.json(), "tokens_predicted"), "5");
  EXPECT_EQ(text_at(whole.json(), "timings.predicted_n"), "5");
  const std::string content = text_at(whole.json(), "content");
  EXPECT_FALSE(content.empty());
  const Reply stream =
      post(port, "/completion",
           R"({"prompt":"Once upon a time","n_predict":5,"temperature":0,"stream":true})");
  std::string joined;
  for (const std::string& event : stream.events())
    joined += text_at(*chat::parse_json(event), "content");
  EXPECT_EQ(joined, content);
  EXPECT_NE(stream.events().back().find(R"("stop":true)"), std::string::npos);
  EXPECT_EQ(whole.json().find("tokens"), nullptr);
  EXPECT_EQ(whole.json().find("completion_probabilities"), nullptr);
  const Reply nulls =
      post(port, "/completion",
           R"({"prompt":"Once upon a time","n_predict":5,"max_tokens":null,"temperature":0})");
  EXPECT_EQ(text_at(nulls.json(), "content"), content) << nulls.body.substr(0, 300);
  const Reply number = post(
      port, "/completion",
      R"({"prompt":"A number: ","n_predict":9,"temperature":0,"json_schema":{"type":"integer"}})");
  EXPECT_EQ(number.status, 200) << number.body;
  EXPECT_EQ(text_at(number.json(), "content").find_first_not_of("-0123456789"), std::string::npos)
      << number.body;
  // logit_bias in its forms: an id or a text, a number or false.
  const Json free = post(port, "/completion", kGreedy + "}").json();
  const std::string first = text_at(free, "tokens.0");
  for (const std::string& bias :
       {"[[" + first + ",false]]", "[[" + first + ",-100]]", "{\"" + first + "\":-100}",
        "[[" + chat::dump_json(at(free, "completion_probabilities.0.token")) + ",false]]"}) {
    const Reply reply = post(port, "/completion", kGreedy + ",\"logit_bias\":" + bias + "}");
    ASSERT_EQ(reply.status, 200) << bias << reply.body;
    EXPECT_NE(text_at(reply.json(), "tokens.0"), first) << bias;
  }
  EXPECT_EQ(
      text_at(post(port, "/completion", kGreedy + R"(,"logit_bias":[[7,-1],[7,0.5]]})").json(),
              "tokens.0"),
      first);
  for (const char* bias : {"[7]", "[[7]]", "[[7,true]]", "[[7.5,1]]", "[[-1,1]]", "[[7,101]]", "7"})
    EXPECT_EQ(text_at(post(port, "/completion", kGreedy + ",\"logit_bias\":" + bias + "}").json(),
                      "error.param"),
              "logit_bias")
        << bias;
  EXPECT_EQ(post(port, "/completion", R"({"prompt":"a","n_predict":-2})").status, 400);
  EXPECT_EQ(post(port, "/completion", R"({"prompt":["a","b"],"n_predict":1})").status, 400);
  for (const auto& [field, value] :
       {std::pair{"grammar", "\"root ::= (\""}, std::pair{"json_schema", R"({"if":{}})"}}) {
    const Reply refused =
        post(port, "/completion", fmt::format(R"({{"prompt":"a","{}":{}}})", field, value));
    EXPECT_EQ(refused.status, 400);
    EXPECT_EQ(text_at(refused.json(), "error.param"), field) << refused.body;
  }
  const Reply props = get(port, "/props");
  EXPECT_EQ(text_at(props.json(), "total_slots"),
            text_at(get(port, "/server_info").json(), "max_num_seqs"));
  EXPECT_EQ(text_at(props.json(), "default_generation_settings.n_ctx"),
            text_at(get(port, "/server_info").json(), "max_model_len"));
  const Reply slots = get(port, "/slots");
  EXPECT_EQ(std::to_string(slots.json().items.size()), text_at(props.json(), "total_slots"));
  EXPECT_EQ(text_at(slots.json(), "1.id"), "1");
}

TEST(Operations, GeneratesFromIdsToIds) {
  const std::uint16_t port = shared_server().port();
  const Reply whole = post(
      port, "/generate",
      R"({"ids":[10,20,30],"max_new_tokens":5,"temperature":0,"ignore_eos":true,"logprobs":1,"n":2})");
  ASSERT_EQ(whole.status, 200) << whole.body;
  EXPECT_EQ(at(whole.json(), "choices.1.ids").items.size(), 5U);
  EXPECT_EQ(at(whole.json(), "choices.0.logprobs").items.size(), 5U);
  EXPECT_EQ(text_at(whole.json(), "choices.0.finish_reason"), "length");
  EXPECT_EQ(text_at(whole.json(), "usage.completion_tokens"), "10");
  const Reply stream = post(
      port, "/generate",
      R"({"input_ids":[10,20,30],"max_tokens":5,"temperature":0,"ignore_eos":true,"stream":true})");
  std::string ids = "[";
  for (const std::string& event : stream.events()) {
    if (event == "[DONE]") continue;
    const chat::Json json = *chat::parse_json(event);
    if (json.find("ids") == nullptr) continue;
    ids += (ids.size() > 1 ? ", " : "") + text_at(json, "ids.0");
  }
  EXPECT_EQ(ids + "]", text_at(whole.json(), "choices.0.ids"));
  EXPECT_EQ(post(port, "/generate", R"({"ids":[1],"prompt":"a"})").status, 400);
  // A request with SGLang's names.
  const Reply nested = post(
      port, "/generate",
      R"({"input_ids":[10,20,30],"stream":false,"sampling_params":{"max_new_tokens":5,"temperature":0,)"
      R"("ignore_eos":true,"n":2,"top_p":null}})");
  ASSERT_EQ(nested.status, 200) << nested.body;
  EXPECT_EQ(text_at(nested.json(), "choices.0.ids"), text_at(whole.json(), "choices.0.ids"));
  // null: not given.
  for (const char* prompt : {R"("ids":null,"input_ids":[10,20,30],"text":null)",
                             R"("text":null,"ids":null,"prompt":[10,20,30])"}) {
    const Reply nulls =
        post(port, "/generate",
             std::string("{") + prompt +
                 R"(,"max_tokens":null,"temperature":0,"ignore_eos":true,"max_new_tokens":5,)"
                 R"("sampling_params":{"temperature":null,"max_tokens":null}})");
    EXPECT_EQ(text_at(nulls.json(), "choices.0.ids"), text_at(whole.json(), "choices.0.ids"))
        << nulls.body;
  }
  EXPECT_EQ(text_at(post(port, "/generate", R"({"text":null,"ids":7})").json(), "error.param"),
            "ids");
  const Reply text = post(
      port, "/generate",
      R"({"text":"What","sampling_params":{"max_new_tokens":8,"regex":"[ab]{3}","stop":["x"]}})");
  ASSERT_EQ(text.status, 200) << text.body;
  EXPECT_EQ(text_at(text.json(), "choices.0.text").size(), 3U) << text.body;
  // Errors have the field names of the request.
  for (const auto& [fields, param] :
       {std::pair{R"("sampling_params":7)", "sampling_params"},
        std::pair{R"("sampling_params":{"max_new_tokens":-2})", "sampling_params.max_new_tokens"},
        std::pair{R"("sampling_params":{"temperature":9})", "sampling_params.temperature"},
        std::pair{R"("sampling_params":{"stop_regex":"a"})", "sampling_params.stop_regex"},
        std::pair{R"("temperature":0,"sampling_params":{"temperature":0})",
                  "sampling_params.temperature"},
        std::pair{R"("input_ids":[1])", "input_ids"},
        std::pair{R"("max_new_tokens":-2)", "max_new_tokens"}}) {
    const Reply refused = post(port, "/generate", R"({"text":"a",)" + std::string(fields) + "}");
    EXPECT_EQ(refused.status, 400) << fields;
    EXPECT_EQ(text_at(refused.json(), "error.param"), param) << refused.body;
    EXPECT_TRUE(text_at(refused.json(), "error.message").starts_with(param)) << refused.body;
  }
  EXPECT_EQ(post(port, "/generate", R"({"ids":[99999]})").status, 400);
}

}  // namespace
}  // namespace koho::server
