// SPDX-License-Identifier: Apache-2.0
// `koho batch` as a process: output, errors, exit codes, resuming.
#include "batch_command.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <sys/wait.h>
#include <vector>

#include <gtest/gtest.h>

namespace koho::testing {
namespace {

TEST_F(BatchCommand, AnswersChatsTextAndIds) {
  write(
      "in",
      R"({"id":"chat","messages":[{"role":"user","content":"What is the capital of France?"}],"enable_thinking":false,"temperature":0}
{"id":7,"prompt":"Once upon a time","max_tokens":5,"temperature":0}

{"id":"ids","prompt_ids":[10,20,30],"max_tokens":3,"temperature":0,"logprobs":2,"ignore_eos":true}
{"id":"three","prompt":"Once","max_tokens":4,"n":3,"seed":5}
{"id":"none","prompt":"Once","max_tokens":0}
)");
  const Ran ran = shell("koho in answers");
  ASSERT_EQ(ran.exit_code, 0) << ran.errors;
  const auto found = answers("answers");
  ASSERT_EQ(found.size(), 5U);
  const Json& chat = found.find("\"chat\"")->second;
  EXPECT_EQ(text_of(chat.find("text")), "The capital of France is Paris.");
  EXPECT_EQ(text_of(chat.find("finish_reason")), "stop");
  const Json& seven = found.find("7")->second;
  EXPECT_EQ(seven.find("ids")->items.size(), 5U);
  EXPECT_EQ(text_of(seven.find("finish_reason")), "length");
  EXPECT_EQ(seven.find("logprobs"), nullptr);
  const Json& usage = *seven.find("usage");
  EXPECT_EQ(text_of(usage.find("completion_tokens")), "5");
  EXPECT_GT(std::stoi(text_of(usage.find("prompt_tokens"))), 0);
  EXPECT_GT(std::stod(text_of(seven.find("timings")->find("total_ms"))), 0.0);
  const Json& ids = found.find("\"ids\"")->second;
  EXPECT_EQ(text_of(ids.find("usage")->find("prompt_tokens")), "3");
  ASSERT_EQ(ids.find("logprobs")->items.size(), 3U);
  const Json& first = ids.find("logprobs")->items[0];
  EXPECT_LE(std::stod(text_of(first.find("logprob"))), 0.0);
  ASSERT_EQ(first.find("top")->items.size(), 2U);
  EXPECT_EQ(text_of(&first.find("top")->items[0].items[0]), text_of(&ids.find("ids")->items[0]))
      << "greedy takes the likeliest";
  EXPECT_EQ(found.find("\"three\"")->second.find("choices")->items.size(), 3U);
  EXPECT_EQ(found.find("\"none\"")->second.find("ids")->items.size(), 0U);
  EXPECT_NE(ran.errors.find("5 answered, 0 refused"), std::string::npos) << ran.errors;
}

/// A line that is refused: its id in the answer, and a part of the error.
struct BadLine {
  std::string line;
  std::string id;
  std::string says;
};

std::vector<BadLine> bad_lines() {
  std::string deep(200, '[');
  std::string long_prompt = "[1";
  for (int i = 0; i < 600; ++i) long_prompt += ",1";
  return {
      {"{\"id\":\"torn\"", "null", "JSON"},
      {"\xff\xfe", "null", ""},
      {"{\"id\":\"u\",\"prompt\":\"\xc3\x28\"}", "null", ""},
      {"[]", "null", "object"},
      {deep, "null", ""},
      {R"({"prompt":"x"})", "null", "id is missing"},
      {R"({"id":1.5,"prompt":"x"})", "null", "id must be"},
      {R"({"id":"p0"})", "\"p0\"", "one of prompt_ids, prompt and messages"},
      {R"({"id":"p2","prompt":"x","prompt_ids":[1]})", "\"p2\"", "found 2"},
      {R"({"id":"empty","prompt_ids":[]})", "\"empty\"", "empty"},
      {R"({"id":"blank","prompt":""})", "\"blank\"", "empty"},
      {R"({"id":"big","prompt_ids":[4096]})", "\"big\"", "4096"},
      {R"({"id":"neg","prompt_ids":[-1]})", "\"neg\"", "-1"},
      {R"({"id":"frac","prompt_ids":[1.0]})", "\"frac\"", "not a token id"},
      {R"({"id":"kind","prompt":3})", "\"kind\"", "prompt must be a string"},
      {R"({"id":"role","messages":[{"role":"king","content":"x"}]})", "\"role\"", "king"},
      {R"({"id":"msg","messages":"x"})", "\"msg\"", "messages"},
      {R"({"id":"none","messages":[]})", "\"none\"", "messages must not be empty"},
      {R"({"id":"think","prompt":"x","enable_thinking":false})", "\"think\"", "needs messages"},
      {R"({"id":"long","prompt_ids":)" + long_prompt + "]}", "\"long\"", "512"},
      {R"({"id":"sum","prompt":"x","max_tokens":512})", "\"sum\"", "512"},
      {R"({"id":"t","prompt":"x","temperature":2.5})", "\"t\"", "temperature"},
      {R"({"id":"ts","prompt":"x","temperature":"1"})", "\"ts\"", "temperature must be a number"},
      {R"({"id":"tp","prompt":"x","top_p":0})", "\"tp\"", "top_p"},
      {R"({"id":"mt","prompt":"x","max_tokens":-1})", "\"mt\"", "max_tokens"},
      {R"({"id":"mx","prompt":"x","max_tokens":99999999999})", "\"mx\"", "max_tokens"},
      {R"({"id":"mi","prompt":"x","max_tokens":2,"min_tokens":3})", "\"mi\"", "min_tokens"},
      {R"({"id":"lp","prompt":"x","logprobs":21})", "\"lp\"", "logprobs"},
      {R"({"id":"lb","prompt":"x","logit_bias":{"a":1}})", "\"lb\"", "logit_bias"},
      {R"({"id":"lc","prompt":"x","logit_bias":{"5":101}})", "\"lc\"", "logit_bias"},
      {R"({"id":"se","prompt":"x","seed":99999999999999999999})", "\"se\"", "64-bit integer"},
      {R"({"id":"st","prompt":"x","stop":[1]})", "\"st\"", "stop must be"},
      {R"({"id":"s0","prompt":"x","stop":""})", "\"s0\"", "stop"},
      {R"({"id":"n","prompt":"x","n":0})", "\"n\"", "n must be"},
      {R"({"id":"pr","prompt":"x","priority":8})", "\"pr\"", "priority"},
      {R"({"id":"ie","prompt":"x","ignore_eos":1})", "\"ie\"", "ignore_eos must be"},
      {R"({"id":"twice","prompt":"x","prompt":"y"})", "null", "duplicate key \"prompt\""},
  };
}

TEST_F(BatchCommand, ABadLineIsRefusedAlone) {
  const std::vector<BadLine> cases = bad_lines();
  std::string input;
  for (const BadLine& bad : cases) {
    input += bad.line + "\n";
    input += R"({"id":)" + std::to_string(input.size()) +
             R"(,"prompt":"Once","max_tokens":1})"
             "\n";
  }
  input += R"({"id":"same","prompt":"Once","max_tokens":1,"magic":1,"magick":{}})"
           "\n";
  input += R"({"id":"same","prompt":"Twice","max_tokens":1,"magic":1})"
           "\n";
  write("in", input);
  const Ran ran = shell("koho in answers");
  EXPECT_EQ(ran.exit_code, 0) << ran.errors;
  const auto found = answers("answers");
  EXPECT_EQ(found.size(), 2 * cases.size() + 2);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const std::string number = std::to_string(2 * i + 1);
    const auto line = std::ranges::find_if(found, [&](const auto& entry) {
      return entry.second.find("error") != nullptr && text_of(entry.second.find("line")) == number;
    });
    ASSERT_NE(line, found.end()) << cases[i].line;
    EXPECT_EQ(line->first, cases[i].id) << cases[i].line;
    EXPECT_NE(error_of(line->second).find(cases[i].says), std::string::npos)
        << cases[i].line << ": " << error_of(line->second);
  }
  EXPECT_EQ(found.count("\"same\""), 2U);
  EXPECT_NE(ran.errors.find("\\\"magic\\\" ignored in 2 lines"), std::string::npos) << ran.errors;
  EXPECT_NE(ran.errors.find("\\\"magick\\\" ignored in 1 lines"), std::string::npos) << ran.errors;
  // The same again: nothing is left to do.
  const std::string before = read("answers");
  const Ran again = shell("koho in answers");
  EXPECT_EQ(again.exit_code, 0) << again.errors;
  EXPECT_EQ(read("answers"), before);
}

TEST_F(BatchCommand, AnOverlongLineIsRefusedAlone) {
  write("in", R"({"id":1,"prompt":"Once","max_tokens":1})"
              "\n" +
                  std::string(9 << 20, 'x') + "\n" + R"({"id":2,"prompt":"Once","max_tokens":1})");
  const Ran ran = shell("koho in answers");
  EXPECT_EQ(ran.exit_code, 0) << ran.errors;
  const auto found = answers("answers");
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(text_of(found.find("null")->second.find("line")), "2");
  EXPECT_NE(error_of(found.find("null")->second).find("bytes"), std::string::npos);
}

TEST_F(BatchCommand, FlagsThatChangeSpeedChangeNothingElse) {
  write("in", requests(24));
  ASSERT_EQ(shell("koho in one --concurrency 1 --no-prefix-cache --threads 1").exit_code, 0);
  ASSERT_EQ(shell("koho in many --concurrency 16 --prefill-chunk 3").exit_code, 0);
  const auto one = answers("one");
  const auto many = answers("many");
  ASSERT_EQ(one.size(), 24U);
  ASSERT_EQ(many.size(), 24U);
  for (const auto& [id, answer] : one) {
    EXPECT_EQ(result_of(many.find(id)->second), result_of(answer)) << id;
    EXPECT_NE(answer.find("logprobs"), nullptr);
  }
}

TEST_F(BatchCommand, SplitOverRanksAnswersTheSameAloneTogetherAndPreempted) {
  std::string lines;
  for (int i = 0; i < 6; ++i) {
    lines += R"({"id":)" + std::to_string(i) + R"(,"max_tokens":80,"ignore_eos":true,"seed":1,)" +
             R"("logprobs":1,"temperature":)" + (i % 2 == 0 ? "0" : "0.9") +
             R"(,"prompt_ids":[300)";
    for (int t = 1; t < 60 + i; ++t) lines += "," + std::to_string(300 + (i + 7) * t % 900);
    lines += "]}\n";
  }
  write("in", lines);
  for (const std::string layout :
       {"--experts sliced --attention tp", "--experts whole --attention dp"}) {
    const std::string ranks = " --ranks 2 --context 256 --kv-pages 8 " + layout;
    const Ran single = shell("bare in alone --restart --concurrency 1 --no-prefix-cache" + ranks);
    ASSERT_EQ(single.exit_code, 0) << single.errors;
    const Ran batched = shell("bare in batched --restart --prefill-chunk 33" + ranks);
    ASSERT_EQ(batched.exit_code, 0) << batched.errors;
    const auto alone = answers("alone");
    const auto together = answers("batched");
    ASSERT_EQ(alone.size(), 6U);
    int preemptions = 0;
    for (const auto& [id, answer] : together) {
      EXPECT_EQ(result_of(answer), result_of(alone.find(id)->second)) << layout << ", " << id;
      preemptions += std::stoi(text_of(answer.find("timings")->find("preemptions")));
    }
    EXPECT_GT(preemptions, 0) << layout;

    const std::string whole = read("batched");
    write("batched", whole.substr(0, whole.size() / 2));
    const Ran rest = shell("bare in batched" + ranks);
    ASSERT_EQ(rest.exit_code, 0) << rest.errors;
    EXPECT_NE(rest.errors.find("resuming after"), std::string::npos) << rest.errors;
    for (const auto& [id, answer] : answers("batched"))
      EXPECT_EQ(result_of(answer), result_of(alone.find(id)->second)) << layout << ", " << id;
    EXPECT_EQ(answers("batched").size(), 6U);
  }
}

TEST_F(BatchCommand, GoesOnAfterATornLine) {
  write("in", requests(12) + "bad\n");
  ASSERT_EQ(shell("koho in whole").exit_code, 0);
  const std::string whole = read("whole");
  ASSERT_EQ(std::ranges::count(whole, '\n'), 13);
  // Cut at every kind of place: within a line, at its end, within the first line.
  std::size_t middle = 0;
  for (int line = 0; line < 5; ++line) middle = whole.find('\n', middle) + 1;
  for (const std::size_t bytes :
       {std::size_t{3}, middle, middle + 1, middle + 20, whole.size() - 1}) {
    write("part", whole.substr(0, bytes));
    const Ran ran = shell("koho in part");
    ASSERT_EQ(ran.exit_code, 0) << ran.errors;
    const auto found = answers("part");
    EXPECT_EQ(found.size(), 13U) << bytes;
    for (const auto& [id, answer] : answers("whole"))
      EXPECT_EQ(result_of(found.find(id)->second), result_of(answer)) << id;
    const std::size_t kept = whole.substr(0, bytes).rfind('\n');
    if (kept != std::string::npos) {
      EXPECT_EQ(read("part").substr(0, kept), whole.substr(0, kept));
    }
  }
}

TEST_F(BatchCommand, AnInterruptedRunEndsInOrderAndGoesOn) {
  std::string input = requests(400);
  write("in", input);
  const Ran ran = shell(
      "koho in answers --concurrency 4 & pid=$!; "
      "for i in $(seq 4800); do test -s answers && break; sleep 0.05; done; "
      "kill -INT $(cat /proc/$pid/task/$pid/children) $pid; wait $pid");
  ASSERT_EQ(ran.exit_code, 8) << ran.errors;
  EXPECT_NE(ran.errors.find("interrupted"), std::string::npos) << ran.errors;
  const std::size_t first = answers("answers").size();
  EXPECT_GT(first, 0U);
  EXPECT_LT(first, 400U);
  const Ran rest = shell("koho in answers");
  ASSERT_EQ(rest.exit_code, 0) << rest.errors;
  const auto found = answers("answers");
  EXPECT_EQ(found.size(), 400U);
  for (const auto& [id, answer] : found) EXPECT_EQ(answer.find("error"), nullptr) << id;
}

TEST_F(BatchCommand, StandardInputAndOutputStream) {
  // The second request is only sent when the first answer is there.
  const Ran ran = shell(
      "mkfifo requests; koho - - <requests >answers & exec 3>requests; "
      "echo \"{\\\"id\\\":1,\\\"prompt\\\":\\\"Once\\\",\\\"max_tokens\\\":2}\" >&3; "
      "for i in $(seq 4800); do test -s answers && break; sleep 0.05; done; wc -l <answers; "
      "echo \"{\\\"id\\\":2,\\\"prompt\\\":\\\"Once\\\",\\\"max_tokens\\\":2}\" >&3; exec 3>&-; "
      "wait $!");
  EXPECT_EQ(ran.exit_code, 0) << ran.errors;
  EXPECT_EQ(ran.output, "1\n");
  EXPECT_EQ(answers("answers").size(), 2U);
}

TEST_F(BatchCommand, AFullDiskIsAnError) {
  write("in", requests(3));
  const Ran ran = shell("koho in /dev/full");
  EXPECT_EQ(ran.exit_code, 10) << ran.errors;
  EXPECT_NE(ran.errors.find("No space left"), std::string::npos) << ran.errors;
  EXPECT_EQ(shell("ulimit -f 0; koho in answers").exit_code, 10);
}

TEST_F(BatchCommand, AStreamThatIsClosedIsNoOtherFile) {
  write("in", requests(3));
  for (const char* command : {"koho - answers <&-", "koho in - >&-"})
    EXPECT_EQ(shell(command).exit_code, 10) << command;
}

TEST_F(BatchCommand, TouchesNoFileOfSomebodyElse) {
  write("in", requests(1));
  for (const std::string foreign :
       {"precious", "precious\n", "{\"id\":1,\"mine\":2}\n", "{\"id\":1,\"mine\":2}"}) {
    write("other", foreign);
    const Ran ran = shell("koho in other");
    EXPECT_EQ(ran.exit_code, 4) << ran.errors;
    EXPECT_NE(ran.errors.find("no answer of koho batch"), std::string::npos) << ran.errors;
    EXPECT_EQ(read("other"), foreign);
  }
  EXPECT_EQ(shell("koho in other --restart").exit_code, 0);
  EXPECT_EQ(answers("other").size(), 1U);
}

TEST_F(BatchCommand, WrongUseIsOneClearError) {
  write("in", requests(1));
  struct Case {
    std::string arguments;
    int exit_code;
    std::string says;
  };
  for (const Case& wrong :
       {Case{"nowhere out1", 3, "nowhere"}, Case{"in", 2, "output"}, Case{"in . ", 10, "directory"},
        Case{"in out1 --concurrency 0", 2, "concurrency"}, Case{"in out1 --ranks 3", 5, "3"},
        Case{"in out1 --experts halved", 2, "experts"},
        Case{"in out1 --device abacus", 2, "abacus"}, Case{"in out2 --top-p 0", 2, "top_p"},
        Case{"in out2 --temperature nan", 2, "temperature"},
        Case{"in out2 --temperature 9", 2, "temperature"}, Case{"in out2 --min-p 2", 2, "min_p"},
        Case{"in out2 --stop-token-ids 4096", 2, "4096"}, Case{"in out2 --stop ''", 2, "stop"}}) {
    const Ran ran = shell("koho " + wrong.arguments);
    EXPECT_EQ(ran.exit_code, wrong.exit_code) << wrong.arguments << ran.errors;
    EXPECT_NE((ran.errors + ran.output).find(wrong.says), std::string::npos)
        << wrong.arguments << ": " << ran.errors;
  }
  EXPECT_FALSE(std::filesystem::exists(directory_.path() / "out2"));
}

TEST_F(BatchCommand, OnlyRefusalsAreAFailure) {
  write("in", R"({"id":1,"prompt_ids":[300,301],"max_tokens":40})");
  for (int run = 0; run < 2; ++run) {
    const Ran ran = shell("bare in answers --context 32");
    EXPECT_EQ(ran.exit_code, 2) << ran.errors;
    EXPECT_NE(ran.errors.find("every line was refused"), std::string::npos) << ran.errors;
    EXPECT_EQ(answers("answers").size(), 1U);
  }
  EXPECT_EQ(shell("bare in answers --restart --context 64").exit_code, 0);
}

}  // namespace
}  // namespace koho::testing
