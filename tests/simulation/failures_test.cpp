// SPDX-License-Identifier: Apache-2.0
// Who is blamed when the ranks fail: single moves of the step loop that the simulation meets only
// once in many millions of events.
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "client.h"
#include "engine/step_loop.h"
#include "fake_executor.h"

namespace koho::simulation {
namespace {

EngineLimits test_limits() {
  EngineLimits limits;
  Limits& s = limits.scheduler;
  s.tokens_per_page = 4;
  s.pages = 32;
  s.context_max = 64;
  s.sequences_max = 4;
  s.live_max = 8;
  s.step_tokens_max = 32;
  s.mixed_prefill_tokens_max = 16;
  limits.vocabulary = 100;
  limits.requests_max = 8;
  limits.choices_max = 2;
  limits.stream_events_per_choice = 16;
  limits.faults_per_request_max = 3;
  return limits;
}

struct Harness {
  EngineLimits limits;
  SteadyClock clock;
  FakeExecutor executor{plan_bounds(limits)};
  StepLoop loop{limits, executor, clock, {}, {1, 2}};

  std::vector<std::shared_ptr<OutputStream>> streams;
  OutputEvent event;

  explicit Harness(const EngineLimits& with = test_limits()) : limits(with) {}

  std::unique_ptr<Client> submit(std::int64_t seed) {
    Request request;
    request.prompt = {1, 2, 3};
    request.max_tokens = 4;
    request.sampling.seed = seed;
    auto client = std::make_unique<Client>(request, limits.vocabulary, false);
    client->stream = std::make_shared<OutputStream>(
        static_cast<std::size_t>(limits.stream_events_per_choice), 0, std::function<void()>(),
        [this](OutputStream& stream) { loop.resume(stream); });
    streams.push_back(client->stream);
    loop.submit(std::move(request), client->stream);
    return client;
  }
  StepLoop::CollectOutcome collect() {
    executor.complete_oldest();
    return loop.collect(0);
  }
  void fail() {
    ASSERT_TRUE(loop.launch());
    executor.set_fault(FakeExecutor::Fault::error, 0);
    ASSERT_EQ(collect(), StepLoop::CollectOutcome::lost);
    ASSERT_TRUE(loop.recover(0));
  }
  /// Reads everything and lets everything that can run end.
  void finish() {
    for (int i = 0; i < 100 && loop.live_requests() > 0; ++i) {
      if (!loop.device_up()) loop.recover(0);
      loop.launch();
      if (loop.steps_in_flight() > 0) collect();
      for (const auto& stream : streams)
        while (stream->poll(event) == OutputStream::Read::event) continue;
    }
  }
};

Ending ending_of(const Client& client) {
  EXPECT_TRUE(client.stream->closed());
  return client.stream->summary().ending;
}

TEST(Failures, AStepOfACancelledSuspectIsNotSharedWithTheNextOne) {
  Harness harness;
  const auto culprit = harness.submit(static_cast<std::int64_t>(kPoison));
  const auto bystander = harness.submit(7);
  // Two failures with both in flight: both are suspects, the elder is computed alone.
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(harness.loop.launch());
    ASSERT_EQ(harness.collect(), StepLoop::CollectOutcome::lost);
    ASSERT_TRUE(harness.loop.recover(0));
  }
  ASSERT_TRUE(harness.loop.launch());
  harness.loop.cancel(*culprit->stream);
  // Its step is still in flight and brings the ranks down; the bystander must not be in another.
  EXPECT_FALSE(harness.loop.launch());
  ASSERT_EQ(harness.collect(), StepLoop::CollectOutcome::lost);
  harness.finish();
  EXPECT_EQ(ending_of(*culprit), Ending::cancelled);
  EXPECT_EQ(ending_of(*bystander), Ending::completed);
}

TEST(Failures, AStepOfASuspectWithoutRoomIsNotSharedWithTheOthers) {
  Harness harness;
  harness.limits.stream_events_per_choice = 2;
  const auto bystander = harness.submit(7);
  ASSERT_TRUE(harness.loop.launch());
  ASSERT_EQ(harness.collect(), StepLoop::CollectOutcome::collected);
  harness.fail();
  harness.fail();
  const auto culprit = harness.submit(static_cast<std::int64_t>(kPoison));
  // The suspect is computed alone; with an unread token and one to come its stream is full, so
  // that the others may run again: after this step.
  ASSERT_TRUE(harness.loop.launch());
  EXPECT_FALSE(harness.loop.launch());
  ASSERT_EQ(harness.collect(), StepLoop::CollectOutcome::collected);
  harness.finish();
  EXPECT_EQ(ending_of(*bystander), Ending::completed);
  EXPECT_EQ(ending_of(*culprit), Ending::failed);
}

TEST(Failures, ARequestThatBringsTheRanksDownIsGivenUpAndTheOthersEnd) {
  Harness harness;
  const auto before = harness.submit(7);
  const auto culprit = harness.submit(static_cast<std::int64_t>(kPoison));
  const auto behind = harness.submit(8);
  harness.finish();
  EXPECT_EQ(ending_of(*before), Ending::completed);
  EXPECT_EQ(ending_of(*culprit), Ending::failed);
  EXPECT_EQ(ending_of(*behind), Ending::completed);
}

/// How many failures, with an answer between any two, it takes to end the engine; at most 20.
int failures_until_broken(const EngineLimits& limits) {
  Harness harness(limits);
  for (int failure = 1; failure <= 20; ++failure) {
    const auto client = harness.submit(failure);
    EXPECT_TRUE(harness.loop.launch());
    harness.executor.set_fault(FakeExecutor::Fault::error, 0);
    EXPECT_EQ(harness.collect(), StepLoop::CollectOutcome::lost);
    if (harness.loop.broken()) {
      EXPECT_EQ(ending_of(*client), Ending::failed);
      return failure;
    }
    harness.finish();
    EXPECT_EQ(ending_of(*client), Ending::completed);
  }
  return 0;
}

TEST(Failures, OneMoreThanTheWindowMayHaveEndsTheEngine) {
  EngineLimits limits = test_limits();
  limits.failures_in_window_max = 3;
  EXPECT_EQ(failures_until_broken(limits), 4);
  limits.failures_window_us = 1;  // no two are so near
  EXPECT_EQ(failures_until_broken(limits), 0);
  limits.failures_window_us = 1'000'000'000;
  limits.failures_in_window_max = 0;
  EXPECT_EQ(failures_until_broken(limits), 0);
}

TEST(Failures, ARankThatEndsWhileNothingIsComputedIsReplaced) {
  Harness harness;
  EXPECT_TRUE(harness.loop.check_device());
  harness.executor.end_a_rank();
  EXPECT_FALSE(harness.loop.check_device());
  EXPECT_FALSE(harness.loop.device_up());
  ASSERT_TRUE(harness.loop.recover(0));
  EXPECT_TRUE(harness.loop.check_device());
  const auto client = harness.submit(7);
  harness.finish();
  EXPECT_EQ(ending_of(*client), Ending::completed);
}

}  // namespace
}  // namespace koho::simulation
