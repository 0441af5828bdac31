// SPDX-License-Identifier: Apache-2.0
// The engine with its thread and many callers, on the simulation's fake ranks: what the simulation
// cannot show because it has one thread.
#include "engine/engine.h"

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "client.h"
#include "fake_executor.h"
#include "fake_grammar.h"
#include "random.h"
#include "tests/support/patience.h"

namespace koho::simulation {
namespace {

using koho::testing::kPatienceUs;

/// Fake ranks that are always done at once, and are lost every `fail_every`-th step.
class InstantExecutor final : public Executor {
 public:
  InstantExecutor(const EngineLimits& limits, std::int64_t fail_every)
      : fake_(plan_bounds(limits)), fail_every_(fail_every) {}

  std::span<std::byte> plan_space() override { return fake_.plan_space(); }
  Status submit(std::size_t bytes) override { return fake_.submit(bytes); }
  Status send_masks() override { return fake_.send_masks(); }
  Status collect(StepResult& result, std::int64_t timeout_us) override {
    if (hangs) return make_error(ErrorCode::deadline_exceeded, "not yet");
    while (sticks) {
      stuck = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (fail_every_ > 0 && ++collected_ % fail_every_ == 0)
      return make_error(ErrorCode::device_error, "a worker died");
    fake_.complete_oldest();
    return fake_.collect(result, timeout_us);
  }
  Status check() override {
    if (ended.exchange(false)) return make_error(ErrorCode::device_error, "a worker was killed");
    return {};
  }
  Status recover(std::int64_t timeout_us) override {
    if (gone) return make_error(ErrorCode::device_error, "no such device");
    return fake_.recover(timeout_us);
  }
  const std::string& complaint() const { return fake_.complaint(); }

  std::atomic<bool> hangs = false;
  std::atomic<bool> ended = false;   // a rank, while nothing is computed
  std::atomic<bool> gone = false;    // does not come back
  std::atomic<bool> sticks = false;  // collect() never returns …
  std::atomic<bool> stuck = false;   // … and was called

 private:
  FakeExecutor fake_;
  std::int64_t fail_every_;
  std::int64_t collected_ = 0;
};

EngineLimits test_limits() {
  EngineLimits limits;
  Limits& s = limits.scheduler;
  s.tokens_per_page = 4;
  s.pages = 96;
  s.context_max = 128;
  s.sequences_max = 8;
  s.live_max = 64;
  s.step_tokens_max = 48;
  s.mixed_prefill_tokens_max = 16;
  limits.vocabulary = 100;
  limits.requests_max = 32;
  limits.choices_max = 3;
  limits.stream_events_per_choice = 8;
  limits.faults_per_request_max = 1000;
  return limits;
}

struct Harness {
  EngineLimits limits;
  SteadyClock clock;
  InstantExecutor executor;
  std::unique_ptr<Engine> engine;

  explicit Harness(const EngineLimits& with = test_limits(), std::int64_t fail_every = 0)
      : limits(with), executor(limits, fail_every) {
    engine = *Engine::start(limits, executor, clock,
                            [](const Request&) { return std::make_unique<FakeDecoder>(); });
  }
  ~Harness() {
    engine.reset();
    EXPECT_EQ(executor.complaint(), "");
  }
};

Request draw_request(Random& random) {
  Request request;
  const std::int32_t length = random.in(1, 40);
  for (std::int32_t i = 0; i < length; ++i) request.prompt.push_back(i < 12 ? i : random.in(0, 99));
  request.max_tokens = random.in(1, 60);
  request.choices = random.chance(800) ? 1 : random.in(2, 3);
  request.sampling.seed = random.in(0, 1000);
  request.stop_tokens = {random.in(0, 99)};
  if (random.chance(300)) request.stop_strings = {"abc"};
  if (random.chance(250))
    request.grammar = std::make_shared<FakeGrammar>(random.next(), random.in(1, 40), 100);
  return request;
}

/// Reads a stream to its end and compares it with the truth.
void read_to_end(Client& client) {
  OutputEvent event;
  for (;;) {
    const OutputStream::Read read = client.stream->wait(event, kPatienceUs.count());
    ASSERT_NE(read, OutputStream::Read::nothing) << "nothing came";
    if (read == OutputStream::Read::done) break;
    ASSERT_EQ(client.check(event), "");
  }
  EXPECT_EQ(client.check_end(client.stream->summary()), "");
}

/// One caller: submits, reads to the end, cancels one request in five.
void call(Engine& engine, std::uint64_t seed, int requests) {
  Random random(seed);
  for (int i = 0; i < requests; ++i) {
    const Request request = draw_request(random);
    Client client(request, 100, true);
    Result<std::shared_ptr<OutputStream>> stream = engine.submit(request);
    while (!stream.ok() && stream.error().code == ErrorCode::resource_exhausted) {
      std::this_thread::yield();
      stream = engine.submit(request);
    }
    ASSERT_TRUE(stream.ok()) << stream.error().message;
    client.stream = *stream;
    if (random.chance(200)) {
      client.cancelled = true;
      engine.cancel(client.stream);
    }
    read_to_end(client);
  }
}

void expect_empty(const Engine& engine) {
  const Statistics statistics = engine.statistics();
  EXPECT_EQ(statistics.requests_live, 0);
  EXPECT_EQ(statistics.running + statistics.waiting + statistics.held, 0);
  EXPECT_EQ(statistics.pages_free + statistics.pages_cached, statistics.pages_total);
}

TEST(Engine, TakesTurnsUnlessItsThreadIsStuck) {
  Harness harness;
  const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
  EXPECT_FALSE(harness.engine->takes_turns());  // none was asked for yet
  for (int i = 0; i < 3; ++i)
    while (!harness.engine->takes_turns()) pause();
  // A step that does not end is the device's affair: the thread looks at it again and again.
  harness.executor.hangs = true;
  Request request;
  request.prompt = {1, 2, 3};
  request.max_tokens = 5;
  auto stream = *harness.engine->submit(std::move(request));
  for (int i = 0; i < 3; ++i)
    while (!harness.engine->takes_turns()) pause();
  harness.executor.sticks = true;
  harness.executor.hangs = false;
  while (!harness.executor.stuck) pause();
  static_cast<void>(harness.engine->takes_turns());  // a turn before may have answered
  for (int i = 0; i < 20; ++i) {
    pause();
    EXPECT_FALSE(harness.engine->takes_turns());
  }
  harness.executor.sticks = false;
  while (!harness.engine->takes_turns()) pause();
}

TEST(Engine, ManyCallersReadWhatTheyWouldReadAlone) {
  Harness harness;
  std::vector<std::thread> callers;
  for (std::uint64_t i = 0; i < 8; ++i)
    callers.emplace_back([&harness, i] { call(*harness.engine, i, 60); });
  for (std::thread& caller : callers) caller.join();
  harness.engine->drain(kPatienceUs.count());
  expect_empty(*harness.engine);
  EXPECT_GT(harness.engine->statistics().prefix_hit_tokens, 0U);
  EXPECT_FALSE(harness.engine->recent_steps().empty());
}

TEST(Engine, ALostDeviceIsNotSeenByReaders) {
  Harness harness(test_limits(), 25);
  std::vector<std::thread> callers;
  for (std::uint64_t i = 0; i < 4; ++i)
    callers.emplace_back([&harness, i] { call(*harness.engine, 50 + i, 30); });
  for (std::thread& caller : callers) caller.join();
  const Statistics statistics = harness.engine->statistics();
  EXPECT_GT(statistics.device_failures, 5U);
  EXPECT_EQ(statistics.requests_failed, 0U);
}

TEST(Engine, ADeviceLostForGoodFailsEveryRequestAndTellsItsLastSteps) {
  ::testing::internal::CaptureStderr();
  {
    Harness harness(test_limits(), 4);
    harness.executor.gone = true;
    Request request;
    request.prompt = {1, 2, 3};
    request.max_tokens = 60;
    request.sampling.seed = 1;
    Client client(request, 100, true);
    client.stream = *harness.engine->submit(request);
    client.may_fail = true;
    read_to_end(client);
    EXPECT_EQ(client.stream->summary().error.code, ErrorCode::device_error);
    harness.engine->settle();
    EXPECT_TRUE(harness.engine->statistics().broken);
    EXPECT_EQ(harness.engine->submit(request).error().code, ErrorCode::unavailable);
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("could not be recovered: no such device"), std::string::npos) << log;
  EXPECT_NE(log.find("collected"), std::string::npos) << log;
  EXPECT_NE(log.find("lost"), std::string::npos) << log;
}

TEST(Engine, RefusesWhatItsQueueCannotHold) {
  EngineLimits limits = test_limits();
  limits.requests_max = 2;
  Harness harness(limits);
  harness.executor.hangs = true;
  Request request;
  request.prompt = {1, 2, 3};
  request.max_tokens = 4;
  ASSERT_TRUE(harness.engine->submit(request).ok());
  ASSERT_TRUE(harness.engine->submit(request).ok());
  EXPECT_EQ(harness.engine->submit(request).error().code, ErrorCode::resource_exhausted);
  request.prompt.clear();
  EXPECT_EQ(harness.engine->submit(request).error().code, ErrorCode::invalid_argument);
}

TEST(Engine, ASlowReaderStopsOnlyItself) {
  Harness harness;
  Request request;
  request.prompt = {1, 2, 3};
  request.max_tokens = 60;
  request.sampling.seed = 1;
  Client slow(request, 100, true);
  slow.stream = *harness.engine->submit(request);
  request.sampling.seed = 2;
  Client quick(request, 100, true);
  quick.stream = *harness.engine->submit(request);
  read_to_end(quick);
  EXPECT_LE(slow.stream->size(), slow.stream->capacity());
  EXPECT_FALSE(slow.stream->closed());
  read_to_end(slow);
  EXPECT_GE(harness.engine->statistics().pauses, 1U);
}

TEST(Engine, CancelsWhileAStepRuns) {
  Harness harness;
  harness.executor.hangs = true;
  Request request;
  request.prompt = {1, 2, 3};
  request.max_tokens = 60;
  Client client(request, 100, true);
  client.stream = *harness.engine->submit(request);
  client.cancelled = true;
  harness.engine->cancel(client.stream);
  harness.engine->cancel(client.stream);  // twice is once
  read_to_end(client);
  EXPECT_EQ(client.stream->summary().ending, Ending::cancelled);
  harness.executor.hangs = false;
}

TEST(Engine, AStormOfCancelsLeavesNothing) {
  Harness harness;
  constexpr int kRequests = 200;
  std::vector<std::thread> callers;
  for (std::uint64_t i = 0; i < 8; ++i)
    callers.emplace_back([&harness, i] {
      Random random(300 + i);
      OutputEvent event;
      for (int request = 0; request < kRequests; ++request) {
        Result<std::shared_ptr<OutputStream>> stream = harness.engine->submit(draw_request(random));
        while (!stream.ok()) {
          ASSERT_EQ(stream.error().code, ErrorCode::resource_exhausted);
          std::this_thread::yield();
          stream = harness.engine->submit(draw_request(random));
        }
        // At once, or anywhere in its lifecycle; forks may wait for their parent then.
        for (std::int32_t reads = random.in(0, 4); reads > 0; --reads)
          if ((*stream)->wait(event, kPatienceUs.count()) != OutputStream::Read::event) break;
        harness.engine->cancel(*stream);
        if (random.chance(500)) harness.engine->cancel(*stream);
        if (random.chance(500)) continue;  // nobody reads the rest
        OutputStream::Read read = OutputStream::Read::event;
        while (read == OutputStream::Read::event)
          read = (*stream)->wait(event, kPatienceUs.count());
        ASSERT_EQ(read, OutputStream::Read::done);
      }
    });
  for (std::thread& caller : callers) caller.join();
  harness.engine->drain(kPatienceUs.count());
  harness.engine->settle();
  expect_empty(*harness.engine);
  const Statistics statistics = harness.engine->statistics();
  EXPECT_EQ(statistics.requests_failed, 0U);
  EXPECT_EQ(statistics.requests_cancelled + statistics.requests_completed, 8U * kRequests);
  EXPECT_GT(statistics.requests_cancelled, 4U * kRequests);
}

TEST(Engine, TheLowestPriorityEndsUnderAFloodOfTheHighest) {
  EngineLimits limits = test_limits();
  limits.scheduler.aging_steps = 20;
  Harness harness(limits);
  std::atomic<bool> ended = false;
  std::atomic<int> overtakers = 0;
  std::vector<std::thread> flood;
  // More than there are batch slots, so that one of them always waits.
  for (int i = 0; i < 16; ++i)
    flood.emplace_back([&] {
      Request request;
      request.prompt = {1, 2, 3};
      request.max_tokens = 30;
      request.sampling.seed = 1;
      while (!ended) {
        Client client(request, 100, true);
        client.stream = *harness.engine->submit(request);
        read_to_end(client);
        ++overtakers;
      }
    });
  while (overtakers < 20) std::this_thread::yield();
  Request request;
  request.prompt = {4, 5, 6};
  request.max_tokens = 30;
  request.sampling.seed = 2;
  request.priority = kPriorities - 1;
  Client client(request, 100, true);
  const int before = overtakers;
  client.stream = *harness.engine->submit(request);
  read_to_end(client);
  EXPECT_GT(overtakers, before);
  ended = true;
  for (std::thread& caller : flood) caller.join();
  EXPECT_EQ(client.stream->summary().ending, Ending::completed);
}

TEST(Engine, APromptMayFillTheContext) {
  Harness harness;
  const auto runs = [&harness](std::int32_t prompt, std::int32_t answer, std::int32_t choices) {
    Request request;
    request.prompt.assign(static_cast<std::size_t>(prompt), 7);
    request.max_tokens = answer;
    request.choices = choices;
    request.sampling.seed = 1;
    Client client(request, 100, true);
    const Result<std::shared_ptr<OutputStream>> stream = harness.engine->submit(request);
    if (!stream.ok()) {
      EXPECT_EQ(stream.error().code, ErrorCode::invalid_argument);
      return false;
    }
    client.stream = *stream;
    read_to_end(client);
    EXPECT_EQ(client.stream->summary().ending, Ending::completed);
    EXPECT_LE(client.stream->summary().usage.completion_tokens, std::int64_t{answer} * choices);
    return true;
  };
  const std::int32_t context = harness.limits.scheduler.context_max;
  for (const std::int32_t choices : {1, 3}) {
    EXPECT_TRUE(runs(context, 0, choices));
    EXPECT_TRUE(runs(context - 1, 1, choices));
    EXPECT_TRUE(runs(1, 0, choices));
    EXPECT_TRUE(runs(1, context - 1, choices));
    EXPECT_FALSE(runs(context, 1, choices));
    EXPECT_FALSE(runs(context + 1, 0, choices));
  }
}

TEST(Engine, ATenantFindsOnlyItsOwnPromptsCached) {
  Harness harness;
  const auto cached_of = [&harness](std::uint64_t tenant) {
    Request request;
    request.prompt.assign(20, 7);
    request.max_tokens = 1;
    request.salt.low = tenant;
    request.sampling.seed = 1;
    Client client(request, 100, true);
    client.stream = *harness.engine->submit(request);
    read_to_end(client);
    return client.stream->summary().usage.cached_tokens;
  };
  EXPECT_EQ(cached_of(1), 0);
  EXPECT_EQ(cached_of(1), 16);
  EXPECT_EQ(cached_of(2), 0);
  EXPECT_EQ(cached_of(2), 16);
  EXPECT_EQ(cached_of(1), 16);
}

TEST(Engine, DrainingFailsWhatDoesNotEndInTime) {
  Harness harness;
  harness.executor.hangs = true;
  Request request;
  request.prompt = {1, 2, 3};
  request.max_tokens = 60;
  Client client(request, 100, true);
  client.stream = *harness.engine->submit(request);
  client.may_fail = true;
  harness.engine->drain(1000);
  EXPECT_EQ(harness.engine->submit(request).error().code, ErrorCode::unavailable);
  read_to_end(client);
  EXPECT_EQ(client.stream->summary().error.code, ErrorCode::unavailable);
  expect_empty(*harness.engine);
}

TEST(Engine, AStreamOutlivesItsEngineAndHasAnEnd) {
  Request request;
  request.prompt = {1, 2, 3};
  request.max_tokens = 60;
  Client client(request, 100, true);
  client.may_fail = true;
  {
    Harness harness;
    harness.executor.hangs = true;
    client.stream = *harness.engine->submit(request);
  }
  read_to_end(client);
}

TEST(Engine, TellsReadersThatSomethingCame) {
  Harness harness;
  std::atomic<int> calls = 0;
  Request request;
  request.prompt = {1, 2, 3};
  request.max_tokens = 3;
  request.sampling.seed = 1;
  Client client(request, 100, true);
  client.stream = *harness.engine->submit(request, [&calls] { ++calls; });
  read_to_end(client);
  harness.engine->drain(kPatienceUs.count());
  EXPECT_GE(calls, 2);  // the first event, and the end
}

}  // namespace
}  // namespace koho::simulation
