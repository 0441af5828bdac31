// SPDX-License-Identifier: Apache-2.0
// Checks the options, turns them into the engine's limits, then starts executor and engine in that
// order.
#include "runtime/runtime.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/in_range.h"
#include "base/log.h"
#include "engine/plan_writer.h"
#include "model/kv_cache.h"
#include "runtime/detokenizing_decoder.h"
#include "runtime/sizes.h"

namespace koho {
namespace {

Status validate(const RuntimeOptions& options, const ModelConfig& config) {
  KOHO_TRY(in_range("ranks", options.ranks, 1, 64));
  KOHO_TRY(in_range("the number of sequences", options.sequences_max, 1, 1 << 14));
  KOHO_TRY(in_range("the context", options.context_max, 0, config.max_position_embeddings));
  KOHO_TRY(in_range("the number of cache pages", options.kv_pages, 0, (1 << 30) / kPageTokens));
  KOHO_TRY(in_range("the bytes of keys and values", options.kv_bytes, 0, std::int64_t{1} << 50));
  if (!(options.memory_share >= 0.0 && options.memory_share <= 1.0))
    return make_error(ErrorCode::invalid_argument,
                      "the share of memory must be above 0 and at most 1, found {}",
                      options.memory_share);
  if (!says_cache_size_once(options))
    return make_error(ErrorCode::invalid_argument,
                      "the cache's size is said once: in pages, in bytes, or by a share of memory");
  KOHO_TRY(in_range("the prefill chunk", options.prefill_chunk, 0, 1 << 20));
  KOHO_TRY(in_range("the queue", options.queue_max, 0, 1 << 19));
  return in_range("the time between tokens in ms", options.inter_token_ms_max, 0, 1 << 30);
}

EngineLimits engine_limits(const RuntimeOptions& options,
                           const RuntimeSizes& sizes,
                           std::int64_t vocabulary) {
  EngineLimits limits;
  limits.scheduler.tokens_per_page = static_cast<std::int32_t>(kPageTokens);
  limits.scheduler.pages = sizes.kv_pages;
  limits.scheduler.partitions =
      static_cast<std::int32_t>(options.ranks / shard_of(options).of_tokens().ranks);
  limits.scheduler.context_max = sizes.context_max;
  limits.scheduler.sequences_max = options.sequences_max;
  limits.scheduler.live_max = 2 * options.sequences_max + options.queue_max;
  limits.scheduler.step_tokens_max = options.sequences_max + sizes.prefill_chunk;
  limits.scheduler.mixed_prefill_tokens_max = sizes.prefill_chunk;
  limits.scheduler.prefill_tokens_max = sizes.prefill_chunk;
  limits.scheduler.prefix_cache = options.prefix_cache;
  // A rank's table of biases has room for kLogitBiasMax a row.
  limits.scheduler.bias_entries_max =
      std::min(limits.scheduler.bias_entries_max, options.sequences_max * kLogitBiasMax);
  limits.vocabulary = static_cast<std::int32_t>(vocabulary);
  limits.requests_max = options.sequences_max + options.queue_max;
  limits.choices_max = std::min(limits.choices_max, limits.scheduler.live_max);
  limits.inter_token_us_max = options.inter_token_ms_max * 1000;
  // Ten minutes: a step of a large model on a slow CPU takes long and is no hang.
  limits.step_deadline_us = 600'000'000;
  return limits;
}

}  // namespace

bool says_cache_size_once(const RuntimeOptions& options) {
  return (options.kv_pages > 0 ? 1 : 0) + (options.kv_bytes > 0 ? 1 : 0) +
             (options.memory_share > 0.0 ? 1 : 0) <=
         1;
}

Result<RuntimePlan> plan_runtime(const ModelConfig& config,
                                 const ModelSources& sources,
                                 const RuntimeOptions& options) {
  KOHO_TRY(validate(options, config));
  KOHO_TRY(check_shard(config, shard_of(options)));
  KOHO_TRY(check_devices(options.device, options.ranks));
  CacheMemory memory;
  if (options.kv_pages == 0) {
    KOHO_TRY_ASSIGN(memory, cache_memory(config, sources, options));
  }
  RuntimePlan plan;
  plan.sizes = decide_sizes(config, options, memory);
  plan.limits = engine_limits(options, plan.sizes, config.vocab_size);
  KOHO_TRY(validate(plan.limits));
  return plan;
}

SamplingParameters default_sampling(const GenerationConfig& generation) {
  SamplingParameters sampling = generation.sampling;
  if (!generation.do_sample.value_or(true)) sampling.temperature = 0.0;
  return sampling;
}

Result<std::unique_ptr<Runtime>> Runtime::start(const std::filesystem::path& model,
                                                const RuntimeOptions& options) {
  KOHO_TRY_ASSIGN(LoadedModel loaded, load_model(model));
  std::optional<LoadedText> text;
  if (has_tokenizer(model)) {
    KOHO_TRY_ASSIGN(text, load_text(model, options.chat_template));
  }
  return start(std::move(loaded), std::move(text), options);
}

Result<std::unique_ptr<Runtime>> Runtime::start(LoadedModel model,
                                                std::optional<LoadedText> text,
                                                const RuntimeOptions& options) {
  std::unique_ptr<Runtime> runtime(new Runtime(std::move(model), std::move(text), options));
  KOHO_TRY(runtime->start());
  return runtime;
}

Runtime::Runtime(LoadedModel model, std::optional<LoadedText> text, const RuntimeOptions& options)
    : model_(std::move(model)), text_(std::move(text)), options_(options) {}

Runtime::~Runtime() = default;

Status Runtime::start() {
  const auto start = std::chrono::steady_clock::now();
  if (model_.synthetic) options_.device.synthetic = model_.synthetic.get();
  KOHO_TRY_ASSIGN(const RuntimePlan plan, plan_runtime(model_.config, model_.sources, options_));
  sizes_ = plan.sizes;
  const EngineLimits& limits = plan.limits;
  if (sizes_.context_max < options_.context_max)
    log::warning("a context of {} tokens was asked for; the cache holds {} of one request",
                 options_.context_max, sizes_.context_max);

  LocalExecutorSettings settings;
  settings.ranks = options_.ranks;
  settings.bounds = plan_bounds(limits);
  settings.device = options_.device;
  settings.make_backend = [device = options_.device, ranks = options_.ranks](std::int64_t rank) {
    return make_backend(device, rank, ranks);
  };
  settings.worker = {
      .load = {.shard = shard_of(options_),
               .limits = {.tokens_max = limits.scheduler.step_tokens_max,
                          .sequences_max = limits.scheduler.sequences_max,
                          .context_max = limits.scheduler.context_max,
                          .logit_rows_max = limits.scheduler.sequences_max,
                          .vocabulary = 0},
               .kv_pages = sizes_.kv_pages,
               .kv_dtype = options_.kv_dtype},
      .counts_slots = limits.scheduler.sequences_max,
      .mask_rows_max = limits.scheduler.sequences_max,
      .tokenizer_tokens = text_ ? text_->tokenizer.vocab_size() : model_.config.vocab_size};
  KOHO_TRY_ASSIGN(executor_, LocalExecutor::create(model_.config, model_.sources, settings));

  TextDecoderFactory decoders;
  if (text_) decoders = detokenizing_decoders(text_->tokenizer);
  KOHO_TRY_ASSIGN(engine_, Engine::start(limits, *executor_, clock_, std::move(decoders)));
  load_s_ = model_.load_s +
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return {};
}

GrammarCompiler& Runtime::grammars() {
  KOHO_CHECK(text_.has_value());
  std::call_once(grammars_started_, [this] {
    grammars_ = std::make_unique<GrammarCompiler>(text_->tokenizer, model_.config.vocab_size,
                                                  options_.grammars);
  });
  return *grammars_;
}

Request Runtime::default_request() const {
  Request request;
  request.sampling = default_sampling(model_.generation);
  request.stop_tokens = model_.stop_ids();
  if (text_) {
    request.reasoning_begin = text_->tokenizer.id_of("<think>").value_or(-1);
    request.reasoning_end = text_->tokenizer.id_of("</think>").value_or(-1);
  }
  return request;
}

}  // namespace koho
