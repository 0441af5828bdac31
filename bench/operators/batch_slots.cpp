// SPDX-License-Identifier: Apache-2.0
// What a step does besides computing: batch slots, tables, whole cache pages, token counts.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/operators/operator_case.h"
#include "sampling/output_record.h"
#include "sampling/philox.h"

namespace koho::bench {
namespace {

using Own = std::shared_ptr<Operands>;
using Views = Sides<TensorView>;

constexpr std::int64_t kBatchSlots = 256;
constexpr std::int64_t kVocabulary = 151552;

HostTensor tensor_of(DType dtype, const Shape& shape, const std::vector<std::int64_t>& values) {
  HostTensor tensor = integers(dtype, values);
  tensor.shape = shape;
  return tensor;
}

/// 0 to count-1 in a random order.
std::vector<std::int64_t> shuffled(Random& random, std::int64_t count) {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(i);
  random.shuffle(values);
  return values;
}

OpOutput changed(const char* name, const Views& view, ConstTensorView before, bool by_row = false) {
  return {.name = name, .view = view, .before = before, .by_row = by_row};
}

/// An operand that the operator changes, and its values before.
struct Changing {
  ConstTensorView before;
  Views view;

  static Result<Changing> make(Operands& own, HostTensor values) {
    Changing made;
    KOHO_TRY_ASSIGN(const Views input, own.input(std::move(values)));
    made.before = input.reference;
    KOHO_TRY_ASSIGN(made.view, own.changing(made.before));
    return made;
  }
  Changing first(std::int64_t count) const {
    return {before.first(count), bench::first(view, count)};
  }
};

// ---- batch slots

/// The tables of some batch slots on both sides.
struct PlacedBatchSlots {
  Changing pages, last_sampled, outputs;

  static Result<PlacedBatchSlots> make(Operands& own, const BatchSlotsOperands& in) {
    PlacedBatchSlots placed;
    KOHO_TRY_ASSIGN(placed.pages, Changing::make(own, in.pages));
    KOHO_TRY_ASSIGN(placed.last_sampled, Changing::make(own, in.last_sampled));
    KOHO_TRY_ASSIGN(placed.outputs, Changing::make(own, in.outputs));
    return placed;
  }
  BatchSlotTables on(Side side) const {
    return {pages.view.on(side), last_sampled.view.on(side), outputs.view.on(side)};
  }
};

constexpr std::int64_t kModelPages = 128;  // 8,192 tokens
constexpr std::int32_t kModelStop = 7;     // the id that ends outputs

/// Of a busy server: a few outputs have ended, each has stops of one and of three tokens.
BatchSlotsOperands model_batch_slots(Random& random) {
  BatchSlotsOperands in{random_indices(random, kBatchSlots * kModelPages, 50000),
                        random_indices(random, kBatchSlots, kVocabulary),
                        random_indices(random, kBatchSlots * OutputRecord::kWords, kVocabulary)};
  in.pages.shape = {kBatchSlots, kModelPages};
  in.outputs.shape = {kBatchSlots, OutputRecord::kWords};
  for (std::int64_t batch_slot = 0; batch_slot < kBatchSlots; ++batch_slot) {
    std::int32_t* record = in.outputs.as<std::int32_t>() + batch_slot * OutputRecord::kWords;
    record[OutputRecord::kEnded] = batch_slot % 16 == 5 ? 1 : 0;
    record[OutputRecord::kOutput] = 20;
    record[OutputRecord::kOutputMin] = 0;
    std::int32_t* stop = record + OutputRecord::kStops;
    for (const std::int32_t word : {1, kModelStop, 3, 11, 12, 13, 0}) *stop++ = word;
  }
  return in;
}

/// Outputs of a few tokens, so that stops of one to three tokens are often completed; one in five
/// has ended.
BatchSlotsOperands random_batch_slots(Random& random, std::int64_t count, std::int64_t width) {
  BatchSlotsOperands in{
      random_indices(random, count * width, 5000), random_indices(random, count, 1000),
      random_indices(random, count * OutputRecord::kWords, BatchSlotsOperands::kTokens)};
  in.pages.shape = {count, width};
  in.outputs.shape = {count, OutputRecord::kWords};
  for (std::int64_t batch_slot = 0; batch_slot < count; ++batch_slot) {
    std::int32_t* record = in.outputs.as<std::int32_t>() + batch_slot * OutputRecord::kWords;
    record[OutputRecord::kEnded] = random.chance(0.2) ? 1 : 0;
    record[OutputRecord::kOutput] = static_cast<std::int32_t>(random.integer(0, 40));
    record[OutputRecord::kOutputMin] = static_cast<std::int32_t>(random.integer(0, 20));
    std::int64_t at = OutputRecord::kStops;
    const bool fills = random.chance(0.1);  // the record to its last word
    for (std::int64_t stops = fills ? 200 : random.integer(0, 5); stops > 0; --stops) {
      const std::int64_t length = random.chance(0.3) ? 1 : random.integer(2, fills ? 16 : 3);
      if (at + length >= OutputRecord::kWords) break;
      record[at] = static_cast<std::int32_t>(length);
      at += 1 + length;
    }
    if (at < OutputRecord::kWords) record[at] = 0;
  }
  return in;
}

// ---- gather_input_ids

/// Runs of the first rows, one a token count; as many sequences as tokens, or those there are.
Result<std::vector<OperatorRun>> gather_input_ids_runs(const Own& own,
                                                       const GatherInputIdsOperands& in,
                                                       const Rows& token_counts) {
  const std::int64_t width = in.batch_slots.pages.shape[1];
  const auto sequences = static_cast<std::int64_t>(in.contexts.size());
  KOHO_TRY_ASSIGN(const PlacedBatchSlots tables, PlacedBatchSlots::make(*own, in.batch_slots));
  KOHO_TRY_ASSIGN(const Views given, own->input(integers(DType::i32, in.given)));
  KOHO_TRY_ASSIGN(const Views of_sequences, own->input(integers(DType::i32, in.of_sequences)));
  KOHO_TRY_ASSIGN(const Changing slots, Changing::make(*own, integers(DType::i64, in.slots)));
  KOHO_TRY_ASSIGN(const Changing contexts, Changing::make(*own, integers(DType::i32, in.contexts)));
  KOHO_TRY_ASSIGN(const Views token_ids,
                  own->output(DType::i32, {static_cast<std::int64_t>(in.given.size())}));
  KOHO_TRY_ASSIGN(const Views page_tables, own->output(DType::i32, {sequences, width}));
  std::vector<OperatorRun> runs;
  for (const std::int64_t tokens : token_counts) {
    const std::int64_t count = own->guarded() ? sequences : tokens;
    OperatorRun run;
    run.op = "gather_input_ids";
    run.shape = {{"tokens", tokens}, {"pages", width}};
    // A row: id and batch slot read, token read and written; its page table read and written; its
    // context and whether it has ended.
    run.bytes = static_cast<double>(tokens * (4 * 4 + 8 * width + 2 * 4));
    run.rows = tokens;
    run.whole = true;
    const Changing some_slots = slots.first(tokens);
    const Changing some_contexts = contexts.first(count);
    // Of a sequence that has ended the table is unspecified.
    const auto ended = [in](std::int64_t row) {
      return in.batch_slots.has_ended(in.of_sequences[static_cast<std::size_t>(row)]);
    };
    run.outputs = {{.name = "token_ids", .view = first(token_ids, tokens)},
                   changed("slots", some_slots.view, some_slots.before, true),
                   changed("context_lengths", some_contexts.view, some_contexts.before, true),
                   {.name = "page_tables",
                    .view = first(page_tables, count),
                    .tolerance = {.excused = ended},
                    .by_row = false}};
    run.run = [=](Side side, RowRange range, std::int64_t) {
      const RowRange own_sequences{range.first, own->guarded() ? sequences : range.count};
      return own->backend(side).gather_input_ids(
          {cut(token_ids.on(side), range), cut(slots.view.on(side), range),
           cut(page_tables.on(side), own_sequences), cut(contexts.view.on(side), own_sequences)},
          cut(given.on(side), range), cut(of_sequences.on(side), own_sequences), tables.on(side));
    };
    runs.push_back(std::move(run));
  }
  return runs;
}

Result<std::vector<OperatorRun>> build_gather_input_ids(const BenchBackends& site,
                                                        const Rows& token_counts) {
  const auto own = std::make_shared<Operands>(site);
  GatherInputIdsOperands in;
  in.batch_slots = model_batch_slots(own->random());
  in.of_sequences = shuffled(own->random(), kBatchSlots);
  for (const std::int64_t batch_slot : in.of_sequences) in.given.push_back(-1 - batch_slot);
  for (std::int64_t i = 0; i < kBatchSlots; ++i) in.slots.push_back(i);
  in.contexts.assign(static_cast<std::size_t>(kBatchSlots), kModelPages * kPageTokens);
  return gather_input_ids_runs(own, in, token_counts);
}

Result<OperatorRun> build_random_gather_input_ids(const Own& own, bool many) {
  Random& random = own->random();
  const std::int64_t tokens = many ? many_tokens(random) : random_tokens(random);
  const std::int64_t sequences = random.integer(1, 40);
  const std::int64_t count = sequences + random.integer(0, 10);
  const std::int64_t width = random.pick({1, 3, 64, 300, 600});
  GatherInputIdsOperands in;
  in.batch_slots = random_batch_slots(random, count, width);
  for (std::int64_t t = 0; t < tokens; ++t) {
    in.given.push_back(random.chance(0.5) ? random.integer(0, 1000) : -random.integer(1, count));
    in.slots.push_back(random.integer(-1, 1'000'000'000'000));
  }
  for (std::int64_t s = 0; s < sequences; ++s) {
    in.of_sequences.push_back(random.integer(0, count - 1));
    in.contexts.push_back(random.chance(0.2) ? 0 : random.integer(1, 64 * width));
  }
  KOHO_TRY_ASSIGN(std::vector<OperatorRun> runs, gather_input_ids_runs(own, in, {tokens}));
  runs[0].operands = std::move(in);
  return std::move(runs[0]);
}

// ---- commit_sampled

Result<std::vector<OperatorRun>> commit_sampled_runs(const Own& own,
                                                     const CommitSampledOperands& in,
                                                     const Rows& token_counts) {
  KOHO_TRY_ASSIGN(const PlacedBatchSlots tables, PlacedBatchSlots::make(*own, in.batch_slots));
  KOHO_TRY_ASSIGN(const Views of_rows, own->input(integers(DType::i32, in.of_rows)));
  KOHO_TRY_ASSIGN(const Views ids, own->input(integers(DType::i32, in.ids)));
  KOHO_TRY_ASSIGN(const Views ends,
                  own->output(DType::u8, {static_cast<std::int64_t>(in.ids.size())}));
  std::vector<OperatorRun> runs;
  for (const std::int64_t tokens : token_counts) {
    OperatorRun run;
    run.op = "commit_sampled";
    run.shape = {{"tokens", tokens}, {"batch_slots", in.batch_slots.outputs.shape[0]}};
    // A row: batch slot, id, token written, end; of its record three words, the stops (7 words) and
    // the last tokens read, two words written.
    run.bytes = static_cast<double>(
        tokens * (4 + 4 + 4 + 1 + 4 * (3 + 7 + OutputRecord::kRecentTokens + 2)));
    run.rows = tokens;
    run.whole = true;
    run.outputs = {{.name = "ends", .view = first(ends, tokens)},
                   changed("last_sampled", tables.last_sampled.view, tables.last_sampled.before),
                   changed("outputs", tables.outputs.view, tables.outputs.before)};
    run.run = [=](Side side, RowRange range, std::int64_t) {
      return own->backend(side).commit_sampled(cut(ends.on(side), range), tables.on(side),
                                               cut(of_rows.on(side), range),
                                               cut(ids.on(side), range));
    };
    runs.push_back(std::move(run));
  }
  return runs;
}

Result<std::vector<OperatorRun>> build_commit_sampled(const BenchBackends& site,
                                                      const Rows& token_counts) {
  const auto own = std::make_shared<Operands>(site);
  CommitSampledOperands in;
  in.batch_slots = model_batch_slots(own->random());
  in.of_rows = shuffled(own->random(), kBatchSlots);
  for (std::int64_t row = 0; row < kBatchSlots; ++row)
    in.ids.push_back(row % 8 == 0 ? kModelStop : own->random().integer(0, kVocabulary - 1));
  return commit_sampled_runs(own, in, token_counts);
}

Result<OperatorRun> build_random_commit_sampled(const Own& own) {
  Random& random = own->random();
  const std::int64_t rows = random.integer(0, 300);
  CommitSampledOperands in;
  for (std::int64_t r = 0; r < rows; ++r) {
    in.of_rows.push_back(random.chance(0.2) ? -1 : 2 * r + random.integer(0, 1));
    in.ids.push_back(random.chance(0.05) ? -1 : random.integer(0, BatchSlotsOperands::kTokens - 1));
  }
  in.batch_slots = random_batch_slots(random, 2 * rows + 3, 1);
  KOHO_TRY_ASSIGN(std::vector<OperatorRun> runs, commit_sampled_runs(own, in, {rows}));
  runs[0].operands = std::move(in);
  return std::move(runs[0]);
}

// ---- set_entries

Result<std::vector<OperatorRun>> set_entries_runs(const Own& own,
                                                  const SetEntriesOperands& in,
                                                  const Rows& token_counts) {
  KOHO_TRY_ASSIGN(const Changing table, Changing::make(*own, in.table));
  KOHO_TRY_ASSIGN(const Views pairs, own->input(in.pairs));
  std::vector<OperatorRun> runs;
  for (const std::int64_t tokens : token_counts) {
    OperatorRun run;
    run.op = "set_entries";
    run.shape = {{"tokens", tokens}, {"entries", in.table.shape[0]}};
    run.bytes = static_cast<double>(tokens * 12);
    run.rows = tokens;
    run.whole = true;
    run.outputs = {changed("table", table.view, table.before)};
    run.run = [=](Side side, RowRange range, std::int64_t) {
      return own->backend(side).set_entries(table.view.on(side), cut(pairs.on(side), range));
    };
    runs.push_back(std::move(run));
  }
  return runs;
}

Result<std::vector<OperatorRun>> build_set_entries(const BenchBackends& site,
                                                   const Rows& token_counts) {
  const auto own = std::make_shared<Operands>(site);
  constexpr std::int64_t kEntries = kBatchSlots * kModelPages;
  const std::int64_t most = most_of(token_counts);
  std::vector<std::int64_t> before, pairs;
  for (std::int64_t i = 0; i < kEntries; ++i) before.push_back(i);
  const std::vector<std::int64_t> places = shuffled(own->random(), kEntries);
  for (std::int64_t i = 0; i < most; ++i)
    pairs.insert(pairs.end(),
                 {places[static_cast<std::size_t>(i)], own->random().integer(0, (1 << 30) - 1)});
  const SetEntriesOperands in{integers(DType::i32, before),
                              tensor_of(DType::i32, {most, 2}, pairs)};
  return set_entries_runs(own, in, token_counts);
}

Result<OperatorRun> build_random_set_entries(const Own& own) {
  Random& random = own->random();
  const std::int64_t size = random.integer(1, 2000);
  const std::int64_t count = random.integer(0, 700);
  std::vector<std::int64_t> pairs;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t place = random.integer(0, size - 1);
    pairs.insert(pairs.end(), {place, 7 * place + 1});  // a place named twice has one value
  }
  SetEntriesOperands in{random_indices(random, size, 1000),
                        tensor_of(DType::i32, {count, 2}, pairs)};
  KOHO_TRY_ASSIGN(std::vector<OperatorRun> runs, set_entries_runs(own, in, {count}));
  runs[0].operands = std::move(in);
  return std::move(runs[0]);
}

}  // namespace

std::vector<OperatorCase> batch_slot_cases() {
  const Rows rows{1, 64, 256};
  std::vector<OperatorCase> cases;
  cases.push_back(
      {.name = "gather_input_ids",
       .tokens = rows,
       .build = build_gather_input_ids,
       .build_random = [](const Own& own) { return build_random_gather_input_ids(own, false); }});
  cases.push_back({.name = "gather_input_ids_many", .build_random = [](const Own& own) {
                     return build_random_gather_input_ids(own, true);
                   }});
  cases.push_back({.name = "commit_sampled",
                   .tokens = rows,
                   .build = build_commit_sampled,
                   .build_random = build_random_commit_sampled});
  cases.push_back({.name = "set_entries",
                   .tokens = {1, 64, 1024},
                   .build = build_set_entries,
                   .build_random = build_random_set_entries});
  return cases;
}

}  // namespace koho::bench
