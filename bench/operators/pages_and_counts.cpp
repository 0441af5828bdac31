// SPDX-License-Identifier: Apache-2.0
// copy_pages, reset_counts and count_sampled: whole cache pages, and rows of the penalty table.
#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "bench/operators/operator_case.h"
#include "sampling/philox.h"

namespace koho::bench {
namespace {

using Own = std::shared_ptr<Operands>;
using Views = Sides<TensorView>;

constexpr std::int64_t kVocabulary = 151552;

// ---- copy_pages

/// A part of a layer's cache: "k", "v", "k_scales" or "v_scales".
struct CachePart {
  const char* name;
  ConstTensorView before;
  Views view{};
};

OperatorRun copy_pages_run(const Own& own,
                           const std::vector<CachePart>& parts,
                           const Views& pairs,
                           std::int64_t pages) {
  const ConstTensorView& k = parts[0].before;
  const std::int64_t tokens = pages * kPageTokens;
  const std::int64_t element = dtype_bytes(k.dtype);
  const bool scaled = parts.size() > 2;
  OperatorRun run;
  run.op = "copy_pages";
  run.shape = {
      {"tokens", tokens}, {"pages", pages}, {"kv_heads", k.size(1)}, {"kv_bytes", element}};
  run.bytes =
      static_cast<double>(4 * tokens * k.size(1) * (k.size(3) * element + (scaled ? 4 : 0)));
  run.rows = pages;
  run.whole = true;
  for (const CachePart& part : parts)
    run.outputs.push_back(
        {.name = part.name, .view = part.view, .before = part.before, .by_row = false});
  run.run = [=](Side side, RowRange range, std::int64_t) {
    KvLayer kv{parts[0].view.on(side), parts[1].view.on(side), {}, {}};
    if (scaled) kv.k_scales = parts[2].view.on(side);
    if (scaled) kv.v_scales = parts[3].view.on(side);
    return own->backend(side).copy_pages(kv, cut(pairs.on(side), range));
  };
  return run;
}

/// Whole pages of one layer; "tokens" are those of the pages.
Result<std::vector<OperatorRun>> build_copy_pages(const BenchBackends& site,
                                                  std::int64_t kv_heads,
                                                  DType dtype,
                                                  const Rows& token_counts) {
  const auto own = std::make_shared<Operands>(site);
  const std::int64_t most = most_of(token_counts) / kPageTokens;
  const Shape shape{2 * most, kv_heads, kPageTokens, 128};
  const Shape scales{2 * most, kv_heads, kPageTokens};
  std::vector<CachePart> parts;
  for (const char* name : {"k", "v"}) {
    KOHO_TRY_ASSIGN(const TensorView before, own->host(dtype, shape, own->normals()));
    parts.push_back({name, before});
  }
  for (const char* name : {"k_scales", "v_scales"}) {
    if (dtype != DType::f8_e4m3) break;
    KOHO_TRY_ASSIGN(const TensorView before, own->host(DType::f32, scales, own->about(1.0)));
    parts.push_back({name, before});
  }
  for (CachePart& part : parts) {
    KOHO_TRY_ASSIGN(part.view, own->changing(part.before));
  }
  // From the first half of the pages, in some order, to the other.
  std::vector<std::int32_t> from;
  for (std::int64_t i = 0; i < most; ++i) from.push_back(static_cast<std::int32_t>(i));
  own->random().shuffle(from);
  std::vector<std::int32_t> values;
  for (std::int64_t i = 0; i < most; ++i)
    values.insert(values.end(),
                  {from[static_cast<std::size_t>(i)], static_cast<std::int32_t>(most + i)});
  KOHO_TRY_ASSIGN(const Views pairs, own->input(DType::i32, {most, 2}, values));
  std::vector<OperatorRun> runs;
  for (const std::int64_t tokens : token_counts)
    runs.push_back(copy_pages_run(own, parts, pairs, tokens / kPageTokens));
  return runs;
}

Result<OperatorRun> build_random_copy_pages(const Own& own) {
  Random& random = own->random();
  const bool quantized = random.chance(0.5);
  const std::int64_t pages = random.integer(2, 6);
  const std::int64_t heads = random.integer(1, 3);
  const std::int64_t width = random.pick({8, 64, 128});
  HostTensor k(quantized ? DType::f8_e4m3 : DType::bf16, {pages, heads, kPageTokens, width});
  for (std::byte& byte : k.bytes) byte = static_cast<std::byte>(random.bits() & 0xFFU);
  HostTensor v = k;
  std::reverse(v.bytes.begin(), v.bytes.end());
  // A pair neither of whose pages another pair writes.
  CopyPagesOperands in;
  in.from = random.integer(0, pages - 1);
  in.to = (in.from + random.integer(1, pages - 1)) % pages;
  in.parts = {{"k", std::move(k)}, {"v", std::move(v)}};
  if (quantized)
    for (const char* name : {"k_scales", "v_scales"})
      in.parts.emplace_back(name,
                            random_scales(random, DType::f32, {pages, heads, kPageTokens}, 1.0));
  std::vector<CachePart> parts;
  for (std::size_t i = 0; i < in.parts.size(); ++i) {
    constexpr const char* kNames[] = {"k", "v", "k_scales", "v_scales"};
    KOHO_TRY_ASSIGN(const Views before, own->input(in.parts[i].second));
    KOHO_TRY_ASSIGN(const Views view, own->changing(before.reference));
    parts.push_back({kNames[i], before.reference, view});
  }
  HostTensor pair = integers(DType::i32, {in.from, in.to});
  pair.shape = {1, 2};
  KOHO_TRY_ASSIGN(const Views pairs, own->input(std::move(pair)));
  OperatorRun run = copy_pages_run(own, parts, pairs, 1);
  run.operands = std::move(in);
  return run;
}

// ---- reset_counts

/// The table of counts, and the bitmap of those that are not zero.
struct CountArrays {
  ConstTensorView entries_before, nonzero_before;
  Views entries, nonzero, prompt, output;
};

/// The two tables with these values, which an operator changes.
Result<CountArrays> count_arrays(const Own& own,
                                 const HostTensor& entries,
                                 const HostTensor& nonzero) {
  CountArrays arrays;
  KOHO_TRY_ASSIGN(const Views before, own->input(entries));
  KOHO_TRY_ASSIGN(const Views bitmap_before, own->input(nonzero));
  arrays.entries_before = before.reference;
  arrays.nonzero_before = bitmap_before.reference;
  KOHO_TRY_ASSIGN(arrays.entries, own->changing(arrays.entries_before));
  KOHO_TRY_ASSIGN(arrays.nonzero, own->changing(arrays.nonzero_before));
  return arrays;
}

std::vector<OpOutput> outputs_of(const CountArrays& arrays) {
  return {{.name = "counts.entries",
           .view = arrays.entries,
           .before = arrays.entries_before,
           .by_row = false},
          {.name = "counts.nonzero",
           .view = arrays.nonzero,
           .before = arrays.nonzero_before,
           .by_row = false}};
}

OperatorRun reset_counts_run(const Own& own,
                             const CountArrays& arrays,
                             std::int64_t slot,
                             std::int64_t prompts,
                             std::int64_t outputs) {
  const std::int64_t vocabulary = arrays.entries.measured.size(1);
  OperatorRun run;
  run.op = "reset_counts";
  run.shape = {{"tokens", prompts}, {"outputs", outputs}, {"vocabulary", vocabulary}};
  run.bytes =
      static_cast<double>(4 * (vocabulary + arrays.nonzero.measured.size(1) + prompts + outputs));
  run.rows = 1;
  run.whole = true;
  run.outputs = outputs_of(arrays);
  run.run = [=](Side side, RowRange, std::int64_t) {
    return own->backend(side).reset_counts({arrays.entries.on(side), arrays.nonzero.on(side)}, slot,
                                           arrays.prompt.on(side).first(prompts),
                                           arrays.output.on(side).first(outputs));
  };
  return run;
}

/// One row of the table; "tokens" are those of the prompt, a quarter as many are of the output.
Result<std::vector<OperatorRun>> build_reset_counts(const BenchBackends& site,
                                                    const Rows& token_counts) {
  const auto own = std::make_shared<Operands>(site);
  constexpr std::int64_t kSlots = 4;
  constexpr std::int64_t kSlot = 2;
  Random& random = own->random();
  const std::int64_t words = race_bitmap_words(static_cast<std::int32_t>(kVocabulary));
  const std::int64_t most = most_of(token_counts);
  const auto any = [&](std::int64_t end) {
    return [&random, end] { return static_cast<double>(random.integer(0, end - 1)); };
  };
  CountArrays arrays;
  KOHO_TRY_ASSIGN(arrays.entries_before, own->host(DType::i32, {kSlots, kVocabulary}, any(4)));
  KOHO_TRY_ASSIGN(arrays.nonzero_before, own->host(DType::i32, {kSlots, words}, any(1 << 30)));
  KOHO_TRY_ASSIGN(arrays.entries, own->changing(arrays.entries_before));
  KOHO_TRY_ASSIGN(arrays.nonzero, own->changing(arrays.nonzero_before));
  KOHO_TRY_ASSIGN(arrays.prompt, own->input(random_indices(random, most, kVocabulary)));
  KOHO_TRY_ASSIGN(arrays.output, own->input(random_indices(random, most, kVocabulary)));
  std::vector<OperatorRun> runs;
  for (const std::int64_t tokens : token_counts)
    runs.push_back(reset_counts_run(own, arrays, kSlot, tokens, tokens / 4));
  return runs;
}

Result<OperatorRun> build_random_reset_counts(const Own& own) {
  Random& random = own->random();
  const std::int64_t slots = random.integer(1, 4);
  const std::int64_t vocabulary = random.integer(1, 300);
  ResetCountsOperands in;
  in.slot = random.integer(0, slots - 1);
  in.entries = HostTensor(DType::i32, {slots, vocabulary});
  for (std::int64_t i = 0; i < in.entries.elements(); ++i)
    in.entries.as<std::int32_t>()[i] = static_cast<std::int32_t>(random.bits());
  in.nonzero =
      HostTensor(DType::i32, {slots, race_bitmap_words(static_cast<std::int32_t>(vocabulary))});
  std::fill(in.nonzero.bytes.begin(), in.nonzero.bytes.end(), std::byte{0xFF});
  in.prompt = random_indices(random, random.integer(0, 200), vocabulary);
  in.output = random_indices(random, random.integer(0, 200), vocabulary);
  KOHO_TRY_ASSIGN(CountArrays arrays, count_arrays(own, in.entries, in.nonzero));
  KOHO_TRY_ASSIGN(arrays.prompt, own->input(in.prompt));
  KOHO_TRY_ASSIGN(arrays.output, own->input(in.output));
  OperatorRun run =
      reset_counts_run(own, arrays, in.slot, in.prompt.elements(), in.output.elements());
  run.operands = std::move(in);
  return run;
}

// ---- count_sampled

Result<OperatorRun> count_sampled_run(const Own& own, const CountSampledOperands& in) {
  const auto rows = static_cast<std::int64_t>(in.rows.size());
  HostTensor bytes(DType::u8, {rows, static_cast<std::int64_t>(sizeof(SamplingRow))});
  if (rows > 0) std::memcpy(bytes.bytes.data(), in.rows.data(), bytes.bytes.size());
  KOHO_TRY_ASSIGN(const CountArrays arrays, count_arrays(own, in.counts, nonzero_of(in.counts)));
  KOHO_TRY_ASSIGN(const Views of_rows, own->input(std::move(bytes)));
  KOHO_TRY_ASSIGN(const Views ids, own->input(integers(DType::i32, in.ids)));
  OperatorRun run;
  run.op = "count_sampled";
  run.shape = {{"tokens", rows}, {"vocabulary", in.counts.shape[1]}};
  run.bytes = static_cast<double>(rows * (4 + 4 + 2 * 4 + 2 * 4));  // slot, id, count, bitmap word
  run.rows = 1;
  run.whole = true;
  run.outputs = outputs_of(arrays);
  run.run = [=](Side side, RowRange, std::int64_t) {
    return own->backend(side).count_sampled({arrays.entries.on(side), arrays.nonzero.on(side)},
                                            of_rows.on(side), ids.on(side));
  };
  return run;
}

/// `rows` rows over as many slots of counts from 0 to 3.
CountSampledOperands random_counts(Random& random, std::int64_t rows, std::int64_t vocabulary) {
  CountSampledOperands in;
  const std::int64_t slots = std::max<std::int64_t>(rows, 1);
  in.counts = HostTensor(DType::i32, {slots, vocabulary});
  for (std::int64_t i = 0; i < in.counts.elements(); ++i)
    in.counts.as<std::int32_t>()[i] = static_cast<std::int32_t>(random.integer(0, 3));
  std::vector<std::int64_t> of_rows(static_cast<std::size_t>(slots));
  std::iota(of_rows.begin(), of_rows.end(), 0);
  random.shuffle(of_rows);
  for (std::int64_t r = 0; r < rows; ++r) {
    SamplingRow row;
    row.counts_slot = static_cast<std::int32_t>(of_rows[static_cast<std::size_t>(r)]);
    if (random.chance(0.2)) row.counts_slot = -1;
    in.rows.push_back(row);
    in.ids.push_back(random.chance(0.1) ? -1 : random.integer(0, vocabulary - 1));
  }
  return in;
}

Result<std::vector<OperatorRun>> build_count_sampled(const BenchBackends& site,
                                                     const Rows& token_counts) {
  std::vector<OperatorRun> runs;
  for (const std::int64_t rows : token_counts) {
    const auto own = std::make_shared<Operands>(site);
    KOHO_TRY_ASSIGN(OperatorRun run,
                    count_sampled_run(own, random_counts(own->random(), rows, kVocabulary)));
    runs.push_back(std::move(run));
  }
  return runs;
}

Result<OperatorRun> build_random_count_sampled(const Own& own) {
  Random& random = own->random();
  CountSampledOperands in = random_counts(random, random.integer(0, 300), random.integer(1, 300));
  KOHO_TRY_ASSIGN(OperatorRun run, count_sampled_run(own, in));
  run.operands = std::move(in);
  return run;
}

}  // namespace

std::vector<OperatorCase> page_and_count_cases() {
  const Rows tokens{64, 1024, 8192};
  std::vector<OperatorCase> cases;
  const auto pages = [&](const char* name, std::int64_t kv_heads, DType dtype) {
    cases.push_back({.name = name,
                     .tokens = tokens,
                     .build = [=](const BenchBackends& site, const Rows& chosen) {
                       return build_copy_pages(site, kv_heads, dtype, chosen);
                     }});
  };
  cases.push_back({.name = "copy_pages", .build_random = build_random_copy_pages});
  pages("copy_pages_tp1", 8, DType::bf16);
  pages("copy_pages_tp1_e4m3", 8, DType::f8_e4m3);
  cases.push_back({.name = "reset_counts",
                   .tokens = {256, 8192},
                   .build = build_reset_counts,
                   .build_random = build_random_reset_counts});
  cases.push_back({.name = "count_sampled",
                   .tokens = {1, 64},
                   .build = build_count_sampled,
                   .build_random = build_random_count_sampled});
  return cases;
}

}  // namespace koho::bench
