// SPDX-License-Identifier: Apache-2.0
// Cases of the operators that take one row at a time.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "bench/operators/device_array.h"
#include "ops/cases.h"
#include "ops/compare.h"
#include "ops/reference.h"
#include "sampling/output_record.h"

namespace koho::testing {
namespace {

/// Tables of `batch slots` batch slots with page tables of `width`: outputs of a few tokens, so that stops of
/// one to three tokens are often completed; one in five has ended.
struct BatchSlots {
  HostTensor pages, last_sampled, outputs;

  BatchSlots(Random& random, std::int64_t batch_slots, std::int64_t width)
      : pages(random_indices(random, batch_slots * width, 5000)),
        last_sampled(random_indices(random, batch_slots, 1000)),
        outputs(random_indices(random, batch_slots * OutputRecord::kWords, kTokens)) {
    pages.shape = {batch_slots, width};
    outputs.shape = {batch_slots, OutputRecord::kWords};
    for (std::int64_t batch_slot = 0; batch_slot < batch_slots; ++batch_slot) {
      std::int32_t* record = outputs.as<std::int32_t>() + batch_slot * OutputRecord::kWords;
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
  }

  static constexpr std::int64_t kTokens = 4;
};

/// A table on the device.
struct DeviceBatchSlots {
  DeviceArray pages, last_sampled, outputs;

  DeviceBatchSlots(Backend& backend, const BatchSlots& batch_slots)
      : pages(backend, batch_slots.pages),
        last_sampled(backend, batch_slots.last_sampled),
        outputs(backend, batch_slots.outputs) {}
  BatchSlotTables tables() { return {pages.view(), last_sampled.view(), outputs.view()}; }
};

std::string run_gather_input_ids(Backend& backend, std::uint64_t seed, bool many) {
  Random random(seed);
  const std::int64_t tokens = many ? many_tokens(random) : random_tokens(random);
  const std::int64_t sequences = random.integer(1, 40);
  const std::int64_t count = sequences + random.integer(0, 10);
  const std::int64_t width = random.pick({1, 3, 64, 300, 600});
  const BatchSlots batch_slots(random, count, width);
  std::vector<std::int64_t> given, own_batch_slots, contexts, slots;
  for (std::int64_t t = 0; t < tokens; ++t) {
    given.push_back(random.chance(0.5) ? random.integer(0, 1000) : -random.integer(1, count));
    slots.push_back(random.integer(-1, 1'000'000'000'000));
  }
  for (std::int64_t s = 0; s < sequences; ++s) {
    own_batch_slots.push_back(random.integer(0, count - 1));
    contexts.push_back(random.chance(0.2) ? 0 : random.integer(1, 64 * width));
  }
  const DeviceArray given_array(backend, integers(DType::i32, given));
  const DeviceArray batch_slots_array(backend, integers(DType::i32, own_batch_slots));
  DeviceBatchSlots device(backend, batch_slots);
  DeviceArray contexts_array(backend, integers(DType::i32, contexts));
  DeviceArray slots_array(backend, integers(DType::i64, slots));
  DeviceArray ids(backend, DType::i32, {tokens});
  DeviceArray tables(backend, DType::i32, {sequences, width});
  HostTensor expected = tables.get();  // what lies behind a context is left as it was
  std::string faults = fault_of(
      "gather_input_ids",
      backend.gather_input_ids({.token_ids = ids.view(),
                                .slots = slots_array.view(),
                                .page_tables = tables.view(),
                                .context_lengths = contexts_array.view()},
                               given_array.view(), batch_slots_array.view(), device.tables()));
  const auto has_ended = [&](std::int64_t batch_slot) {
    return batch_slots.outputs.as<std::int32_t>()[batch_slot * OutputRecord::kWords] != 0;
  };
  HostTensor expected_ids(DType::i32, {tokens});
  for (std::size_t t = 0; t < given.size(); ++t) {
    const std::int64_t batch_slot = -1 - given[t];
    expected_ids.as<std::int32_t>()[t] =
        given[t] >= 0 ? static_cast<std::int32_t>(given[t])
                      : batch_slots.last_sampled.as<std::int32_t>()[batch_slot];
    if (given[t] < 0 && has_ended(batch_slot)) slots[t] = -1;
  }
  for (std::int64_t s = 0; s < sequences; ++s) {
    const std::int64_t batch_slot = own_batch_slots[static_cast<std::size_t>(s)];
    std::int64_t& context = contexts[static_cast<std::size_t>(s)];
    if (has_ended(batch_slot)) context = 0;
    for (std::int64_t i = 0; 64 * i < context; ++i)
      expected.as<std::int32_t>()[s * width + i] =
          batch_slots.pages.as<std::int32_t>()[batch_slot * width + i];
  }
  return faults + compare_bits("token_ids", ids.get(), expected_ids) +
         compare_bits("slots", slots_array.get(), integers(DType::i64, slots)) +
         compare_bits("context_lengths", contexts_array.get(), integers(DType::i32, contexts)) +
         compare_bits("page_tables", tables.get(), expected) + ids.guard_fault("token_ids") +
         tables.guard_fault("page_tables") + slots_array.guard_fault("slots") +
         contexts_array.guard_fault("context_lengths");
}

/// Whether the output, `token` included, ends with a stop of the record: found from the whole list
/// of what is known of it.
bool completes_stop(const std::int32_t* record, std::int32_t token) {
  std::vector<std::int32_t> known;
  const std::int32_t output = record[OutputRecord::kOutput];
  for (std::int32_t i = std::max(0, output - OutputRecord::kRecentTokens + 1); i < output; ++i)
    known.push_back(record[OutputRecord::kRecent + i % OutputRecord::kRecentTokens]);
  known.push_back(token);
  std::int64_t at = OutputRecord::kStops;
  while (at < OutputRecord::kWords && record[at] != 0) {
    const std::vector<std::int32_t> stop(record + at + 1, record + at + 1 + record[at]);
    at += 1 + record[at];
    if (stop.size() > 1 && output < record[OutputRecord::kOutputMin]) continue;
    if (stop.size() <= known.size() && std::equal(stop.rbegin(), stop.rend(), known.rbegin()))
      return true;
  }
  return false;
}

std::string run_commit_sampled(Backend& backend, std::uint64_t seed, const OpCaseOptions&) {
  Random random(seed);
  const std::int64_t rows = random.integer(0, 300);
  std::vector<std::int64_t> own_batch_slots, ids;
  for (std::int64_t r = 0; r < rows; ++r) {
    own_batch_slots.push_back(random.chance(0.2) ? -1 : 2 * r + random.integer(0, 1));
    ids.push_back(random.chance(0.05) ? -1 : random.integer(0, BatchSlots::kTokens - 1));
  }
  BatchSlots batch_slots(random, 2 * rows + 3, 1);
  DeviceBatchSlots device(backend, batch_slots);
  const DeviceArray batch_slots_array(backend, integers(DType::i32, own_batch_slots));
  const DeviceArray ids_array(backend, integers(DType::i32, ids));
  DeviceArray ends(backend, DType::u8, {rows});
  HostTensor expected = ends.get();  // rows of no batch slot are left as they were
  std::string faults = fault_of("commit_sampled",
                                backend.commit_sampled(ends.view(), device.tables(),
                                                       batch_slots_array.view(), ids_array.view()));
  for (std::size_t r = 0; r < own_batch_slots.size(); ++r) {
    if (own_batch_slots[r] < 0) continue;
    std::int32_t* record =
        batch_slots.outputs.as<std::int32_t>() + own_batch_slots[r] * OutputRecord::kWords;
    RowEnd& end = reinterpret_cast<RowEnd*>(expected.as<std::uint8_t>())[r];
    end = RowEnd::frozen;
    if (record[OutputRecord::kEnded] != 0) continue;
    const auto id = static_cast<std::int32_t>(ids[r]);
    batch_slots.last_sampled.as<std::int32_t>()[own_batch_slots[r]] = std::max(id, 0);
    end = RowEnd::none;
    if (id < 0) continue;
    end = completes_stop(record, id) ? RowEnd::ended : RowEnd::none;
    record[OutputRecord::kEnded] = end == RowEnd::ended ? 1 : 0;
    const std::int32_t output = record[OutputRecord::kOutput]++;
    record[OutputRecord::kRecent + output % OutputRecord::kRecentTokens] = id;
  }
  return faults + compare_bits("ends", ends.get(), expected) +
         compare_bits("last_sampled", device.last_sampled.get(), batch_slots.last_sampled) +
         compare_bits("outputs", device.outputs.get(), batch_slots.outputs) +
         ends.guard_fault("ends") + device.last_sampled.guard_fault("last_sampled") +
         device.outputs.guard_fault("outputs");
}

std::string run_set_entries(Backend& backend, std::uint64_t seed, const OpCaseOptions&) {
  Random random(seed);
  const std::int64_t size = random.integer(1, 2000);
  const std::int64_t count = random.integer(0, 700);
  HostTensor expected = random_indices(random, size, 1000);
  DeviceArray table(backend, expected);
  std::vector<std::int64_t> pairs;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t place = random.integer(0, size - 1);
    pairs.insert(pairs.end(), {place, 7 * place + 1});  // a place named twice has one value
    expected.as<std::int32_t>()[place] = static_cast<std::int32_t>(7 * place + 1);
  }
  HostTensor pair_tensor = integers(DType::i32, pairs);
  pair_tensor.shape = {count, 2};
  const DeviceArray pairs_array(backend, pair_tensor);
  std::string faults =
      fault_of("set_entries", backend.set_entries(table.view(), pairs_array.view()));
  return faults + compare_bits("table", table.get(), expected) + table.guard_fault("table");
}

// ---- qk_norm_rope_store_kv

/// What the operator reads.
struct QkInputs {
  HeadShape heads;
  std::int64_t pages = 0;
  DType cache = DType::bf16;
  HostTensor qkv;  // [T, (Q + 2K) * D] bf16: what arrives, or what its quantised values mean
  HostTensor quantized, scales;  // [T, (Q + 2K) * D] e4m3, [T] f32, or empty: values arrive
  std::int64_t row_gap = 0;      // of qkv, or of its quantised values
  HostTensor q_norm, k_norm;     // [D], or empty
  HostTensor table;              // [positions, 2, rotary/2]
  std::vector<std::int64_t> positions, slots;

  /// `many`: so many heads of GLM's shape that backends may take them in another way.
  QkInputs(Random& random, DType qkv_dtype, DType cache_dtype, bool many) : cache(cache_dtype) {
    heads.kv_heads = random.integer(1, 4);
    heads.query_heads = heads.kv_heads * random.pick({1, 2, 4, 12});
    heads.width = random.pick({16, 64, 128, 128});
    heads.rotary = random.chance(0.7) ? heads.width / 2 : random.pick({0, 2, 6, 16});
    if (many) heads.width = 128;
    if (many) heads.rotary = 64;
    const std::int64_t row_heads = heads.query_heads + 2 * heads.kv_heads;
    const std::int64_t tokens =
        many ? random.integer(1, 2) * random.integer(17000, 20000) / row_heads
             : random.integer(1, 20);
    pages = tokens / kPageTokens + random.integer(1, 4);
    const std::int64_t positions_max = random.chance(0.1) ? 131072 : 300;
    const Shape rows{tokens, row_heads * heads.width};
    const Spread spread = random_spread(random, true);
    if (qkv_dtype == DType::bf16) qkv = random_values(random, DType::bf16, rows, spread);
    if (qkv_dtype == DType::f8_e4m3) {
      quantized = random_quantized(random, rows, spread);
      scales = random_scales(random, DType::f32, {tokens}, random.chance(0.1) ? 1e-36 : 0.01);
      qkv = HostTensor(DType::bf16, rows);
      for (std::int64_t i = 0; i < qkv.elements(); ++i)
        qkv.as<BFloat16>()[i] =
            to_bf16(to_float(quantized.as<Float8E4M3>()[i]) * scales.as<float>()[i / rows[1]]);
    }
    row_gap = random.chance(0.3) ? 8 : 0;
    if (random.chance(0.7)) {
      q_norm = random_values(random, DType::bf16, {heads.width}, Spread::normal);
      k_norm = random_values(random, DType::bf16, {heads.width}, Spread::normal);
    }
    const std::int64_t half = heads.rotary / 2;
    table = HostTensor(DType::f32, {positions_max, 2, half});
    for (std::int64_t p = 0; p < positions_max; ++p) {
      for (std::int64_t j = 0; j < half; ++j) {
        const double angle =
            static_cast<double>(p) *
            std::pow(1e6, -2.0 * static_cast<double>(j) / static_cast<double>(heads.rotary));
        table.set(p * heads.rotary + j, std::cos(angle));
        table.set(p * heads.rotary + half + j, std::sin(angle));
      }
    }
    std::vector<std::int64_t> free_slots;
    for (std::int64_t slot = 0; slot < pages * kPageTokens; ++slot) free_slots.push_back(slot);
    for (std::int64_t t = 0; t < tokens; ++t) {
      positions.push_back(random.chance(0.2) ? positions_max - 1
                                             : random.integer(0, positions_max - 1));
      const auto pick = static_cast<std::ptrdiff_t>(
          random.integer(0, static_cast<std::int64_t>(free_slots.size()) - 1));
      slots.push_back(random.chance(0.15) ? -1 : free_slots[static_cast<std::size_t>(pick)]);
      free_slots.erase(free_slots.begin() + pick);
    }
  }

  std::int64_t tokens() const { return qkv.shape[0]; }
  bool has_quantized() const { return !quantized.empty(); }
  bool cache_has_codes() const { return cache == DType::f8_e4m3; }
  std::int64_t position(std::int64_t t) const { return positions[static_cast<std::size_t>(t)]; }
  std::int64_t slot(std::int64_t t) const { return slots[static_cast<std::size_t>(t)]; }
  /// Where a head of token t lies in the pages, counted in heads.
  std::int64_t place(std::int64_t t, std::int64_t head) const {
    return (slot(t) / kPageTokens * heads.kv_heads + head) * kPageTokens + slot(t) % kPageTokens;
  }
  /// Token t without its neighbours.
  QkInputs alone(std::int64_t t) const {
    QkInputs one = *this;
    one.qkv = row_of(qkv, t);
    if (has_quantized()) {
      one.quantized = row_of(quantized, t);
      one.scales = HostTensor(DType::f32, {1});
      one.scales.set(0, scales.at(t));
    }
    one.positions = {position(t)};
    one.slots = {slot(t)};
    return one;
  }
  /// With what the quantised values mean in their place.
  QkInputs decoded() const {
    QkInputs same = *this;
    same.quantized = same.scales = {};
    return same;
  }
};

/// What it wrote, between untouched guard bands; everything else is poison.
struct QkOutputs {
  HostTensor q, q_scales, k, v, k_scales, v_scales;

  QkOutputs(Backend& backend, const QkInputs& in, std::string& faults) {
    const Shape cache{in.pages, in.heads.kv_heads, kPageTokens, in.heads.width};
    const Shape cache_scales{in.pages, in.heads.kv_heads, kPageTokens};
    const DeviceArray qkv_array(backend, in.has_quantized() ? in.quantized : in.qkv, in.row_gap);
    const DeviceArray qkv_scales(backend, in.scales);
    const DeviceArray positions(backend, integers(DType::i32, in.positions));
    const DeviceArray slots(backend, integers(DType::i64, in.slots));
    const DeviceArray q_norm(backend, in.q_norm);
    const DeviceArray k_norm(backend, in.k_norm);
    const DeviceArray table(backend, in.table);
    const DeviceArray q_array(backend, in.has_quantized() ? DType::f8_e4m3 : DType::bf16,
                              {in.tokens(), in.heads.query_heads, in.heads.width});
    const DeviceArray q_scale_array(backend, DType::f32, {in.tokens(), in.heads.query_heads});
    const DeviceArray k_array(backend, in.cache, cache);
    const DeviceArray v_array(backend, in.cache, cache);
    const DeviceArray k_scale_array(backend, DType::f32, cache_scales);
    const DeviceArray v_scale_array(backend, DType::f32, cache_scales);
    KvLayer kv{k_array.view(), v_array.view(), {}, {}};
    if (in.cache_has_codes()) {
      kv.k_scales = k_scale_array.view();
      kv.v_scales = v_scale_array.view();
    }
    QkNormRope weights;
    weights.heads = in.heads;
    weights.eps = 1e-5F;
    weights.rope_table = table.view();
    if (!in.q_norm.empty()) weights.q_norm = q_norm.view();
    if (!in.k_norm.empty()) weights.k_norm = k_norm.view();
    Activation qkv_forms;
    Queries q_forms;
    (in.has_quantized() ? qkv_forms.quantized : qkv_forms.values) = qkv_array.view();
    (in.has_quantized() ? q_forms.quantized : q_forms.values) = q_array.view();
    if (in.has_quantized()) {
      qkv_forms.scales = qkv_scales.view();
      q_forms.scales = q_scale_array.view();
    }
    faults += fault_of("qk_norm_rope_store_kv",
                       backend.qk_norm_rope_store_kv(q_forms, kv, qkv_forms, positions.view(),
                                                     slots.view(), weights));
    q = q_array.get();
    q_scales = q_scale_array.get();
    k = k_array.get();
    v = v_array.get();
    k_scales = k_scale_array.get();
    v_scales = v_scale_array.get();
    faults += q_array.guard_fault("q") + q_scale_array.guard_fault("q_scales") +
              k_array.guard_fault("k") + v_array.guard_fault("v") +
              k_scale_array.guard_fault("k_scales") + v_scale_array.guard_fault("v_scales");
  }

  std::string compare_bits(const std::string& name, const QkOutputs& expected) const {
    return testing::compare_bits("q " + name, q, expected.q) +
           testing::compare_bits("q_scales " + name, q_scales, expected.q_scales) +
           compare_cache(name, expected);
  }
  std::string compare_cache(const std::string& name, const QkOutputs& expected) const {
    return testing::compare_bits("k " + name, k, expected.k) +
           testing::compare_bits("v " + name, v, expected.v) +
           testing::compare_bits("k_scales " + name, k_scales, expected.k_scales) +
           testing::compare_bits("v_scales " + name, v_scales, expected.v_scales);
  }
};

/// Head `head` of the projections of token t, normed and rotated, as intervals.
std::vector<Interval> rotated(const HostTensor& qkv,
                              std::int64_t t,
                              std::int64_t head,
                              const HostTensor& norm,
                              const HostTensor& table,
                              std::int64_t position,
                              const HeadShape& heads) {
  HostTensor row(DType::bf16, {1, heads.width});
  for (std::int64_t i = 0; i < heads.width; ++i)
    row.as<BFloat16>()[i] = qkv.as<BFloat16>()[t * qkv.shape[1] + head * heads.width + i];
  std::vector<Interval> normed;
  if (!norm.empty()) normed = norm_reference(row, norm, 0, 1e-5);
  if (norm.empty())
    for (std::int64_t i = 0; i < heads.width; ++i) normed.push_back({row.at(i), row.at(i)});
  const std::int64_t half = heads.rotary / 2;
  const auto mixed = [](Interval a, double c, Interval b, double s) {
    // a * c + b * s over both intervals, with the rounding of two products and a sum in f32.
    const double error = 2e-7 * (std::max(std::fabs(a.low), std::fabs(a.high)) * std::fabs(c) +
                                 std::max(std::fabs(b.low), std::fabs(b.high)) * std::fabs(s)) +
                         kSubnormalError;
    const double low = std::min(a.low * c, a.high * c) + std::min(b.low * s, b.high * s);
    const double high = std::max(a.low * c, a.high * c) + std::max(b.low * s, b.high * s);
    return rounded_bf16({low - error, high + error});
  };
  std::vector<Interval> out = normed;
  for (std::int64_t j = 0; j < half; ++j) {
    const double cosine = table.at(position * heads.rotary + j);
    const double sine = table.at(position * heads.rotary + half + j);
    const Interval a = normed[static_cast<std::size_t>(j)];
    const Interval b = normed[static_cast<std::size_t>(j + half)];
    const bool nan = std::isnan(a.low) || std::isnan(b.low);
    const Interval both{a.low + b.low, a.high + b.high};
    out[static_cast<std::size_t>(j)] = nan ? both : mixed(a, cosine, b, -sine);
    out[static_cast<std::size_t>(j + half)] = nan ? both : mixed(b, cosine, a, sine);
  }
  return out;
}

/// The quantised values of head `at` of `got`, times their scale, against what its values may be; the scale
/// says that the largest element has the largest code.
std::string compare_quantized_bits(const std::string& name,
                                   const HostTensor& got,
                                   const HostTensor& scales,
                                   std::int64_t at,
                                   const std::vector<Interval>& expected) {
  const auto width = static_cast<std::int64_t>(expected.size());
  double largest = 0.0;  // that it can be
  double least = 0.0;    // that the largest can be
  for (const Interval& range : expected) {
    if (std::isnan(range.low)) continue;
    const double low = std::fabs(range.low);
    const double high = std::fabs(range.high);
    largest = std::max({largest, low, high});
    if (range.low * range.high > 0.0) least = std::max(least, std::min(low, high));
  }
  HostTensor scale(DType::f32, {1});
  scale.set(0, scales.at(at));
  HostTensor values(DType::f32, {width});
  std::vector<Interval> widened;
  for (std::int64_t i = 0; i < width; ++i) {
    values.set(i, got.at(at * width + i) * scale.at(0));
    // A code is within half a step: 1/16 of the value, or 2^-10 of the scale.
    const Interval range = expected[static_cast<std::size_t>(i)];
    const double step = std::max(std::max(std::fabs(range.low), std::fabs(range.high)) / 16.0,
                                 largest / 448.0 * 0x1p-10);
    widened.push_back({range.low - step * 1.0001, range.high + step * 1.0001});
  }
  std::string faults = compare_intervals(name, values, widened);
  if (largest > 1e-30)
    faults += compare_intervals(name + "_scale", scale,
                                {{least / 448.0 * 0.999999, largest / 448.0 * 1.000001}});
  if (largest == 0.0 && scale.at(0) != 1.0)
    faults += name + ": the scale of a zero row must be 1\n";
  return faults;
}

/// Where the cache was to be written, its rows; everything else is still poisoned.
std::string check_cache(const QkInputs& in, const QkOutputs& out) {
  const HeadShape& heads = in.heads;
  std::string faults;
  std::vector<bool> written(static_cast<std::size_t>(in.pages * heads.kv_heads * kPageTokens),
                            false);
  const auto check = [&](const char* name, const HostTensor& got, const HostTensor& scales,
                         std::int64_t at, const std::vector<Interval>& expected) {
    if (in.cache_has_codes()) {
      faults += compare_quantized_bits(name, got, scales, at, expected);
      return;
    }
    HostTensor row(DType::bf16, {heads.width});
    for (std::int64_t i = 0; i < heads.width; ++i)
      row.as<BFloat16>()[i] = got.as<BFloat16>()[at * heads.width + i];
    faults += compare_intervals(name, row, expected);
  };
  for (std::int64_t t = 0; t < in.tokens(); ++t) {
    for (std::int64_t head = 0; head < heads.kv_heads && in.slot(t) >= 0; ++head) {
      const std::int64_t at = in.place(t, head);
      written[static_cast<std::size_t>(at)] = true;
      const std::int64_t k_head = heads.query_heads + head;
      check("k", out.k, out.k_scales, at,
            rotated(in.qkv, t, k_head, in.k_norm, in.table, in.position(t), heads));
      std::vector<Interval> value;
      const std::int64_t first = t * in.qkv.shape[1] + (k_head + heads.kv_heads) * heads.width;
      for (std::int64_t i = 0; i < heads.width; ++i)
        value.push_back({in.qkv.at(first + i), in.qkv.at(first + i)});
      check("v", out.v, out.v_scales, at, value);
    }
  }
  for (const HostTensor* tensor : {&out.k, &out.v, &out.k_scales, &out.v_scales}) {
    const std::size_t bytes = tensor->bytes.size() / written.size();
    const bool unused = tensor->dtype == DType::f32 && !in.cache_has_codes();  // all of it
    for (std::size_t i = 0; i < tensor->bytes.size(); ++i)
      if ((unused || !written[i / bytes]) && tensor->bytes[i] != std::byte{0xFF})
        return faults + "a cache row that no slot names was written\n";
  }
  return faults;
}

/// q as its values may be, or its quantised values and their scales.
std::string check_q(const QkInputs& in, const QkOutputs& out) {
  const HeadShape& heads = in.heads;
  std::string faults;
  std::vector<Interval> q_expected;
  for (std::int64_t t = 0; t < in.tokens(); ++t) {
    for (std::int64_t head = 0; head < heads.query_heads; ++head) {
      const auto one = rotated(in.qkv, t, head, in.q_norm, in.table, in.position(t), heads);
      if (in.has_quantized())
        faults +=
            compare_quantized_bits("q", out.q, out.q_scales, t * heads.query_heads + head, one);
      else
        q_expected.insert(q_expected.end(), one.begin(), one.end());
    }
  }
  return in.has_quantized() ? faults : compare_intervals("q", out.q, q_expected);
}

/// A number's NaNs have one bit pattern: which they have is no part of the contract.
HostTensor one_nan(HostTensor tensor) {
  for (std::int64_t i = 0; i < tensor.elements(); ++i)
    if (std::isnan(tensor.at(i))) tensor.set(i, std::numeric_limits<double>::quiet_NaN());
  return tensor;
}

/// Codes are those of what the operator makes of the values they mean, bit by bit.
std::string compare_decoded(Backend& backend, const QkInputs& in, QkOutputs out) {
  std::string faults;
  QkOutputs expected(backend, in.decoded(), faults);
  const std::int64_t width = in.heads.width;
  HostTensor quantized(DType::f8_e4m3, expected.q.shape);
  HostTensor scales(DType::f32, out.q_scales.shape);
  for (std::int64_t head = 0; head < scales.elements(); ++head) {
    const BFloat16* values = expected.q.as<BFloat16>() + head * width;
    float largest = 0.0F;
    for (std::int64_t i = 0; i < width; ++i)
      largest = std::fmax(largest, std::fabs(to_float(values[i])));
    const float scale = largest == 0.0F ? 1.0F : largest / 448.0F;
    scales.as<float>()[head] = scale;
    for (std::int64_t i = 0; i < width; ++i)
      quantized.as<Float8E4M3>()[head * width + i] = to_e4m3(to_float(values[i]) / scale);
  }
  for (HostTensor* tensor : {&out.k, &out.v, &expected.k, &expected.v})
    *tensor = one_nan(std::move(*tensor));
  return faults + compare_bits("q", one_nan(out.q), one_nan(quantized)) +
         compare_bits("q_scales", out.q_scales, scales) +
         out.compare_cache("of quantized", expected);
}

std::string run_qk(Backend& backend,
                   std::uint64_t seed,
                   const OpCaseOptions& options,
                   DType qkv,
                   DType cache,
                   bool many) {
  Random random(seed);
  const QkInputs in(random, qkv, cache, many);
  const HeadShape& heads = in.heads;
  std::string faults;
  const QkOutputs out(backend, in, faults);
  faults += check_q(in, out) + check_cache(in, out);
  if (in.has_quantized()) faults += compare_decoded(backend, in, out);
  const QkOutputs again(backend, in, faults);
  faults += again.compare_bits("run again", out);
  if (!options.batch_invariant) return faults;

  // One token alone: the same bits.
  const std::int64_t t = random.integer(0, in.tokens() - 1);
  const QkOutputs alone(backend, in.alone(t), faults);
  const auto same = [&](const HostTensor& one, std::int64_t at, const HostTensor& among,
                        std::int64_t among_at, std::int64_t elements) {
    const auto size = static_cast<std::size_t>(elements * dtype_bytes(one.dtype));
    if (std::memcmp(one.bytes.data() + static_cast<std::size_t>(at) * size,
                    among.bytes.data() + static_cast<std::size_t>(among_at) * size, size) != 0)
      faults += "token " + std::to_string(t) + " alone has other bits\n";
  };
  same(alone.q, 0, out.q, t, heads.query_heads * heads.width);
  same(alone.q_scales, 0, out.q_scales, t, heads.query_heads);
  for (std::int64_t head = 0; head < heads.kv_heads && in.slot(t) >= 0; ++head) {
    const std::int64_t at = in.place(t, head);
    same(alone.k, at, out.k, at, heads.width);
    same(alone.v, at, out.v, at, heads.width);
    same(alone.k_scales, at, out.k_scales, at, 1);
    same(alone.v_scales, at, out.v_scales, at, 1);
  }
  return faults;
}

std::string run_copy_pages(Backend& backend, std::uint64_t seed, const OpCaseOptions&) {
  Random random(seed);
  const bool quantized = random.chance(0.5);
  const std::int64_t pages = random.integer(2, 6);
  const std::int64_t heads = random.integer(1, 3);
  const std::int64_t width = random.pick({8, 64, 128});
  const Shape shape{pages, heads, kPageTokens, width};
  HostTensor k(quantized ? DType::f8_e4m3 : DType::bf16, shape);
  for (std::byte& byte : k.bytes) byte = static_cast<std::byte>(random.bits() & 0xFFU);
  HostTensor v = k;
  std::reverse(v.bytes.begin(), v.bytes.end());
  HostTensor scales = random_scales(random, DType::f32, {pages, heads, kPageTokens}, 1.0);
  const DeviceArray k_array(backend, k);
  const DeviceArray v_array(backend, v);
  const DeviceArray k_scales(backend, scales);
  const DeviceArray v_scales(backend, scales);
  // Pairs neither of whose pages another pair writes.
  const std::int64_t from = random.integer(0, pages - 1);
  const std::int64_t to = (from + random.integer(1, pages - 1)) % pages;
  const DeviceArray pairs(backend, [&] {
    HostTensor one(DType::i32, {1, 2});
    one.set(0, static_cast<double>(from));
    one.set(1, static_cast<double>(to));
    return one;
  }());
  KvLayer kv{k_array.view(), v_array.view(), {}, {}};
  if (quantized) {
    kv.k_scales = k_scales.view();
    kv.v_scales = v_scales.view();
  }
  std::string faults = fault_of("copy_pages", backend.copy_pages(kv, pairs.view()));
  const auto copied = [&](HostTensor tensor) {
    const auto bytes = static_cast<std::ptrdiff_t>(tensor.bytes.size()) / pages;
    std::copy_n(tensor.bytes.begin() + from * bytes, bytes, tensor.bytes.begin() + to * bytes);
    return tensor;
  };
  faults +=
      compare_bits("k", k_array.get(), copied(k)) + compare_bits("v", v_array.get(), copied(v));
  if (quantized)
    faults += compare_bits("k_scales", k_scales.get(), copied(scales)) +
              compare_bits("v_scales", v_scales.get(), copied(scales));
  return faults + k_array.guard_fault("k") + v_array.guard_fault("v") +
         k_scales.guard_fault("k_scales") + v_scales.guard_fault("v_scales");
}

}  // namespace

std::vector<OpCase> row_cases() {
  const auto qk = [](DType qkv, DType cache, bool many = false) {
    return [=](Backend& backend, std::uint64_t seed, const OpCaseOptions& options) {
      return run_qk(backend, seed, options, qkv, cache, many);
    };
  };
  constexpr DType kBf16 = DType::bf16;
  constexpr DType kQuantized = DType::f8_e4m3;
  using Run = std::string (*)(Backend&, std::uint64_t, bool);
  const auto rows = [](Run run, bool many = false) {
    return [=](Backend& backend, std::uint64_t seed, const OpCaseOptions&) {
      return run(backend, seed, many);
    };
  };
  return {{"gather_input_ids", rows(run_gather_input_ids)},
          {"gather_input_ids_many", rows(run_gather_input_ids, true)},
          {"commit_sampled", run_commit_sampled},
          {"set_entries", run_set_entries},
          {"qk_norm_rope_store_kv", qk(kBf16, kBf16)},
          {"qk_norm_rope_store_kv_e4m3", qk(kBf16, kQuantized)},
          {"qk_norm_rope_store_kv_quantized", qk(kQuantized, kBf16)},
          {"qk_norm_rope_store_kv_quantized_e4m3", qk(kQuantized, kQuantized)},
          {"qk_norm_rope_store_kv_many", qk(kBf16, kBf16, true), true},
          {"qk_norm_rope_store_kv_many_e4m3", qk(kBf16, kQuantized, true), true},
          {"qk_norm_rope_store_kv_many_quantized_e4m3", qk(kQuantized, kQuantized, true), true},
          {"copy_pages", run_copy_pages}};
}

}  // namespace koho::testing
