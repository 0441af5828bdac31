// SPDX-License-Identifier: Apache-2.0
// sample: random rows of every parameter, and a whole vocabulary with one kind of request each.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/arithmetic.h"
#include "bench/operators/operator_case.h"
#include "sampling/philox.h"

namespace koho::bench {
namespace {

using Own = std::shared_ptr<Operands>;
using Views = Sides<TensorView>;

/// What sample reads and writes. Call i takes the rows at i * `rows_each`, so many times as there
/// are `positions`.
struct SampleArrays {
  Views logits, rows, biases, masks;
  ConstTensorView entries_before, nonzero_before;
  Views entries, nonzero;
  Views ids, logprobs, top_ids, top_logprobs;
  std::int64_t positions = 1;
  std::int64_t rows_each = 0;
  std::int64_t tokens = 0;
};

/// Each element's bytes as a row of a tensor.
template <typename T>
HostTensor bytes_of(const std::vector<T>& values) {
  HostTensor tensor(
      DType::u8, {static_cast<std::int64_t>(values.size()), static_cast<std::int64_t>(sizeof(T))});
  std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  return tensor;
}

/// The run of the first `count` rows. Ids are exact: all backends run the same race
/// (sampling/philox.h).
OperatorRun make_run(const Own& own, const SampleArrays& arrays, std::int64_t count, bool counts) {
  const std::int64_t vocabulary = arrays.logits.measured.size(1);
  OperatorRun run;
  run.op = "sample";
  run.shape = {{"tokens", count}, {"vocabulary", vocabulary}};
  run.bytes = 4.0 * static_cast<double>(count * vocabulary);
  run.rows = count;
  run.counts = counts;
  run.outputs = {{.name = "ids", .view = first(arrays.ids, count)}};
  if (counts) {
    run.outputs.push_back({.name = "counts.entries",
                           .view = first(arrays.entries, count),
                           .before = arrays.entries_before.first(count)});
    run.outputs.push_back({.name = "counts.nonzero",
                           .view = first(arrays.nonzero, count),
                           .before = arrays.nonzero_before.first(count)});
  }
  if (!arrays.logprobs.measured.empty()) {
    run.outputs.push_back({.name = "logprobs", .view = arrays.logprobs});
    run.outputs.push_back({.name = "top_ids", .view = arrays.top_ids});
    run.outputs.push_back({.name = "top_logprobs", .view = arrays.top_logprobs});
  }
  run.run = [own, arrays](Side side, RowRange range, std::int64_t call) {
    SamplingBatch batch;
    batch.rows = arrays.rows.on(side).slice(
        0, call % arrays.positions * arrays.rows_each + range.first, range.count);
    batch.biases = arrays.biases.on(side);
    batch.masks = arrays.masks.on(side);
    batch.counts = {.entries = arrays.entries.on(side), .nonzero = arrays.nonzero.on(side)};
    batch.tokens = arrays.tokens;
    const SamplingOutput out{cut(arrays.ids.on(side), range), cut(arrays.logprobs.on(side), range),
                             cut(arrays.top_ids.on(side), range),
                             cut(arrays.top_logprobs.on(side), range)};
    return own->backend(side).sample(out, cut(arrays.logits.on(side), range), batch);
  };
  return run;
}

Status add_counts(Operands& own, const HostTensor& counts, SampleArrays& arrays) {
  KOHO_TRY_ASSIGN(const Views entries, own.input(counts));
  KOHO_TRY_ASSIGN(const Views nonzero, own.input(nonzero_of(counts)));
  arrays.entries_before = entries.reference;
  arrays.nonzero_before = nonzero.reference;
  KOHO_TRY_ASSIGN(arrays.entries, own.changing(arrays.entries_before));
  KOHO_TRY_ASSIGN(arrays.nonzero, own.changing(arrays.nonzero_before));
  return {};
}

// ---- a model's shape

constexpr std::int64_t kVocabulary = 151552;
constexpr std::int64_t kTokens = 151365;     // of the tokenizer
constexpr std::int64_t kPositions = 200;     // calls sample anew, as steps do
constexpr std::int64_t kCountedEvery = 101;  // 1,500 counted tokens a row

/// "kind" of a case's shape: greedy, temperature, top_k 50, top_p 0.95, frequency penalties,
/// negative ones, min_p 0.05, all three thresholds with a presence penalty, top_p with one, top_p
/// where a mask leaves every other token. What a reading samples counts besides the 1,500:
/// 100 to 300 tokens of each of 256 rows, 500 to 1,500 of 64, 2,000 to 4,000 of one.
std::vector<SamplingRow> kinds() {
  SamplingRow greedy;
  SamplingRow temperature;
  temperature.temperature = 1.0F;
  SamplingRow top_k = temperature;
  top_k.top_k = 50;
  SamplingRow top_p = temperature;
  top_p.top_p = 0.95F;
  SamplingRow penalties = temperature;
  penalties.frequency_penalty = 0.5F;
  penalties.counts_slot = 0;
  SamplingRow raising = penalties;
  raising.frequency_penalty = -0.5F;
  SamplingRow min_p = temperature;
  min_p.min_p = 0.05F;
  SamplingRow presence = temperature;
  presence.presence_penalty = 0.5F;
  presence.counts_slot = 0;
  SamplingRow every = presence;
  every.top_k = top_k.top_k;
  every.top_p = top_p.top_p;
  every.min_p = min_p.min_p;
  SamplingRow penalised = presence;
  penalised.top_p = top_p.top_p;
  SamplingRow masked = top_p;
  masked.mask_row = 0;
  return {greedy, temperature, top_k, top_p, penalties, raising, min_p, every, penalised, masked};
}

/// Requests of one kind, row r of position p at p * count + r.
std::vector<SamplingRow> rows_of_kind(const SamplingRow& kind, std::int64_t count) {
  std::vector<SamplingRow> rows(static_cast<std::size_t>(kPositions * count), kind);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i) % count;
    rows[i].seed = static_cast<std::uint64_t>(row);
    rows[i].output_position = static_cast<std::int64_t>(i) / count;
    if (kind.counts_slot >= 0) rows[i].counts_slot = static_cast<std::int32_t>(row);
  }
  return rows;
}

Result<std::vector<OperatorRun>> build(const BenchBackends& site, const Rows& token_counts) {
  const auto own = std::make_shared<Operands>(site);
  const std::int64_t most = most_of(token_counts);
  KOHO_TRY(own->reserve({.tokens_max = most,
                         .sequences_max = most,
                         .context_max = 1,
                         .logit_rows_max = most,
                         .vocabulary = kVocabulary}));
  SampleArrays arrays;
  arrays.positions = kPositions;
  arrays.rows_each = most;
  arrays.tokens = kTokens;
  KOHO_TRY_ASSIGN(arrays.logits,
                  own->input(DType::f32, {most, kVocabulary}, [&] { return 2.5 * own->normal(); }));
  KOHO_TRY_ASSIGN(arrays.ids, own->output(DType::i32, {most}));
  HostTensor counts(DType::i32, {most, kVocabulary});
  for (std::int64_t at = 0; at < counts.elements(); at += kCountedEvery)
    counts.as<std::int32_t>()[at] = 1;
  KOHO_TRY(add_counts(*own, counts, arrays));
  const std::int64_t words = ceil_div<std::int64_t>(kVocabulary, 32);
  HostTensor mask(DType::i32, {1, words});
  std::fill_n(mask.as<std::int32_t>(), words, 0x55555555);
  KOHO_TRY_ASSIGN(arrays.masks, own->input(std::move(mask)));
  std::vector<OperatorRun> runs;
  std::int64_t index = 0;
  for (const SamplingRow& kind : kinds()) {
    KOHO_TRY_ASSIGN(arrays.rows, own->input(bytes_of(rows_of_kind(kind, most))));
    for (const std::int64_t count : token_counts) {
      runs.push_back(make_run(own, arrays, count, kind.counts_slot >= 0));
      runs.back().shape["kind"] = index;
    }
    ++index;
  }
  return runs;
}

// ---- random rows

SamplingRow random_row(Random& random,
                       std::int64_t slots,
                       std::int64_t masks,
                       std::int64_t biases) {
  SamplingRow row;
  row.seed = random.bits();
  row.output_position = random.integer(0, 1000);
  if (random.chance(0.5)) row.temperature = static_cast<float>(0.2 + 1.5 * random.uniform());
  if (random.chance(0.4)) row.top_p = static_cast<float>(0.1 + 0.9 * random.uniform());
  if (random.chance(0.3)) row.min_p = static_cast<float>(0.5 * random.uniform());
  if (random.chance(0.4)) row.top_k = static_cast<std::int32_t>(random.integer(1, 40));
  if (slots > 0 && random.chance(0.5)) {
    row.counts_slot = static_cast<std::int32_t>(random.integer(0, slots - 1));
    row.repetition_penalty = 1.2F;
    row.frequency_penalty = 0.3F;
    row.presence_penalty = -0.4F;
  }
  if (masks > 0 && random.chance(0.5))
    row.mask_row = static_cast<std::int32_t>(random.integer(0, masks - 1));
  if (biases > 0 && random.chance(0.3)) {
    row.bias_begin = static_cast<std::int32_t>(random.integer(0, biases - 1));
    row.bias_count = static_cast<std::int32_t>(random.integer(1, biases - row.bias_begin));
  }
  if (random.chance(0.5))
    row.logprobs = static_cast<std::int32_t>(random.integer(0, kTopLogprobsMax));
  return row;
}

/// Row parameters. `many`: most rows sample and have no log-probabilities, half of all have
/// thresholds alone.
std::vector<SamplingRow> random_rows(Random& random, std::int64_t rows, bool many) {
  std::vector<SamplingRow> parameters;
  for (std::int64_t r = 0; r < rows; ++r) {
    const bool plain = many && random.chance(0.5);
    parameters.push_back(random_row(random, 0, plain ? 0 : 3, plain ? 0 : 6));
    SamplingRow& row = parameters.back();
    if (plain || (many && random.chance(0.7))) {
      row.logprobs = -1;
      row.temperature = std::max(row.temperature, 0.5F);
    }
    // A slot of its own: rows of one step never share one.
    if (plain || !random.chance(0.5)) continue;
    row.counts_slot = static_cast<std::int32_t>(r);
    const bool raises = random.chance(0.3);  // makes logits larger
    row.repetition_penalty = raises ? 0.8F : 1.3F;
    row.frequency_penalty = raises ? -0.2F : 0.2F;
    row.presence_penalty = raises && random.chance(0.5) ? -0.1F : 0.1F;
  }
  return parameters;
}

/// `many`: more rows than backends may have another kernel for.
SampleOperands random_operands(Random& random, bool many) {
  const bool large = random.chance(0.15);  // a real vocabulary
  const std::int64_t vocabulary = large ? random.integer(100000, 151552) : random.integer(1, 700);
  SampleOperands in;
  in.tokens = random.integer(large ? vocabulary - 300 : 1, vocabulary);
  const std::int64_t rows = !many                ? random.integer(1, large ? 3 : 9)
                            : random.chance(0.3) ? random.integer(129, large ? 140 : 280)
                                                 : random.integer(30, 80);
  const std::int64_t words = ceil_div<std::int64_t>(vocabulary, 32);
  in.logits = random_values(random, DType::f32, {rows, vocabulary},
                            random.chance(0.9) ? Spread::normal : Spread::one_nan_row, 3.0);
  if (random.chance(0.3))  // many tokens of one logit
    for (std::int64_t i = 0; i < in.logits.elements(); ++i)
      in.logits.as<float>()[i] = std::round(in.logits.as<float>()[i]);
  in.masks = HostTensor(DType::i32, {3, words});
  for (std::int64_t i = 0; i < in.masks.elements(); ++i) {
    std::uint64_t bits = random.bits();
    if (i < words) bits &= random.bits() & random.bits() & random.bits();  // one in sixteen
    in.masks.as<std::int32_t>()[i] = static_cast<std::int32_t>(bits);
  }
  in.counts = HostTensor(DType::i32, {rows, vocabulary});
  for (std::int64_t i = 0; i < in.counts.elements(); ++i)
    if (random.chance(0.1))
      in.counts.as<std::int32_t>()[i] = static_cast<std::int32_t>((random.bits() & 0x80000003U));
  for (int i = 0; i < 6; ++i)
    in.biases.push_back({static_cast<std::int32_t>(random.integer(0, vocabulary - 1)),
                         static_cast<float>(5.0 * random.normal())});
  in.rows = random_rows(random, rows, many);
  return in;
}

/// What all runs of `in` share: biases and masks.
Result<SampleArrays> place_shared(Operands& own, const SampleOperands& in) {
  SampleArrays arrays;
  arrays.tokens = in.tokens;
  KOHO_TRY_ASSIGN(arrays.biases, own.input(bytes_of(in.biases)));
  KOHO_TRY_ASSIGN(arrays.masks, own.input(in.masks));
  return arrays;
}

Result<OperatorRun> build_random(const Own& own, bool many) {
  Random& random = own->random();
  const auto in = std::make_shared<const SampleOperands>(random_operands(random, many));
  const auto rows = static_cast<std::int64_t>(in->rows.size());
  KOHO_TRY(own->reserve({.tokens_max = rows,
                         .sequences_max = rows,
                         .context_max = 1,
                         .logit_rows_max = rows,
                         .vocabulary = in->logits.shape[1]}));
  KOHO_TRY_ASSIGN(const SampleArrays shared, place_shared(*own, *in));
  SampleArrays arrays = shared;
  arrays.rows_each = rows;
  KOHO_TRY_ASSIGN(arrays.logits, own->input(in->logits, random.chance(0.3) ? 5 : 0));
  KOHO_TRY_ASSIGN(arrays.rows, own->input(bytes_of(in->rows)));
  KOHO_TRY(add_counts(*own, in->counts, arrays));
  KOHO_TRY_ASSIGN(arrays.ids, own->output(DType::i32, {rows}));
  KOHO_TRY_ASSIGN(arrays.logprobs, own->output(DType::f32, {rows}));
  KOHO_TRY_ASSIGN(arrays.top_ids, own->output(DType::i32, {rows, kTopLogprobsMax}));
  KOHO_TRY_ASSIGN(arrays.top_logprobs, own->output(DType::f32, {rows, kTopLogprobsMax}));
  OperatorRun run = make_run(own, arrays, rows, true);
  run.row_alone = [own, in, shared](std::int64_t r) -> Result<OperatorRun> {
    SampleArrays alone = shared;
    alone.rows_each = 1;
    SamplingRow row = in->rows[static_cast<std::size_t>(r)];
    if (row.counts_slot >= 0) row.counts_slot = 0;
    KOHO_TRY_ASSIGN(alone.logits, own->input(row_of(in->logits, r)));
    KOHO_TRY_ASSIGN(alone.rows, own->input(bytes_of(std::vector<SamplingRow>{row})));
    KOHO_TRY(add_counts(*own, row_of(in->counts, r), alone));
    KOHO_TRY_ASSIGN(alone.ids, own->output(DType::i32, {1}));
    KOHO_TRY_ASSIGN(alone.logprobs, own->output(DType::f32, {1}));
    KOHO_TRY_ASSIGN(alone.top_ids, own->output(DType::i32, {1, kTopLogprobsMax}));
    KOHO_TRY_ASSIGN(alone.top_logprobs, own->output(DType::f32, {1, kTopLogprobsMax}));
    OperatorRun one = make_run(own, alone, 1, true);
    one.outputs.resize(3);  // ids and counts: log-probabilities are compared with float64
    return one;
  };
  for (std::int64_t r = 0; r < std::min<std::int64_t>(rows, 16); ++r) run.rows_alone.push_back(r);
  run.operands = in;
  return run;
}

}  // namespace

HostTensor nonzero_of(const HostTensor& counts) {
  const auto vocabulary = static_cast<std::int32_t>(counts.shape[1]);
  const std::int64_t slots = counts.shape[0];
  HostTensor nonzero(DType::i32, {slots, race_bitmap_words(vocabulary)});
  for (std::int64_t slot = 0; slot < slots; ++slot)
    for (std::int32_t token = 0; token < vocabulary; ++token)
      if (counts.as<std::int32_t>()[slot * vocabulary + token] != 0)
        nonzero
            .as<std::uint32_t>()[slot * race_bitmap_words(vocabulary) + race_bitmap_word(token)] |=
            race_bitmap_bit(token);
  return nonzero;
}

std::vector<OperatorCase> sampling_cases() {
  std::vector<OperatorCase> cases;
  cases.push_back({.name = "sample",
                   .tokens = {1, 64, 256},
                   .build = build,
                   .build_random = [](const Own& own) { return build_random(own, false); }});
  cases.push_back({.name = "sample_many",
                   .build_random = [](const Own& own) { return build_random(own, true); },
                   .is_large = true});
  return cases;
}

}  // namespace koho::bench
