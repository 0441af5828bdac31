// SPDX-License-Identifier: Apache-2.0
// What a request gets does not depend on who is computed beside it, on how its prompt is cut into
// steps, on what the cache already has, on being preempted and resumed: tokens and logprobs, bit
// for bit. 30 requests in a plain run; KOHO_NEIGHBOURS=all takes 200, also with FP8 pages and on
// two ranks, and 30 on every instruction set of this machine (an hour of one core: the plain code
// is slow).
#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cpu/cpu_backend.h"
#include "tests/neighbours/requests.h"

namespace koho::testing {
namespace {

const std::filesystem::path kModel = KOHO_SOURCE_DIR "/models/tiny";

bool all() {
  const char* value = std::getenv("KOHO_NEIGHBOURS");
  return value != nullptr && std::string(value) == "all";
}

constexpr std::size_t kRequestsFew = 30;

std::size_t num_requests() {
  return all() ? 200 : kRequestsFew;
}

/// What every run of a comparison has in common.
struct House {
  CpuIsa isa = CpuIsa::automatic;
  std::int64_t ranks = 1;
  DType kv_dtype = DType::bf16;
  std::size_t requests = num_requests();
};

RuntimeOptions options_of(const House& house) {
  RuntimeOptions options;
  options.device.threads = house.ranks;
  options.device.isa = house.isa;
  options.ranks = house.ranks;
  options.kv_dtype = house.kv_dtype;
  options.context_max = 1024;
  options.kv_pages = 1024;
  return options;
}

std::unique_ptr<Runtime> start(const RuntimeOptions& options) {
  auto runtime = Runtime::start(kModel, options);
  EXPECT_TRUE(runtime.ok()) << runtime.error().message;
  return runtime.ok() ? std::move(runtime).value() : nullptr;
}

struct Alone {
  std::vector<Request> requests;
  std::vector<Seen> seen;
};

/// One request at a time, its prompt in one step, nothing cached, one thread a rank.
Alone alone(const House& house) {
  RuntimeOptions options = options_of(house);
  options.sequences_max = 1;
  options.prefix_cache = false;
  options.prefill_chunk = 1024;
  const auto runtime = start(options);
  Alone result;
  result.requests = make_requests(*runtime, house.requests, 7);
  result.seen = answers(*runtime, result.requests, {.in_flight = 1});
  return result;
}

void expect_same(const std::vector<Seen>& found, const Alone& expected, const std::string& when) {
  ASSERT_EQ(found.size(), expected.seen.size());
  std::size_t different = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i] == expected.seen[i]) continue;
    const ChoiceSeen& one = found[i][0];
    const ChoiceSeen& other = expected.seen[i][0];
    if (++different > 3) continue;
    ADD_FAILURE() << when << ": request " << i << " of " << expected.requests[i].prompt.size()
                  << " prompt tokens differs" << (one.ids == other.ids ? ", not in its tokens" : "")
                  << "; \"" << one.text << "\", alone \"" << other.text << "\"";
  }
  EXPECT_EQ(different, 0U) << when;
}

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

void compare(const House& house, bool every_crowd) {
  const Alone expected = alone(house);
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
    expect_same(answers(*runtime, expected.requests, crowded.crowd), expected, crowded.name);
    if (crowded.twice)
      expect_same(answers(*runtime, expected.requests, crowded.crowd), expected,
                  crowded.name + ", again");
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
  EXPECT_GT(preempted, 0U);
  EXPECT_GT(resumed, 0U);
}

TEST(Neighbours, DoNotMatter) {
  compare({}, all());
}

TEST(Neighbours, DoNotMatterToForks) {
  RuntimeOptions options = options_of({});
  options.sequences_max = 16;
  options.prefill_chunk = 100;
  options.kv_pages = 64;  // so that some lose their pages
  const auto runtime = start(options);
  ASSERT_NE(runtime, nullptr);
  std::vector<Request> together = make_requests(*runtime, all() ? 60 : 16, 11);
  Alone expected;
  for (Request& request : together) {
    request.choices = 5;
    for (std::int32_t choice = 0; choice < request.choices; ++choice) {
      Request single = request;
      single.choices = 1;
      single.sampling.seed = static_cast<std::int64_t>(
          choice_seed(static_cast<std::uint64_t>(*request.sampling.seed), choice));
      expected.requests.push_back(std::move(single));
    }
  }
  const std::vector<Seen> forked = answers(*runtime, together, {.in_flight = 8});
  EXPECT_GT(runtime->engine().statistics().forked, 0U);

  RuntimeOptions single = options_of({});
  single.sequences_max = 1;
  single.prefix_cache = false;
  const auto quiet = start(single);
  expected.seen = answers(*quiet, expected.requests, {.in_flight = 1});
  std::vector<Seen> choices;
  for (const Seen& seen : forked)
    for (const ChoiceSeen& choice : seen) choices.push_back({choice});
  expect_same(choices, expected, "5 choices each");
}

TEST(Neighbours, DoNotMatterOnEveryInstructionSet) {
  if (!all()) GTEST_SKIP() << "KOHO_NEIGHBOURS=all";
  for (const CpuIsa isa : supported_cpu_isas()) {
    SCOPED_TRACE(static_cast<int>(isa));
    compare({.isa = isa, .requests = kRequestsFew}, false);
  }
}

TEST(Neighbours, DoNotMatterWithPagesInFp8) {
  if (!all()) GTEST_SKIP() << "KOHO_NEIGHBOURS=all";
  compare({.kv_dtype = DType::f8_e4m3}, false);
}

TEST(Neighbours, DoNotMatterOnTwoRanks) {
  if (!all()) GTEST_SKIP() << "KOHO_NEIGHBOURS=all";
  compare({.ranks = 2}, false);
}

}  // namespace
}  // namespace koho::testing
