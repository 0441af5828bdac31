// SPDX-License-Identifier: Apache-2.0
// The dashboard's page and what only it asks for: its feed, its history, its lists of requests.
// What a browser makes of it: ui_test.py.
#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "client.h"
#include "server/history.h"
#include "tiny_server.h"

namespace koho::server {
namespace {

using chat::Json;

Reply ask(const char* path, const std::string& body) {
  return post(shared_server().port(), path, body);
}

std::int64_t number_at(const Json& json, std::string_view path) {
  return std::stoll(text_at(json, path));
}

TEST(Dashboard, IsOnePageWithoutExternalFiles) {
  const Reply page = get(shared_server().port(), "/ui");
  ASSERT_EQ(page.status, 200);
  EXPECT_TRUE(page.body.starts_with("<!DOCTYPE html>"));
  EXPECT_TRUE(page.body.ends_with("</html>\n"));
  for (const char* external : {" src=", "url(", "@import", "href=\"http", "//cdn"})
    EXPECT_EQ(page.body.find(external), std::string::npos) << external;
  EXPECT_LE(page.body.size(), 300'000U);
  const std::string& policy = page.fields.at("content-security-policy");
  EXPECT_TRUE(policy.starts_with("default-src 'none'; style-src 'sha256-")) << policy;
  EXPECT_EQ(policy.find("unsafe"), std::string::npos) << policy;
  EXPECT_NE(policy.find("require-trusted-types-for 'script'"), std::string::npos) << policy;
}

TEST(Dashboard, SaysBeforeTheKeyWhetherOneIsNeeded) {
  const Json json = get(shared_server().port(), "/ui/status").json();
  EXPECT_EQ(at(json, "needs_key").kind, Json::Kind::boolean);
  EXPECT_FALSE(at(json, "needs_key").boolean);
  EXPECT_EQ(text_at(json, "readiness.status"), "ready");
}

TEST(Dashboard, ListsRequestsWithWhatBecameOfThem) {
  ASSERT_TRUE(shared_server().becomes_idle());  // the tests before this one share it
  const std::uint16_t port = shared_server().port();
  ask("/v1/completions", R"({"model":"tiny","prompt":"Once","max_tokens":2})");
  ask("/v1/completions", R"({"model":"tiny","prompt":"Once","max_tokens":-2})");
  const std::vector<Json> ended = at(get(port, "/ui/requests").json(), "ended").items;
  ASSERT_GE(ended.size(), 2U);
  EXPECT_TRUE(at(ended[0], "failed").boolean);
  EXPECT_EQ(number_at(ended[0], "status"), 400);
  EXPECT_EQ(text_at(ended[0], "param"), "max_tokens");
  EXPECT_NE(text_at(ended[0], "message").find("-2"), std::string::npos);
  EXPECT_FALSE(at(ended[1], "failed").boolean);
  EXPECT_EQ(text_at(ended[1], "finish"), "length");
  EXPECT_EQ(number_at(ended[1], "tokens"), 2);

  const std::string body =
      R"({"model":"tiny","prompt":"Once","max_tokens":2000,"ignore_eos":true,"stream":true})";
  Client client(port);
  ASSERT_TRUE(client.send(
      fmt::format("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: a-long-one\r\n"
                  "Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
                  body.size(), body)));
  ASSERT_TRUE(client.read_until("data: "));
  std::vector<Json> running;
  do {
    running = at(get(port, "/ui/requests").json(), "running").items;
    ASSERT_EQ(running.size(), 1U);
  } while (number_at(running[0], "tokens") < 2);
  EXPECT_EQ(text_at(running[0], "id"), "a-long-one");
  EXPECT_EQ(text_at(running[0], "state"), "answering");
  EXPECT_GT(number_at(running[0], "prompt_tokens"), 0);
  EXPECT_EQ(ask("/abort_request", R"({"request_id":"a-long-one"})").status, 200);
  while (!at(get(port, "/ui/requests").json(), "running").items.empty()) {
  }
  EXPECT_EQ(text_at(at(get(port, "/ui/requests").json(), "ended").items[0], "id"), "a-long-one");
}

TEST(Dashboard, KeepsSamplesOfThreeRanges) {
  const std::uint16_t port = shared_server().port();
  for (const auto& [period, most] : {std::pair{1, 300}, {10, 360}, {240, 360}}) {
    const Json json = get(port, fmt::format("/ui/history/{}", period)).json();
    EXPECT_EQ(number_at(json, "period_s"), period);
    EXPECT_EQ(number_at(json, "samples_max"), most);
    for (const Json& sample : at(json, "samples").items)
      EXPECT_EQ(sample.items.size(), at(json, "fields").items.size());
  }
  EXPECT_EQ(get(port, "/ui/history/7").status, 404);
  EXPECT_EQ(get(port, "/ui/history/x").status, 404);
}

TEST(Dashboard, IsFedUntilItsReaderLeaves) {
  ask("/v1/completions", R"({"model":"tiny","prompt":"Once","max_tokens":2})");
  ASSERT_TRUE(shared_server().becomes_idle());  // it is counted after its answer has left
  const std::uint64_t disconnects = shared_server().counters().disconnects.load();
  {
    Client client(shared_server().port());
    ASSERT_TRUE(client.send("GET /ui/events HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    ASSERT_TRUE(client.read_until("}\n\n"));
    const std::size_t first = client.pending().find("data: ");
    const std::size_t length = client.pending().find("\n\n") - first - 6;
    EXPECT_NE(client.pending().find("Content-Type: text/event-stream"), std::string::npos);
    const Json json = *chat::parse_json(client.pending().substr(first + 6, length));
    EXPECT_EQ(number_at(json, "tokens_per_page"), 64);
    EXPECT_GE(at(json, "ttft.counts").items.size(), 1U);
    EXPECT_GT(number_at(json, "ttft.count"), 0);
    EXPECT_EQ(at(json, "ttft.percentiles_ms").items.size(), 3U);
    EXPECT_GE(at(json, "steps").items.size(), 1U);
    while (client.pending().find("data: ", first + 6) == std::string::npos)
      ASSERT_TRUE(client.read_more());
  }
  EXPECT_TRUE(shared_server().becomes_idle());
  EXPECT_EQ(shared_server().counters().disconnects.load(), disconnects);  // no answer was cut off
}

TEST(Dashboard, MakesAnEventOnceForAllItsReaders) {
  TinyServer server([](ServerSettings& settings) { settings.io_threads = 1; });
  std::vector<std::unique_ptr<Client>> readers;
  for (int i = 0; i < 2; ++i) {
    readers.push_back(std::make_unique<Client>(server.port()));
    ASSERT_TRUE(readers.back()->send("GET /ui/events HTTP/1.1\r\nHost: localhost\r\n\r\n"));
  }
  const auto times_of = [](const std::string& events) {
    std::set<std::string> times;
    constexpr std::string_view kTime = "\"time_us\":";
    for (std::size_t at = events.find(kTime); at != events.npos; at = events.find(kTime, at + 1))
      times.insert(events.substr(at, events.find(',', at) - at));
    return times;
  };
  for (const auto& reader : readers) ASSERT_TRUE(reader->read_until("data: ", 20));
  const std::set<std::string> first = times_of(readers[0]->pending());
  const std::set<std::string> second = times_of(readers[1]->pending());
  EXPECT_TRUE(std::ranges::any_of(first, [&](const auto& time) { return second.contains(time); }));
}

constexpr std::int64_t kSecondUs = 1'000'000;

TEST(LatencyHistogram, HasPercentilesWithinAFifth) {
  LatencyHistogram histogram;
  EXPECT_EQ(histogram.percentile_us(0.5), -1.0);
  for (std::int64_t us = 1000; us < 101'000; ++us) histogram.add(us);  // even from 1 to 101 ms
  for (const double share : {0.1, 0.5, 0.95, 0.99}) {
    const double truth = 1000 + share * 100'000;
    EXPECT_NEAR(histogram.percentile_us(share), truth, 0.19 * truth) << share;
  }
  LatencyHistogram later = histogram;
  later.add(5'000'000);
  EXPECT_NEAR(later.since(histogram).percentile_us(0.5), 5e6, 0.19 * 5e6);
  later.add(0);
  later.add(std::int64_t{1} << 50);
  EXPECT_EQ(later.counts.front(), 1U);
  EXPECT_EQ(later.counts.back(), 1U);
}

TEST(History, SamplesAreDifferencesOverTheirPeriod) {
  History history;
  Statistics now;
  now.pages_total = 100;
  now.pages_free = 100;
  history.add(now, 0, 1000);
  EXPECT_EQ(history.newest_json(), "null");
  now.sampled_tokens = 60;
  now.decode_rows = 60;
  now.computed_tokens = 260;
  now.prompt_tokens = 400;
  now.cached_tokens = 200;
  now.requests_completed = 3;
  now.pages_free = 60;
  now.pages_cached = 15;
  for (int i = 0; i < 10; ++i) now.inter_token_fine.add(8000);
  history.add(now, 2 * kSecondUs, 1002);
  const Json sample = *chat::parse_json(history.newest_json());
  const Json fields = at(*chat::parse_json(history.json(1)), "fields");
  const auto value = [&](std::string_view name) {
    for (std::size_t i = 0; i < fields.items.size(); ++i)
      if (fields.items[i].text == name) return std::stod(sample.items[i].text);
    return -99.0;
  };
  EXPECT_EQ(value("time"), 1002);
  EXPECT_EQ(value("decode"), 30.0);
  EXPECT_EQ(value("prefill"), 100.0);
  EXPECT_EQ(value("cached"), 0.5);
  EXPECT_EQ(value("kv_used"), 0.25);
  EXPECT_EQ(value("kv_cached"), 0.15);
  EXPECT_EQ(value("completed"), 3);
  EXPECT_EQ(value("ttft_p50"), -1);
  EXPECT_NEAR(value("itl_p99"), 8.0, 0.19 * 8.0);
}

TEST(History, IsBoundedAndSamplesEachRangeAtItsPace) {
  History history;
  for (std::int64_t second = 0; second <= 2 * 86'400; ++second) {
    ASSERT_TRUE(history.is_due(second * kSecondUs));
    ASSERT_FALSE(history.is_due(second * kSecondUs + 1));
    history.add(Statistics(), second * kSecondUs, second);
  }
  for (const auto& [period, most] : {std::pair{1, 300}, {10, 360}, {240, 360}}) {
    const Json json = *chat::parse_json(history.json(period));
    const std::vector<Json> samples = at(json, "samples").items;
    ASSERT_EQ(samples.size(), static_cast<std::size_t>(most));
    EXPECT_EQ(std::stoll(samples[1].items[0].text) - std::stoll(samples[0].items[0].text), period);
  }
  EXPECT_EQ(history.json(2), "");
}

TEST(RequestLog, KeepsTheLastAndCutsLongTextsAtCharacters) {
  RequestLog log;
  for (int i = 0; i < 1000; ++i) log.add({.id = std::to_string(i)});
  const std::vector<EndedRequest> rows = log.rows();
  ASSERT_EQ(rows.size(), RequestLog::kRowsMax);
  EXPECT_EQ(rows.front().id, "999");
  std::string text(199, 'x');
  text += "\u00e9\u00e9";
  EXPECT_EQ(shortened(text), std::string(199, 'x'));
  EXPECT_EQ(shortened("short"), "short");
}

}  // namespace
}  // namespace koho::server
