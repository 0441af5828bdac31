// SPDX-License-Identifier: Apache-2.0
#include "runtime/runtime.h"

#include <algorithm>
#include <chrono>
#include <unistd.h>
#include <utility>

#include "base/arithmetic.h"
#include "base/in_range.h"
#include "engine/plan_writer.h"
#include "model/kv_cache.h"
#include "runtime/detokenizing_decoder.h"

namespace koho {
namespace {

constexpr std::int64_t kContextDefaultOnCpu = 8192;  // of each sequence, if nothing is asked for
constexpr std::int32_t kPrefillChunkCpu = 512;
constexpr std::int32_t kPrefillChunkCuda = 8192;

Status validate(const RuntimeOptions& options, const ModelConfig& config) {
  KOHO_TRY(in_range("ranks", options.ranks, 1, 64));
  KOHO_TRY(in_range("the number of sequences", options.sequences_max, 1, 1 << 14));
  KOHO_TRY(in_range("the context", options.context_max, 0, config.max_position_embeddings));
  KOHO_TRY(in_range("the number of cache pages", options.kv_pages, 0, (1 << 30) / kPageTokens));
  KOHO_TRY(in_range("the prefill chunk", options.prefill_chunk, 0, 1 << 20));
  KOHO_TRY(in_range("the queue", options.queue_max, 0, 1 << 19));
  return in_range("the time between tokens in ms", options.inter_token_ms_max, 0, 1 << 30);
}

Shard shard_of(const RuntimeOptions& options) {
  return {.ranks = options.ranks, .experts = options.experts, .attention = options.attention};
}

/// What a model's weights take on each GPU of `ranks`, `sharers` of which share an attention layer.
/// Linear layers outside the experts may be kept twice, for few tokens and for many (docs/kernels).
std::int64_t placed_bytes(const ModelSources& sources, std::int64_t ranks, std::int64_t sharers) {
  std::int64_t bytes = bytes_of(sources.embedding) + bytes_of(sources.lm_head);
  for (const LayerSources& layer : sources.layers) {
    const AttentionSources& attention = layer.attention;
    bytes += 2 *
             (bytes_of(attention.q) + bytes_of(attention.k) + bytes_of(attention.v) +
              bytes_of(attention.o)) /
             sharers;
    if (layer.mlp) bytes += 2 * bytes_of(*layer.mlp) / ranks;
    if (!layer.moe) continue;
    bytes += bytes_of(layer.moe->router) + bytes_of(layer.moe->shared);
    for (const MlpSource& expert : layer.moe->experts) bytes += bytes_of(expert) / ranks;
  }
  return bytes;
}

/// Memory that keys and values may take on every rank without being asked to: a quarter of the
/// host's, or what a GPU has left beside the weights and a reserve for activations, scratch memory
/// and graphs.
Result<std::int64_t> kv_bytes_max(const RuntimeOptions& options, const ModelSources& sources) {
  if (options.device.kind == DeviceKind::cpu)
    return static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE) / 4 /
           options.ranks;
  constexpr std::int64_t kReserveBytes = 6'000'000'000;
  KOHO_TRY_ASSIGN(const std::unique_ptr<Backend> backend,
                  make_backend(options.device, 0, options.ranks));
  KOHO_TRY_ASSIGN(const MemoryUse use, backend->memory_use());
  const std::int64_t sharers = shard_of(options).of_tokens().ranks;
  return use.free_bytes - placed_bytes(sources, options.ranks, sharers) - kReserveBytes;
}

/// One page's bytes on every rank that holds it.
std::int64_t page_bytes(const ModelConfig& config, const RuntimeOptions& options) {
  return KvCache::page_bytes(
      {.layers = config.num_hidden_layers,
       .pages = 1,
       .kv_heads = config.num_key_value_heads / shard_of(options).of_tokens().ranks,
       .width = config.head_dim,
       .dtype = options.kv_dtype});
}

RuntimeSizes decide_sizes(const ModelConfig& config,
                          const RuntimeOptions& options,
                          std::int64_t kv_bytes) {
  RuntimeSizes sizes;
  const std::int64_t bytes = page_bytes(config, options);
  // Ranks that hold a part of every page; parts of the pool that ranks hold alone.
  const std::int64_t sharers = shard_of(options).of_tokens().ranks;
  const std::int64_t partitions = options.ranks / sharers;
  const std::int64_t model_context = config.max_position_embeddings;
  const std::int64_t wanted_context =
      options.context_max > 0 ? options.context_max : std::min(kContextDefaultOnCpu, model_context);
  const std::int64_t wanted_pages =
      options.sequences_max * ceil_div<std::int64_t>(wanted_context, kPageTokens);
  const std::int64_t one_sequence = ceil_div<std::int64_t>(wanted_context, kPageTokens);
  const std::int64_t affordable = std::max(kv_bytes / bytes, one_sequence) * partitions;
  const std::int64_t pages =
      options.kv_pages > 0 ? options.kv_pages : std::min(wanted_pages, affordable);
  // A sequence lies in one partition.
  const std::int64_t pages_each = options.kv_pages > 0
                                      ? ceil_div(pages, partitions)
                                      : std::max(ceil_div(pages, partitions), one_sequence);
  sizes.kv_pages = static_cast<std::int32_t>(pages_each * partitions);
  sizes.context_max = static_cast<std::int32_t>(std::min<std::int64_t>(
      options.context_max > 0 ? options.context_max : model_context, pages_each * kPageTokens));
  sizes.kv_bytes = pages_each * bytes;
  sizes.kv_bytes_per_token = bytes / kPageTokens;
  const std::int32_t chunk = options.prefill_chunk > 0                 ? options.prefill_chunk
                             : options.device.kind == DeviceKind::cuda ? kPrefillChunkCuda
                                                                       : kPrefillChunkCpu;
  // Several prompts may share a step.
  sizes.prefill_chunk = static_cast<std::int32_t>(
      std::min<std::int64_t>(chunk, std::int64_t{options.sequences_max} * sizes.context_max));
  return sizes;
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
  // What a rank holds of biases is sized by its rows.
  limits.scheduler.bias_entries_max =
      std::min(limits.scheduler.bias_entries_max, options.sequences_max * kLogitBiasMax);
  limits.vocabulary = static_cast<std::int32_t>(vocabulary);
  limits.requests_max = options.sequences_max + options.queue_max;
  limits.choices_max = std::min(limits.choices_max, limits.scheduler.live_max);
  limits.inter_token_us_max = options.inter_token_ms_max * 1000;
  // A step of a large model on a slow machine is long, and no hang.
  limits.step_deadline_us = 600'000'000;
  return limits;
}

}  // namespace

SamplingParameters default_sampling(const GenerationConfig& generation) {
  SamplingParameters sampling;
  sampling.temperature = generation.temperature.value_or(sampling.temperature);
  if (!generation.do_sample.value_or(true)) sampling.temperature = 0.0;
  sampling.top_p = generation.top_p.value_or(sampling.top_p);
  sampling.min_p = generation.min_p.value_or(sampling.min_p);
  sampling.top_k = generation.top_k.value_or(sampling.top_k);
  sampling.repetition_penalty = generation.repetition_penalty.value_or(sampling.repetition_penalty);
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
  KOHO_TRY(validate(options_, model_.config));
  KOHO_TRY(check_shard(model_.config, shard_of(options_)));
  std::int64_t kv_bytes = 0;
  if (options_.kv_pages == 0) {
    KOHO_TRY_ASSIGN(kv_bytes, kv_bytes_max(options_, model_.sources));
  }
  sizes_ = decide_sizes(model_.config, options_, kv_bytes);
  const EngineLimits limits = engine_limits(options_, sizes_, model_.config.vocab_size);
  KOHO_TRY(validate(limits));

  LocalExecutorSettings settings;
  settings.ranks = options_.ranks;
  settings.bounds = plan_bounds(limits);
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
