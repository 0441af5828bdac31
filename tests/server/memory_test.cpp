// SPDX-License-Identifier: Apache-2.0
// What a body costs: four bytes of memory for each of its bytes, whatever it holds, and 1 GB for
// all bodies at once. Each case has a process of its own, whose peak the kernel tells.
#include <cstdio>
#include <fstream>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "client.h"
#include "serve_process.h"
#include "server/body_budget.h"
#include "tests/support/patience.h"
#include "tiny_server.h"

namespace koho::server {
namespace {

constexpr std::size_t kBodyBytes = 15'000'000;  // below the default limit
constexpr double kBytesAByte = 4.0;

/// VmRSS or VmHWM of a process, in bytes.
double memory_of(pid_t process, const std::string& name) {
  std::ifstream status("/proc/" + std::to_string(process) + "/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(name + ":")) return 1024.0 * std::stod(line.substr(name.size() + 1));
  ADD_FAILURE() << "no " << name;
  return 0.0;
}

/// Resets the peak of a process to what it has.
void forget_peak(pid_t process) {
  std::ofstream("/proc/" + std::to_string(process) + "/clear_refs") << "5";
}

struct Case {
  const char* name;
  const char* path;
  std::string (*body)();
  int status;
  int at_once = 1;
};

void PrintTo(const Case& one, std::ostream* out) {
  *out << one.name;
}

std::string repeated(std::string_view unit, std::size_t bytes = kBodyBytes) {
  std::string text;
  text.reserve(bytes + unit.size());
  while (text.size() < bytes) text += unit;
  return text;
}

std::string chat_of(const std::string& members) {
  return R"({"model":"tiny","messages":[{"role":"user","content":"hi"}],"max_tokens":1,)" +
         members + "}";
}

std::string message_of(const std::string& text) {
  return R"({"model":"tiny","messages":[{"role":"user","content":")" + text +
         R"("}],"max_tokens":1})";
}

std::string ignored_zeros() {
  return chat_of("\"x\":[" + repeated("0,") + "0]");
}

std::string ignored_objects() {
  return chat_of("\"x\":[" + repeated(R"({"a":[]},)") + "0]");
}

std::string tool_of_objects() {
  return chat_of(R"("tools":[{"type":"function","function":{"name":"f","parameters":{"enum":[)" +
                 repeated("{},") + "{}]}}}]");
}

std::string metadata_of_numbers() {
  return chat_of("\"logit_bias\":[" + repeated("1,") + "1]");
}

std::string long_text() {
  return message_of(repeated("The quick brown fox jumps. "));
}

std::string long_han_text() {
  return message_of(repeated("\xe6\xbc\xa2"));
}

std::string long_escaped_text() {
  return message_of(repeated(R"(\u6f22)"));
}

std::string completion_of_one_word() {
  return R"({"model":"tiny","max_tokens":1,"prompt":")" + repeated("\xe6\xbc\xa2") + R"("})";
}

std::string response_to_one_word() {
  return R"({"model":"tiny","max_output_tokens":16,"input":")" + repeated("\xe6\xbc\xa2") + R"("})";
}

std::string prompt_ids() {
  return R"({"model":"tiny","max_tokens":1,"prompt":[)" + repeated("17,") + "1]}";
}

/// A history with a tool call whose arguments are "{\"a\":[UNIT UNIT …".
std::string arguments_of(std::string_view unit) {
  return R"({"model":"tiny","max_tokens":1,"messages":[{"role":"user","content":"a"},)"
         R"({"role":"assistant","tool_calls":[{"id":"a","type":"function","function":{"name":"f",)"
         R"("arguments":"{\"a\":[)" +
         repeated(unit) + R"("}}]}]})";
}

std::string arguments_of_zeros() {
  return arguments_of("0,");
}

std::string arguments_of_brackets() {
  return arguments_of("[");
}

std::string many_messages() {
  const std::string one = R"({"role":"user","content":"a"})";
  return R"({"model":"tiny","max_tokens":1,"messages":[)" + repeated(one + ",") + one + "]}";
}

constexpr const char* kChat = "/v1/chat/completions";

const Case kCases[] = {
    {"ignored_zeros", kChat, ignored_zeros, 200},
    {"ignored_zeros_four_times", kChat, ignored_zeros, 200, 4},
    {"ignored_objects", kChat, ignored_objects, 200},
    {"tool_of_5_million_objects", kChat, tool_of_objects, 413},
    {"field_of_the_wrong_kind", kChat, metadata_of_numbers, 413},
    {"long_text", kChat, long_text, 400},
    {"long_text_four_times", kChat, long_text, 400, 4},
    // A text without blanks is one word to the tokenizer, which merges it in windows.
    {"one_word_of_han", kChat, long_han_text, 400},
    {"one_word_with_escapes", kChat, long_escaped_text, 400},
    {"completion_of_one_word", "/v1/completions", completion_of_one_word, 400},
    {"message_of_one_word", "/v1/messages", long_han_text, 400},
    {"response_to_one_word", "/v1/responses", response_to_one_word, 400},
    {"prompt_of_token_ids", "/v1/completions", prompt_ids, 400},
    {"arguments_of_zeros", kChat, arguments_of_zeros, 400},
    {"arguments_of_brackets", kChat, arguments_of_brackets, 400},
    {"messages_beyond_number", kChat, many_messages, 413},
};

class Memory : public ::testing::TestWithParam<Case> {};

TEST_P(Memory, IsInProportionToTheBody) {
  const Case& one = GetParam();
  Process server(serving());
  const std::uint16_t port = server.ready_port();
  ASSERT_NE(port, 0) << server.output();
  // The first request allocates what all share.
  for (const char* path : {kChat, "/v1/completions"})
    post(port, path,
         R"({"model":"tiny","prompt":"a","messages":[{"role":"user","content":"hi"}],)"
         R"("max_tokens":1})");
  const std::string body = one.body();
  const double before = memory_of(server.pid(), "VmRSS");
  forget_peak(server.pid());
  const double cpu_before = server.cpu_s();
  std::vector<std::thread> clients;
  for (int i = 0; i < one.at_once; ++i)
    clients.emplace_back([&] { EXPECT_EQ(post(port, one.path, body).status, one.status); });
  for (std::thread& client : clients) client.join();
  const double peak = memory_of(server.pid(), "VmHWM") - before;
  const double bytes = static_cast<double>(body.size()) * one.at_once;
  std::printf("%s: %d of %.1f MB, peak %.1f MB (%.2f bytes a byte), %.2f s of CPU time\n", one.name,
              one.at_once, static_cast<double>(body.size()) / 1e6, peak / 1e6, peak / bytes,
              server.cpu_s() - cpu_before);
  EXPECT_LE(peak, kBytesAByte * bytes);
  EXPECT_EQ(get(port, "/health").status, 200);
}

INSTANTIATE_TEST_SUITE_P(Bodies,
                         Memory,
                         ::testing::ValuesIn(kCases),
                         [](const ::testing::TestParamInfo<Case>& one) { return one.param.name; });

TEST(BodyBudget, KeepsRoomForSmallBodies) {
  BodyBudget budget(8'000'000);
  BodyShare first(budget, 1);
  BodyShare second(budget, 2);
  EXPECT_FALSE(first.grow(5'300'000)) << "three quarters of what is not for small bodies";
  EXPECT_TRUE(first.grow(5'200'000));
  EXPECT_FALSE(budget.is_scarce());
  EXPECT_FALSE(second.grow(1'400'000)) << "more than three times what would be left";
  EXPECT_TRUE(second.grow(1'300'000));
  BodyShare third(budget, 3);
  EXPECT_FALSE(third.grow(400'000)) << "the last eighth is for small bodies";
  EXPECT_TRUE(third.grow(370'000));
  EXPECT_TRUE(budget.is_scarce());
  BodyShare small(budget, 4);
  EXPECT_TRUE(small.grow(200'000));
  EXPECT_TRUE(small.grow(250'000));
  EXPECT_FALSE(small.grow(450'000)) << "it is no small body any more";
  first.resize(1'000);
  EXPECT_TRUE(small.grow(450'000));
  BodyShare moved = std::move(small);
  EXPECT_EQ(budget.bytes(), 1'000U + 1'300'000U + 370'000U + 450'000U);
  moved = BodyShare(budget);
  EXPECT_EQ(budget.bytes(), 1'671'000U);
  first.hold(9'000'000);
  EXPECT_TRUE(budget.is_used_up(1));
  EXPECT_FALSE(budget.is_used_up(5)) << "it holds nothing";
}

TEST(BodyBudget, RefusesBodiesBeyondItWith503AndServesTheOthers) {
  TinyServer server([](ServerSettings& settings) {
    settings.http.body_bytes = 4'000'000;
    settings.bodies_bytes_max = 1;  // the least budget: four bodies
  });
  const std::string head =
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Content-Length: 4000000\r\n\r\n";
  std::vector<std::unique_ptr<Client>> clients;
  for (const char* from :
       {"127.0.0.1", "127.0.0.2", "127.0.0.3"}) {  // large bodies may use seven eighths of it
    clients.push_back(std::make_unique<Client>(server.port(), from));
    ASSERT_TRUE(clients.back()->send(head + std::string(3'500'000, ' ')));
  }
  BodyBudget& budget = server.server().core().bodies();
  ASSERT_TRUE(koho::testing::comes_true([&] { return budget.bytes() >= 11'000'000; }));
  Client late(server.port(), "127.0.0.4");
  late.send(head + std::string(3'500'000, ' '));
  const std::optional<Reply> refused = late.read_reply();
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 503);
  EXPECT_EQ(refused->fields.at("retry-after"), "1");
  EXPECT_TRUE(late.sees_end());
  EXPECT_EQ(
      post(server.port(), "/v1/completions", R"({"model":"tiny","prompt":"hi","max_tokens":1})")
          .status,
      200);
  clients.clear();
  EXPECT_TRUE(koho::testing::comes_true([&] { return budget.bytes() == 0; }));
}

}  // namespace
}  // namespace koho::server
