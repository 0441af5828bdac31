// SPDX-License-Identifier: Apache-2.0
// Cases of sampling from a whole vocabulary, a kind of request each.
#include <algorithm>
#include <memory>

#include "base/arithmetic.h"
#include "bench/operators/operator_case.h"
#include "sampling/philox.h"

namespace koho::bench {
namespace {

constexpr std::int64_t kVocabulary = 151552;
constexpr std::int64_t kTokens = 151365;     // of the tokenizer
constexpr std::int64_t kPositions = 200;     // calls draw anew, as steps do
constexpr std::int64_t kCountedEvery = 101;  // 1,500 counted tokens a row

/// "kind" of a case's shape: greedy, temperature, top_k 50, top_p 0.95, frequency penalties,
/// negative ones, min_p 0.05, all three thresholds with a presence penalty, top_p with one, top_p
/// where a mask leaves every other token. What a reading draws counts besides the 1,500: 100 to 300
/// tokens of each of 256 rows, 500 to 1,500 of 64, 2,000 to 4,000 of one.
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
std::vector<std::byte> rows_of(const SamplingRow& model, std::int64_t count) {
  std::vector<SamplingRow> rows(static_cast<std::size_t>(kPositions * count), model);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i) % count;
    rows[i].seed = static_cast<std::uint64_t>(row);
    rows[i].output_position = static_cast<std::int64_t>(i) / count;
    if (model.counts_slot >= 0) rows[i].counts_slot = static_cast<std::int32_t>(row);
  }
  const auto bytes = std::as_bytes(std::span(rows));
  return {bytes.begin(), bytes.end()};
}

Result<std::vector<OperatorRun>> build_sample(const BenchBackends& site, const Rows& token_counts) {
  auto own = std::make_shared<Operands>(site);
  const std::int64_t most = most_of(token_counts);
  KOHO_TRY(own->reserve({.tokens_max = most,
                         .sequences_max = most,
                         .context_max = 1,
                         .logit_rows_max = most,
                         .vocabulary = kVocabulary}));
  KOHO_TRY_ASSIGN(const Sides<TensorView> logits,
                  own->input(DType::f32, {most, kVocabulary}, [&] { return 2.5 * own->normal(); }));
  KOHO_TRY_ASSIGN(const Sides<TensorView> ids, own->output(DType::i32, {most}));
  const std::int64_t nonzero_words = race_bitmap_words(static_cast<std::int32_t>(kVocabulary));
  std::vector<std::int32_t> counted(static_cast<std::size_t>(most * kVocabulary));
  std::vector<std::int32_t> marked(static_cast<std::size_t>(most * nonzero_words));
  for (std::int64_t at = 0; at < most * kVocabulary; at += kCountedEvery) {
    const auto token = static_cast<std::int32_t>(at % kVocabulary);
    counted[static_cast<std::size_t>(at)] = 1;
    marked[static_cast<std::size_t>(at / kVocabulary * nonzero_words + race_bitmap_word(token))] |=
        static_cast<std::int32_t>(race_bitmap_bit(token));
  }
  KOHO_TRY_ASSIGN(const TensorView entries_before,
                  own->host_values(DType::i32, {most, kVocabulary}, counted));
  KOHO_TRY_ASSIGN(const TensorView nonzero_before,
                  own->host_values(DType::i32, {most, nonzero_words}, marked));
  KOHO_TRY_ASSIGN(const Sides<TensorView> entries, own->changing(entries_before));
  KOHO_TRY_ASSIGN(const Sides<TensorView> nonzero, own->changing(nonzero_before));
  const std::int64_t mask_words = ceil_div<std::int64_t>(kVocabulary, 32);
  KOHO_TRY_ASSIGN(const TensorView mask_before,
                  own->host_values(
                      DType::i32, {1, mask_words},
                      std::vector<std::int32_t>(static_cast<std::size_t>(mask_words), 0x55555555)));
  KOHO_TRY_ASSIGN(const Sides<TensorView> masks, own->changing(mask_before));
  std::vector<OperatorRun> benches;
  std::int64_t kind = 0;
  for (const SamplingRow& model : kinds()) {
    KOHO_TRY_ASSIGN(const Sides<TensorView> rows,
                    own->input(DType::u8, {kPositions * most, 64}, rows_of(model, most)));
    for (const std::int64_t count : token_counts) {
      OperatorRun bench;
      bench.op = "sample";
      bench.shape = {{"tokens", count}, {"vocabulary", kVocabulary}, {"kind", kind}};
      bench.bytes = 4.0 * static_cast<double>(count * kVocabulary);
      bench.rows = count;
      // Ids are exact: both draw the same race (sampling/philox.h).
      bench.outputs = {{.name = "ids", .view = first(ids, count)}};
      bench.counts = model.counts_slot >= 0;
      if (bench.counts) {
        bench.outputs.push_back({.name = "counts.entries",
                                 .view = first(entries, count),
                                 .before = entries_before.first(count)});
        bench.outputs.push_back({.name = "counts.nonzero",
                                 .view = first(nonzero, count),
                                 .before = nonzero_before.first(count)});
      }
      bench.run = [=](Side side, RowRange range, std::int64_t call) {
        SamplingBatch batch;
        batch.rows = rows.on(side).slice(0, call % kPositions * most + range.first, range.count);
        batch.masks = masks.on(side);
        batch.counts = {.entries = entries.on(side), .nonzero = nonzero.on(side)};
        batch.tokens = kTokens;
        SamplingOutput out;
        out.ids = cut(ids.on(side), range);
        return own->backend(side).sample(out, cut(logits.on(side), range), batch);
      };
      benches.push_back(std::move(bench));
    }
    ++kind;
  }
  return benches;
}

}  // namespace

std::vector<OperatorCase> sampling_cases() {
  return {{"sample", {1, 64, 256}, build_sample}};
}

}  // namespace koho::bench
