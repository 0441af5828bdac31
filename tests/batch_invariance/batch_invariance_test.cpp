// SPDX-License-Identifier: Apache-2.0
// Batch invariance: what a request gets does not depend on the other requests of its batch, on how
// its prompt is cut into steps, on what the cache already has, on being preempted and resumed:
// tokens and logprobs, bit for bit. 30 requests in a plain run; KOHO_BATCH_INVARIANCE=all takes
// 200, also with FP8 pages and on two ranks, and 30 on every instruction set of this machine (an
// hour of one core: the plain code is slow).
#include <gtest/gtest.h>

#include "tests/batch_invariance/batching_cases.h"

namespace koho::testing {
namespace {

TEST(BatchInvariance, AnswersAreThoseOfEachRequestAlone) {
  compare({}, is_full_run());
}

TEST(BatchInvariance, HoldsForForkedChoices) {
  RuntimeOptions options = options_of({});
  options.sequences_max = 16;
  options.prefill_chunk = 100;
  options.kv_pages = 64;  // so that some lose their pages
  const auto runtime = start(options);
  ASSERT_NE(runtime, nullptr);
  std::vector<Request> together = make_requests(*runtime, is_full_run() ? 60 : 16, 11);
  SoloRun expected;
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

TEST(BatchInvariance, HoldsOnEveryInstructionSet) {
  if (!is_full_run()) GTEST_SKIP() << "KOHO_BATCH_INVARIANCE=all";
  for (const CpuIsa isa : supported_cpu_isas()) {
    SCOPED_TRACE(static_cast<int>(isa));
    compare({.isa = isa, .requests = kRequestsFew}, false);
  }
}

TEST(BatchInvariance, HoldsWithFp8Pages) {
  if (!is_full_run()) GTEST_SKIP() << "KOHO_BATCH_INVARIANCE=all";
  compare({.kv_dtype = DType::f8_e4m3}, false);
}

TEST(BatchInvariance, HoldsOnTwoRanks) {
  if (!is_full_run()) GTEST_SKIP() << "KOHO_BATCH_INVARIANCE=all";
  compare({.ranks = 2}, false);
}

}  // namespace
}  // namespace koho::testing
