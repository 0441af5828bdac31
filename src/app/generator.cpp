// SPDX-License-Identifier: Apache-2.0
#include "app/generator.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <numeric>
#include <random>

#include "base/arithmetic.h"
#include "comm/one_rank.h"
#include "cpu/cpu_backend.h"

namespace koho::app {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double rate(std::int64_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0;
}

std::uint64_t seed_of(const SamplingFlags& flags) {
  if (flags.seed >= 0) return static_cast<std::uint64_t>(flags.seed);
  std::random_device device;
  return (static_cast<std::uint64_t>(device()) << 32U) | device();
}

std::vector<LogitBias> biases_of(const SamplingParameters& parameters) {
  std::vector<LogitBias> biases;
  for (const auto& [token, bias] : parameters.logit_bias)
    biases.push_back({.token = token, .bias = bias});
  return biases;
}

bool needs_counts(const SamplingParameters& p) {
  return p.repetition_penalty != 1.0 || p.frequency_penalty != 0.0 || p.presence_penalty != 0.0;
}

}  // namespace

double Answer::prefill_tokens_per_s() const {
  return rate(prefill_tokens, prefill_s);
}

double Answer::decode_tokens_per_s() const {
  return rate(static_cast<std::int64_t>(ids.size()) - 1, decode_s);
}

Result<Generator> Generator::create(const LoadedModel& model, const GeneratorSettings& settings) {
  Generator generator;
  generator.model_ = &model;
  generator.settings_ = settings;
  const std::int64_t pages = ceil_div(settings.context_max, kPageTokens);
  WorkerSettings worker{
      .load = {.shard = {},
               .limits = {.tokens_max = settings.chunk_max,
                          .sequences_max = 1,
                          .context_max = settings.context_max,
                          .logit_rows_max = settings.all_logits ? settings.chunk_max : 1,
                          .vocabulary = 0},
               .kv_pages = pages,
               .kv_dtype = DType::bf16},
      .counts_slots = 1,
      .mask_rows_max = 0,
      .tokenizer_tokens =
          settings.tokenizer_tokens > 0 ? settings.tokenizer_tokens : model.config.vocab_size};
  KOHO_TRY_ASSIGN(
      std::unique_ptr<Backend> backend,
      make_cpu_backend({.threads = static_cast<int>(settings.threads), .isa = CpuIsa::automatic}));
  KOHO_TRY_ASSIGN(Worker made, Worker::create(model.config, model.sources, worker,
                                              std::move(backend), std::make_unique<OneRank>()));
  generator.worker_ = std::make_unique<Worker>(std::move(made));
  generator.page_table_.resize(static_cast<std::size_t>(pages));
  std::iota(generator.page_table_.begin(), generator.page_table_.end(), 0);
  return generator;
}

Status Generator::step(std::span<const std::int32_t> ids,
                       std::int64_t position,
                       std::span<const std::int32_t> logit_rows,
                       std::span<const SamplingRow> sampling,
                       std::span<const LogitBias> biases) {
  const auto tokens = static_cast<std::int32_t>(ids.size());
  std::vector<std::int32_t> positions(ids.size());
  std::iota(positions.begin(), positions.end(), static_cast<std::int32_t>(position));
  const std::vector<std::int64_t> slots(positions.begin(),
                                        positions.end());  // pages are 0, 1, 2, …
  const std::array<std::int32_t, 2> query_starts{0, tokens};
  const std::array<std::int32_t, 1> context{static_cast<std::int32_t>(position) + tokens};
  const std::int64_t width = ceil_div<std::int64_t>(context[0], kPageTokens);
  const StepInput input{
      .token_ids = ids,
      .positions = positions,
      .slots = slots,
      .query_starts = query_starts,
      .context_lengths = context,
      .page_tables = std::span(page_table_).first(static_cast<std::size_t>(width)),
      .page_table_width = width,
      .decodes = tokens == 1 ? 1 : 0,
      .logit_rows = logit_rows,
      .sampling = sampling,
      .biases = biases,
      .masks = {}};
  return worker_->step(input, output_);
}

/// Computes what the cache does not hold of `prompt` and draws the first token. Returns the tokens
/// found in the cache.
Result<std::int64_t> Generator::prefill(std::span<const std::int32_t> prompt,
                                        const SamplingRow& row,
                                        std::span<const LogitBias> biases) {
  const auto shared = static_cast<std::size_t>(
      std::mismatch(cached_.begin(), cached_.end(), prompt.begin(), prompt.end()).second -
      prompt.begin());
  const std::size_t cached =
      std::min(shared, prompt.size() - 1);  // the last token's logits are wanted
  cached_.resize(cached);
  while (cached_.size() < prompt.size()) {
    const std::size_t begin = cached_.size();
    const std::size_t count =
        std::min(prompt.size() - begin, static_cast<std::size_t>(settings_.chunk_max));
    const bool last = begin + count == prompt.size();
    const std::array<std::int32_t, 1> last_row{static_cast<std::int32_t>(count) - 1};
    const std::span<const std::int32_t> rows =
        last ? std::span<const std::int32_t>(last_row) : std::span<const std::int32_t>();
    const std::span<const SamplingRow> sampling =
        last ? std::span(&row, 1) : std::span<const SamplingRow>();
    KOHO_TRY(step(prompt.subspan(begin, count), static_cast<std::int64_t>(begin), rows, sampling,
                  biases));
    cached_.insert(cached_.end(), prompt.begin() + static_cast<std::ptrdiff_t>(begin),
                   prompt.begin() + static_cast<std::ptrdiff_t>(begin + count));
  }
  return static_cast<std::int64_t>(cached);
}

Result<Answer> Generator::generate(std::span<const std::int32_t> prompt,
                                   const SamplingFlags& flags,
                                   const std::function<bool(std::int32_t)>& take,
                                   const std::atomic<bool>& interrupted) {
  if (prompt.empty()) return make_error(ErrorCode::invalid_argument, "the prompt is empty");
  if (static_cast<std::int64_t>(prompt.size()) >= settings_.context_max)
    return make_error(ErrorCode::invalid_argument,
                      "the prompt has {} tokens, the context holds {} with the answer",
                      prompt.size(), settings_.context_max);
  KOHO_TRY(validate(flags.parameters, model_->config.vocab_size));

  const std::vector<LogitBias> biases = biases_of(flags.parameters);
  SamplingRow row = make_sampling_row(flags.parameters, seed_of(flags), 0);
  row.bias_count = static_cast<std::int32_t>(biases.size());
  if (needs_counts(flags.parameters)) {
    row.counts_slot = 0;
    KOHO_TRY(worker_->start_counts(0, prompt, {}));
  }
  Answer answer;
  Clock::time_point start = Clock::now();
  KOHO_TRY_ASSIGN(answer.cached_tokens, prefill(prompt, row, biases));
  answer.prefill_tokens = static_cast<std::int64_t>(prompt.size()) - answer.cached_tokens;
  answer.prefill_s = seconds_since(start);

  start = Clock::now();
  while (true) {
    const std::int32_t id = output_.ids[0];
    if (id < 0)
      return make_error(ErrorCode::internal,
                        "the model's logits are not numbers: no token could be drawn");
    answer.ids.push_back(id);
    if (!take(id)) {
      answer.finish_reason = "stop";
      break;
    }
    if (static_cast<std::int64_t>(answer.ids.size()) == flags.tokens_max ||
        static_cast<std::int64_t>(cached_.size()) + 1 >= settings_.context_max) {
      answer.finish_reason = "length";
      break;
    }
    if (interrupted.load()) {
      answer.finish_reason = "abort";
      break;
    }
    row.output_position = static_cast<std::int64_t>(answer.ids.size());
    const std::array<std::int32_t, 1> only{0};
    KOHO_TRY(step(std::span(&id, 1), static_cast<std::int64_t>(cached_.size()), only,
                  std::span(&row, 1), biases));
    cached_.push_back(id);
  }
  answer.decode_s = seconds_since(start);
  return answer;
}

Status Generator::logits(std::span<const std::int32_t> ids,
                         const std::function<Status(std::span<const float> rows)>& take) {
  KOHO_CHECK(settings_.all_logits);
  cached_.clear();
  std::vector<float> rows;
  std::vector<std::int32_t> all;
  for (std::size_t begin = 0; begin < ids.size(); begin += all.size()) {
    all.resize(std::min(ids.size() - begin, static_cast<std::size_t>(settings_.chunk_max)));
    std::iota(all.begin(), all.end(), 0);
    KOHO_TRY(step(ids.subspan(begin, all.size()), static_cast<std::int64_t>(begin), all, {}, {}));
    rows.resize(static_cast<std::size_t>(output_.logits.elements()));
    KOHO_TRY(worker_->backend().download(std::as_writable_bytes(std::span<float>(rows)),
                                         output_.logits));
    KOHO_TRY(take(rows));
  }
  return {};
}

}  // namespace koho::app
