// SPDX-License-Identifier: Apache-2.0
// 10,000 steps of the real executor, worker and CPU backend over thousands of requests, one in ten
// cancelled: every page comes back, resident memory stays, and no step allocates once it is warm
// (submission excepted). A small model of random weights, with the embedded model's tokenizer.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <random>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "comm/communicator.h"
#include "engine/local_executor.h"
#include "engine/step_loop.h"
#include "runtime/detokenizing_decoder.h"
#include "runtime/loaded_model.h"
#include "tests/support/resident_memory.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_checkpoint.h"
#include "tokenizer/tokenizer.h"
#include "worker/device.h"

namespace {

// Of this program, in all threads, while `counting`.
std::atomic<bool> counting{false};
std::atomic<long> allocations{0};

[[gnu::noinline]] void* counted_allocate(std::size_t size, std::size_t alignment) {
  void* memory = alignment > alignof(std::max_align_t)
                     ? std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment)
                     : std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  if (counting.load(std::memory_order_relaxed)) allocations.fetch_add(1);
  return memory;
}

[[gnu::noinline]] void counted_free(void* memory) {
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t size) {
  return counted_allocate(size, 0);
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  return counted_allocate(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept {
  counted_free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  counted_free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  counted_free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  counted_free(memory);
}

namespace koho::testing {
namespace {

EngineLimits limits_of(const ModelConfig& config) {
  EngineLimits limits;
  Limits& s = limits.scheduler;
  s.pages = 20;  // fewer than all sequences want: some are preempted
  s.context_max = 400;
  s.sequences_max = 12;
  s.live_max = 48;
  s.step_tokens_max = 128;
  s.mixed_prefill_tokens_max = 64;
  limits.vocabulary = static_cast<std::int32_t>(config.vocab_size);
  limits.requests_max = 40;
  limits.choices_max = 4;
  limits.stream_events_per_choice = 8;
  limits.step_deadline_us = 600'000'000;
  return limits;
}

/// The step loop over one rank on the CPU.
class House {
 public:
  static std::unique_ptr<House> open(const std::filesystem::path& directory) {
    auto model = load_model(directory);
    EXPECT_TRUE(model.ok()) << model.error().message;
    auto tokenizer = Tokenizer::load(KOHO_SOURCE_DIR "/models/tiny/tokenizer.json");
    EXPECT_TRUE(tokenizer.ok());
    if (!model.ok() || !tokenizer.ok()) return nullptr;
    auto house =
        std::unique_ptr<House>(new House(std::move(model).value(), std::move(tokenizer).value()));
    return house->executor_ ? std::move(house) : nullptr;
  }

  void submit() {
    Request request;
    const std::int32_t length = in(1, 200);
    for (std::int32_t t = 0; t < length; ++t)
      request.prompt.push_back(in(0, limits_.vocabulary - 1));
    request.max_tokens = in(1, 60);
    request.choices = in(0, 9) == 0 ? 3 : 1;
    request.seed = random_();
    request.stop_strings = {"never said"};
    request.stop_tokens = {3};
    if (in(0, 1) == 0) request.sampling.temperature = 0.0;
    if (in(0, 2) == 0) request.sampling.repetition_penalty = 1.2;
    if (in(0, 2) == 0) request.sampling.logprobs = 5;
    if (in(0, 4) == 0) request.sampling.top_p = 0.9;
    if (in(0, 4) == 0) request.sampling.top_k = 20;
    if (in(0, 4) == 0) request.sampling.logit_bias = {{7, 1.0F}};
    const Status valid = validate(request, limits_);
    ASSERT_TRUE(valid.ok()) << valid.error().message;
    auto stream = std::make_shared<OutputStream>(
        static_cast<std::size_t>(limits_.stream_events_per_choice * request.choices), 5,
        std::function<void()>(), [this](OutputStream& room) { loop_->resume(room); });
    const bool to_be_cancelled = requests_++ % 10 == 9;
    streams_.push_back({stream, to_be_cancelled ? in(0, 20) : -1});
    loop_->submit(std::move(request), std::move(stream));
  }

  /// One step with one of lookahead.
  void step() {
    counting = true;
    loop_->launch();
    loop_->launch();
    while (loop_->land(1'000'000) == StepLoop::Landing::waiting) continue;
    counting = false;
  }

  void read_and_cancel() {
    for (auto& [stream, cancel_in] : streams_) {
      while (stream->poll(event_) == OutputStream::Read::event) continue;
      if (cancel_in >= 0 && cancel_in-- == 0) loop_->cancel(*stream);
    }
    std::erase_if(streams_, [](const auto& entry) { return entry.first->closed(); });
  }

  /// So many steps from an empty engine to an empty engine.
  void run(std::int64_t steps) {
    for (std::int64_t i = 0; i < steps; ++i) {
      while (loop_->live_requests() < 30 && loop_->scheduler().live() < 40) submit();
      step();
      read_and_cancel();
    }
    while (loop_->live_requests() > 0 || loop_->steps_in_flight() > 0) {
      step();
      read_and_cancel();
    }
    const PagePool& pool = loop_->scheduler().pool();
    EXPECT_EQ(pool.owned(), 0);
    EXPECT_EQ(pool.free() + pool.idle(), pool.total());
    EXPECT_EQ(loop_->scheduler().live(), 0);
  }

  const StepLoop& loop() const { return *loop_; }
  std::int64_t requests() const { return requests_; }

 private:
  House(LoadedModel model, Tokenizer tokenizer)
      : model_(std::move(model)),
        tokenizer_(std::move(tokenizer)),
        limits_(limits_of(model_.config)) {
    const Limits& s = limits_.scheduler;
    LocalExecutorSettings settings;
    settings.bounds = plan_bounds(limits_);
    settings.make_backend = [](std::int64_t) { return make_backend({.threads = 1}, 0, 1); };
    settings.worker = {.load = {.shard = {},
                                .limits = {.tokens_max = s.step_tokens_max,
                                           .sequences_max = s.sequences_max,
                                           .context_max = s.context_max,
                                           .logit_rows_max = s.sequences_max,
                                           .vocabulary = 0},
                                .kv_pages = s.pages,
                                .kv_dtype = DType::bf16},
                       .counts_slots = s.sequences_max,
                       .mask_rows_max = 0,
                       .tokenizer_tokens = model_.config.vocab_size};
    auto executor = LocalExecutor::create(model_.config, model_.sources, settings);
    EXPECT_TRUE(executor.ok()) << executor.error().message;
    if (!executor.ok()) return;
    executor_ = std::move(executor).value();
    loop_ =
        std::make_unique<StepLoop>(limits_, *executor_, clock_, detokenizing_decoders(tokenizer_),
                                   std::array<std::uint64_t, 4>{1, 2, 3, 4});
    event_.text.reserve(256);
    event_.top.reserve(20);
  }

  std::int32_t in(std::int32_t low, std::int32_t high) {
    return low + static_cast<std::int32_t>(random_() % static_cast<std::uint64_t>(high - low + 1));
  }

  LoadedModel model_;
  Tokenizer tokenizer_;
  EngineLimits limits_;
  SteadyClock clock_;
  std::unique_ptr<LocalExecutor> executor_;
  std::unique_ptr<StepLoop> loop_;
  std::vector<std::pair<std::shared_ptr<OutputStream>, std::int32_t>> streams_;
  OutputEvent event_;
  std::mt19937_64 random_{5};
  std::int64_t requests_ = 0;
};

TEST(Leak, TenThousandStepsLeaveNothingAndAllocateNothing) {
  const TemporaryDirectory directory;
  write_checkpoint(directory.path(), {});
  const auto house = House::open(directory.path());
  ASSERT_NE(house, nullptr);
  constexpr std::int64_t kSteps = 10'000;
  // The buffers of slots, streams and lanes grow to the largest that each has had.
  house->run(kSteps / 2);
  const long resident = resident_kib();
  const Statistics before = house->loop().statistics();
  const std::int64_t requests_before = house->requests();
  allocations = 0;
  house->run(kSteps);
  const Statistics after = house->loop().statistics();
  EXPECT_EQ(allocations, 0);
  EXPECT_LE(resident_kib(), resident + resident / 50) << "resident memory in KiB";

  // It was the work that was meant.
  const std::int64_t requests = house->requests() - requests_before;
  const auto cancelled =
      static_cast<std::int64_t>(after.requests_cancelled - before.requests_cancelled);
  EXPECT_GE(static_cast<std::int64_t>(after.steps - before.steps), kSteps);
  EXPECT_GT(requests, 2000);
  EXPECT_GT(cancelled, requests / 20);
  EXPECT_GT(after.preempted, before.preempted);
  EXPECT_GT(after.resumed, before.resumed);
  EXPECT_GT(after.forked, before.forked);
  EXPECT_GT(after.evicted_pages, before.evicted_pages);
  EXPECT_EQ(after.requests_failed, 0U);
  EXPECT_EQ(after.device_failures, 0U);
  std::printf("%lld requests, %lld cancelled, %llu tokens, %ld -> %ld KiB resident\n",
              static_cast<long long>(requests), static_cast<long long>(cancelled),
              static_cast<unsigned long long>(after.sampled_tokens - before.sampled_tokens),
              resident, resident_kib());
}

}  // namespace
}  // namespace koho::testing
