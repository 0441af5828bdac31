// SPDX-License-Identifier: Apache-2.0
// `koho batch` on OpenAI's batch format.
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "batch_command.h"

namespace koho::testing {
namespace {

using chat::Json;

/// A line of OpenAI's batch format.
std::string openai_line(const std::string& custom_id,
                        const std::string& body,
                        const std::string& url = "/v1/chat/completions") {
  return R"({"custom_id":")" + custom_id + R"(","method":"POST","url":")" + url + R"(","body":)" +
         body + "}\n";
}

std::string france(const std::string& more = "") {
  return R"({"model":"gpt-4o","messages":[{"role":"user","content":"What is the capital of France?"}],)"
         R"("enable_thinking":false,"temperature":0)" +
         more + "}";
}

TEST_F(BatchCommand, AnswersLinesOfOpenAiBesideItsOwn) {
  write("in", openai_line("chat", france()) +
                  R"({"id":"own","prompt":"Once","max_tokens":2})"
                  "\n" +
                  openai_line("text", R"({"prompt":"Once upon a time","temperature":0})",
                              "/v1/completions") +
                  openai_line("response",
                              R"({"input":"What is the capital of France?","temperature":0,)"
                              R"("reasoning":{"effort":"none"}})",
                              "/v1/responses"));
  const Ran ran = shell("koho in answers --max-tokens 40");
  ASSERT_EQ(ran.exit_code, 0) << ran.errors;
  EXPECT_NE(ran.errors.find("4 answered, 0 refused"), std::string::npos) << ran.errors;
  const auto found = answers("answers");
  ASSERT_EQ(found.size(), 4U);
  const Json& chat = found.find("\"batch_req_1\"")->second;
  EXPECT_EQ(text_of(chat.find("custom_id")), "chat");
  EXPECT_TRUE(chat.find("error")->is_null());
  const Json& response = *chat.find("response");
  EXPECT_EQ(text_of(response.find("status_code")), "200");
  EXPECT_FALSE(text_of(response.find("request_id")).empty());
  const Json& body = *response.find("body");
  EXPECT_EQ(text_of(body.find("object")), "chat.completion");
  EXPECT_EQ(text_of(body.find("choices")->items[0].find("message")->find("content")),
            "The capital of France is Paris.");
  EXPECT_EQ(text_of(found.find("\"own\"")->second.find("finish_reason")), "length");
  const Json& text = *found.find("\"batch_req_3\"")->second.find("response")->find("body");
  EXPECT_EQ(text_of(text.find("usage")->find("completion_tokens")), "40") << "--max-tokens";
  const Json& last = *found.find("\"batch_req_4\"")->second.find("response")->find("body");
  EXPECT_EQ(text_of(last.find("object")), "response");
  EXPECT_NE(chat::dump_json(last).find("Paris"), std::string::npos);
}

TEST_F(BatchCommand, ABadLineOfOpenAiIsAnErrorLineAndResumesAsTheOthers) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"{\"custom_id\":\"torn\",\"method\":\"POST\"\n", "invalid_json_line"},
      {"not JSON\n", "invalid_json_line"},
      {R"({"custom_id":7,"method":"POST","url":"/v1/completions","body":{}})"
       "\n",
       "invalid_type"},
      {R"({"method":"POST","url":"/v1/completions","body":{}})"
       "\n",
       "missing_required_parameter"},
      {R"({"custom_id":"get","method":"GET","url":"/v1/completions","body":{}})"
       "\n",
       "invalid_method"},
      {openai_line("url", "{}", "/v1/embeddings"), "invalid_url"},
      {openai_line("body", "[]"), "invalid_type"},
      {openai_line("good", france()), "duplicate_custom_id"},
      {std::string(9 << 20, 'x') + "\n", "invalid_json_line"},
  };
  std::string input = openai_line("good", france(R"(,"max_tokens":3)"));
  for (const auto& [line, code] : cases) input += line;
  input += openai_line("range", france(R"(,"top_p":7)"));
  input += openai_line("stream", france(R"(,"stream":true)"));
  input += openai_line("last {\\\"x\\\": 1} \\\\", france(R"(,"max_tokens":3,"n":2)"));
  write("in", input);
  const Ran ran = shell("koho in whole");
  ASSERT_EQ(ran.exit_code, 0) << ran.errors;
  const auto found = answers("whole");
  ASSERT_EQ(found.size(), cases.size() + 4);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Json& line = found.find("\"batch_req_" + std::to_string(i + 2) + "\"")->second;
    EXPECT_TRUE(line.find("response")->is_null()) << cases[i].first.substr(0, 80);
    EXPECT_EQ(text_of(line.find("error")->find("code")), cases[i].second)
        << cases[i].first.substr(0, 80);
  }
  const auto status = [&](std::size_t number) {
    const Json& line = found.find("\"batch_req_" + std::to_string(number) + "\"")->second;
    return text_of(line.find("response")->find("status_code"));
  };
  EXPECT_EQ(status(1), "200");
  EXPECT_EQ(status(cases.size() + 2), "400");
  EXPECT_EQ(status(cases.size() + 3), "400");
  EXPECT_EQ(status(cases.size() + 4), "200");
  const std::string whole = read("whole");
  ASSERT_EQ(shell("koho in whole").exit_code, 0);
  EXPECT_EQ(read("whole"), whole) << "there was nothing left to do";
  for (const std::size_t bytes : {std::size_t{3}, whole.size() / 2, whole.size() - 1}) {
    write("part", whole.substr(0, bytes));
    ASSERT_EQ(shell("koho in part").exit_code, 0);
    const auto again = answers("part");
    ASSERT_EQ(again.size(), found.size());
    for (const auto& [id, line] : found)
      EXPECT_EQ(text_of(again.find(id)->second.find("custom_id")), text_of(line.find("custom_id")));
  }
}

TEST_F(BatchCommand, AnAnswerAsDeepAsItsRequestIsReadAgain) {
  std::string schema = R"({"type":"string"})";
  for (int i = 0; i < 30; ++i) schema = R"({"type":"object","properties":{"a":)" + schema + "}}";
  write("in", openai_line("deep",
                          R"({"input":"Hi","max_output_tokens":3,"tools":[{"type":"function",)"
                          R"("name":"f","parameters":)" +
                              schema + "}]}",
                          "/v1/responses"));
  ASSERT_EQ(shell("bare in answers --context 2048").exit_code, 0) << read("err");
  const std::string before = read("answers");
  EXPECT_NE(before.find(R"("status_code":200)"), std::string::npos) << before;
  EXPECT_NE(before.find(R"("properties")"), std::string::npos) << "the answer repeats the tools";
  const Ran again = shell("bare in answers --context 2048");
  EXPECT_EQ(again.exit_code, 0) << again.errors;
  EXPECT_EQ(read("answers"), before);
}

}  // namespace
}  // namespace koho::testing
