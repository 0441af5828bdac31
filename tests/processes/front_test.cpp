// SPDX-License-Identifier: Apache-2.0
// `koho serve` with worker processes: what clients, operators and the system see when workers end,
// and what is left when the server itself is killed.
#include <chrono>
#include <csignal>
#include <thread>

#include <gtest/gtest.h>

#include "tests/processes/process_list.h"
#include "tests/server/client.h"
#include "tests/server/serve_process.h"
#include "tests/support/patience.h"

namespace koho::server {
namespace {

using testing::all_end;
using testing::children_of;

std::vector<std::string> with_workers(std::vector<std::string> more = {}) {
  more.insert(more.end(), {"--executor", "process", "--ranks", "2"});
  return serving(std::move(more));
}

std::string completion(int tokens) {
  return R"({"model":"tiny","prompt":"Once upon a time","temperature":0,"ignore_eos":true,)"
         R"("max_tokens":)" +
         std::to_string(tokens) + "}";
}

/// Waits until the server is ready again after `restarts` of its workers.
bool is_ready_after(std::uint16_t port, int restarts) {
  Reply reply;
  const bool came = testing::comes_true([&] {
    reply = get(port, "/readyz");
    return reply.status == 200 && text_at(reply.json(), "restarts") == std::to_string(restarts);
  });
  EXPECT_TRUE(came) << reply.status << " " << reply.body;
  return came;
}

/// Ends the server while its workers compute, or are stopped. How long a worker was there after it.
std::chrono::steady_clock::duration end_front(bool stopped) {
  Process process(with_workers());
  const std::uint16_t port = process.ready_port();
  EXPECT_NE(port, 0) << process.output();
  const std::vector<pid_t> workers = children_of(process.pid());
  EXPECT_EQ(workers.size(), 2U);
  std::thread client([&] { post(port, "/v1/completions", completion(1900)); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  if (stopped)
    for (const pid_t worker : workers) kill(worker, SIGSTOP);
  const auto begin = std::chrono::steady_clock::now();
  process.signal(SIGKILL);
  EXPECT_TRUE(testing::comes_true([&] { return all_end(workers); })) << "a worker is still there";
  const auto took = std::chrono::steady_clock::now() - begin;
  client.join();
  return took;
}

TEST(Front, AKilledServerLeavesNoWorkerWhateverThatDoes) {
  for (const bool stopped : {false, true}) {
    // Again where the machine had much else to do.
    bool in_time = false;
    for (int round = 0; round < 10 && !in_time; ++round)
      in_time = end_front(stopped) < std::chrono::seconds(1);
    EXPECT_TRUE(in_time) << "issue 26: workers outlive their front by less than a second";
  }
}

TEST(Front, EndsItsWorkersWhenItIsToldToEnd) {
  Process process(with_workers());
  ASSERT_NE(process.ready_port(), 0) << process.output();
  const std::vector<pid_t> workers = children_of(process.pid());
  ASSERT_EQ(workers.size(), 2U);
  // As Ctrl-C does: everybody gets it.
  for (const pid_t worker : workers) kill(worker, SIGINT);
  process.signal(SIGINT);
  EXPECT_EQ(process.wait(), 0) << process.output();
  EXPECT_TRUE(all_end(workers));
}

TEST(Front, AnswersAreWholeAcrossRestartsWhichHealthAndMetricsTell) {
  Process process(with_workers());
  const std::uint16_t port = process.ready_port();
  ASSERT_NE(port, 0) << process.output();
  const Reply before = post(port, "/v1/completions", completion(300));
  ASSERT_EQ(before.status, 200) << before.body;
  EXPECT_EQ(text_at(get(port, "/readyz").json(), "restarts"), "0");
  Reply during;
  std::thread client([&] { during = post(port, "/v1/completions", completion(300)); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const std::vector<pid_t> workers = children_of(process.pid());
  ASSERT_EQ(workers.size(), 2U);
  kill(workers[0], SIGKILL);
  client.join();
  ASSERT_EQ(during.status, 200) << during.body;
  EXPECT_EQ(text_at(during.json(), "choices.0.text"), text_at(before.json(), "choices.0.text"));
  ASSERT_TRUE(is_ready_after(port, 1));
  const std::string metrics = get(port, "/metrics").body;
  EXPECT_NE(metrics.find("koho_device_failures_total{model_name=\"tiny\",engine=\"0\"} 1"),
            std::string::npos);
  EXPECT_NE(metrics.find("koho_recoveries_total{model_name=\"tiny\",engine=\"0\"} 1"),
            std::string::npos);
  EXPECT_NE(process.output().find("was killed by signal 9"), std::string::npos);
}

TEST(Front, TooManyFailuresEndTheServerWithItsExitCode) {
  Process process(with_workers({"--max-device-failures", "2"}));
  const std::uint16_t port = process.ready_port();
  ASSERT_NE(port, 0) << process.output();
  for (int failure = 1; failure <= 3; ++failure) {
    const std::vector<pid_t> workers = children_of(process.pid());
    ASSERT_EQ(workers.size(), 2U);
    kill(workers[0], SIGKILL);
    if (failure == 3) break;
    ASSERT_TRUE(is_ready_after(port, failure));
  }
  EXPECT_EQ(process.wait(), 11) << process.output();
  EXPECT_NE(process.output().find("the engine has failed"), std::string::npos);
}

TEST(Front, CheckRefusesWhatTheStartRefuses) {
  const auto refusal = [](std::vector<std::string> flags, bool check) {
    if (check) flags.push_back("--check");
    Process process(serving(std::move(flags)));
    const int code = process.wait();
    return std::pair(code, process.output());
  };
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{"--ranks", "3"},
        {"--ranks", "2", "--devices", "0"},
        {"--executor", "process", "--ranks", "2", "--kv-cache-memory", "10"},
        {"--executor", "process", "--gpu-memory-utilization", "0.000001"}}) {
    const auto [checked, why] = refusal(flags, true);
    const auto [started, reason] = refusal(flags, false);
    EXPECT_NE(checked, 0) << flags.back();
    EXPECT_EQ(checked, started) << why << reason;
  }
  EXPECT_EQ(refusal({"--executor", "process", "--ranks", "2"}, true).first, 0);
}

}  // namespace
}  // namespace koho::server
