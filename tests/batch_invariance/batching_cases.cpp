// SPDX-License-Identifier: Apache-2.0
// The ways to run the requests, and the answers alone that all are compared with.
#include "tests/batch_invariance/batching_cases.h"

#include <cstdio>
#include <cstdlib>

#include <gtest/gtest.h>

namespace koho::testing {
namespace {

/// A way to run all requests together.
struct BatchingCase {
  std::string name;
  std::int32_t prefill_chunk = 0;
  bool prefix_cache = true;
  std::int32_t pages = 1024;
  ConcurrentLoad load;
  bool twice = false;  // the second time the cache has it all
  std::int64_t threads = 1;
  bool full_run_only = false;
};

std::vector<BatchingCase> batching_cases() {
  return {
      {.name = "64 together", .prefix_cache = false, .load = {}, .threads = 2},
      {.name = "shuffled, cached, chunks of 65",
       .prefill_chunk = 65,
       .load = {.shuffled = true, .cancelled_duplicates = true}},
      {.name = "few pages, chunks of 63", .prefill_chunk = 63, .pages = 15, .load = {}},
      {.name = "few pages, no cache, chunks of 7, shuffled",
       .prefill_chunk = 7,
       .prefix_cache = false,
       .pages = 14,
       .load = {.shuffled = true}},
      {.name = "twice", .prefill_chunk = 200, .load = {.in_flight = 5}, .twice = true},
      {.name = "a token a step", .prefill_chunk = 1, .load = {}, .full_run_only = true},
      {.name = "chunks of 64", .prefill_chunk = 64, .load = {}, .full_run_only = true},
      {.name = "few pages, duplicates",
       .prefill_chunk = 33,
       .pages = 14,
       .load = {.shuffled = true, .cancelled_duplicates = true},
       .full_run_only = true},
  };
}

}  // namespace

bool is_full_run() {
  const char* value = std::getenv("KOHO_BATCH_INVARIANCE");
  return value != nullptr && std::string(value) == "all";
}

std::size_t num_requests() {
  return is_full_run() ? 200 : kRequestsFew;
}

RuntimeOptions options_of(const EngineSetup& setup) {
  RuntimeOptions options;
  options.device.kind = setup.device;
  options.device.deterministic = setup.deterministic;
  options.device.threads = setup.ranks;
  options.device.isa = setup.isa;
  options.ranks = setup.ranks;
  options.worker = KOHO_BINARY;  // where ranks are processes: on GPUs
  options.kv_dtype = setup.kv_dtype;
  options.context_max = 1024;
  options.kv_pages = 1024;
  return options;
}

std::unique_ptr<Runtime> start(const RuntimeOptions& options) {
  auto runtime = Runtime::start(KOHO_SOURCE_DIR "/models/tiny", options);
  EXPECT_TRUE(runtime.ok()) << runtime.error().message;
  return runtime.ok() ? std::move(runtime).value() : nullptr;
}

SoloRun run_alone(const EngineSetup& setup) {
  RuntimeOptions options = options_of(setup);
  options.sequences_max = 1;
  options.prefix_cache = false;
  options.prefill_chunk = 1024;
  const auto runtime = start(options);
  SoloRun result;
  if (runtime == nullptr) return result;
  result.requests = make_requests(*runtime, setup.requests, 7);
  result.seen = answers(*runtime, result.requests, {.in_flight = 1});
  return result;
}

std::size_t count_different(const std::vector<Seen>& found,
                            const SoloRun& expected,
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

void expect_same(const std::vector<Seen>& found, const SoloRun& expected, const std::string& when) {
  ASSERT_EQ(found.size(), expected.seen.size());
  std::vector<std::string> words;
  EXPECT_EQ(count_different(found, expected, words), 0U) << when;
  for (const std::string& word : words) ADD_FAILURE() << when << ": " << word;
}

void compare(const EngineSetup& setup, bool every_case, bool report) {
  const SoloRun expected = run_alone(setup);
  ASSERT_EQ(expected.seen.size(), setup.requests);
  std::uint64_t preempted = 0;
  std::uint64_t resumed = 0;
  for (const BatchingCase& batching : batching_cases()) {
    if (batching.full_run_only && !every_case) continue;
    RuntimeOptions options = options_of(setup);
    options.sequences_max = 64;
    options.prefill_chunk = batching.prefill_chunk;
    options.prefix_cache = batching.prefix_cache;
    options.kv_pages = batching.pages;
    options.device.threads = batching.threads * setup.ranks;
    const auto runtime = start(options);
    ASSERT_NE(runtime, nullptr);
    const auto judge = [&](const std::string& when) {
      const std::vector<Seen> found = answers(*runtime, expected.requests, batching.load);
      if (!report) return expect_same(found, expected, when);
      ASSERT_EQ(found.size(), expected.seen.size());
      std::vector<std::string> words;
      const std::size_t different = count_different(found, expected, words);
      std::printf("%s: %zu of %zu requests differ\n", when.c_str(), different, found.size());
    };
    judge(batching.name);
    if (batching.twice) judge(batching.name + ", again");
    runtime->engine().drain(10'000'000);
    const Statistics statistics = runtime->engine().statistics();
    // Each way has to be what it says.
    preempted += statistics.preempted;
    resumed += statistics.resumed;
    EXPECT_EQ(statistics.prefix_hit_tokens > 0, batching.prefix_cache) << batching.name;
    EXPECT_EQ(statistics.requests_cancelled > 0, batching.load.cancelled_duplicates)
        << batching.name;
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
