// SPDX-License-Identifier: Apache-2.0
// What one client's grammars cost another: clients differ by their addresses, and the test decides
// how long a hard grammar takes.
#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "client.h"
#include "server/client_address.h"
#include "server/work_pool.h"
#include "tests/support/patience.h"
#include "tiny_server.h"

namespace koho::server {
namespace {

using koho::testing::comes_true;

constexpr const char* kOther = "127.0.0.2";

std::uint64_t loopback() {
  constexpr std::uint8_t kAddress[] = {127, 0, 0, 1};
  return client_of_address(kAddress);
}

std::string body_of(const std::string& regex) {
  return R"({"model":"tiny","prompt":[5],"max_tokens":2,"structured_outputs":{"regex":")" + regex +
         "\"}}";
}

std::string request_of(const std::string& regex) {
  const std::string body = body_of(regex);
  return fmt::format(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Content-Length: {}\r\n\r\n{}",
      body.size(), body);
}

/// A compiler whose hard grammars, those that begin with "hard", take until release().
class HeldCompiler {
 public:
  explicit HeldCompiler(ServedModel& serving) {
    serving.compile_grammar = [counts = counts_, released = release_.get_future().share(),
                               real = serving.compile_grammar](const Constraint& asked) {
      ++counts->begun;
      if (asked.text.starts_with("hard")) {
        ++counts->hard_begun;
        released.wait();
      }
      return real(asked);
    };
  }
  ~HeldCompiler() { release(); }
  void release() {
    if (!std::exchange(is_released_, true)) release_.set_value();
  }
  int begun() const { return counts_->begun; }
  int hard_begun() const { return counts_->hard_begun; }

 private:
  /// The pool's threads may outlive this object.
  struct Counts {
    std::atomic<int> begun{0};
    std::atomic<int> hard_begun{0};
  };
  std::shared_ptr<Counts> counts_ = std::make_shared<Counts>();
  std::promise<void> release_;
  bool is_released_ = false;
};

/// Many hard grammars of 127.0.0.1, one of which is being compiled. `name`: of the test, whose
/// grammars no other test has compiled.
std::vector<std::unique_ptr<Client>> send_hard(TinyServer& server,
                                               const HeldCompiler& compiler,
                                               std::string_view name) {
  constexpr int kHard = 6;
  std::vector<std::unique_ptr<Client>> many;
  for (int i = 0; i < kHard; ++i) {
    many.push_back(std::make_unique<Client>(server.port(), "127.0.0.1"));
    EXPECT_TRUE(many.back()->send(request_of(fmt::format("hard {} {}", name, i))));
  }
  EXPECT_TRUE(comes_true(
      [&] { return server.counters().requests_live == kHard && compiler.hard_begun() > 0; }));
  return many;
}

class HandClock final : public Clock {
 public:
  std::int64_t now_us() const override { return now_us_; }
  void pass_us(std::int64_t us) { now_us_ += us; }

 private:
  std::atomic<std::int64_t> now_us_{1};
};

TEST(GrammarTurns, WorkOfAnotherClientIsNextAfterWhatRuns) {
  constexpr std::uint64_t kMany = 1;
  constexpr std::uint64_t kBusy = 2;
  HandClock clock;
  std::promise<void> begin;
  std::promise<void> end;
  std::atomic<int> done{0};
  std::string order;  // the pool does one thing at a time: nobody used little
  WorkPool pool(1, 100, clock);
  for (const std::uint64_t client : {kMany, kBusy})
    ASSERT_TRUE(pool.submit(client, [&] {
      clock.pass_us(1'000'000);
      ++done;
    }));
  ASSERT_TRUE(comes_true([&] { return done == 2; }));
  ASSERT_TRUE(pool.submit(kMany, [&] {
    begin.set_value();
    end.get_future().wait();
  }));
  begin.get_future().wait();
  const auto submit = [&](std::uint64_t client, char letter) {
    ASSERT_TRUE(pool.submit(client, [&order, &done, letter] {
      order += letter;
      ++done;
    }));
  };
  for (const char letter : {'a', 'b', 'c'}) submit(kMany, letter);
  for (const char letter : {'x', 'y'}) submit(kBusy, letter);
  end.set_value();
  ASSERT_TRUE(comes_true([&] { return done == 7; }));
  EXPECT_EQ(order, "xaybc");
}

TEST(GrammarTurns, HardGrammarsOfOneAddressDoNotKeepAnotherWaiting) {
  TinyServer server([](ServerSettings& settings) { settings.text_threads = 4; });
  HeldCompiler compiler(server.serving());
  const std::vector<std::unique_ptr<Client>> many = send_hard(server, compiler, "address");
  for (const char* small : {"small{2}", "small{3}"}) {
    Client other(server.port(), kOther);
    const std::optional<Reply> reply = other.post("/v1/completions", body_of(small));
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, 200) << reply->body;
  }
  EXPECT_EQ(compiler.hard_begun(), 1) << "one client has one compilation at a time";
  compiler.release();
  for (const std::unique_ptr<Client>& client : many) {
    const std::optional<Reply> reply = client->read_reply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, 200) << reply->body;
  }
  EXPECT_TRUE(server.becomes_idle());
}

TEST(GrammarTurns, HardGrammarsHoldNoLargeBody) {
  TinyServer server([](ServerSettings& settings) { settings.text_threads = 1; });
  HeldCompiler compiler(server.serving());
  const std::vector<std::unique_ptr<Client>> many = send_hard(server, compiler, "body");
  const std::string large = R"({"prompt":")" + std::string(5000, 'x') + "\"}";
  EXPECT_EQ(post(server.port(), "/tokenize", large).status, 200) << "the same client's";
  EXPECT_EQ(compiler.hard_begun(), 1);
}

TEST(GrammarTurns, WhatTheCacheHasDoesNotWait) {
  TinyServer server;
  HeldCompiler compiler(server.serving());
  ASSERT_EQ(post(server.port(), "/v1/completions", body_of("known{5}")).status, 200);
  const int begun = compiler.begun();
  const std::vector<std::unique_ptr<Client>> many = send_hard(server, compiler, "cache");
  EXPECT_EQ(post(server.port(), "/v1/completions", body_of("known{5}")).status, 200);
  EXPECT_EQ(compiler.begun(), begun + 1);
}

TEST(GrammarTurns, AListOfPromptsIsOneCompilation) {
  TinyServer server;
  HeldCompiler compiler(server.serving());
  const std::string list =
      R"({"model":"tiny","prompt":[[5],[6],[7]],"max_tokens":2,"structured_outputs":{"regex":"list{4}"}})";
  EXPECT_EQ(post(server.port(), "/v1/completions", list).status, 200);
  EXPECT_EQ(compiler.begun(), 1);
}

TEST(GrammarTurns, WhoHasAsManyWaitingAsAreLeftIsRefused) {
  TinyServer server;
  HeldCompiler compiler(server.serving());
  const std::vector<std::unique_ptr<Client>> many = send_hard(server, compiler, "refused");
  WorkPool& pool = server.server().core().grammar_pool();
  for (int i = 0; i < 10'000 && pool.submit(loopback(), [] {}); ++i) {
  }
  const Reply refused = post(server.port(), "/v1/completions", body_of("more{1}"));
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.fields.at("retry-after"), "1");
  EXPECT_NE(refused.body.find("too many grammars wait to be compiled"), std::string::npos)
      << refused.body;
  Client other(server.port(), kOther);
  EXPECT_EQ(other.post("/v1/completions", body_of("more{2}"))->status, 200);
  compiler.release();
  EXPECT_TRUE(comes_true(
      [&] { return post(server.port(), "/v1/completions", body_of("more{3}")).status == 200; }));
}

}  // namespace
}  // namespace koho::server
