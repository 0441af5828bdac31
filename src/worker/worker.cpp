// SPDX-License-Identifier: Apache-2.0
#include "worker/worker.h"

#include <algorithm>

#include "base/arithmetic.h"

namespace koho {
namespace {

/// Copies a host array into the first elements of a device array and returns them as `shape`.
template <typename T>
Result<ConstTensorView> fill(Backend& backend,
                             Tensor& target,
                             std::span<const T> source,
                             Shape shape) {
  TensorView whole = target.view();
  const TensorView part(whole.data, whole.dtype, shape, whole.device);
  KOHO_CHECK_LE(part.bytes(), whole.bytes());
  if (!source.empty()) KOHO_TRY(backend.upload(part, std::as_bytes(source)));
  return ConstTensorView(part);
}

template <typename T>
Status fetch(Backend& backend, std::vector<T>& target, ConstTensorView source) {
  target.resize(static_cast<std::size_t>(source.elements()));
  return backend.download(std::as_writable_bytes(std::span<T>(target)), source);
}

std::int64_t length(auto span) {
  return static_cast<std::int64_t>(span.size());
}

}  // namespace

Result<Worker> Worker::create(const ModelConfig& config,
                              const ModelSources& sources,
                              const WorkerSettings& settings,
                              std::unique_ptr<Backend> backend,
                              std::unique_ptr<Communicator> communicator) {
  Worker worker;
  worker.backend_ = std::move(backend);
  worker.communicator_ = std::move(communicator);
  KOHO_TRY_ASSIGN(Glm4Moe model, Glm4Moe::load(config, sources, settings.load, *worker.backend_,
                                               *worker.communicator_));
  worker.model_ = std::make_unique<Glm4Moe>(std::move(model));
  worker.limits_ = settings.load.limits;
  worker.limits_.vocabulary = config.vocab_size;
  worker.page_table_width_max_ = ceil_div(worker.limits_.context_max, kPageTokens);
  worker.mask_rows_max_ = settings.mask_rows_max;
  worker.tokenizer_tokens_ = std::min(settings.tokenizer_tokens, config.vocab_size);
  KOHO_TRY(worker.allocate(settings));
  return worker;
}

Status Worker::allocate(const WorkerSettings& settings) {
  Arrays& a = arrays_;
  const std::int64_t tokens = limits_.tokens_max;
  const std::int64_t sequences = limits_.sequences_max;
  const std::int64_t rows = limits_.logit_rows_max;
  auto tensor = [this](DType dtype, Shape shape) {
    return backend_->allocate(dtype, shape, "step arrays");
  };
  KOHO_TRY_ASSIGN(a.token_ids, tensor(DType::i32, {tokens}));
  KOHO_TRY_ASSIGN(a.positions, tensor(DType::i32, {tokens}));
  KOHO_TRY_ASSIGN(a.slots, tensor(DType::i64, {tokens}));
  KOHO_TRY_ASSIGN(a.query_starts, tensor(DType::i32, {sequences + 1}));
  KOHO_TRY_ASSIGN(a.context_lengths, tensor(DType::i32, {sequences}));
  KOHO_TRY_ASSIGN(a.page_tables, tensor(DType::i32, {sequences, page_table_width_max_}));
  KOHO_TRY_ASSIGN(a.logit_rows, tensor(DType::i32, {rows}));
  KOHO_TRY_ASSIGN(a.sampling,
                  tensor(DType::u8, {rows, static_cast<std::int64_t>(sizeof(SamplingRow))}));
  KOHO_TRY_ASSIGN(a.biases, tensor(DType::u8, {rows * kLogitBiasMax,
                                               static_cast<std::int64_t>(sizeof(LogitBias))}));
  KOHO_TRY_ASSIGN(a.masks, tensor(DType::i32, {std::max<std::int64_t>(mask_rows_max_, 1),
                                               ceil_div<std::int64_t>(limits_.vocabulary, 32)}));
  KOHO_TRY_ASSIGN(a.counts, tensor(DType::i32, {std::max<std::int64_t>(settings.counts_slots, 1),
                                                limits_.vocabulary}));
  KOHO_TRY_ASSIGN(a.id_list, tensor(DType::i32, {limits_.context_max}));
  KOHO_TRY_ASSIGN(a.ids, tensor(DType::i32, {rows}));
  KOHO_TRY_ASSIGN(a.logprobs, tensor(DType::f32, {rows}));
  KOHO_TRY_ASSIGN(a.top_ids, tensor(DType::i32, {rows, kTopLogprobsMax}));
  KOHO_TRY_ASSIGN(a.top_logprobs, tensor(DType::f32, {rows, kTopLogprobsMax}));
  return {};
}

Status Worker::check(const StepInput& input) const {
  const std::int64_t tokens = length(input.token_ids);
  const std::int64_t sequences = length(input.context_lengths);
  const std::int64_t rows = length(input.logit_rows);
  const bool lengths_agree = length(input.positions) == tokens && length(input.slots) == tokens &&
                             length(input.query_starts) == sequences + 1 &&
                             length(input.page_tables) == sequences * input.page_table_width &&
                             (input.sampling.empty() || length(input.sampling) == rows);
  const bool within_limits =
      tokens <= limits_.tokens_max && sequences <= limits_.sequences_max &&
      rows <= limits_.logit_rows_max && input.page_table_width <= page_table_width_max_ &&
      length(input.biases) <= limits_.logit_rows_max * kLogitBiasMax &&
      length(input.masks) <= mask_rows_max_ * ceil_div<std::int64_t>(limits_.vocabulary, 32);
  if (!lengths_agree || !within_limits || input.query_starts.back() != tokens)
    return make_error(ErrorCode::invalid_argument,
                      "a step of {} tokens, {} sequences, {} logit rows does not fit together or "
                      "exceeds the limits of "
                      "{}, {}, {}",
                      tokens, sequences, rows, limits_.tokens_max, limits_.sequences_max,
                      limits_.logit_rows_max);
  for (const std::int32_t id : input.token_ids)
    if (id < 0 || id >= limits_.vocabulary)
      return make_error(ErrorCode::invalid_argument, "token id {} is outside 0..{}", id,
                        limits_.vocabulary - 1);
  return {};
}

Result<Batch> Worker::upload(const StepInput& input) {
  Arrays& a = arrays_;
  Batch batch;
  batch.tokens = length(input.token_ids);
  batch.sequences = length(input.context_lengths);
  batch.decodes = input.decodes;
  const std::int64_t rows = length(input.logit_rows);
  for (std::size_t s = 0; s + 1 < input.query_starts.size(); ++s)
    batch.query_max =
        std::max<std::int64_t>(batch.query_max, input.query_starts[s + 1] - input.query_starts[s]);
  for (const std::int32_t context : input.context_lengths)
    batch.context_max = std::max<std::int64_t>(batch.context_max, context);
  KOHO_TRY_ASSIGN(batch.token_ids, fill(*backend_, a.token_ids, input.token_ids, {batch.tokens}));
  KOHO_TRY_ASSIGN(batch.positions, fill(*backend_, a.positions, input.positions, {batch.tokens}));
  KOHO_TRY_ASSIGN(batch.slots, fill(*backend_, a.slots, input.slots, {batch.tokens}));
  KOHO_TRY_ASSIGN(batch.query_starts,
                  fill(*backend_, a.query_starts, input.query_starts, {batch.sequences + 1}));
  KOHO_TRY_ASSIGN(batch.context_lengths,
                  fill(*backend_, a.context_lengths, input.context_lengths, {batch.sequences}));
  KOHO_TRY_ASSIGN(batch.page_tables, fill(*backend_, a.page_tables, input.page_tables,
                                          {batch.sequences, input.page_table_width}));
  KOHO_TRY_ASSIGN(batch.logit_rows, fill(*backend_, a.logit_rows, input.logit_rows, {rows}));
  return batch;
}

Status Worker::step(const StepInput& input, StepOutput& output) {
  KOHO_TRY(check(input));
  KOHO_TRY_ASSIGN(const Batch batch, upload(input));
  KOHO_TRY_ASSIGN(const TensorView logits, model_->forward(batch));
  output.logits = logits;
  if (input.sampling.empty()) return backend_->synchronize();
  return sample(input, logits, output);
}

Status Worker::sample(const StepInput& input, ConstTensorView logits, StepOutput& output) {
  Arrays& a = arrays_;
  const std::int64_t rows = length(input.logit_rows);
  const std::int64_t words = ceil_div<std::int64_t>(limits_.vocabulary, 32);
  SamplingBatch batch;
  batch.tokens = tokenizer_tokens_;
  KOHO_TRY_ASSIGN(batch.rows, fill(*backend_, a.sampling, std::as_bytes(input.sampling),
                                   {rows, static_cast<std::int64_t>(sizeof(SamplingRow))}));
  if (!input.biases.empty()) {
    KOHO_TRY_ASSIGN(batch.biases,
                    fill(*backend_, a.biases, std::as_bytes(input.biases),
                         {length(input.biases), static_cast<std::int64_t>(sizeof(LogitBias))}));
  }
  if (!input.masks.empty()) {
    KOHO_TRY_ASSIGN(batch.masks,
                    fill(*backend_, a.masks, input.masks, {length(input.masks) / words, words}));
  }
  batch.counts = a.counts.view();
  const bool logprobs = std::any_of(input.sampling.begin(), input.sampling.end(),
                                    [](const SamplingRow& row) { return row.logprobs >= 0; });
  SamplingOutput out;
  out.ids = a.ids.view().first(rows);
  if (logprobs) {
    out.logprobs = a.logprobs.view().first(rows);
    out.top_ids = a.top_ids.view().first(rows);
    out.top_logprobs = a.top_logprobs.view().first(rows);
  }
  KOHO_TRY(backend_->sample(out, logits, batch));
  KOHO_TRY(fetch(*backend_, output.ids, out.ids));
  output.logprobs.clear();
  output.top_ids.clear();
  output.top_logprobs.clear();
  if (!logprobs) return {};
  KOHO_TRY(fetch(*backend_, output.logprobs, out.logprobs));
  KOHO_TRY(fetch(*backend_, output.top_ids, out.top_ids));
  return fetch(*backend_, output.top_logprobs, out.top_logprobs);
}

Status Worker::start_counts(std::int64_t slot,
                            std::span<const std::int32_t> prompt,
                            std::span<const std::int32_t> output) {
  const std::int64_t total = length(prompt) + length(output);
  if (total > limits_.context_max)
    return make_error(ErrorCode::invalid_argument, "{} tokens exceed the context of {}", total,
                      limits_.context_max);
  const TensorView list = arrays_.id_list.view();
  const TensorView prompt_ids = list.slice(0, 0, length(prompt));
  const TensorView output_ids = list.slice(0, length(prompt), length(output));
  if (!prompt.empty()) KOHO_TRY(backend_->upload(prompt_ids, std::as_bytes(prompt)));
  if (!output.empty()) KOHO_TRY(backend_->upload(output_ids, std::as_bytes(output)));
  return backend_->reset_counts(arrays_.counts.view(), slot, prompt_ids, output_ids);
}

Status Worker::copy_pages(std::span<const std::int32_t> pairs) {
  KOHO_TRY_ASSIGN(const ConstTensorView list,
                  fill(*backend_, arrays_.id_list, pairs, {length(pairs) / 2, 2}));
  for (std::int64_t layer = 0; layer < model_->config().num_hidden_layers; ++layer)
    KOHO_TRY(backend_->copy_pages(model_->kv_cache().layer(layer), list));
  return backend_->synchronize();
}

}  // namespace koho
