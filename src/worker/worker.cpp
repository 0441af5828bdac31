// SPDX-License-Identifier: Apache-2.0
// A worker's steps: packing a step's arrays, the two halves, results. How it starts is in
// worker_start.cpp.
#include "worker/worker.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/arithmetic.h"
#include "base/log.h"
#include "sampling/philox.h"

namespace koho {
namespace {

std::int64_t length(auto span) {
  return static_cast<std::int64_t>(span.size());
}

/// Copies `source` to `offset` of the in-flight buffer and fills up to `count` elements.
template <typename T>
void put(
    Tensor& memory, std::int64_t offset, std::span<const T> source, std::int64_t count, T padding) {
  auto* target = reinterpret_cast<T*>(memory.view().data + offset);
  std::copy(source.begin(), source.end(), target);
  std::fill(target + source.size(), target + count, padding);
}

template <typename T>
void fetch(std::vector<T>& target, const Tensor& memory, std::int64_t offset, std::int64_t count) {
  const auto* source = reinterpret_cast<const T*>(memory.view().data + offset);
  target.assign(source, source + count);
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
  if (Status started = worker.start(config, sources, settings); !started.ok()) {
    worker.abort_collectives();  // the others may wait for this rank
    return std::move(started).error();
  }
  return worker;
}

Status Worker::allocate(const WorkerSettings& settings) {
  Arrays& a = arrays_;
  const std::int64_t sequences = limits_.sequences_max;
  const std::int64_t rows = limits_.logit_rows_max;
  const std::int64_t mask_words = ceil_div<std::int64_t>(limits_.vocabulary, 32);
  const std::int64_t mask_rows = std::max<std::int64_t>(mask_rows_max_, 1);
  auto tensor = [this](DType dtype, Shape shape) {
    return backend_->allocate(dtype, shape, "step arrays");
  };
  // Behind the fixed arrays: the most biases, then for every batch slot a whole page table, a whole
  // output record and one copied page, then a context's history tokens.
  const std::int64_t packed_bytes =
      StepLayout({limits_.tokens_max, sequences, rows}).variable +
      rows * kBiasesMax * static_cast<std::int64_t>(sizeof(LogitBias)) +
      8 * sequences * (page_table_width_ + OutputRecord::kWords + 1) + 4 * limits_.context_max;
  const std::int64_t result_bytes = result_layout(rows).bytes;
  KOHO_TRY_ASSIGN(a.packed, tensor(DType::u8, {packed_bytes}));
  KOHO_TRY_ASSIGN(a.token_ids, tensor(DType::i32, {limits_.tokens_max}));
  KOHO_TRY_ASSIGN(a.page_tables, tensor(DType::i32, {sequences, page_table_width_}));
  KOHO_TRY_ASSIGN(a.batch_slot_pages, tensor(DType::i32, {sequences, page_table_width_}));
  KOHO_TRY_ASSIGN(a.last_sampled, tensor(DType::i32, {sequences}));
  KOHO_TRY_ASSIGN(a.outputs, tensor(DType::i32, {sequences, OutputRecord::kWords}));
  KOHO_TRY_ASSIGN(a.masks, tensor(DType::i32, {mask_rows, mask_words}));
  const std::int64_t slots = std::max<std::int64_t>(settings.counts_slots, 1);
  const std::int64_t nonzero_words =
      race_bitmap_words(static_cast<std::int32_t>(limits_.vocabulary));
  KOHO_TRY_ASSIGN(a.counts, tensor(DType::i32, {slots, limits_.vocabulary}));
  KOHO_TRY_ASSIGN(a.count_nonzero, tensor(DType::i32, {slots, nonzero_words}));
  KOHO_TRY_ASSIGN(a.results, tensor(DType::u8, {result_bytes}));
  for (InFlightStep& in_flight : in_flight_) {
    KOHO_TRY_ASSIGN(in_flight.packed, backend_->allocate_host(packed_bytes));
    KOHO_TRY_ASSIGN(in_flight.masks, backend_->allocate_host(4 * mask_rows * mask_words));
    KOHO_TRY_ASSIGN(in_flight.results, backend_->allocate_host(result_bytes));
    KOHO_TRY_ASSIGN(in_flight.done, backend_->make_event());
  }
  // No step uses what none has written; zeros all the same, so that runs repeat exactly.
  for (Tensor* table : {&a.batch_slot_pages, &a.last_sampled, &a.outputs, &a.page_tables}) {
    const std::vector<std::byte> zeros(static_cast<std::size_t>(table->view().bytes()));
    KOHO_TRY(backend_->upload(table->view(), zeros));
  }
  return {};
}

Status Worker::check(const StepInput& input) const {
  const std::int64_t tokens = length(input.token_ids);
  const std::int64_t sequences = length(input.context_lengths);
  const std::int64_t rows = length(input.logit_rows);
  const bool lengths_agree =
      length(input.positions) == tokens && length(input.slots) == tokens &&
      length(input.query_starts) == sequences + 1 && length(input.batch_slots) == sequences &&
      (input.sampling.empty() ||
       (length(input.sampling) == rows && length(input.sample_batch_slots) == rows)) &&
      input.page_table_updates.size() % 2 == 0 && input.page_copies.size() % 2 == 0 &&
      input.output_record_updates.size() % 2 == 0 &&
      (input.logits_wanted.empty() || input.logits_wanted.back() < rows);
  const bool within_limits =
      tokens <= limits_.tokens_max && sequences <= limits_.sequences_max &&
      rows <= limits_.logit_rows_max &&
      length(input.biases) <= limits_.logit_rows_max * kBiasesMax &&
      length(input.page_table_updates) / 2 + length(input.page_copies) / 2 <=
          limits_.sequences_max * (page_table_width_ + 1) &&
      length(input.output_record_updates) / 2 <= limits_.sequences_max * OutputRecord::kWords &&
      length(input.history_tokens) <= limits_.context_max;
  if (!lengths_agree || !within_limits || input.query_starts.back() != tokens)
    return make_error(ErrorCode::invalid_argument,
                      "a step of {} tokens, {} sequences, {} logit rows does not fit together or "
                      "exceeds the limits of "
                      "{}, {}, {}",
                      tokens, sequences, rows, limits_.tokens_max, limits_.sequences_max,
                      limits_.logit_rows_max);
  const Shard& shard = model_->shard();
  if (shard.dispatches_tokens() &&
      (length(input.rank_tokens) != shard.ranks ||
       input.rank_tokens[static_cast<std::size_t>(shard.rank)] != tokens))
    return make_error(ErrorCode::invalid_argument,
                      "a step of {} tokens on rank {} does not say how many each of {} ranks has",
                      tokens, shard.rank, shard.ranks);
  for (const std::int32_t id : input.token_ids)
    if (id < -limits_.sequences_max || id >= limits_.vocabulary)
      return make_error(ErrorCode::invalid_argument, "token id {} is outside 0..{}", id,
                        limits_.vocabulary - 1);
  const auto outside = [this](std::int32_t batch_slot) {
    return batch_slot < 0 || batch_slot >= limits_.sequences_max;
  };
  if (std::any_of(input.batch_slots.begin(), input.batch_slots.end(), outside) ||
      std::any_of(input.sample_batch_slots.begin(), input.sample_batch_slots.end(), outside))
    return make_error(ErrorCode::invalid_argument, "a batch slot is outside 0..{}",
                      limits_.sequences_max - 1);
  return {};
}

std::int64_t Worker::padded_rows(std::int64_t rows) const {
  for (const DecodeGraph& decode_graph : decode_graphs_)
    if (decode_graph.rows >= rows) return decode_graph.rows;
  return rows;
}

/// The graph of a pure decode step that samples every row; null for any other step. Under
/// data-parallel attention all ranks choose alike, by the rank with the most rows.
const Worker::DecodeGraph* Worker::decode_graph_for(const StepInput& input) const {
  std::int64_t rows = length(input.token_ids);
  if (model_->shard().dispatches_tokens()) {
    if (!input.all_ranks_decode) return nullptr;
    rows = *std::ranges::max_element(input.rank_tokens);
    for (const DecodeGraph& decode_graph : decode_graphs_)
      if (decode_graph.rows >= rows) return &decode_graph;
    return nullptr;
  }
  if (rows == 0 || input.decodes != rows || length(input.batch_slots) != rows ||
      length(input.sampling) != rows)
    return nullptr;
  for (const DecodeGraph& decode_graph : decode_graphs_)
    if (decode_graph.rows >= rows) return &decode_graph;
  return nullptr;
}

Status Worker::upload(const StepInput& input, const StepShape& shape, InFlightStep& in_flight) {
  const StepLayout at(shape);
  Tensor& host = in_flight.packed;
  const auto tokens = static_cast<std::int32_t>(input.token_ids.size());
  // Padding: tokens that store nothing, sequences without context, rows that no batch slot takes.
  put(host, at.slots, input.slots, shape.tokens, std::int64_t{-1});
  put(host, at.token_ids, input.token_ids, shape.tokens, 0);
  put(host, at.positions, input.positions, shape.tokens, 0);
  put(host, at.query_starts, input.query_starts, shape.sequences + 1, tokens);
  put(host, at.context_lengths, input.context_lengths, shape.sequences, 0);
  put(host, at.batch_slots, input.batch_slots, shape.sequences, 0);
  put(host, at.logit_rows, input.logit_rows, shape.logit_rows, 0);
  put(host, at.sample_batch_slots, input.sample_batch_slots, shape.logit_rows, -1);
  put(host, at.sampling, input.sampling, shape.logit_rows, SamplingRow{});
  // In a decode step every padding sequence has one token.
  auto* starts = reinterpret_cast<std::int32_t*>(host.view().data + at.query_starts);
  for (std::int64_t s = length(input.batch_slots); s < shape.sequences; ++s)
    starts[s + 1] = std::min(starts[s] + 1, static_cast<std::int32_t>(shape.tokens));

  std::int64_t end = at.variable;
  const auto append = [&](auto source) {
    const std::int64_t begin = end;
    put(host, begin, source, length(source), {});
    end += static_cast<std::int64_t>(source.size_bytes());
    return begin;
  };
  append(input.biases);
  const std::int64_t places = append(input.page_table_updates);
  const std::int64_t words = append(input.output_record_updates);
  const std::int64_t copies = append(input.page_copies);
  const std::int64_t history = append(input.history_tokens);
  const TensorView device = part_of(arrays_.packed, 0, DType::u8, {end});
  KOHO_TRY(backend_->enqueue_upload(
      device, std::span<const std::byte>(host.view().data, static_cast<std::size_t>(end))));
  const auto pairs = [&](std::int64_t offset, auto source) {
    return part_of(arrays_.packed, offset, DType::i32, {length(source) / 2, 2});
  };
  last_traffic_ = {.sent = end, .fetched = 0};
  const auto set = [&](TensorView table, ConstTensorView entries) {
    return backend_->set_entries(table.reshape({table.elements()}), entries);
  };
  KOHO_TRY(set(arrays_.batch_slot_pages.view(), pairs(places, input.page_table_updates)));
  KOHO_TRY(set(arrays_.outputs.view(), pairs(words, input.output_record_updates)));
  KOHO_TRY(reset_counts(input.counts_resets, part_of(arrays_.packed, history, DType::i32,
                                                     {length(input.history_tokens)})));
  if (input.page_copies.empty()) return {};
  for (std::int64_t layer = 0; layer < model_->config().num_hidden_layers; ++layer)
    KOHO_TRY(
        backend_->copy_pages(model_->kv_cache().layer(layer), pairs(copies, input.page_copies)));
  return {};
}

BatchSlotTables Worker::batch_slot_tables() {
  return {.pages = arrays_.batch_slot_pages.view(),
          .last_sampled = arrays_.last_sampled.view(),
          .outputs = arrays_.outputs.view()};
}

Batch Worker::batch_of(const StepShape& shape, std::int64_t decodes) {
  const StepLayout at(shape);
  Tensor& packed = arrays_.packed;
  Batch batch;
  batch.tokens = shape.tokens;
  batch.sequences = shape.sequences;
  batch.decodes = decodes;
  batch.query_max = 1;
  batch.context_max = limits_.context_max;
  batch.token_ids = part_of(arrays_.token_ids, 0, DType::i32, {shape.tokens});
  batch.positions = part_of(packed, at.positions, DType::i32, {shape.tokens});
  batch.slots = part_of(packed, at.slots, DType::i64, {shape.tokens});
  batch.query_starts = part_of(packed, at.query_starts, DType::i32, {shape.sequences + 1});
  batch.context_lengths = part_of(packed, at.context_lengths, DType::i32, {shape.sequences});
  batch.page_tables =
      part_of(arrays_.page_tables, 0, DType::i32, {shape.sequences, page_table_width_});
  batch.logit_rows = part_of(packed, at.logit_rows, DType::i32, {shape.logit_rows});
  return batch;
}

std::span<const std::int64_t> Worker::row_starts(std::int64_t tokens,
                                                 std::span<const std::int64_t> rank_tokens) {
  const Shard& shard = model_->shard();
  if (!shard.dispatches_tokens()) return {};
  row_starts_.assign(1, 0);
  for (std::int64_t rank = 0; rank < shard.ranks; ++rank)
    row_starts_.push_back(row_starts_.back() + (rank_tokens.empty()
                                                    ? tokens
                                                    : rank_tokens[static_cast<std::size_t>(rank)]));
  return row_starts_;
}

Result<SampledLogits> Worker::forward(const StepShape& shape, const Batch& batch) {
  const StepLayout at(shape);
  Tensor& packed = arrays_.packed;
  KOHO_TRY(backend_->gather_input_ids(
      {.token_ids = part_of(arrays_.token_ids, 0, DType::i32, {shape.tokens}),
       .slots = part_of(packed, at.slots, DType::i64, {shape.tokens}),
       .page_tables =
           part_of(arrays_.page_tables, 0, DType::i32, {shape.sequences, page_table_width_}),
       .context_lengths = part_of(packed, at.context_lengths, DType::i32, {shape.sequences})},
      part_of(packed, at.token_ids, DType::i32, {shape.tokens}),
      part_of(packed, at.batch_slots, DType::i32, {shape.sequences}), batch_slot_tables()));
  return model_->forward(batch);
}

/// Samples the rows that are this rank's, and gets what the other ranks sampled.
Status Worker::sample(const StepShape& shape, const SampledLogits& logits) {
  const StepLayout at(shape);
  const std::int64_t rows = shape.logit_rows;
  const ResultLayout results = result_layout(rows);
  const std::int64_t padded = model_->collectives().padded_sampled_rows(rows);
  const std::int64_t own = logits.values.size(0);
  const ConstTensorView parameters =
      part_of(arrays_.packed, at.sampling, DType::u8,
              {rows, static_cast<std::int64_t>(sizeof(SamplingRow))});
  SamplingBatch batch;
  batch.tokens = tokenizer_tokens_;
  batch.rows = parameters.slice(0, logits.first, own);
  // Rows name their biases and masks by index; the sampler reads no others.
  batch.biases =
      part_of(arrays_.packed, at.variable, DType::u8,
              {limits_.logit_rows_max * kBiasesMax, static_cast<std::int64_t>(sizeof(LogitBias))});
  batch.masks = arrays_.masks.view();
  batch.counts = token_counts();
  const std::array all{
      part_of(arrays_.results, results.ids, DType::i32, {padded}),
      part_of(arrays_.results, results.logprobs, DType::f32, {padded}),
      part_of(arrays_.results, results.top_ids, DType::i32, {padded, kTopLogprobsMax}),
      part_of(arrays_.results, results.top_logprobs, DType::f32, {padded, kTopLogprobsMax})};
  const auto mine = [&](const TensorView& view) { return view.slice(0, logits.first, own); };
  const SamplingOutput out{mine(all[0]), mine(all[1]), mine(all[2]), mine(all[3])};
  KOHO_TRY(backend_->sample(out, logits.values, batch));
  KOHO_TRY(model_->collectives().gather_sampled(all));
  const TensorView ids = all[0].first(rows);
  const std::int64_t behind = logits.first + own;
  for (const RowRange others : {RowRange{0, logits.first}, RowRange{behind, rows - behind}})
    KOHO_TRY(backend_->count_sampled(batch.counts, parameters.slice(0, others.first, others.count),
                                     ids.slice(0, others.first, others.count)));
  return backend_->commit_sampled(
      part_of(arrays_.results, results.ends, DType::u8, {rows}), batch_slot_tables(),
      part_of(arrays_.packed, at.sample_batch_slots, DType::i32, {rows}), ids);
}

Status Worker::enqueue(const StepInput& input) {
  KOHO_TRY(enqueue_forward(input));
  return enqueue_sampling(input.masks);
}

Status Worker::enqueue_forward(const StepInput& input) {
  KOHO_TRY(check(input));
  KOHO_CHECK_LT(enqueued_ - finished_, static_cast<std::uint64_t>(kStepsInFlightMax));
  if (enqueued_ != sampled_)
    return make_error(ErrorCode::internal, "the step before this one was not sampled");
  InFlightStep& in_flight = in_flight_[enqueued_ % kStepsInFlightMax];
  StepShape shape{length(input.token_ids), length(input.context_lengths), length(input.logit_rows)};
  in_flight.rows = shape.logit_rows;
  in_flight.samples = !input.sampling.empty();
  in_flight.logprobs = std::any_of(input.sampling.begin(), input.sampling.end(),
                                   [](const SamplingRow& row) { return row.logprobs >= 0; });
  const DecodeGraph* decode_graph = in_flight.decode_graph = decode_graph_for(input);
  if (decode_graph != nullptr) shape = {decode_graph->rows, decode_graph->rows, decode_graph->rows};
  in_flight.shape = shape;
  KOHO_TRY(upload(input, shape, in_flight));
  last_shape_ = shape;
  last_samples_ = in_flight.samples;
  if (decode_graph != nullptr) {
    last_batch_ = batch_of(shape, shape.sequences);
    last_batch_.row_starts = row_starts(shape.tokens, {});
    KOHO_TRY(decode_graph->forward->replay());
    in_flight.logits = model_->logits(shape.logit_rows);
  } else {
    Batch& batch = last_batch_ = batch_of(shape, input.decodes);
    batch.row_starts = row_starts(shape.tokens, input.rank_tokens);
    batch.context_max = 0;
    for (std::size_t s = 0; s < input.context_lengths.size(); ++s) {
      batch.query_max = std::max<std::int64_t>(batch.query_max,
                                               input.query_starts[s + 1] - input.query_starts[s]);
      batch.context_max = std::max<std::int64_t>(batch.context_max, input.context_lengths[s]);
    }
    KOHO_TRY_ASSIGN(in_flight.logits, forward(shape, batch));
  }
  list_logits(input.logits_wanted, in_flight);
  ++enqueued_;
  return {};
}

Status Worker::enqueue_sampling(std::span<const std::uint32_t> masks) {
  KOHO_CHECK_EQ(sampled_ + 1, enqueued_);
  InFlightStep& in_flight = in_flight_[sampled_ % kStepsInFlightMax];
  if (!masks.empty()) KOHO_TRY(upload_masks(masks, in_flight));
  if (in_flight.decode_graph != nullptr) {
    KOHO_TRY(in_flight.decode_graph->sample->replay());
  } else if (in_flight.samples) {
    KOHO_TRY(sample(in_flight.shape, in_flight.logits));
  }
  if (in_flight.samples && in_flight.rows > 0) {
    const ResultLayout results = result_layout(in_flight.shape.logit_rows);
    const std::int64_t bytes = in_flight.logprobs ? results.bytes : results.bytes_without_logprobs;
    last_traffic_.fetched = bytes;
    KOHO_TRY(backend_->enqueue_download(
        std::span<std::byte>(in_flight.results.view().data, static_cast<std::size_t>(bytes)),
        part_of(arrays_.results, 0, DType::u8, {bytes})));
  }
  KOHO_TRY(download_logits(in_flight));
  KOHO_TRY(in_flight.done->record());
  ++sampled_;
  return {};
}

void Worker::list_logits(std::span<const std::int32_t> wanted, InFlightStep& in_flight) const {
  in_flight.logits_rows.clear();
  const Shard& shard = model_->shard();
  const bool all_ranks_have_them =
      !shard.dispatches_tokens() && model_->collectives().sampling_ranks() == 1;
  if (all_ranks_have_them && shard.rank != 0) return;
  const SampledLogits& own = in_flight.logits;
  for (const std::int32_t row : wanted)
    if (row >= own.first && row < own.first + own.values.size(0))
      in_flight.logits_rows.push_back(row);
}

Status Worker::download_logits(InFlightStep& in_flight) {
  if (in_flight.logits_rows.empty()) return {};
  const std::int64_t row_bytes = 4 * limits_.vocabulary;
  std::vector<Tensor>& copies = in_flight.logits_copies;
  // NOTE: none is freed for a larger one: that would wait for the GPU, which may be waiting for a
  // rank that another thread of this process runs.
  while (copies.size() < in_flight.logits_rows.size()) {
    KOHO_TRY_ASSIGN(Tensor copy, backend_->allocate_host(row_bytes));
    copies.push_back(std::move(copy));
  }
  for (std::size_t i = 0; i < in_flight.logits_rows.size(); ++i)
    KOHO_TRY(backend_->enqueue_download(
        std::span<std::byte>(copies[i].view().data, static_cast<std::size_t>(row_bytes)),
        in_flight.logits.values.slice(0, in_flight.logits_rows[i] - in_flight.logits.first, 1)));
  return {};
}

Status Worker::upload_masks(std::span<const std::uint32_t> masks, InFlightStep& in_flight) {
  const std::int64_t words = ceil_div<std::int64_t>(limits_.vocabulary, 32);
  if (length(masks) > mask_rows_max_ * words)
    return make_error(ErrorCode::invalid_argument, "{} mask words, {} rows of {} are the most",
                      masks.size(), mask_rows_max_, words);
  put(in_flight.masks, 0, masks, length(masks), 0U);
  return backend_->enqueue_upload(
      part_of(arrays_.masks, 0, DType::i32, {length(masks)}),
      std::span<const std::byte>(in_flight.masks.view().data, masks.size_bytes()));
}

Status Worker::finish(StepOutput& output) {
  KOHO_CHECK_LT(finished_, sampled_);
  InFlightStep& in_flight = in_flight_[finished_ % kStepsInFlightMax];
  ++finished_;
  KOHO_TRY(in_flight.done->wait());
  KOHO_TRY(communicator_->check());
  output.logits = in_flight.logits.values;
  output.first_logits = in_flight.logits.first;
  output.ids.clear();
  output.ends.clear();
  output.logprobs.clear();
  output.top_ids.clear();
  output.top_logprobs.clear();
  output.logits_rows = in_flight.logits_rows;
  output.logits_values.clear();
  for (std::size_t i = 0; i < in_flight.logits_rows.size(); ++i) {
    const auto* row = reinterpret_cast<const float*>(in_flight.logits_copies[i].view().data);
    output.logits_values.insert(output.logits_values.end(), row, row + limits_.vocabulary);
  }
  if (!in_flight.samples) return {};
  const ResultLayout at = result_layout(in_flight.shape.logit_rows);
  fetch(output.ids, in_flight.results, at.ids, in_flight.rows);
  fetch(output.ends, in_flight.results, at.ends, in_flight.rows);
  if (!in_flight.logprobs) return {};
  fetch(output.logprobs, in_flight.results, at.logprobs, in_flight.rows);
  fetch(output.top_ids, in_flight.results, at.top_ids, in_flight.rows * kTopLogprobsMax);
  fetch(output.top_logprobs, in_flight.results, at.top_logprobs, in_flight.rows * kTopLogprobsMax);
  return {};
}

Status Worker::step(const StepInput& input, StepOutput& output) {
  KOHO_TRY(enqueue(input));
  return finish(output);
}

Status Worker::repeat() {
  KOHO_TRY_ASSIGN(const SampledLogits logits, forward(last_shape_, last_batch_));
  return last_samples_ ? sample(last_shape_, logits) : Status();
}

Result<std::unique_ptr<CapturedGraph>> Worker::capture_repeat() {
  return backend_->capture([this] { return repeat(); });
}

TokenCounts Worker::token_counts() {
  return {.entries = arrays_.counts.view(), .nonzero = arrays_.count_nonzero.view()};
}

Status Worker::reset_counts(std::span<const CountsReset> resets, ConstTensorView tokens) {
  std::int64_t next = 0;
  for (const CountsReset& reset : resets) {
    const ConstTensorView prompt = tokens.slice(0, next, reset.prompt);
    const ConstTensorView output = tokens.slice(0, next + reset.prompt, reset.output);
    next += std::int64_t{reset.prompt} + reset.output;
    KOHO_TRY(backend_->reset_counts(token_counts(), reset.batch_slot, prompt, output));
  }
  return {};
}

}  // namespace koho
