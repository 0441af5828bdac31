// SPDX-License-Identifier: Apache-2.0
// Memory of the engine over time: no step allocates once it is warm (admission excepted), nothing
// grows over thousands of requests, every page comes back.
#include <cstdio>
#include <cstdlib>
#include <malloc.h>
#include <memory>
#include <new>
#include <vector>

#include <gtest/gtest.h>

#include "client.h"
#include "engine/step_loop.h"
#include "fake_executor.h"
#include "random.h"
#include "tests/support/resident_memory.h"

namespace {

// Of this program; one thread.
long allocations = 0;
long live_bytes = 0;

// Not inlined: g++ would take the pair of malloc and operator delete for a mistake.
[[gnu::noinline]] void* counted_allocate(std::size_t size) {
  void* memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  ++allocations;
  live_bytes += static_cast<long>(malloc_usable_size(memory));
  return memory;
}

[[gnu::noinline]] void counted_free(void* memory) {
  if (memory != nullptr) live_bytes -= static_cast<long>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t size) {
  return counted_allocate(size);
}
void operator delete(void* memory) noexcept {
  counted_free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  counted_free(memory);
}

namespace koho::simulation {

using testing::resident_kib;

namespace {

EngineLimits large_limits() {
  EngineLimits limits;
  Limits& s = limits.scheduler;
  s.pages = 256;
  s.context_max = 4096;
  s.sequences_max = 16;
  s.live_max = 64;
  s.step_tokens_max = 512;
  s.mixed_prefill_tokens_max = 128;
  limits.vocabulary = 1000;
  limits.requests_max = 64;
  limits.choices_max = 1;
  limits.stream_events_per_choice = 16;
  return limits;
}

struct Harness {
  EngineLimits limits = large_limits();
  SteadyClock clock;
  FakeExecutor executor{plan_bounds(limits)};
  StepLoop loop{limits,
                executor,
                clock,
                [](const Request&) { return std::make_unique<FakeDecoder>(); },
                {1, 2}};
  std::vector<std::shared_ptr<OutputStream>> streams;
  OutputEvent event;

  Harness() {
    event.text.reserve(64);
    event.top.reserve(20);
  }
  void submit(Request request) {
    auto stream = std::make_shared<OutputStream>(
        static_cast<std::size_t>(limits.stream_events_per_choice), 5, std::function<void()>(),
        [this](OutputStream& room) { loop.resume(room); });
    streams.push_back(stream);
    loop.submit(std::move(request), std::move(stream));
  }
  /// Launches and lands with one step of lookahead.
  void step() {
    loop.launch();
    loop.launch();
    executor.complete_oldest();
    loop.collect(0);
  }
  void read_all() {
    for (const auto& stream : streams)
      while (stream->poll(event) == OutputStream::Read::event) continue;
    std::erase_if(streams, [](const auto& stream) { return stream->closed(); });
  }
};

TEST(Allocation, AWarmStepAllocatesNothing) {
  Harness harness;
  for (int i = 0; i < 16; ++i) {
    Request request;
    request.prompt.assign(100 + static_cast<std::size_t>(i), i);
    request.max_tokens = 3000;
    request.stop_strings = {"zzz"};
    request.sampling.logprobs = 5;
    request.sampling.repetition_penalty = 1.5;
    request.sampling.logit_bias = {{3, 1.0F}};
    harness.submit(std::move(request));
  }
  for (int i = 0; i < 64; ++i) {
    harness.step();
    harness.read_all();
  }
  ASSERT_EQ(harness.loop.scheduler().running().size(), 16U);
  const long before = allocations;
  for (int i = 0; i < 1500; ++i) {  // crosses pages, fills pages, preempts and resumes
    harness.step();
    harness.read_all();
  }
  EXPECT_EQ(allocations - before, 0);
  EXPECT_GT(harness.loop.statistics().preempted, 0U);
  EXPECT_GT(harness.loop.statistics().evicted_pages, 0U);
}

/// The same 10,000 steps over thousands of requests, one in ten cancelled, from an empty engine to
/// an empty engine.
void run_a_while(Harness& harness) {
  Random random(1);
  std::int64_t requests = 0;
  for (int i = 0; i < 10000; ++i) {
    while (harness.loop.live_requests() < 40) {
      Request request;
      const std::int32_t length = random.in(1, 300);
      for (std::int32_t t = 0; t < length; ++t) request.prompt.push_back(random.in(0, 999));
      request.max_tokens = random.in(1, 40);
      harness.submit(std::move(request));
      ++requests;
      if (random.chance(100)) harness.loop.cancel(*harness.streams.back());
    }
    harness.step();
    harness.read_all();
  }
  EXPECT_GT(requests, 5000);
  while (harness.loop.live_requests() > 0 || harness.loop.steps_in_flight() > 0) {
    harness.step();
    harness.read_all();
  }
  EXPECT_EQ(harness.loop.scheduler().pool().owned(), 0);
  EXPECT_EQ(harness.loop.scheduler().live(), 0);
}

TEST(Allocation, NothingGrowsOverThousandsOfRequests) {
  Harness harness;
  // The buffers of slots and streams grow to the largest request each has had.
  run_a_while(harness);
  const long resident = resident_kib();
  const long live = live_bytes;
  run_a_while(harness);
  EXPECT_LE(resident_kib(), resident + resident / 50) << "resident memory in KiB";
  EXPECT_LE(live_bytes, live + live / 50);
  std::printf("%ld bytes live, %ld KiB resident\n", live_bytes, resident_kib());
}

}  // namespace
}  // namespace koho::simulation
