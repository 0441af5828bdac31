// SPDX-License-Identifier: Apache-2.0
// Submits, cancels and reads on one thread, so that a run can be repeated.
#include "tests/batch_invariance/soak_engine.h"

#include <array>
#include <cstdio>

#include <gtest/gtest.h>

#include "runtime/detokenizing_decoder.h"

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

}  // namespace

SoakEngine::SoakEngine(LoadedModel model, Tokenizer tokenizer, std::atomic<bool>& stepping)
    : model_(std::move(model)),
      tokenizer_(std::move(tokenizer)),
      limits_(limits_of(model_.config)),
      stepping_(stepping) {}

std::unique_ptr<SoakEngine> SoakEngine::open(const std::filesystem::path& directory,
                                             const MakeBackend& make_backend,
                                             std::atomic<bool>& stepping) {
  auto model = load_model(directory);
  EXPECT_TRUE(model.ok()) << model.error().message;
  auto tokenizer = Tokenizer::load(KOHO_SOURCE_DIR "/models/tiny/tokenizer.json");
  EXPECT_TRUE(tokenizer.ok());
  if (!model.ok() || !tokenizer.ok()) return nullptr;
  std::unique_ptr<SoakEngine> engine(
      new SoakEngine(std::move(model).value(), std::move(tokenizer).value(), stepping));
  engine->start(make_backend);
  return engine->executor_ ? std::move(engine) : nullptr;
}

void SoakEngine::start(const MakeBackend& make_backend) {
  const Limits& s = limits_.scheduler;
  LocalExecutorSettings settings;
  settings.bounds = plan_bounds(limits_);
  settings.make_backend = [this, make_backend](std::int64_t) {
    Result<std::unique_ptr<Backend>> backend = make_backend();
    if (backend.ok()) backend_ = backend->get();
    return backend;
  };
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
  loop_ = std::make_unique<StepLoop>(limits_, *executor_, clock_, detokenizing_decoders(tokenizer_),
                                     std::array<std::uint64_t, 4>{1, 2, 3, 4});
  event_.text.reserve(256);
  event_.top.reserve(20);
}

std::int32_t SoakEngine::in(std::int32_t low, std::int32_t high) {
  return low + static_cast<std::int32_t>(random_() % static_cast<std::uint64_t>(high - low + 1));
}

void SoakEngine::submit() {
  Request request;
  const std::int32_t length = in(1, 200);
  for (std::int32_t t = 0; t < length; ++t) request.prompt.push_back(in(0, limits_.vocabulary - 1));
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
void SoakEngine::step() {
  stepping_ = true;
  loop_->launch();
  loop_->launch();
  while (loop_->collect(1'000'000) == StepLoop::CollectOutcome::waiting) continue;
  stepping_ = false;
}

void SoakEngine::read_and_cancel() {
  for (auto& [stream, cancel_in] : streams_) {
    while (stream->poll(event_) == OutputStream::Read::event) continue;
    if (cancel_in >= 0 && cancel_in-- == 0) loop_->cancel(*stream);
  }
  std::erase_if(streams_, [](const auto& entry) { return entry.first->closed(); });
}

void SoakEngine::run(std::int64_t steps) {
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

void expect_all_kinds_of_work(const Statistics& before,
                              const Statistics& after,
                              std::int64_t requests) {
  const auto cancelled =
      static_cast<std::int64_t>(after.requests_cancelled - before.requests_cancelled);
  EXPECT_GE(after.steps - before.steps, 10'000U);
  EXPECT_GT(requests, 2000);
  EXPECT_GT(cancelled, requests / 20);
  EXPECT_GT(after.preempted, before.preempted);
  EXPECT_GT(after.resumed, before.resumed);
  EXPECT_GT(after.forked, before.forked);
  EXPECT_GT(after.evicted_pages, before.evicted_pages);
  EXPECT_EQ(after.requests_failed, 0U);
  EXPECT_EQ(after.device_failures, 0U);
  std::printf("%lld requests, %lld cancelled, %llu tokens\n", static_cast<long long>(requests),
              static_cast<long long>(cancelled),
              static_cast<unsigned long long>(after.sampled_tokens - before.sampled_tokens));
}

}  // namespace koho::testing
