// SPDX-License-Identifier: Apache-2.0
#include "tests/neighbours/crowds.h"

#include <cstdio>
#include <cstdlib>

#include <gtest/gtest.h>

namespace koho::testing {
namespace {

/// A way to run all requests together.
struct Crowded {
  std::string name;
  std::int32_t prefill_chunk = 0;
  bool prefix_cache = true;
  std::int32_t pages = 1024;
  Crowd crowd;
  bool twice = false;  // the second time the cache has it all
  std::int64_t threads = 1;
  bool full_run_only = false;
};

std::vector<Crowded> crowds() {
  return {
      {.name = "64 together", .prefix_cache = false, .crowd = {}, .threads = 2},
      {.name = "shuffled, cached, chunks of 65",
       .prefill_chunk = 65,
       .crowd = {.shuffled = true, .cancelled_twins = true}},
      {.name = "few pages, chunks of 63", .prefill_chunk = 63, .pages = 15, .crowd = {}},
      {.name = "few pages, no cache, chunks of 7, shuffled",
       .prefill_chunk = 7,
       .prefix_cache = false,
       .pages = 14,
       .crowd = {.shuffled = true}},
      {.name = "twice", .prefill_chunk = 200, .crowd = {.in_flight = 5}, .twice = true},
      {.name = "a token a step", .prefill_chunk = 1, .crowd = {}, .full_run_only = true},
      {.name = "chunks of 64", .prefill_chunk = 64, .crowd = {}, .full_run_only = true},
      {.name = "few pages, twins",
       .prefill_chunk = 33,
       .pages = 14,
       .crowd = {.shuffled = true, .cancelled_twins = true},
       .full_run_only = true},
  };
}

}  // namespace

bool all_neighbours() {
  const char* value = std::getenv("KOHO_NEIGHBOURS");
  return value != nullptr && std::string(value) == "all";
}

std::size_t num_requests() {
  return all_neighbours() ? 200 : kRequestsFew;
}

RuntimeOptions options_of(const House& house) {
  RuntimeOptions options;
  options.device.kind = house.device;
  options.device.deterministic = house.deterministic;
  options.device.threads = house.ranks;
  options.device.isa = house.isa;
  options.ranks = house.ranks;
  options.kv_dtype = house.kv_dtype;
  options.context_max = 1024;
  options.kv_pages = 1024;
  return options;
}

std::unique_ptr<Runtime> start(const RuntimeOptions& options) {
  auto runtime = Runtime::start(KOHO_SOURCE_DIR "/models/tiny", options);
  EXPECT_TRUE(runtime.ok()) << runtime.error().message;
  return runtime.ok() ? std::move(runtime).value() : nullptr;
}

Alone alone(const House& house) {
  RuntimeOptions options = options_of(house);
  options.sequences_max = 1;
  options.prefix_cache = false;
  options.prefill_chunk = 1024;
  const auto runtime = start(options);
  Alone result;
  if (runtime == nullptr) return result;
  result.requests = make_requests(*runtime, house.requests, 7);
  result.seen = answers(*runtime, result.requests, {.in_flight = 1});
  return result;
}

std::size_t count_different(const std::vector<Seen>& found,
                            const Alone& expected,
                            std::vector<std::string>& words) {
  std::size_t different = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i] == expected.seen[i]) continue;
    const ChoiceSeen& one = found[i][0];
    const ChoiceSeen& other = expected.seen[i][0];
    if (++different > 3) continue;
    words.push_back(fmt::format("request {} of {} prompt tokens differs{}; \"{}\", alone \"{}\"", i,
                                expected.requests[i].prompt.size(),
                                one.ids == other.ids ? ", not in its tokens" : "", one.text,
                                other.text));
  }
  return different;
}

void expect_same(const std::vector<Seen>& found, const Alone& expected, const std::string& when) {
  ASSERT_EQ(found.size(), expected.seen.size());
  std::vector<std::string> words;
  EXPECT_EQ(count_different(found, expected, words), 0U) << when;
  for (const std::string& word : words) ADD_FAILURE() << when << ": " << word;
}

void compare(const House& house, bool every_crowd, bool report) {
  const Alone expected = alone(house);
  ASSERT_EQ(expected.seen.size(), house.requests);
  std::uint64_t preempted = 0;
  std::uint64_t resumed = 0;
  for (const Crowded& crowded : crowds()) {
    if (crowded.full_run_only && !every_crowd) continue;
    RuntimeOptions options = options_of(house);
    options.sequences_max = 64;
    options.prefill_chunk = crowded.prefill_chunk;
    options.prefix_cache = crowded.prefix_cache;
    options.kv_pages = crowded.pages;
    options.device.threads = crowded.threads * house.ranks;
    const auto runtime = start(options);
    ASSERT_NE(runtime, nullptr);
    const auto judge = [&](const std::string& when) {
      const std::vector<Seen> found = answers(*runtime, expected.requests, crowded.crowd);
      if (!report) return expect_same(found, expected, when);
      ASSERT_EQ(found.size(), expected.seen.size());
      std::vector<std::string> words;
      const std::size_t different = count_different(found, expected, words);
      std::printf("%s: %zu of %zu requests differ\n", when.c_str(), different, found.size());
    };
    judge(crowded.name);
    if (crowded.twice) judge(crowded.name + ", again");
    runtime->engine().drain(10'000'000);
    const Statistics statistics = runtime->engine().statistics();
    // Each way has to be what it says.
    preempted += statistics.preempted;
    resumed += statistics.resumed;
    EXPECT_EQ(statistics.prefix_hit_tokens > 0, crowded.prefix_cache) << crowded.name;
    EXPECT_EQ(statistics.requests_cancelled > 0, crowded.crowd.cancelled_twins) << crowded.name;
    EXPECT_EQ(statistics.pages_free + statistics.pages_cached, statistics.pages_total);
    EXPECT_EQ(statistics.device_failures, 0U);
  }
  // A GPU may have answered before the next request comes, and then nothing is preempted.
  if (report) {
    std::printf("%llu requests were preempted\n", static_cast<unsigned long long>(preempted));
    return;
  }
  EXPECT_GT(preempted, 0U);
  EXPECT_GT(resumed, 0U);
}

}  // namespace koho::testing
