// SPDX-License-Identifier: Apache-2.0
// Cases of what a step does besides computing: seats, tables, whole cache pages, token counts.
#include <algorithm>
#include <memory>

#include "app/operator_bench_parts.h"
#include "sampling/output_record.h"
#include "sampling/philox.h"

namespace koho::app {
namespace {

using Rows = std::vector<std::int64_t>;
using Numbers = std::vector<std::int32_t>;

constexpr std::int64_t kSeats = 256;
constexpr std::int64_t kVocabulary = 151552;

std::int32_t drawn_below(Operands& own, std::int64_t end) {
  return std::uniform_int_distribution<std::int32_t>(
      0, static_cast<std::int32_t>(end - 1))(own.random());
}

Numbers drawn(Operands& own, std::int64_t count, std::int64_t end) {
  Numbers values(static_cast<std::size_t>(count));
  std::generate(values.begin(), values.end(), [&] { return drawn_below(own, end); });
  return values;
}

/// What the seats hold before a step; a few of their outputs have ended, and each has stops of one
/// and of three tokens.
struct Seats {
  static constexpr std::int64_t kPages = 128;  // 8,192 tokens
  static constexpr std::int32_t kStop = 7;     // the id that ends them

  ConstTensorView pages, last_sampled, outputs;  // on the host
  Sides<TensorView> pages_on, last_on, outputs_on;

  static bool ended(std::int64_t seat) { return seat % 16 == 5; }

  static Result<Seats> make(Operands& own) {
    Numbers records;
    for (std::int64_t seat = 0; seat < kSeats; ++seat) {
      Numbers record = drawn(own, OutputRecord::kWords, kVocabulary);
      record[OutputRecord::kEnded] = ended(seat) ? 1 : 0;
      record[OutputRecord::kOutput] = 20;
      record[OutputRecord::kOutputMin] = 0;
      auto stop = record.begin() + OutputRecord::kStops;
      for (const std::int32_t word : {1, kStop, 3, 11, 12, 13, 0}) *stop++ = word;
      records.insert(records.end(), record.begin(), record.end());
    }
    Seats seats;
    KOHO_TRY_ASSIGN(seats.pages, own.host(DType::i32, {kSeats, kPages}, [&] {
      return static_cast<double>(drawn_below(own, 50000));
    }));
    KOHO_TRY_ASSIGN(seats.last_sampled, own.host(DType::i32, {kSeats}, [&] {
      return static_cast<double>(drawn_below(own, kVocabulary));
    }));
    KOHO_TRY_ASSIGN(seats.outputs, own.host(DType::i32, {kSeats, OutputRecord::kWords},
                                            [&, at = std::size_t{0}]() mutable {
                                              return static_cast<double>(records[at++]);
                                            }));
    KOHO_TRY_ASSIGN(seats.pages_on, own.changing(seats.pages));
    KOHO_TRY_ASSIGN(seats.last_on, own.changing(seats.last_sampled));
    KOHO_TRY_ASSIGN(seats.outputs_on, own.changing(seats.outputs));
    return seats;
  }
  SeatTables on(Side side) const {
    return {pages_on.on(side), last_on.on(side), outputs_on.on(side)};
  }
};

/// Seats in another order than rows.
Numbers shuffled_seats(Operands& own) {
  Numbers seats(static_cast<std::size_t>(kSeats));
  for (std::size_t i = 0; i < seats.size(); ++i) seats[i] = static_cast<std::int32_t>(i);
  std::shuffle(seats.begin(), seats.end(), own.random());
  return seats;
}

Result<std::vector<OpBench>> build_take_from_seats(const BenchSite& site,
                                                   const Rows& token_counts) {
  auto own = std::make_shared<Operands>(site);
  KOHO_TRY_ASSIGN(const Seats seats, Seats::make(*own));
  const Numbers order = shuffled_seats(*own);
  Numbers given;
  for (const std::int32_t seat : order) given.push_back(-1 - seat);
  KOHO_TRY_ASSIGN(const Sides<TensorView> own_seats, own->input(DType::i32, {kSeats}, order));
  KOHO_TRY_ASSIGN(const Sides<TensorView> given_ids, own->input(DType::i32, {kSeats}, given));
  KOHO_TRY_ASSIGN(const TensorView slots_before,
                  own->host(DType::i64, {kSeats}, Operands::counting()));
  KOHO_TRY_ASSIGN(const TensorView lengths_before, own->host(DType::i32, {kSeats}, [] {
    return static_cast<double>(Seats::kPages * kPageTokens);
  }));
  KOHO_TRY_ASSIGN(const Sides<TensorView> slots, own->changing(slots_before));
  KOHO_TRY_ASSIGN(const Sides<TensorView> lengths, own->changing(lengths_before));
  KOHO_TRY_ASSIGN(const Sides<TensorView> token_ids, own->output(DType::i32, {kSeats}));
  KOHO_TRY_ASSIGN(const Sides<TensorView> tables, own->output(DType::i32, {kSeats, Seats::kPages}));
  std::vector<OpBench> benches;
  for (const std::int64_t tokens : token_counts) {
    OpBench bench;
    bench.op = "take_from_seats";
    bench.shape = {{"tokens", tokens}, {"pages", Seats::kPages}};
    // A row: id and seat read, token read and written; its page table read and written; its
    // context and whether it has ended.
    bench.bytes = static_cast<double>(tokens * (4 * 4 + 8 * Seats::kPages + 2 * 4));
    bench.rows = tokens;
    bench.whole = true;
    bench.outputs = {{.name = "token_ids", .view = first(token_ids, tokens)},
                     {.name = "slots",
                      .view = first(slots, tokens),

                      .before = slots_before.first(tokens)},
                     {.name = "context_lengths",
                      .view = first(lengths, tokens),

                      .before = lengths_before.first(tokens)},
                     // Of a sequence that has ended the table is unspecified.
                     {.name = "page_tables",
                      .view = first(tables, tokens),
                      .gate = {.excused =
                                   [order](std::int64_t row) {
                                     return Seats::ended(order[static_cast<std::size_t>(row)]);
                                   }},
                      .by_row = false}};
    bench.run = [=](Side side, RowRange range, std::int64_t) {
      return own->backend(side).take_from_seats(
          {cut(token_ids.on(side), range), cut(slots.on(side), range), cut(tables.on(side), range),
           cut(lengths.on(side), range)},
          cut(given_ids.on(side), range), cut(own_seats.on(side), range), seats.on(side));
    };
    benches.push_back(std::move(bench));
  }
  return benches;
}

Result<std::vector<OpBench>> build_keep_sampled(const BenchSite& site, const Rows& token_counts) {
  auto own = std::make_shared<Operands>(site);
  KOHO_TRY_ASSIGN(const Seats seats, Seats::make(*own));
  Numbers sampled = drawn(*own, kSeats, kVocabulary);
  for (std::size_t row = 0; row < sampled.size(); row += 8) sampled[row] = Seats::kStop;
  KOHO_TRY_ASSIGN(const Sides<TensorView> own_seats,
                  own->input(DType::i32, {kSeats}, shuffled_seats(*own)));
  KOHO_TRY_ASSIGN(const Sides<TensorView> ids, own->input(DType::i32, {kSeats}, sampled));
  KOHO_TRY_ASSIGN(const Sides<TensorView> ends, own->output(DType::u8, {kSeats}));
  std::vector<OpBench> benches;
  for (const std::int64_t tokens : token_counts) {
    OpBench bench;
    bench.op = "keep_sampled";
    bench.shape = {{"tokens", tokens}, {"seats", kSeats}};
    // A row: seat, id, token written, end; of its record three words, the stops (7 words) and the
    // last tokens read, two words written.
    bench.bytes = static_cast<double>(
        tokens * (4 + 4 + 4 + 1 + 4 * (3 + 7 + OutputRecord::kRecentTokens + 2)));
    bench.rows = tokens;
    bench.whole = true;
    bench.outputs = {{.name = "ends", .view = first(ends, tokens)},
                     {.name = "last_sampled",
                      .view = seats.last_on,

                      .before = seats.last_sampled,
                      .by_row = false},
                     {.name = "outputs",
                      .view = seats.outputs_on,

                      .before = seats.outputs,
                      .by_row = false}};
    bench.run = [=](Side side, RowRange range, std::int64_t) {
      return own->backend(side).keep_sampled(cut(ends.on(side), range), seats.on(side),
                                             cut(own_seats.on(side), range),
                                             cut(ids.on(side), range));
    };
    benches.push_back(std::move(bench));
  }
  return benches;
}

Result<std::vector<OpBench>> build_set_entries(const BenchSite& site, const Rows& token_counts) {
  auto own = std::make_shared<Operands>(site);
  constexpr std::int64_t kEntries = kSeats * Seats::kPages;
  const std::int64_t most = *std::max_element(token_counts.begin(), token_counts.end());
  KOHO_TRY_ASSIGN(const TensorView before, own->host(DType::i32, {kEntries}, Operands::counting()));
  KOHO_TRY_ASSIGN(const Sides<TensorView> table, own->changing(before));
  Numbers places(static_cast<std::size_t>(kEntries));
  for (std::size_t i = 0; i < places.size(); ++i) places[i] = static_cast<std::int32_t>(i);
  std::shuffle(places.begin(), places.end(), own->random());
  Numbers values;
  for (std::int64_t i = 0; i < most; ++i) {
    values.push_back(places[static_cast<std::size_t>(i)]);
    values.push_back(drawn_below(*own, 1 << 30));
  }
  KOHO_TRY_ASSIGN(const Sides<TensorView> pairs, own->input(DType::i32, {most, 2}, values));
  std::vector<OpBench> benches;
  for (const std::int64_t tokens : token_counts) {
    OpBench bench;
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
Result<std::vector<OpBench>> build_copy_pages(const BenchSite& site,
                                              std::int64_t kv_heads,
                                              DType dtype,
                                              const Rows& token_counts) {
  auto own = std::make_shared<Operands>(site);
  constexpr std::int64_t kWidth = 128;
  const bool coded = dtype == DType::f8_e4m3;
  const std::int64_t most =
      *std::max_element(token_counts.begin(), token_counts.end()) / kPageTokens;
  const Shape shape{2 * most, kv_heads, kPageTokens, kWidth};
  const Shape scales_shape{2 * most, kv_heads, kPageTokens};
  struct Part {
    const char* name;
    TensorView before;
    Sides<TensorView> view;
  };
  std::vector<Part> parts{{"k", {}, {}}, {"v", {}, {}}};
  if (coded) parts.insert(parts.end(), {{"k_scales", {}, {}}, {"v_scales", {}, {}}});
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
  std::shuffle(from.begin(), from.end(), own->random());
  Numbers values;
  for (std::int64_t i = 0; i < most; ++i) {
    values.push_back(from[static_cast<std::size_t>(i)]);
    values.push_back(static_cast<std::int32_t>(most + i));
  }
  KOHO_TRY_ASSIGN(const Sides<TensorView> pairs, own->input(DType::i32, {most, 2}, values));
  std::vector<OpBench> benches;
  for (const std::int64_t tokens : token_counts) {
    const std::int64_t pages = tokens / kPageTokens;
    OpBench bench;
    bench.op = "copy_pages";
    bench.shape = {{"tokens", tokens},
                   {"pages", pages},
                   {"kv_heads", kv_heads},
                   {"kv_bytes", dtype_bytes(dtype)}};
    bench.bytes = static_cast<double>(4 * tokens * kv_heads *
                                      (kWidth * dtype_bytes(dtype) + (coded ? 4 : 0)));
    bench.rows = pages;
    bench.whole = true;
    for (const Part& part : parts)
      bench.outputs.push_back({.name = part.name,
                               .view = part.view,

                               .before = part.before,
                               .by_row = false});
    bench.run = [=](Side side, RowRange range, std::int64_t) {
      KvLayer kv{parts[0].view.on(side), parts[1].view.on(side), {}, {}};
      if (coded) kv.k_scales = parts[2].view.on(side);
      if (coded) kv.v_scales = parts[3].view.on(side);
      return own->backend(side).copy_pages(kv, cut(pairs.on(side), range));
    };
    benches.push_back(std::move(bench));
  }
  return benches;
}

/// One row of the table; "tokens" are those of the prompt, a quarter as many are of the output.
Result<std::vector<OpBench>> build_reset_counts(const BenchSite& site, const Rows& token_counts) {
  auto own = std::make_shared<Operands>(site);
  constexpr std::int64_t kSlots = 4;
  constexpr std::int64_t kSlot = 2;
  const std::int64_t mark_words = race_mark_words(static_cast<std::int32_t>(kVocabulary));
  const std::int64_t most = *std::max_element(token_counts.begin(), token_counts.end());
  KOHO_TRY_ASSIGN(const TensorView entries_before,
                  own->host(DType::i32, {kSlots, kVocabulary},
                            [&] { return static_cast<double>(drawn_below(*own, 4)); }));
  KOHO_TRY_ASSIGN(const TensorView marks_before, own->host(DType::i32, {kSlots, mark_words}, [&] {
    return static_cast<double>(drawn_below(*own, 1 << 30));
  }));
  KOHO_TRY_ASSIGN(const Sides<TensorView> entries, own->changing(entries_before));
  KOHO_TRY_ASSIGN(const Sides<TensorView> marks, own->changing(marks_before));
  KOHO_TRY_ASSIGN(const Sides<TensorView> prompt,
                  own->input(DType::i32, {most}, drawn(*own, most, kVocabulary)));
  KOHO_TRY_ASSIGN(const Sides<TensorView> output,
                  own->input(DType::i32, {most}, drawn(*own, most, kVocabulary)));
  std::vector<OpBench> benches;
  for (const std::int64_t tokens : token_counts) {
    const std::int64_t outputs = tokens / 4;
    OpBench bench;
    bench.op = "reset_counts";
    bench.shape = {{"tokens", tokens}, {"outputs", outputs}, {"vocabulary", kVocabulary}};
    bench.bytes = static_cast<double>(4 * (kVocabulary + mark_words + tokens + outputs));
    bench.rows = 1;
    bench.whole = true;
    bench.outputs = {{.name = "counts.entries",
                      .view = entries,

                      .before = entries_before,
                      .by_row = false},
                     {.name = "counts.marks",
                      .view = marks,

                      .before = marks_before,
                      .by_row = false}};
    bench.run = [=](Side side, RowRange, std::int64_t) {
      return own->backend(side).reset_counts({entries.on(side), marks.on(side)}, kSlot,
                                             prompt.on(side).first(tokens),
                                             output.on(side).first(outputs));
    };
    benches.push_back(std::move(bench));
  }
  return benches;
}

}  // namespace

std::vector<OpBenchCase> seat_bench_cases() {
  const auto pages = [](std::int64_t kv_heads, DType dtype) {
    return [=](const BenchSite& site, const Rows& tokens) {
      return build_copy_pages(site, kv_heads, dtype, tokens);
    };
  };
  const Rows rows{1, 64, 256};
  const Rows page_tokens{64, 1024, 8192};
  return {{"take_from_seats", rows, build_take_from_seats},
          {"keep_sampled", rows, build_keep_sampled},
          {"set_entries", {1, 64, 1024}, build_set_entries},
          {"copy_pages_tp1", page_tokens, pages(8, DType::bf16)},
          {"copy_pages_tp1_e4m3", page_tokens, pages(8, DType::f8_e4m3)},
          {"reset_counts", {256, 8192}, build_reset_counts}};
}

}  // namespace koho::app
