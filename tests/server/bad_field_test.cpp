// SPDX-License-Identifier: Apache-2.0
// A table of fields of a body, each with what a request gets that has it: sampling, lengths, stops,
// logprobs, tools, structured output, fields without effect. After each the server answers a good
// request.
#include <chrono>
#include <functional>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "bad_input.h"
#include "base/mapped_file.h"
#include "client.h"
#include "tiny_server.h"

namespace koho::server {
namespace {

enum class At : std::uint8_t { both, chat, completions };

/// Members of a body, and the field (and code) that a refusal names; without a field they are
/// accepted. The name says what is unusual.
struct Field {
  std::string name;
  At at;
  std::string members;
  std::string param{};
  std::string code{};
};

void PrintTo(const Field& one, std::ostream* out) {
  *out << one.name;
}

/// Rows of the same field: a name's end and a value each.
std::vector<Field> values_of(const std::string& field,
                             At at,
                             const std::vector<std::pair<const char*, std::string>>& values,
                             bool accepted = false,
                             const std::string& code = "") {
  std::vector<Field> rows;
  for (const auto& [what, value] : values)
    rows.push_back(
        {field + "_" + what, at, '"' + field + "\":" + value, accepted ? "" : field, code});
  return rows;
}

std::vector<Field> joined(const std::vector<std::vector<Field>>& parts) {
  std::vector<Field> rows;
  for (const std::vector<Field>& part : parts) rows.insert(rows.end(), part.begin(), part.end());
  return rows;
}

std::vector<Field> lengths() {
  return joined({values_of("max_tokens", At::both,
                           {{"below_minus_one", "-2"},
                            {"huge", "1e99"},
                            {"text", "\"5\""},
                            {"with_a_fraction", "1.5"},
                            {"bool", "true"},
                            {"list", "[]"}}),
                 values_of("max_tokens", At::chat, {{"zero", "0"}}),
                 values_of("max_completion_tokens", At::chat, {{"zero", "0"}}),
                 values_of("max_tokens", At::completions, {{"zero_scores_the_prompt", "0"}}, true),
                 // As many as fit would take minutes: the first one ends the text.
                 {{"max_tokens_null", At::completions,
                   R"("max_tokens":null,"logit_bias":{"4000":100})", "", ""}}});
}

std::vector<Field> sampling() {
  std::string most = "{\"0\":0.5";
  for (int i = 1; i < 1024; ++i) most += ",\"" + std::to_string(i) + "\":0.5";
  return joined(
      {values_of("temperature", At::both,
                 {{"negative", "-0.1"},
                  {"above_two", "2.01"},
                  {"huge", "1e99"},
                  {"text", "\"hot\""},
                  {"bool", "true"}}),
       values_of("top_p", At::both, {{"zero", "0"}, {"negative", "-1"}, {"above_one", "1.01"}}),
       values_of("top_k", At::both,
                 {{"below_minus_one", "-2"}, {"huge", "1000000000"}, {"with_a_fraction", "1.5"}}),
       values_of("min_p", At::both, {{"above_one", "1.1"}}),
       values_of("presence_penalty", At::both,
                 {{"above_two", "2.01"}, {"below_minus_two", "-2.01"}}),
       values_of("frequency_penalty", At::both,
                 {{"above_two", "2.01"}, {"below_minus_two", "-2.01"}}),
       values_of("repetition_penalty", At::both,
                 {{"zero", "0"}, {"negative", "-1"}, {"huge", "1e9"}}),
       values_of("seed", At::both,
                 {{"beyond_64_bits", "18446744073709551616"},
                  {"with_a_fraction", "1.5"},
                  {"text", "\"a\""}}),
       values_of("seed", At::both, {{"negative", "-1"}, {"of_63_bits", "9223372036854775807"}},
                 true),
       values_of("logit_bias", At::both,
                 {{"of_a_text", R"({"abc":1})"},
                  {"beyond_the_vocabulary", R"({"4096":1})"},
                  {"of_a_negative_token", R"({"-1":1})"},
                  {"above_100", R"({"1":101})"},
                  {"below_minus_100", R"({"1":-101})"},
                  {"text", R"({"1":"a"})"},
                  {"list", "[]"}}),
       values_of("logit_bias", At::both, {{"of_1024_tokens", most + "}"}}, true)});
}

std::vector<Field> choices_and_stops() {
  std::string sequences = "[[1,2,3,4,5,6,7,8]";
  for (int i = 0; i < 60; ++i) sequences += ",[1,2,3,4,5,6,7,8]";
  return joined(
      {values_of("n", At::both,
                 {{"zero", "0"}, {"negative", "-1"}, {"above_128", "129"}, {"huge", "1000000000"}}),
       {{"best_of_below_n", At::completions, R"("n":3,"best_of":2)", "best_of"},
        {"best_of_above_n", At::completions, R"("n":1,"best_of":2)", "best_of",
         "unsupported_parameter"}},
       values_of("stop_token_ids", At::both, {{"of_too_many_sequences", sequences + "]"}}),
       values_of("stop", At::both,
                 {{"five", R"(["a","b","c","d","e"])"},
                  {"empty_text", R"("")"},
                  {"list_of_an_empty_text", R"([""])"},
                  {"number", "7"},
                  {"list_of_a_number", "[7]"},
                  {"of_10_KB", "\"" + std::string(10'240, 'x') + "\""}})});
}

std::vector<Field> outputs() {
  return joined(
      {values_of(
           "logprobs", At::completions,
           {{"negative", "-1"}, {"above_20", "21"}, {"with_a_fraction", "1.5"}, {"text", "\"a\""}}),
       values_of("logprobs", At::chat, {{"number", "5"}}),
       {{"top_logprobs_negative", At::chat, R"("logprobs":true,"top_logprobs":-1)", "top_logprobs"},
        {"top_logprobs_above_20", At::chat, R"("logprobs":true,"top_logprobs":21)", "top_logprobs"},
        {"stream_options_without_stream", At::both, R"("stream_options":{"include_usage":true})",
         "stream_options"},
        {"stream_options_number", At::both, R"("stream":true,"stream_options":7)",
         "stream_options"},
        {"stream_options_unknown", At::both, R"("stream":true,"stream_options":{"strange":1})"}},
       values_of("top_logprobs", At::chat, {{"without_logprobs", "2"}}),
       values_of("top_logprobs", At::chat, {{"zero_without_logprobs", "0"}}, true),
       values_of("stream", At::both, {{"text", R"("yes")"}})});
}

std::string tool(const std::string& name, const std::string& parameters = "{}") {
  return R"({"type":"function","function":{"name":")" + name + R"(","parameters":)" + parameters +
         "}}";
}

std::vector<Field> tools() {
  const auto refused = [](const char* name, const std::string& tools, const std::string& param) {
    return Field{name, At::chat, "\"tools\":" + tools, param};
  };
  std::string many = "[";
  for (int i = 0; i < 1000; ++i) many += (i == 0 ? "" : ",") + tool("t" + std::to_string(i));
  return joined({{refused("tools_number", "7", "tools"),
                  refused("tools_list_of_a_number", "[7]", "tools[0]"),
                  refused("tools_name_with_a_space", "[" + tool("with space") + "]",
                          "tools[0].function.name"),
                  refused("tools_name_of_65", "[" + tool(std::string(65, 'x')) + "]",
                          "tools[0].function.name"),
                  refused("tools_parameters_number", "[" + tool("a", "7") + "]",
                          "tools[0].function.parameters"),
                  refused("tools_strict_string",
                          R"([{"type":"function","function":{"name":"a","strict":"true"}}])",
                          "tools[0].function.strict"),
                  refused("tools_same_name", "[" + tool("a") + "," + tool("a") + "]",
                          "tools[1].function.name"),
                  refused("tools_1000", many + "]", "tools"),
                  {"tool_choice_of_no_tool", At::chat,
                   "\"tools\":[" + tool("a") +
                       R"(],"tool_choice":{"type":"function","function":{"name":"b"}})",
                   "tool_choice"},
                  // Clients shorten histories: a result without its call is still accepted.
                  {"tool_message_without_its_call", At::chat,
                   R"("messages":[{"role":"user","content":"a"},)"
                   R"({"role":"tool","tool_call_id":"nobody","content":"7"}])"}},
                 values_of("tool_choice", At::chat,
                           {{"required_without_tools", R"("required")"},
                            {"unknown", R"("perhaps")"},
                            {"number", "7"}})});
}

std::string schema_format(const std::string& schema) {
  return R"("response_format":{"type":"json_schema","json_schema":{"name":"s","schema":)" + schema +
         "}}";
}

std::vector<Field> formats() {
  const std::string field = "response_format";
  std::string many = R"({"enum":[)";
  for (int i = 0; i < 70'000; ++i) many += (i > 0 ? ",\"v" : "\"v") + std::to_string(i) + '"';
  return joined(
      {values_of(field, At::both, {{"unknown", R"({"type":"strange"})"}, {"number", "7"}}),
       values_of(field, At::both,
                 {{"without_a_schema", R"({"type":"json_schema"})"},
                  {"schema_number", R"({"type":"json_schema","json_schema":{"schema":7}})"}},
                 false, "unsupported_schema"),
       values_of(
           field, At::both,
           {{"tag_without_a_format", R"({"type":"structural_tag"})"},
            {"tag_of_a_token", R"({"type":"structural_tag","format":{"type":"token","token":5}})"}},
           false, "invalid_grammar"),
       {{"structural_tag_half", At::both, R"("structured_outputs":{"structural_tag":"{"})",
         "structured_outputs.structural_tag", "invalid_grammar"},
        {"structural_tag_number", At::both, R"("structured_outputs":{"structural_tag":7})",
         "structured_outputs.structural_tag"},
        {"schema_of_70000_values", At::both, schema_format(many + "]}"), field,
         "grammar_too_complex"},
        {"schema_of_endless_references", At::both,
         schema_format(
             R"({"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"})"),
         field, "unsatisfiable_schema"},
        {"schema_of_an_empty_range", At::both,
         schema_format(R"({"type":"integer","minimum":5,"maximum":4})"), field,
         "unsatisfiable_schema"},
        {"schema_of_values_of_another_type", At::both,
         schema_format(R"({"type":"string","enum":[1,2]})"), field, "unsatisfiable_schema"},
        {"schema_that_requires_what_it_excludes", At::both,
         schema_format(R"({"properties":{},"required":["a"],"additionalProperties":false})"), field,
         "unsatisfiable_schema"},
        // Patterns on which backtracking engines hang are cheap for an automaton with counters.
        {"pattern_of_nested_repetitions", At::both,
         schema_format(R"({"type":"string","pattern":"^(a+)+$"})")}}});
}

std::vector<Field> without_effect() {
  const std::string unsupported = "unsupported_parameter";
  return joined({values_of("use_beam_search", At::both, {{"on", "true"}}, false, unsupported),
                 values_of("chat_template", At::both, {{"of_the_client", R"("{{ 1 }}")"}}, false,
                           unsupported),
                 values_of("chat_template_kwargs", At::chat, {{"unknown", R"({"strange":1})"}},
                           false, unsupported),
                 values_of("chat_template_kwargs", At::chat, {{"number", "7"}}),
                 values_of("prompt_embeds", At::both, {{"text", R"("AAAA")"}}, false, unsupported),
                 values_of("suffix", At::both, {{"text", R"("x")"}}, false, unsupported),
                 values_of("length_penalty", At::both, {{"above_one", "1.5"}}, false, unsupported),
                 values_of("suffix", At::both, {{"empty", R"("")"}}, true),
                 values_of("length_penalty", At::both, {{"one", "1.0"}}, true),
                 values_of("typical_p", At::both, {{"one", "1"}}, true),
                 values_of("documents", At::both, {{"none", "[]"}}, true),
                 values_of("use_beam_search", At::both, {{"off", "false"}}, true)});
}

class BadField : public testing::TestWithParam<Field> {};

TEST_P(BadField, IsNamedOrAccepted) {
  const Field& one = GetParam();
  for (const Api api : kBoth) {
    if (one.at != At::both && (one.at == At::chat) != (api == Api::chat)) continue;
    if (!one.param.empty()) {
      refuse(api, one.members, 400, one.param, one.code);
      continue;
    }
    const Reply reply = post(shared_server().port(), path_of(api), body_with(api, one.members));
    EXPECT_EQ(reply.status, 200) << reply.body;
    expect_alive(api);
  }
}

std::string name_of(const testing::TestParamInfo<Field>& one) {
  return one.param.name;
}

INSTANTIATE_TEST_SUITE_P(Length, BadField, testing::ValuesIn(lengths()), name_of);
INSTANTIATE_TEST_SUITE_P(Sampling, BadField, testing::ValuesIn(sampling()), name_of);
INSTANTIATE_TEST_SUITE_P(Stop, BadField, testing::ValuesIn(choices_and_stops()), name_of);
INSTANTIATE_TEST_SUITE_P(Output, BadField, testing::ValuesIn(outputs()), name_of);
INSTANTIATE_TEST_SUITE_P(Tool, BadField, testing::ValuesIn(tools()), name_of);
INSTANTIATE_TEST_SUITE_P(Format, BadField, testing::ValuesIn(formats()), name_of);
INSTANTIATE_TEST_SUITE_P(WithoutEffect, BadField, testing::ValuesIn(without_effect()), name_of);

/// What the JSON parser refuses: an error without a field.
TEST(BadInput, RefusesWhatIsNoJsonOfAField) {
  for (const Api api : kBoth)
    for (const char* literal : {"NaN", "Infinity", "-Infinity"})
      refuse_body(api, std::string(R"({"model":"tiny","temperature":)") + literal + "}", 400, "",
                  "invalid_json");
  refuse_both(R"("temperature":1e400)", "temperature");
  // More keys than an object may have.
  std::string many = R"({"model":"tiny","logit_bias":{)";
  for (int i = 0; i < 100'000; ++i) many += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":1";
  // 30,000 levels.
  std::string deep;
  for (int i = 0; i < 30'000; ++i) deep += R"({"type":"array","items":)";
  deep += "{}" + std::string(30'000, '}');
  for (const Api api : kBoth) {
    refuse_body(api, many + "}}", 400, "", "invalid_json");
    refuse_body(api, R"({"model":"tiny",)" + schema_format(deep) + "}", 400, "", "invalid_json");
  }
}

/// Whether counting to a billion fits into the time limit depends on the machine.
TEST(BadInput, EndsAPatternThatCountsToABillion) {
  for (const Api api : kBoth) {
    const Reply reply = post(
        shared_server().port(), path_of(api),
        body_with(api, schema_format(
                           R"({"type":"string","pattern":"^((a{1,1000}){1,1000}){1,1000}$"})")));
    EXPECT_TRUE(reply.status == 200 || text_at(reply.json(), "error.code") == "grammar_too_complex")
        << reply.body;
    expect_alive(api);
  }
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
                                      R"("thinking":{"type":null,"clear_thinking":true})"))
                .status,
            200);
}

}  // namespace
}  // namespace koho::server
