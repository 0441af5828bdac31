// SPDX-License-Identifier: Apache-2.0
// Bad fields of a body: sampling, lengths, stops, logprobs, tools, structured output, unknown
// fields.
#include <chrono>
#include <functional>
#include <thread>

#include <gtest/gtest.h>

#include "bad_input.h"
#include "base/mapped_file.h"
#include "client.h"
#include "tiny_server.h"

namespace koho::server {
namespace {

TEST(BadInput, ChecksMaxTokens) {
  for (const char* value : {"-2", "1e99", "\"5\"", "1.5", "true", "[]"})
    refuse_both(std::string("\"max_tokens\":") + value, "max_tokens");
  refuse(Api::chat, R"("max_tokens":0)", 400, "max_tokens");
  refuse(Api::chat, R"("max_completion_tokens":0)", 400, "max_completion_tokens");
  EXPECT_EQ(post(shared_server().port(), path_of(Api::completions),
                 body_with(Api::completions, R"("max_tokens":0)"))
                .status,
            200);
  EXPECT_EQ(post(shared_server().port(), path_of(Api::completions),
                 body_with(Api::completions, R"("max_tokens":null)"))
                .status,
            200);
}

TEST(BadInput, ChecksSamplingParameters) {
  for (const char* value : {"-0.1", "2.01", "1e99", "\"hot\"", "true"})
    refuse_both(std::string("\"temperature\":") + value, "temperature");
  for (const Api api : kBoth)
    for (const char* literal : {"NaN", "Infinity", "-Infinity", "1e400"})
      refuse_body(api, std::string(R"({"model":"tiny","temperature":)") + literal + "}", 400, "",
                  "invalid_json");
  for (const char* value : {"0", "-1", "1.01"})
    refuse_both(std::string("\"top_p\":") + value, "top_p");
  for (const char* value : {"-2", "1000000000", "1.5"})
    refuse_both(std::string("\"top_k\":") + value, "top_k");
  refuse_both("\"min_p\":1.1", "min_p");
  for (const char* value : {"2.01", "-2.01"}) {
    refuse_both(std::string("\"presence_penalty\":") + value, "presence_penalty");
    refuse_both(std::string("\"frequency_penalty\":") + value, "frequency_penalty");
  }
  for (const char* value : {"0", "-1", "1e9"})
    refuse_both(std::string("\"repetition_penalty\":") + value, "repetition_penalty");
}

TEST(BadInput, ChecksChoicesStopsAndSeeds) {
  for (const char* value : {"0", "-1", "129", "1000000000"})
    refuse_both(std::string("\"n\":") + value, "n");
  refuse(Api::completions, R"("n":3,"best_of":2)", 400, "best_of");
  refuse(Api::completions, R"("n":1,"best_of":2)", 400, "best_of", "unsupported_parameter");
  for (const std::string& value :
       {std::string(R"(["a","b","c","d","e"])"), std::string(R"("")"), std::string(R"([""])"),
        std::string("7"), std::string("[7]"), "\"" + std::string(10'240, 'x') + "\""})
    refuse_both("\"stop\":" + value, "stop");
  for (const char* value : {"18446744073709551616", "1.5", "\"a\""})
    refuse_both(std::string("\"seed\":") + value, "seed");
  accept_both(R"("seed":-1)");
  accept_both(R"("seed":9223372036854775807)");
}

TEST(BadInput, ChecksLogitBias) {
  for (const char* value : {R"({"abc":1})", R"({"4096":1})", R"({"-1":1})", R"({"1":101})",
                            R"({"1":-101})", R"({"1":"a"})", "[]"})
    refuse_both(std::string("\"logit_bias\":") + value, "logit_bias");
  std::string most = R"("logit_bias":{"0":0.5)";
  for (int i = 1; i < 1024; ++i) most += ",\"" + std::to_string(i) + "\":0.5";
  accept_both(most + "}");
  // More keys than an object may have: the JSON parser refuses it, without a field.
  std::string many = R"({"model":"tiny","logit_bias":{)";
  for (int i = 0; i < 100'000; ++i) many += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":1";
  for (const Api api : kBoth) refuse_body(api, many + "}}", 400, "", "invalid_json");
}

TEST(BadInput, ChecksLogprobs) {
  for (const char* value : {"-1", "21", "1.5", "\"a\""})
    refuse(Api::completions, std::string("\"logprobs\":") + value, 400, "logprobs");
  for (const char* value : {"-1", "21"})
    refuse(Api::chat, std::string(R"("logprobs":true,"top_logprobs":)") + value, 400,
           "top_logprobs");
  refuse(Api::chat, R"("top_logprobs":2)", 400, "top_logprobs");
  refuse(Api::chat, R"("logprobs":5)", 400, "logprobs");
  EXPECT_EQ(
      post(shared_server().port(), path_of(Api::chat), body_with(Api::chat, R"("top_logprobs":0)"))
          .status,
      200);
}

TEST(BadInput, ChecksStreamOptions) {
  refuse_both(R"("stream":"yes")", "stream");
  refuse_both(R"("stream_options":{"include_usage":true})", "stream_options");
  refuse_both(R"("stream":true,"stream_options":7)", "stream_options");
  accept_both(R"("stream":true,"stream_options":{"strange":1})");
}

TEST(BadInput, ChecksTools) {
  const auto tool = [](const std::string& name, const std::string& parameters = "{}") {
    return R"({"type":"function","function":{"name":")" + name + R"(","parameters":)" + parameters +
           "}}";
  };
  const auto refused = [](const std::string& tools, const std::string& param) {
    refuse(Api::chat, "\"tools\":" + tools, 400, param);
  };
  refused("7", "tools");
  refused("[7]", "tools[0]");
  refused("[" + tool("with space") + "]", "tools[0].function.name");
  refused("[" + tool(std::string(65, 'x')) + "]", "tools[0].function.name");
  refused("[" + tool("a", "7") + "]", "tools[0].function.parameters");
  refused("[" + tool("a") + "," + tool("a") + "]", "tools[1].function.name");
  std::string many = "[";
  for (int i = 0; i < 1000; ++i) many += (i == 0 ? "" : ",") + tool("t" + std::to_string(i));
  refused(many + "]", "tools");
  refuse(
      Api::chat,
      "\"tools\":[" + tool("a") + R"(],"tool_choice":{"type":"function","function":{"name":"b"}})",
      400, "tool_choice");
  refuse(Api::chat, R"("tool_choice":"required")", 400, "tool_choice");
  refuse(Api::chat, R"("tool_choice":"perhaps")", 400, "tool_choice");
  refuse(Api::chat, R"("tool_choice":7)", 400, "tool_choice");
}

TEST(BadInput, ReadsToolMessagesWithoutCalls) {
  // Clients shorten histories: a result without its call is still accepted.
  const Reply reply =
      post(shared_server().port(), path_of(Api::chat),
           body_with(Api::chat, R"("messages":[{"role":"user","content":"a"},)"
                                R"({"role":"tool","tool_call_id":"nobody","content":"7"}])"));
  EXPECT_EQ(reply.status, 200) << reply.body;
  expect_alive(Api::chat);
}

TEST(BadInput, ChecksResponseFormats) {
  refuse_both(R"("response_format":{"type":"strange"})", "response_format");
  refuse_both(R"("response_format":7)", "response_format");
  refuse_both(R"("response_format":{"type":"json_schema"})", "response_format",
              "unsupported_schema");
  refuse_both(R"("response_format":{"type":"json_schema","json_schema":{"schema":7}})",
              "response_format", "unsupported_schema");
  refuse_both(R"("response_format":{"type":"structural_tag"})", "response_format",
              "invalid_grammar");
  refuse_both(R"("response_format":{"type":"structural_tag","format":{"type":"token","token":5}})",
              "response_format", "invalid_grammar");
  refuse_both(R"("structured_outputs":{"structural_tag":"{"})", "structured_outputs.structural_tag",
              "invalid_grammar");
  refuse_both(R"("structured_outputs":{"structural_tag":7})", "structured_outputs.structural_tag");
}

TEST(BadInput, RefusesHostileSchemas) {
  const auto schema = [](const std::string& text) {
    return R"("response_format":{"type":"json_schema","json_schema":{"name":"s","schema":)" + text +
           "}}";
  };
  const auto refused = [&](const std::string& text, const std::string& code) {
    refuse_both(schema(text), "response_format", code);
  };
  std::string many = R"({"enum":[)";
  for (int i = 0; i < 70'000; ++i) many += (i > 0 ? ",\"v" : "\"v") + std::to_string(i) + '"';
  refused(many + "]}", "grammar_too_complex");
  for (const char* text :
       {R"({"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"})",
        R"({"type":"integer","minimum":5,"maximum":4})", R"({"type":"string","enum":[1,2]})",
        R"({"properties":{},"required":["a"],"additionalProperties":false})"})
    refused(text, "unsatisfiable_schema");
  // Patterns on which backtracking engines hang are cheap for an automaton with counters.
  accept_both(schema(R"({"type":"string","pattern":"^(a+)+$"})"));
  // Whether counting to a billion fits into the time limit depends on the machine.
  for (const Api api : kBoth) {
    const Reply reply = post(
        shared_server().port(), path_of(api),
        body_with(api, schema(R"({"type":"string","pattern":"^((a{1,1000}){1,1000}){1,1000}$"})")));
    EXPECT_TRUE(reply.status == 200 || text_at(reply.json(), "error.code") == "grammar_too_complex")
        << reply.body;
    expect_alive(api);
  }
  // 30,000 levels: the JSON parser refuses the body; a schema in a string is refused as its field.
  std::string deep;
  for (int i = 0; i < 30'000; ++i) deep += R"({"type":"array","items":)";
  deep += "{}" + std::string(30'000, '}');
  for (const Api api : kBoth)
    refuse_body(api, R"({"model":"tiny",)" + schema(deep) + "}", 400, "", "invalid_json");
}

TEST(BadInput, CountsUnknownFields) {
  const std::uint64_t before = shared_server().counters().unknown_fields.load();
  accept_both(R"("strange_field":{"a":[1,2]},"store":false)");
  EXPECT_EQ(shared_server().counters().unknown_fields.load(), before + 2);
  TinyServer strict;
  strict.serving().model.strict_fields = true;
  expect_error(
      post(strict.port(), path_of(Api::chat), body_with(Api::chat, R"("strange_field":1)")), 400,
      "strange_field", "unsupported_parameter", "strict");
  for (const char* name : {"session_id", "stream_interval", "functions", "lora_path"})
    expect_error(post(strict.port(), path_of(Api::chat),
                      body_with(Api::chat, '"' + std::string(name) + R"(":["x"])")),
                 400, name, "unsupported_parameter", name);
  for (const auto& [body, param] :
       {std::pair{R"("thinking":{"type":"enabled","depth":3})", "thinking.depth"},
        std::pair{R"("response_format":{"type":"text","style":"x"})", "response_format.style"},
        std::pair{
            R"("response_format":{"type":"json_schema","json_schema":{"schema":{},"mode":1}})",
            "response_format.json_schema.mode"}})
    expect_error(post(strict.port(), path_of(Api::chat), body_with(Api::chat, body)), 400, param,
                 "unsupported_parameter", param);
  EXPECT_EQ(post(strict.port(), path_of(Api::chat),
                 body_with(Api::chat, R"("session_id":null,"functions":[],"store":true,)"
                                      R"("thinking":{"type":"disabled","clear_thinking":true})"))
                .status,
            200);
}

TEST(BadInput, RefusesUnsupportedFields) {
  refuse_both(R"("use_beam_search":true)", "use_beam_search", "unsupported_parameter");
  refuse_both(R"("chat_template":"{{ 1 }}")", "chat_template", "unsupported_parameter");
  refuse(Api::chat, R"("chat_template_kwargs":{"strange":1})", 400, "chat_template_kwargs",
         "unsupported_parameter");
  refuse(Api::chat, R"("chat_template_kwargs":7)", 400, "chat_template_kwargs");
  refuse_both(R"("prompt_embeds":"AAAA")", "prompt_embeds", "unsupported_parameter");
  refuse_both(R"("suffix":"x")", "suffix", "unsupported_parameter");
  refuse_both(R"("length_penalty":1.5)", "length_penalty", "unsupported_parameter");
  // Values without effect.
  accept_both(
      R"("suffix":"","length_penalty":1.0,"typical_p":1,"documents":[],"use_beam_search":false)");
}

}  // namespace
}  // namespace koho::server
