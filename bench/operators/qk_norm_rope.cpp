// SPDX-License-Identifier: Apache-2.0
// qk_norm_rope_store_kv: random head shapes, and GLM-4.7's on one GPU and on one of 4 and of 8.
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "base/arithmetic.h"
#include "bench/operators/operator_case.h"
#include "tensor/number.h"

namespace koho::bench {
namespace {

using Own = std::shared_ptr<Operands>;
using Views = Sides<TensorView>;

/// What the operator reads and writes. Without q_norm and k_norm heads are not normed.
struct QkArrays {
  HeadShape heads;
  Views q_norm, k_norm, table, qkv, qkv_scales, positions, slots;
  Views q, q_scales, k, v, k_scales, v_scales;

  bool has_quantized() const { return qkv.measured.dtype == DType::f8_e4m3; }
  bool has_quantized_pages() const { return k.measured.dtype == DType::f8_e4m3; }
};

/// Places for the results of `tokens` rows.
Status add_results(
    Operands& own, QkArrays& arrays, std::int64_t tokens, std::int64_t pages, DType page_dtype) {
  const HeadShape& heads = arrays.heads;
  const Shape cache{pages, heads.kv_heads, kPageTokens, heads.width};
  const Shape cache_scales{pages, heads.kv_heads, kPageTokens};
  KOHO_TRY_ASSIGN(arrays.q,
                  own.output(arrays.qkv.measured.dtype, {tokens, heads.query_heads, heads.width}));
  if (arrays.has_quantized()) {
    KOHO_TRY_ASSIGN(arrays.q_scales, own.output(DType::f32, {tokens, heads.query_heads}));
  }
  KOHO_TRY_ASSIGN(arrays.k, own.output(page_dtype, cache));
  KOHO_TRY_ASSIGN(arrays.v, own.output(page_dtype, cache));
  if (page_dtype != DType::f8_e4m3) return {};
  KOHO_TRY_ASSIGN(arrays.k_scales, own.output(DType::f32, cache_scales));
  KOHO_TRY_ASSIGN(arrays.v_scales, own.output(DType::f32, cache_scales));
  return {};
}

std::vector<OpOutput> outputs_of(const QkArrays& arrays, std::int64_t tokens) {
  // Two roundings of the norm, one of the rotation. v is copied, or quantised by an f32 division.
  constexpr double kError = 4e-3;
  const OutputTolerance values = bf16_tolerance(kError, 3);
  const bool quantized = arrays.has_quantized();
  const bool quantized_pages = arrays.has_quantized_pages();
  const std::int64_t width = arrays.heads.width;
  return {{.name = "q",
           .view = first(arrays.q, tokens),
           .scales = first(arrays.q_scales, tokens),
           .tolerance = quantized ? quantized_tolerance(kError) : values,
           .row_elements = width},
          {.name = "k",
           .view = arrays.k,
           .scales = arrays.k_scales,
           .tolerance = quantized_pages ? quantized_tolerance(kError) : values,
           .row_elements = width,
           .by_row = false},
          // Quantised values of qkv become bf16 first.
          {.name = "v",
           .view = arrays.v,
           .scales = arrays.v_scales,
           .tolerance = quantized_pages ? quantized_tolerance(quantized ? kError : 0x1p-22)
                                        : OutputTolerance(),
           .row_elements = width,
           .by_row = false}};
}

/// The run of the first `tokens` rows.
OperatorRun make_run(const Own& own, const QkArrays& arrays, std::int64_t tokens) {
  const HeadShape& heads = arrays.heads;
  const bool quantized = arrays.has_quantized();
  const std::int64_t element = dtype_bytes(arrays.qkv.measured.dtype);
  const std::int64_t page_element = dtype_bytes(arrays.k.measured.dtype);
  OperatorRun run;
  run.op = "qk_norm_rope_store_kv";
  run.shape = {{"tokens", tokens},
               {"query_heads", heads.query_heads},
               {"kv_heads", heads.kv_heads},
               {"qkv_bytes", element},
               {"kv_bytes", page_element}};
  const std::int64_t columns = arrays.qkv.measured.size(1);
  const std::int64_t stored =
      2 * heads.kv_heads * (heads.width * page_element + (page_element == 1 ? 4 : 0));
  const std::int64_t head_bytes = element * (columns + heads.query_heads * heads.width) +
                                  (quantized ? 4 * (1 + heads.query_heads) : 0);
  run.bytes = static_cast<double>(tokens * (head_bytes + stored));
  run.rows = tokens;
  run.outputs = outputs_of(arrays, tokens);
  run.run = [own, arrays, quantized](Side side, RowRange range, std::int64_t) {
    const QkNormRope weights{arrays.heads, arrays.q_norm.on(side), arrays.k_norm.on(side),
                             arrays.table.on(side), 1e-5F};
    const KvLayer kv{arrays.k.on(side), arrays.v.on(side), arrays.k_scales.on(side),
                     arrays.v_scales.on(side)};
    Queries out;
    Activation in;
    (quantized ? out.quantized : out.values) = cut(arrays.q.on(side), range);
    (quantized ? in.quantized : in.values) = cut(arrays.qkv.on(side), range);
    if (quantized) out.scales = cut(arrays.q_scales.on(side), range);
    if (quantized) in.scales = cut(arrays.qkv_scales.on(side), range);
    return own->backend(side).qk_norm_rope_store_kv(out, kv, in,
                                                    cut(arrays.positions.on(side), range),
                                                    cut(arrays.slots.on(side), range), weights);
  };
  return run;
}

// ---- a model's shapes

/// Cosines and sines of any angle are as good as those of positions.
std::vector<float> random_cos_sin(Operands& own, std::int64_t positions, std::int64_t half) {
  std::vector<float> values(static_cast<std::size_t>(positions * 2 * half));
  for (std::int64_t p = 0; p < positions; ++p)
    for (std::int64_t j = 0; j < half; ++j) {
      const auto angle = static_cast<float>(3.0 * own.normal());
      values[static_cast<std::size_t>(2 * p * half + j)] = std::cos(angle);
      values[static_cast<std::size_t>((2 * p + 1) * half + j)] = std::sin(angle);
    }
  return values;
}

/// `head_dtype`: of qkv and q.
Result<std::vector<OperatorRun>> build(const BenchBackends& site,
                                       std::int64_t query_heads,
                                       std::int64_t kv_heads,
                                       DType head_dtype,
                                       DType page_dtype,
                                       const Rows& token_counts) {
  const auto own = std::make_shared<Operands>(site);
  QkArrays arrays;
  arrays.heads = {query_heads, kv_heads, 128, 64};
  const std::int64_t width = arrays.heads.width;
  const std::int64_t half = arrays.heads.rotary / 2;
  const std::int64_t most = most_of(token_counts);
  KOHO_TRY_ASSIGN(arrays.q_norm, own->input(DType::bf16, {width}, own->about(1.0)));
  KOHO_TRY_ASSIGN(arrays.k_norm, own->input(DType::bf16, {width}, own->about(1.0)));
  KOHO_TRY_ASSIGN(arrays.table,
                  own->input(DType::f32, {most, 2, half}, random_cos_sin(*own, most, half)));
  KOHO_TRY_ASSIGN(arrays.qkv, own->input(head_dtype, {most, (query_heads + 2 * kv_heads) * width},
                                         own->normals()));
  KOHO_TRY_ASSIGN(arrays.qkv_scales, own->input(DType::f32, {most}, own->about(0.01)));
  KOHO_TRY_ASSIGN(arrays.positions, own->input(DType::i32, {most}, Operands::counting()));
  KOHO_TRY_ASSIGN(arrays.slots, own->input(DType::i64, {most}, Operands::counting()));
  KOHO_TRY(add_results(*own, arrays, most, ceil_div(most, kPageTokens), page_dtype));
  std::vector<OperatorRun> runs;
  for (const std::int64_t tokens : token_counts) runs.push_back(make_run(own, arrays, tokens));
  return runs;
}

// ---- random shapes

/// `many`: so many heads of GLM's shape that backends may take them in another way.
QkOperands random_operands(Random& random, DType qkv_dtype, DType cache, bool many) {
  QkOperands in;
  in.cache = cache;
  in.heads.kv_heads = random.integer(1, 4);
  in.heads.query_heads = in.heads.kv_heads * random.pick({1, 2, 4, 12});
  in.heads.width = random.pick({16, 64, 128, 128});
  in.heads.rotary = random.chance(0.7) ? in.heads.width / 2 : random.pick({0, 2, 6, 16});
  if (many) in.heads.width = 128;
  if (many) in.heads.rotary = 64;
  const std::int64_t row_heads = in.heads.query_heads + 2 * in.heads.kv_heads;
  const std::int64_t tokens = many ? random.integer(1, 2) * random.integer(17000, 20000) / row_heads
                                   : random.integer(1, 20);
  in.pages = tokens / kPageTokens + random.integer(1, 4);
  const std::int64_t positions_max = random.chance(0.1) ? 131072 : 300;
  const Shape rows{tokens, row_heads * in.heads.width};
  const Spread spread = random_spread(random, true);
  if (qkv_dtype == DType::bf16) in.qkv = random_values(random, DType::bf16, rows, spread);
  if (qkv_dtype == DType::f8_e4m3) {
    in.quantized = random_quantized(random, rows, spread);
    in.scales = random_scales(random, DType::f32, {tokens}, random.chance(0.1) ? 1e-36 : 0.01);
    in.qkv = HostTensor(DType::bf16, rows);
    for (std::int64_t i = 0; i < in.qkv.elements(); ++i)
      in.qkv.as<BFloat16>()[i] =
          to_bf16(to_float(in.quantized.as<Float8E4M3>()[i]) * in.scales.as<float>()[i / rows[1]]);
  }
  if (random.chance(0.7)) {
    in.q_norm = random_values(random, DType::bf16, {in.heads.width}, Spread::normal);
    in.k_norm = random_values(random, DType::bf16, {in.heads.width}, Spread::normal);
  }
  const std::int64_t half = in.heads.rotary / 2;
  in.table = HostTensor(DType::f32, {positions_max, 2, half});
  for (std::int64_t p = 0; p < positions_max; ++p) {
    for (std::int64_t j = 0; j < half; ++j) {
      const double angle =
          static_cast<double>(p) *
          std::pow(1e6, -2.0 * static_cast<double>(j) / static_cast<double>(in.heads.rotary));
      in.table.set(p * in.heads.rotary + j, std::cos(angle));
      in.table.set(p * in.heads.rotary + half + j, std::sin(angle));
    }
  }
  std::vector<std::int64_t> free_slots;
  for (std::int64_t slot = 0; slot < in.pages * kPageTokens; ++slot) free_slots.push_back(slot);
  for (std::int64_t t = 0; t < tokens; ++t) {
    in.positions.push_back(random.chance(0.2) ? positions_max - 1
                                              : random.integer(0, positions_max - 1));
    const auto pick = static_cast<std::ptrdiff_t>(
        random.integer(0, static_cast<std::int64_t>(free_slots.size()) - 1));
    in.slots.push_back(random.chance(0.15) ? -1 : free_slots[static_cast<std::size_t>(pick)]);
    free_slots.erase(free_slots.begin() + pick);
  }
  return in;
}

Result<OperatorRun> run_of(const Own& own, const QkOperands& in, std::int64_t row_gap) {
  QkArrays arrays;
  arrays.heads = in.heads;
  if (!in.q_norm.empty()) {
    KOHO_TRY_ASSIGN(arrays.q_norm, own->input(in.q_norm));
  }
  if (!in.k_norm.empty()) {
    KOHO_TRY_ASSIGN(arrays.k_norm, own->input(in.k_norm));
  }
  KOHO_TRY_ASSIGN(arrays.table, own->input(in.table));
  KOHO_TRY_ASSIGN(arrays.qkv, own->input(in.has_quantized() ? in.quantized : in.qkv, row_gap));
  if (in.has_quantized()) {
    KOHO_TRY_ASSIGN(arrays.qkv_scales, own->input(in.scales));
  }
  KOHO_TRY_ASSIGN(arrays.positions, own->input(integers(DType::i32, in.positions)));
  KOHO_TRY_ASSIGN(arrays.slots, own->input(integers(DType::i64, in.slots)));
  KOHO_TRY(add_results(*own, arrays, in.tokens(), in.pages, in.cache));
  OperatorRun run = make_run(own, arrays, in.tokens());
  auto operands = std::make_shared<QkOperands>(in);
  operands->own = own;
  if (in.has_quantized())
    operands->as_values = [own, in, row_gap] {
      QkOperands values = in;
      values.quantized = values.scales = {};
      return run_of(own, values, row_gap);
    };
  run.operands = std::shared_ptr<const QkOperands>(std::move(operands));
  return run;
}

Result<OperatorRun> build_random(const Own& own, DType qkv, DType cache, bool many) {
  Random& random = own->random();
  const QkOperands in = random_operands(random, qkv, cache, many);
  const std::int64_t row_gap = random.chance(0.3) ? 8 : 0;
  KOHO_TRY_ASSIGN(OperatorRun run, run_of(own, in, row_gap));
  run.row_alone = [own, in, row_gap](std::int64_t t) {
    QkOperands one = in;
    one.qkv = row_of(in.qkv, t);
    if (in.has_quantized()) {
      one.quantized = row_of(in.quantized, t);
      one.scales = row_of(in.scales, t);
    }
    one.positions = {in.position(t)};
    one.slots = {in.slot(t)};
    return run_of(own, one, row_gap);
  };
  run.rows_alone = {random.integer(0, in.tokens() - 1)};
  return run;
}

}  // namespace

std::vector<OperatorCase> qk_norm_rope_cases() {
  std::vector<OperatorCase> cases;
  constexpr DType kBf16 = DType::bf16;
  constexpr DType kE4m3 = DType::f8_e4m3;
  const auto random = [&](const char* suffix, DType qkv, DType cache, bool many = false) {
    cases.push_back(
        {.name = std::string("qk_norm_rope_store_kv") + suffix,
         .build_random = [=](const Own& own) { return build_random(own, qkv, cache, many); },
         .is_large = many});
  };
  random("", kBf16, kBf16);
  random("_e4m3", kBf16, kE4m3);
  random("_quantized", kE4m3, kBf16);
  random("_quantized_e4m3", kE4m3, kE4m3);
  random("_many", kBf16, kBf16, true);
  random("_many_e4m3", kBf16, kE4m3, true);
  random("_many_quantized_e4m3", kE4m3, kE4m3, true);
  const auto rope = [&](const char* name, std::int64_t query_heads, std::int64_t kv_heads,
                        DType heads, DType pages) {
    cases.push_back({std::string("rope_") + name,
                     {1, 16, 64, 256, 8192},
                     [=](const BenchBackends& site, const Rows& chosen) {
                       return build(site, query_heads, kv_heads, heads, pages, chosen);
                     }});
  };
  rope("tp4", 24, 2, DType::bf16, DType::bf16);
  rope("tp8", 12, 1, DType::bf16, DType::bf16);
  rope("tp1", 96, 8, DType::bf16, DType::bf16);
  rope("tp4_e4m3", 24, 2, DType::bf16, DType::f8_e4m3);
  rope("tp8_e4m3", 12, 1, DType::bf16, DType::f8_e4m3);
  rope("tp1_e4m3", 96, 8, DType::bf16, DType::f8_e4m3);
  rope("tp4_quantized", 24, 2, DType::f8_e4m3, DType::f8_e4m3);
  rope("tp1_quantized", 96, 8, DType::f8_e4m3, DType::f8_e4m3);
  return cases;
}

}  // namespace koho::bench
