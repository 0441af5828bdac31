// SPDX-License-Identifier: Apache-2.0
// Cases of what a step does besides computing: batch slots, tables, whole cache pages, token counts.
#include <algorithm>
#include <memory>

#include "bench/operators/operator_case.h"
#include "sampling/output_record.h"
#include "sampling/philox.h"

namespace koho::bench {
namespace {

using Rows = std::vector<std::int64_t>;
using Numbers = std::vector<std::int32_t>;

constexpr std::int64_t kBatchSlots = 256;
constexpr std::int64_t kVocabulary = 151552;

std::int32_t random_below(Operands& own, std::int64_t end) {
  return static_cast<std::int32_t>(own.random().integer(0, end - 1));
}

Numbers random_numbers(Operands& own, std::int64_t count, std::int64_t end) {
  Numbers values(static_cast<std::size_t>(count));
  std::generate(values.begin(), values.end(), [&] { return random_below(own, end); });
  return values;
}

/// What the batch slots hold before a step; a few of their outputs have ended, and each has stops of one
/// and of three tokens.
struct BatchSlots {
  static constexpr std::int64_t kPages = 128;  // 8,192 tokens
  static constexpr std::int32_t kStop = 7;     // the id that ends them

  ConstTensorView pages, last_sampled, outputs;  // on the host
  Sides<TensorView> pages_on, last_on, outputs_on;

  static bool ended(std::int64_t batch_slot) { return batch_slot % 16 == 5; }

  static Result<BatchSlots> make(Operands& own) {
    Numbers records;
    for (std::int64_t batch_slot = 0; batch_slot < kBatchSlots; ++batch_slot) {
      Numbers record = random_numbers(own, OutputRecord::kWords, kVocabulary);
      record[OutputRecord::kEnded] = ended(batch_slot) ? 1 : 0;
      record[OutputRecord::kOutput] = 20;
      record[OutputRecord::kOutputMin] = 0;
      auto stop = record.begin() + OutputRecord::kStops;
      for (const std::int32_t word : {1, kStop, 3, 11, 12, 13, 0}) *stop++ = word;
      records.insert(records.end(), record.begin(), record.end());
    }
    BatchSlots batch_slots;
    KOHO_TRY_ASSIGN(batch_slots.pages, own.host(DType::i32, {kBatchSlots, kPages}, [&] {
      return static_cast<double>(random_below(own, 50000));
    }));
    KOHO_TRY_ASSIGN(batch_slots.last_sampled, own.host(DType::i32, {kBatchSlots}, [&] {
      return static_cast<double>(random_below(own, kVocabulary));
    }));
    KOHO_TRY_ASSIGN(batch_slots.outputs, own.host(DType::i32, {kBatchSlots, OutputRecord::kWords},
                                                  [&, at = std::size_t{0}]() mutable {
                                                    return static_cast<double>(records[at++]);
                                                  }));
    KOHO_TRY_ASSIGN(batch_slots.pages_on, own.changing(batch_slots.pages));
    KOHO_TRY_ASSIGN(batch_slots.last_on, own.changing(batch_slots.last_sampled));
    KOHO_TRY_ASSIGN(batch_slots.outputs_on, own.changing(batch_slots.outputs));
    return batch_slots;
  }
  BatchSlotTables on(Side side) const {
    return {pages_on.on(side), last_on.on(side), outputs_on.on(side)};
  }
};

/// BatchSlots in another order than rows.
Numbers shuffled_batch_slots(Operands& own) {
  Numbers batch_slots(static_cast<std::size_t>(kBatchSlots));
  for (std::size_t i = 0; i < batch_slots.size(); ++i)
    batch_slots[i] = static_cast<std::int32_t>(i);
  own.random().shuffle(batch_slots);
  return batch_slots;
}

Result<std::vector<OperatorRun>> build_gather_input_ids(const BenchBackends& site,
                                                        const Rows& token_counts) {
  auto own = std::make_shared<Operands>(site);
  KOHO_TRY_ASSIGN(const BatchSlots batch_slots, BatchSlots::make(*own));
  const Numbers order = shuffled_batch_slots(*own);
  Numbers given;
  for (const std::int32_t batch_slot : order) given.push_back(-1 - batch_slot);
  KOHO_TRY_ASSIGN(const Sides<TensorView> own_batch_slots,
                  own->input(DType::i32, {kBatchSlots}, order));
  KOHO_TRY_ASSIGN(const Sides<TensorView> given_ids, own->input(DType::i32, {kBatchSlots}, given));
  KOHO_TRY_ASSIGN(const TensorView slots_before,
                  own->host(DType::i64, {kBatchSlots}, Operands::counting()));
  KOHO_TRY_ASSIGN(const TensorView lengths_before, own->host(DType::i32, {kBatchSlots}, [] {
    return static_cast<double>(BatchSlots::kPages * kPageTokens);
  }));
  KOHO_TRY_ASSIGN(const Sides<TensorView> slots, own->changing(slots_before));
  KOHO_TRY_ASSIGN(const Sides<TensorView> lengths, own->changing(lengths_before));
  KOHO_TRY_ASSIGN(const Sides<TensorView> token_ids, own->output(DType::i32, {kBatchSlots}));
  KOHO_TRY_ASSIGN(const Sides<TensorView> tables,
                  own->output(DType::i32, {kBatchSlots, BatchSlots::kPages}));
  std::vector<OperatorRun> benches;
  for (const std::int64_t tokens : token_counts) {
    OperatorRun bench;
    bench.op = "gather_input_ids";
    bench.shape = {{"tokens", tokens}, {"pages", BatchSlots::kPages}};
    // A row: id and batch slot read, token read and written; its page table read and written; its
    // context and whether it has ended.
    bench.bytes = static_cast<double>(tokens * (4 * 4 + 8 * BatchSlots::kPages + 2 * 4));
    bench.rows = tokens;
    bench.whole = true;
    bench.outputs = {
        {.name = "token_ids", .view = first(token_ids, tokens)},
        {.name = "slots", .view = first(slots, tokens), .before = slots_before.first(tokens)},
        {.name = "context_lengths",
         .view = first(lengths, tokens),
         .before = lengths_before.first(tokens)},
        // Of a sequence that has ended the table is unspecified.
        {.name = "page_tables",
         .view = first(tables, tokens),
         .tolerance = {.excused =
                           [order](std::int64_t row) {
                             return BatchSlots::ended(order[static_cast<std::size_t>(row)]);
                           }},
         .by_row = false}};
    bench.run = [=](Side side, RowRange range, std::int64_t) {
      return own->backend(side).gather_input_ids(
          {cut(token_ids.on(side), range), cut(slots.on(side), range), cut(tables.on(side), range),
           cut(lengths.on(side), range)},
          cut(given_ids.on(side), range), cut(own_batch_slots.on(side), range),
          batch_slots.on(side));
    };
    benches.push_back(std::move(bench));
  }
  return benches;
}

Result<std::vector<OperatorRun>> build_commit_sampled(const BenchBackends& site,
                                                      const Rows& token_counts) {
  auto own = std::make_shared<Operands>(site);
  KOHO_TRY_ASSIGN(const BatchSlots batch_slots, BatchSlots::make(*own));
  Numbers sampled = random_numbers(*own, kBatchSlots, kVocabulary);
  for (std::size_t row = 0; row < sampled.size(); row += 8) sampled[row] = BatchSlots::kStop;
  KOHO_TRY_ASSIGN(const Sides<TensorView> own_batch_slots,
                  own->input(DType::i32, {kBatchSlots}, shuffled_batch_slots(*own)));
  KOHO_TRY_ASSIGN(const Sides<TensorView> ids, own->input(DType::i32, {kBatchSlots}, sampled));
  KOHO_TRY_ASSIGN(const Sides<TensorView> ends, own->output(DType::u8, {kBatchSlots}));
  std::vector<OperatorRun> benches;
  for (const std::int64_t tokens : token_counts) {
    OperatorRun bench;
    bench.op = "commit_sampled";
    bench.shape = {{"tokens", tokens}, {"batch_slots", kBatchSlots}};
    // A row: batch slot, id, token written, end; of its record three words, the stops (7 words) and the
    // last tokens read, two words written.
    bench.bytes = static_cast<double>(
        tokens * (4 + 4 + 4 + 1 + 4 * (3 + 7 + OutputRecord::kRecentTokens + 2)));
    bench.rows = tokens;
    bench.whole = true;
    bench.outputs = {{.name = "ends", .view = first(ends, tokens)},
                     {.name = "last_sampled",
                      .view = batch_slots.last_on,
                      .before = batch_slots.last_sampled,
                      .by_row = false},
                     {.name = "outputs",
                      .view = batch_slots.outputs_on,
                      .before = batch_slots.outputs,
                      .by_row = false}};
    bench.run = [=](Side side, RowRange range, std::int64_t) {
      return own->backend(side).commit_sampled(cut(ends.on(side), range), batch_slots.on(side),
                                               cut(own_batch_slots.on(side), range),
                                               cut(ids.on(side), range));
    };
    benches.push_back(std::move(bench));
  }
  return benches;
}

Result<std::vector<OperatorRun>> build_set_entries(const BenchBackends& site,
                                                   const Rows& token_counts) {
  auto own = std::make_shared<Operands>(site);
  constexpr std::int64_t kEntries = kBatchSlots * BatchSlots::kPages;
  const std::int64_t most = most_of(token_counts);
  KOHO_TRY_ASSIGN(const TensorView before, own->host(DType::i32, {kEntries}, Operands::counting()));
  KOHO_TRY_ASSIGN(const Sides<TensorView> table, own->changing(before));
  Numbers places(static_cast<std::size_t>(kEntries));
  for (std::size_t i = 0; i < places.size(); ++i) places[i] = static_cast<std::int32_t>(i);
  own->random().shuffle(places);
  Numbers values;
  for (std::int64_t i = 0; i < most; ++i) {
    values.push_back(places[static_cast<std::size_t>(i)]);
    values.push_back(random_below(*own, 1 << 30));
  }
  KOHO_TRY_ASSIGN(const Sides<TensorView> pairs, own->input(DType::i32, {most, 2}, values));
  std::vector<OperatorRun> benches;
  for (const std::int64_t tokens : token_counts) {
    OperatorRun bench;
    bench.op = "set_entries";
    bench.shape = {{"tokens", tokens}, {"entries", kEntries}};
    bench.bytes = static_cast<double>(tokens * 12);
    bench.rows = tokens;
    bench.whole = true;
    bench.outputs = {{.name = "table", .view = table, .before = before, .by_row = false}};
    bench.run = [=](Side side, RowRange range, std::int64_t) {
      return own->backend(side).set_entries(table.on(side), cut(pairs.on(side), range));
    };
    benches.push_back(std::move(bench));
  }
  return benches;
}

/// Whole pages of one layer; "tokens" are those of the pages.
Result<std::vector<OperatorRun>> build_copy_pages(const BenchBackends& site,
                                                  std::int64_t kv_heads,
                                                  DType dtype,
                                                  const Rows& token_counts) {
  auto own = std::make_shared<Operands>(site);
  constexpr std::int64_t kWidth = 128;
  const bool quantized_pages = dtype == DType::f8_e4m3;
  const std::int64_t most = most_of(token_counts) / kPageTokens;
  const Shape shape{2 * most, kv_heads, kPageTokens, kWidth};
  const Shape scales_shape{2 * most, kv_heads, kPageTokens};
  struct Part {
    const char* name;
    TensorView before;
    Sides<TensorView> view;
  };
  std::vector<Part> parts{{"k", {}, {}}, {"v", {}, {}}};
  if (quantized_pages) parts.insert(parts.end(), {{"k_scales", {}, {}}, {"v_scales", {}, {}}});
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i < 2) {
      KOHO_TRY_ASSIGN(parts[i].before, own->host(dtype, shape, own->normals()));
    } else {
      KOHO_TRY_ASSIGN(parts[i].before, own->host(DType::f32, scales_shape, own->about(1.0)));
    }
    KOHO_TRY_ASSIGN(parts[i].view, own->changing(parts[i].before));
  }
  // From the first half of the pages, in some order, to the other.
  Numbers from(static_cast<std::size_t>(most));
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::int32_t>(i);
  own->random().shuffle(from);
  Numbers values;
  for (std::int64_t i = 0; i < most; ++i) {
    values.push_back(from[static_cast<std::size_t>(i)]);
    values.push_back(static_cast<std::int32_t>(most + i));
  }
  KOHO_TRY_ASSIGN(const Sides<TensorView> pairs, own->input(DType::i32, {most, 2}, values));
  std::vector<OperatorRun> benches;
  for (const std::int64_t tokens : token_counts) {
    const std::int64_t pages = tokens / kPageTokens;
    OperatorRun bench;
    bench.op = "copy_pages";
    bench.shape = {{"tokens", tokens},
                   {"pages", pages},
                   {"kv_heads", kv_heads},
                   {"kv_bytes", dtype_bytes(dtype)}};
    bench.bytes = static_cast<double>(4 * tokens * kv_heads *
                                      (kWidth * dtype_bytes(dtype) + (quantized_pages ? 4 : 0)));
    bench.rows = pages;
    bench.whole = true;
    for (const Part& part : parts)
      bench.outputs.push_back(
          {.name = part.name, .view = part.view, .before = part.before, .by_row = false});
    bench.run = [=](Side side, RowRange range, std::int64_t) {
      KvLayer kv{parts[0].view.on(side), parts[1].view.on(side), {}, {}};
      if (quantized_pages) kv.k_scales = parts[2].view.on(side);
      if (quantized_pages) kv.v_scales = parts[3].view.on(side);
      return own->backend(side).copy_pages(kv, cut(pairs.on(side), range));
    };
    benches.push_back(std::move(bench));
  }
  return benches;
}

/// One row of the table; "tokens" are those of the prompt, a quarter as many are of the output.
Result<std::vector<OperatorRun>> build_reset_counts(const BenchBackends& site,
                                                    const Rows& token_counts) {
  auto own = std::make_shared<Operands>(site);
  constexpr std::int64_t kSlots = 4;
  constexpr std::int64_t kSlot = 2;
  const std::int64_t nonzero_words = race_bitmap_words(static_cast<std::int32_t>(kVocabulary));
  const std::int64_t most = most_of(token_counts);
  KOHO_TRY_ASSIGN(const TensorView entries_before,
                  own->host(DType::i32, {kSlots, kVocabulary},
                            [&] { return static_cast<double>(random_below(*own, 4)); }));
  KOHO_TRY_ASSIGN(const TensorView nonzero_before,
                  own->host(DType::i32, {kSlots, nonzero_words},
                            [&] { return static_cast<double>(random_below(*own, 1 << 30)); }));
  KOHO_TRY_ASSIGN(const Sides<TensorView> entries, own->changing(entries_before));
  KOHO_TRY_ASSIGN(const Sides<TensorView> nonzero, own->changing(nonzero_before));
  KOHO_TRY_ASSIGN(const Sides<TensorView> prompt,
                  own->input(DType::i32, {most}, random_numbers(*own, most, kVocabulary)));
  KOHO_TRY_ASSIGN(const Sides<TensorView> output,
                  own->input(DType::i32, {most}, random_numbers(*own, most, kVocabulary)));
  std::vector<OperatorRun> benches;
  for (const std::int64_t tokens : token_counts) {
    const std::int64_t outputs = tokens / 4;
    OperatorRun bench;
    bench.op = "reset_counts";
    bench.shape = {{"tokens", tokens}, {"outputs", outputs}, {"vocabulary", kVocabulary}};
    bench.bytes = static_cast<double>(4 * (kVocabulary + nonzero_words + tokens + outputs));
    bench.rows = 1;
    bench.whole = true;
    bench.outputs = {
        {.name = "counts.entries", .view = entries, .before = entries_before, .by_row = false},
        {.name = "counts.nonzero", .view = nonzero, .before = nonzero_before, .by_row = false}};
    bench.run = [=](Side side, RowRange, std::int64_t) {
      return own->backend(side).reset_counts({entries.on(side), nonzero.on(side)}, kSlot,
                                             prompt.on(side).first(tokens),
                                             output.on(side).first(outputs));
    };
    benches.push_back(std::move(bench));
  }
  return benches;
}

}  // namespace

std::vector<OperatorCase> batch_slot_cases() {
  const auto pages = [](std::int64_t kv_heads, DType dtype) {
    return [=](const BenchBackends& site, const Rows& tokens) {
      return build_copy_pages(site, kv_heads, dtype, tokens);
    };
  };
  const Rows rows{1, 64, 256};
  const Rows page_tokens{64, 1024, 8192};
  return {{"gather_input_ids", rows, build_gather_input_ids},
          {"commit_sampled", rows, build_commit_sampled},
          {"set_entries", {1, 64, 1024}, build_set_entries},
          {"copy_pages_tp1", page_tokens, pages(8, DType::bf16)},
          {"copy_pages_tp1_e4m3", page_tokens, pages(8, DType::f8_e4m3)},
          {"reset_counts", {256, 8192}, build_reset_counts}};
}

}  // namespace koho::bench
