// SPDX-License-Identifier: Apache-2.0
#include "tests/processes/worker_engine.h"

#include <bit>
#include <random>

#include <gtest/gtest.h>

#include "engine/local_executor.h"
#include "engine/plan_writer.h"
#include "runtime/worker_model.h"
#include "tests/support/test_checkpoint.h"

namespace koho::testing {

KnownAnswer read_answer(OutputStream& stream) {
  KnownAnswer answer;
  OutputEvent event;
  while (true) {
    const OutputStream::Read read = stream.wait(event, 1'000'000);
    if (read == OutputStream::Read::done) break;
    if (read == OutputStream::Read::nothing || event.token < 0) continue;
    answer.tokens.push_back(event.token);
    answer.logprobs.push_back(std::bit_cast<std::uint32_t>(event.logprob));
  }
  EXPECT_EQ(stream.summary().ending, Ending::completed) << stream.summary().error.message;
  return answer;
}

void write_worker_model(const std::filesystem::path& directory) {
  CheckpointRecipe recipe;
  recipe.amplitude = 0.3;
  write_checkpoint(directory, recipe);
}

std::unique_ptr<WorkerEngine> WorkerEngine::start(const std::filesystem::path& directory,
                                                  const WorkerEngineOptions& options) {
  std::unique_ptr<WorkerEngine> made(new WorkerEngine());
  Result<LoadedModel> model = load_model(directory);
  EXPECT_TRUE(model.ok()) << model.error().message;
  if (!model.ok()) return nullptr;
  made->model_ = std::move(*model);
  EngineLimits& limits = made->limits_;
  Limits& s = limits.scheduler;
  limits.vocabulary = static_cast<std::int32_t>(made->model_.config.vocab_size);
  limits.requests_max = 64;
  limits.choices_max = 1;
  limits.step_deadline_us = options.step_deadline_us;
  // The tests kill at any rate: what is under test is that nothing is lost, not who gives up when.
  limits.recoveries_max = 1 << 20;
  limits.faults_per_request_max = 1 << 20;
  limits.failures_in_a_row_max = 1 << 20;
  s.pages = 64;
  s.partitions = options.attention == AttentionLayout::data_parallel
                     ? static_cast<std::int32_t>(options.ranks)
                     : 1;
  s.context_max = 256;
  s.sequences_max = 8;
  s.live_max = 64;
  s.step_tokens_max = 72;
  s.mixed_prefill_tokens_max = 32;
  s.prefill_tokens_max = 64;
  const WorkerSettings settings{
      .load = {.shard = {.ranks = options.ranks, .attention = options.attention},
               .limits = {.tokens_max = s.step_tokens_max,
                          .sequences_max = s.sequences_max,
                          .context_max = s.context_max,
                          .logit_rows_max = s.sequences_max,
                          .vocabulary = 0},
               .kv_pages = s.pages},
      .counts_slots = s.sequences_max,
      .mask_rows_max = s.sequences_max,
      .tokenizer_tokens = limits.vocabulary};
  DeviceOptions device;
  device.threads = 1;
  if (options.program.empty()) {
    LocalExecutorSettings local;
    local.worker = settings;
    local.ranks = options.ranks;
    local.bounds = plan_bounds(limits);
    local.make_backend = [device, ranks = options.ranks](std::int64_t rank) {
      return make_backend(device, rank, ranks);
    };
    auto executor = LocalExecutor::create(made->model_.config, made->model_.sources, local);
    EXPECT_TRUE(executor.ok()) << executor.error().message;
    if (!executor.ok()) return nullptr;
    made->executor_ = std::move(*executor);
  } else {
    ProcessExecutorSettings process;
    process.group.program = options.program;
    process.group.ranks = options.ranks;
    process.group.silence_us_max = options.silence_us_max;
    process.group.task.model = *flat_model(made->model_);
    process.group.task.shard = settings.load.shard;
    process.group.task.log_level = 3;
    EXPECT_TRUE(process.group.task.set_device(device).ok());
    auto executor = ProcessExecutor::open(std::move(process));
    EXPECT_TRUE(executor.ok()) << executor.error().message;
    if (!executor.ok()) return nullptr;
    const Status loaded = (*executor)->load({.worker = settings, .bounds = plan_bounds(limits)});
    EXPECT_TRUE(loaded.ok()) << loaded.error().message;
    if (!loaded.ok()) return nullptr;
    made->processes_ = executor->get();
    made->executor_ = std::move(*executor);
  }
  auto engine = Engine::start(limits, *made->executor_, made->clock_);
  EXPECT_TRUE(engine.ok()) << engine.error().message;
  if (!engine.ok()) return nullptr;
  made->engine_ = std::move(*engine);
  return made;
}

Request WorkerEngine::request(std::size_t index) const {
  std::mt19937 random(static_cast<std::uint32_t>(index) + 1);
  Request request;
  request.prompt.resize(3 + random() % 90);
  for (Token& token : request.prompt)
    token = static_cast<Token>(random() % static_cast<std::uint32_t>(limits_.vocabulary));
  request.max_tokens = static_cast<std::int32_t>(5 + random() % 60);
  request.sampling.temperature = index % 3 == 0 ? 0.0 : 0.9;
  request.sampling.repetition_penalty = index % 4 == 1 ? 1.2 : 1.0;
  request.sampling.seed = static_cast<std::int64_t>(index) * 77 + 5;
  request.sampling.logprobs = 0;
  return request;
}

std::shared_ptr<OutputStream> WorkerEngine::submit(std::size_t index) {
  auto stream = engine_->submit(request(index));
  EXPECT_TRUE(stream.ok()) << stream.error().message;
  return stream.ok() ? *stream : nullptr;
}

}  // namespace koho::testing
