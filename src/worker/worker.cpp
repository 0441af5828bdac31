// SPDX-License-Identifier: Apache-2.0
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

/// Copies `source` to elements 0.. at `offset` of the lane's memory and fills up to `count`.
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

/// Sizes of decode steps to record: a pure decode step is padded to the next one.
std::vector<std::int64_t> decode_sizes(std::int64_t rows_max) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t rows = 1; rows < rows_max; rows += rows < 2     ? 1
                                                       : rows < 8   ? rows
                                                       : rows < 64  ? 8
                                                       : rows < 128 ? 16
                                                                    : 32)
    sizes.push_back(rows);
  sizes.push_back(rows_max);
  return sizes;
}

constexpr std::int64_t kRecordedRowsMax = 256;

/// Tells what the device's memory is taken by, for good.
Status tell_memory(const Backend& backend) {
  KOHO_TRY_ASSIGN(const MemoryUse use, backend.memory_use());
  constexpr std::int64_t kTold = 1'000'000;
  std::string parts;
  for (const auto& [purpose, bytes] : use.purposes)
    if (bytes >= kTold)
      parts += fmt::format(", {} {:.2f}", purpose, static_cast<double>(bytes) / 1e9);
  if (!parts.empty())
    log::info("device memory in GB: {:.2f} held, {:.2f} free{}",
              static_cast<double>(use.held_bytes) / 1e9, static_cast<double>(use.free_bytes) / 1e9,
              parts);
  return {};
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
  worker.page_table_width_ = ceil_div(worker.limits_.context_max, kPageTokens);
  worker.mask_rows_max_ = settings.mask_rows_max;
  worker.tokenizer_tokens_ = std::min(settings.tokenizer_tokens, config.vocab_size);
  KOHO_TRY(worker.allocate(settings));
  if (worker.backend_->replays_cheaply()) {
    KOHO_TRY(worker.warm_up());
    KOHO_TRY(worker.record_decodes());
  }
  KOHO_TRY(tell_memory(*worker.backend_));
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
  // Behind the arrays: the most biases, then a whole page table and a whole output for every seat
  // and a copied page each.
  const std::int64_t packed_bytes =
      StepPlaces({limits_.tokens_max, sequences, rows}).variable +
      rows * kLogitBiasMax * static_cast<std::int64_t>(sizeof(LogitBias)) +
      8 * sequences * (page_table_width_ + OutputRecord::kWords + 1);
  const std::int64_t result_bytes = ResultPlaces(rows).bytes;
  KOHO_TRY_ASSIGN(a.packed, tensor(DType::u8, {packed_bytes}));
  KOHO_TRY_ASSIGN(a.token_ids, tensor(DType::i32, {limits_.tokens_max}));
  KOHO_TRY_ASSIGN(a.page_tables, tensor(DType::i32, {sequences, page_table_width_}));
  KOHO_TRY_ASSIGN(a.seat_pages, tensor(DType::i32, {sequences, page_table_width_}));
  KOHO_TRY_ASSIGN(a.last_sampled, tensor(DType::i32, {sequences}));
  KOHO_TRY_ASSIGN(a.outputs, tensor(DType::i32, {sequences, OutputRecord::kWords}));
  KOHO_TRY_ASSIGN(a.masks, tensor(DType::i32, {mask_rows, mask_words}));
  const std::int64_t slots = std::max<std::int64_t>(settings.counts_slots, 1);
  const std::int64_t mark_words = race_mark_words(static_cast<std::int32_t>(limits_.vocabulary));
  KOHO_TRY_ASSIGN(a.counts, tensor(DType::i32, {slots, limits_.vocabulary}));
  KOHO_TRY_ASSIGN(a.count_marks, tensor(DType::i32, {slots, mark_words}));
  KOHO_TRY_ASSIGN(a.id_list, tensor(DType::i32, {limits_.context_max}));
  KOHO_TRY_ASSIGN(a.results, tensor(DType::u8, {result_bytes}));
  for (Lane& lane : lanes_) {
    KOHO_TRY_ASSIGN(lane.packed, backend_->allocate_host(packed_bytes));
    KOHO_TRY_ASSIGN(lane.masks, backend_->allocate_host(4 * mask_rows * mask_words));
    KOHO_TRY_ASSIGN(lane.results, backend_->allocate_host(result_bytes));
    KOHO_TRY_ASSIGN(lane.done, backend_->make_mark());
  }
  // What no step has written is read by nobody who uses it; zeros all the same.
  for (Tensor* table : {&a.seat_pages, &a.last_sampled, &a.outputs, &a.page_tables}) {
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
      length(input.query_starts) == sequences + 1 && length(input.seats) == sequences &&
      (input.sampling.empty() ||
       (length(input.sampling) == rows && length(input.sample_seats) == rows)) &&
      input.page_places.size() % 2 == 0 && input.page_copies.size() % 2 == 0 &&
      input.output_words.size() % 2 == 0;
  const bool within_limits =
      tokens <= limits_.tokens_max && sequences <= limits_.sequences_max &&
      rows <= limits_.logit_rows_max &&
      length(input.biases) <= limits_.logit_rows_max * kLogitBiasMax &&
      length(input.page_places) / 2 + length(input.page_copies) / 2 <=
          limits_.sequences_max * (page_table_width_ + 1) &&
      length(input.output_words) / 2 <= limits_.sequences_max * OutputRecord::kWords;
  if (!lengths_agree || !within_limits || input.query_starts.back() != tokens)
    return make_error(ErrorCode::invalid_argument,
                      "a step of {} tokens, {} sequences, {} logit rows does not fit together or "
                      "exceeds the limits of "
                      "{}, {}, {}",
                      tokens, sequences, rows, limits_.tokens_max, limits_.sequences_max,
                      limits_.logit_rows_max);
  for (const std::int32_t id : input.token_ids)
    if (id < -limits_.sequences_max || id >= limits_.vocabulary)
      return make_error(ErrorCode::invalid_argument, "token id {} is outside 0..{}", id,
                        limits_.vocabulary - 1);
  const auto outside = [this](std::int32_t seat) {
    return seat < 0 || seat >= limits_.sequences_max;
  };
  if (std::any_of(input.seats.begin(), input.seats.end(), outside) ||
      std::any_of(input.sample_seats.begin(), input.sample_seats.end(), outside))
    return make_error(ErrorCode::invalid_argument, "a seat is outside 0..{}",
                      limits_.sequences_max - 1);
  return {};
}

std::int64_t Worker::padded_rows(std::int64_t rows) const {
  for (const Recorded& recorded : recorded_)
    if (recorded.rows >= rows) return recorded.rows;
  return rows;
}

/// Pure decode steps that sample every row are recorded.
const Worker::Recorded* Worker::recorded_for(const StepInput& input) const {
  const std::int64_t rows = length(input.token_ids);
  if (rows == 0 || input.decodes != rows || length(input.seats) != rows ||
      length(input.sampling) != rows)
    return nullptr;
  for (const Recorded& recorded : recorded_)
    if (recorded.rows >= rows) return &recorded;
  return nullptr;
}

Status Worker::upload(const StepInput& input, const StepShape& shape, Lane& lane) {
  const StepPlaces at(shape);
  Tensor& host = lane.packed;
  const auto tokens = static_cast<std::int32_t>(input.token_ids.size());
  // Padding: tokens of no sequence's cache, sequences of no context, rows that nobody keeps.
  put(host, at.slots, input.slots, shape.tokens, std::int64_t{-1});
  put(host, at.token_ids, input.token_ids, shape.tokens, 0);
  put(host, at.positions, input.positions, shape.tokens, 0);
  put(host, at.query_starts, input.query_starts, shape.sequences + 1, tokens);
  put(host, at.context_lengths, input.context_lengths, shape.sequences, 0);
  put(host, at.seats, input.seats, shape.sequences, 0);
  put(host, at.logit_rows, input.logit_rows, shape.logit_rows, 0);
  put(host, at.sample_seats, input.sample_seats, shape.logit_rows, -1);
  put(host, at.sampling, input.sampling, shape.logit_rows, SamplingRow{});
  // In a decode step every padded sequence has its token.
  auto* starts = reinterpret_cast<std::int32_t*>(host.view().data + at.query_starts);
  for (std::int64_t s = length(input.seats); s < shape.sequences; ++s)
    starts[s + 1] = std::min(starts[s] + 1, static_cast<std::int32_t>(shape.tokens));

  std::int64_t end = at.variable;
  const auto append = [&](auto source) {
    const std::int64_t begin = end;
    put(host, begin, source, length(source), {});
    end += static_cast<std::int64_t>(source.size_bytes());
    return begin;
  };
  append(input.biases);
  const std::int64_t places = append(input.page_places);
  const std::int64_t words = append(input.output_words);
  const std::int64_t copies = append(input.page_copies);
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
  KOHO_TRY(set(arrays_.seat_pages.view(), pairs(places, input.page_places)));
  KOHO_TRY(set(arrays_.outputs.view(), pairs(words, input.output_words)));
  if (input.page_copies.empty()) return {};
  for (std::int64_t layer = 0; layer < model_->config().num_hidden_layers; ++layer)
    KOHO_TRY(
        backend_->copy_pages(model_->kv_cache().layer(layer), pairs(copies, input.page_copies)));
  return {};
}

SeatTables Worker::seat_tables() {
  return {.pages = arrays_.seat_pages.view(),
          .last_sampled = arrays_.last_sampled.view(),
          .outputs = arrays_.outputs.view()};
}

Batch Worker::batch_of(const StepShape& shape, std::int64_t decodes) {
  const StepPlaces at(shape);
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

Result<TensorView> Worker::forward(const StepShape& shape, const Batch& batch) {
  const StepPlaces at(shape);
  Tensor& packed = arrays_.packed;
  KOHO_TRY(backend_->take_from_seats(
      {.token_ids = part_of(arrays_.token_ids, 0, DType::i32, {shape.tokens}),
       .slots = part_of(packed, at.slots, DType::i64, {shape.tokens}),
       .page_tables =
           part_of(arrays_.page_tables, 0, DType::i32, {shape.sequences, page_table_width_}),
       .context_lengths = part_of(packed, at.context_lengths, DType::i32, {shape.sequences})},
      part_of(packed, at.token_ids, DType::i32, {shape.tokens}),
      part_of(packed, at.seats, DType::i32, {shape.sequences}), seat_tables()));
  return model_->forward(batch);
}

Status Worker::sample(const StepShape& shape, ConstTensorView logits) {
  const StepPlaces at(shape);
  const std::int64_t rows = shape.logit_rows;
  const ResultPlaces results(rows);
  SamplingBatch batch;
  batch.tokens = tokenizer_tokens_;
  batch.rows = part_of(arrays_.packed, at.sampling, DType::u8,
                       {rows, static_cast<std::int64_t>(sizeof(SamplingRow))});
  // Rows name the biases and masks they have: what nobody names is not read.
  batch.biases = part_of(
      arrays_.packed, at.variable, DType::u8,
      {limits_.logit_rows_max * kLogitBiasMax, static_cast<std::int64_t>(sizeof(LogitBias))});
  batch.masks = arrays_.masks.view();
  batch.counts = token_counts();
  SamplingOutput out;
  out.ids = part_of(arrays_.results, results.ids, DType::i32, {rows});
  out.logprobs = part_of(arrays_.results, results.logprobs, DType::f32, {rows});
  out.top_ids = part_of(arrays_.results, results.top_ids, DType::i32, {rows, kTopLogprobsMax});
  out.top_logprobs =
      part_of(arrays_.results, results.top_logprobs, DType::f32, {rows, kTopLogprobsMax});
  KOHO_TRY(backend_->sample(out, logits, batch));
  return backend_->keep_sampled(
      part_of(arrays_.results, results.ends, DType::u8, {rows}), seat_tables(),
      part_of(arrays_.packed, at.sample_seats, DType::i32, {rows}), out.ids);
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
  Lane& lane = lanes_[enqueued_ % kStepsInFlightMax];
  StepShape shape{length(input.token_ids), length(input.context_lengths), length(input.logit_rows)};
  lane.rows = shape.logit_rows;
  lane.samples = !input.sampling.empty();
  lane.logprobs = std::any_of(input.sampling.begin(), input.sampling.end(),
                              [](const SamplingRow& row) { return row.logprobs >= 0; });
  const Recorded* recorded = lane.recorded = recorded_for(input);
  if (recorded != nullptr) shape = {recorded->rows, recorded->rows, recorded->rows};
  lane.shape = shape;
  KOHO_TRY(upload(input, shape, lane));
  last_shape_ = shape;
  last_samples_ = lane.samples;
  if (recorded != nullptr) {
    last_batch_ = batch_of(shape, shape.sequences);
    KOHO_TRY(recorded->forward->replay());
    lane.logits = model_->logits(lane.rows);
  } else {
    Batch& batch = last_batch_ = batch_of(shape, input.decodes);
    batch.context_max = 0;
    for (std::size_t s = 0; s < input.context_lengths.size(); ++s) {
      batch.query_max = std::max<std::int64_t>(batch.query_max,
                                               input.query_starts[s + 1] - input.query_starts[s]);
      batch.context_max = std::max<std::int64_t>(batch.context_max, input.context_lengths[s]);
    }
    KOHO_TRY_ASSIGN(lane.logits, forward(shape, batch));
  }
  ++enqueued_;
  return {};
}

Status Worker::enqueue_sampling(std::span<const std::uint32_t> masks) {
  KOHO_CHECK_EQ(sampled_ + 1, enqueued_);
  Lane& lane = lanes_[sampled_ % kStepsInFlightMax];
  if (!masks.empty()) KOHO_TRY(upload_masks(masks, lane));
  if (lane.recorded != nullptr) {
    KOHO_TRY(lane.recorded->sample->replay());
  } else if (lane.samples) {
    KOHO_TRY(sample(lane.shape, lane.logits));
  }
  if (lane.samples && lane.rows > 0) {
    const ResultPlaces results(lane.shape.logit_rows);
    const std::int64_t bytes = lane.logprobs ? results.bytes : results.bytes_without_logprobs;
    last_traffic_.fetched = bytes;
    KOHO_TRY(backend_->enqueue_download(
        std::span<std::byte>(lane.results.view().data, static_cast<std::size_t>(bytes)),
        part_of(arrays_.results, 0, DType::u8, {bytes})));
  }
  KOHO_TRY(lane.done->set());
  ++sampled_;
  return {};
}

Status Worker::upload_masks(std::span<const std::uint32_t> masks, Lane& lane) {
  const std::int64_t words = ceil_div<std::int64_t>(limits_.vocabulary, 32);
  if (length(masks) > mask_rows_max_ * words)
    return make_error(ErrorCode::invalid_argument, "{} mask words, {} rows of {} are the most",
                      masks.size(), mask_rows_max_, words);
  put(lane.masks, 0, masks, length(masks), 0U);
  return backend_->enqueue_upload(
      part_of(arrays_.masks, 0, DType::i32, {length(masks)}),
      std::span<const std::byte>(lane.masks.view().data, masks.size_bytes()));
}

Status Worker::finish(StepOutput& output) {
  KOHO_CHECK_LT(finished_, sampled_);
  Lane& lane = lanes_[finished_ % kStepsInFlightMax];
  ++finished_;
  KOHO_TRY(lane.done->wait());
  output.logits = lane.logits;
  output.ids.clear();
  output.ends.clear();
  output.logprobs.clear();
  output.top_ids.clear();
  output.top_logprobs.clear();
  if (!lane.samples) return {};
  const ResultPlaces at(lane.shape.logit_rows);
  fetch(output.ids, lane.results, at.ids, lane.rows);
  fetch(output.ends, lane.results, at.ends, lane.rows);
  if (!lane.logprobs) return {};
  fetch(output.logprobs, lane.results, at.logprobs, lane.rows);
  fetch(output.top_ids, lane.results, at.top_ids, lane.rows * kTopLogprobsMax);
  fetch(output.top_logprobs, lane.results, at.top_logprobs, lane.rows * kTopLogprobsMax);
  return {};
}

Status Worker::step(const StepInput& input, StepOutput& output) {
  KOHO_TRY(enqueue(input));
  return finish(output);
}

Status Worker::repeat() {
  KOHO_TRY_ASSIGN(const TensorView logits, forward(last_shape_, last_batch_));
  return last_samples_ ? sample(last_shape_, logits) : Status();
}

Result<std::unique_ptr<Recording>> Worker::record_repeat() {
  return backend_->record([this] { return repeat(); });
}

/// A step of padding alone: the shapes of a real one, and no effect.
Status Worker::run_padding(const StepShape& shape, std::int64_t decodes) {
  const std::array<std::int32_t, 1> starts{0};
  StepInput nothing;
  nothing.query_starts = starts;
  KOHO_TRY(upload(nothing, shape, lanes_[0]));
  Batch batch = batch_of(shape, decodes);
  batch.query_max = shape.tokens - decodes > 0 ? shape.tokens - decodes : 1;
  KOHO_TRY_ASSIGN(const TensorView logits, forward(shape, batch));
  if (shape.logit_rows > 0) KOHO_TRY(sample(shape, logits));
  return backend_->synchronize();
}

/// Runs the largest steps once: what is left to be set up by a first step is. (The backend's
/// reserve() has loaded kernels and chosen libraries' algorithms for every size.)
Status Worker::warm_up() {
  const std::int64_t sequences = limits_.sequences_max;
  const std::int64_t rows = std::min(limits_.logit_rows_max, limits_.tokens_max);
  KOHO_TRY(run_padding({limits_.tokens_max, 1, 1}, 0));
  const std::int64_t decodes = std::min(sequences, limits_.tokens_max) - 1;
  return run_padding({limits_.tokens_max, decodes + 1, rows}, decodes);
}

Status Worker::record_decodes() {
  const std::int64_t rows_max = std::min(
      {limits_.sequences_max, limits_.logit_rows_max, limits_.tokens_max, kRecordedRowsMax});
  for (const std::int64_t rows : decode_sizes(rows_max)) {
    const StepShape shape{rows, rows, rows};
    const Batch batch = batch_of(shape, rows);
    KOHO_TRY(run_padding(shape, rows));
    Recorded recorded;
    recorded.rows = rows;
    KOHO_TRY_ASSIGN(recorded.forward, backend_->record([&]() -> Status {
      KOHO_TRY(forward(shape, batch));
      return {};
    }));
    KOHO_TRY_ASSIGN(recorded.sample, backend_->record([&]() -> Status {
      return sample(shape, model_->logits(rows));
    }));
    recorded_.push_back(std::move(recorded));
  }
  return {};
}

TokenCounts Worker::token_counts() {
  return {.entries = arrays_.counts.view(), .marks = arrays_.count_marks.view()};
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
  return backend_->reset_counts(token_counts(), slot, prompt_ids, output_ids);
}

}  // namespace koho
