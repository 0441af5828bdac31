// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "base/arithmetic.h"
#include "bench/operators/operator_case.h"

namespace koho::bench {
namespace {

/// `heads`: of qkv and q; `pages_of`: of the pages.
Result<std::vector<OperatorRun>> build_rope(const BenchBackends& site,
                                            std::int64_t query_heads,
                                            std::int64_t kv_heads,
                                            DType heads,
                                            DType pages_of,
                                            const Rows& token_counts) {
  auto own = std::make_shared<Operands>(site);
  constexpr std::int64_t kWidth = 128;
  constexpr std::int64_t kRotary = 64;
  const std::int64_t most = most_of(token_counts);
  const std::int64_t pages = ceil_div(most, kPageTokens);
  const std::int64_t columns = (query_heads + 2 * kv_heads) * kWidth;
  const bool quantized_pages = pages_of == DType::f8_e4m3;
  const bool quantized = heads == DType::f8_e4m3;
  KOHO_TRY_ASSIGN(const Sides<TensorView> q_norm,
                  own->input(DType::bf16, {kWidth}, own->about(1.0)));
  KOHO_TRY_ASSIGN(const Sides<TensorView> k_norm,
                  own->input(DType::bf16, {kWidth}, own->about(1.0)));
  // Cosines and sines of any angle are as good as those of positions.
  std::vector<float> angles;
  for (std::int64_t i = 0; i < most * kRotary / 2; ++i)
    angles.push_back(static_cast<float>(3.0 * own->normal()));
  std::vector<float> cos_sin(static_cast<std::size_t>(most * kRotary));
  for (std::int64_t p = 0; p < most; ++p)
    for (std::int64_t j = 0; j < kRotary / 2; ++j) {
      const float angle = angles[static_cast<std::size_t>(p * kRotary / 2 + j)];
      cos_sin[static_cast<std::size_t>(p * kRotary + j)] = std::cos(angle);
      cos_sin[static_cast<std::size_t>(p * kRotary + kRotary / 2 + j)] = std::sin(angle);
    }
  KOHO_TRY_ASSIGN(const Sides<TensorView> table,
                  own->input(DType::f32, {most, 2, kRotary / 2}, cos_sin));
  KOHO_TRY_ASSIGN(const Sides<TensorView> qkv, own->input(heads, {most, columns}, own->normals()));
  KOHO_TRY_ASSIGN(const Sides<TensorView> qkv_scales,
                  own->input(DType::f32, {most}, own->about(0.01)));
  KOHO_TRY_ASSIGN(const Sides<TensorView> q, own->output(heads, {most, query_heads, kWidth}));
  Sides<TensorView> q_scales;
  if (quantized) {
    KOHO_TRY_ASSIGN(q_scales, own->output(DType::f32, {most, query_heads}));
  }
  KOHO_TRY_ASSIGN(const Sides<TensorView> positions,
                  own->input(DType::i32, {most}, Operands::counting()));
  KOHO_TRY_ASSIGN(const Sides<TensorView> slots,
                  own->input(DType::i64, {most}, Operands::counting()));
  const Shape cache{pages, kv_heads, kPageTokens, kWidth};
  const Shape cache_scales{pages, kv_heads, kPageTokens};
  KOHO_TRY_ASSIGN(const Sides<TensorView> k, own->output(pages_of, cache));
  KOHO_TRY_ASSIGN(const Sides<TensorView> v, own->output(pages_of, cache));
  Sides<TensorView> k_scales;
  Sides<TensorView> v_scales;
  if (quantized_pages) {
    KOHO_TRY_ASSIGN(k_scales, own->output(DType::f32, cache_scales));
    KOHO_TRY_ASSIGN(v_scales, own->output(DType::f32, cache_scales));
  }
  // Two roundings of the norm, one of the rotation. v is copied, or quantised by an f32 division.
  constexpr double kRopeL2 = 4e-3;
  const OutputTolerance rope_tolerance = bf16_tolerance(kRopeL2, 3);
  const OutputTolerance k_tolerance =
      quantized_pages ? quantized_tolerance(kRopeL2) : rope_tolerance;
  // Codes are decoded to bf16 before.
  const OutputTolerance v_tolerance =
      quantized_pages ? quantized_tolerance(quantized ? kRopeL2 : 0x1p-22) : OutputTolerance();
  const OutputTolerance q_tolerance = quantized ? quantized_tolerance(kRopeL2) : rope_tolerance;
  std::vector<OperatorRun> benches;
  for (const std::int64_t tokens : token_counts) {
    OperatorRun bench;
    bench.op = "qk_norm_rope_store_kv";
    bench.shape = {{"tokens", tokens},
                   {"query_heads", query_heads},
                   {"kv_heads", kv_heads},
                   {"qkv_bytes", dtype_bytes(heads)},
                   {"kv_bytes", dtype_bytes(pages_of)}};
    const std::int64_t stored = 2 * kv_heads * (quantized_pages ? kWidth + 4 : 2 * kWidth);
    const std::int64_t head_bytes = dtype_bytes(heads) * (columns + query_heads * kWidth) +
                                    (quantized ? 4 * (1 + query_heads) : 0);
    bench.bytes = static_cast<double>(tokens * (head_bytes + stored));
    bench.rows = tokens;
    bench.outputs = {{.name = "q",
                      .view = first(q, tokens),
                      .scales = quantized ? first(q_scales, tokens) : q_scales,
                      .tolerance = q_tolerance,
                      .row_elements = kWidth},
                     {.name = "k",
                      .view = k,
                      .scales = k_scales,
                      .tolerance = k_tolerance,
                      .row_elements = kWidth,
                      .by_row = false},
                     {.name = "v",
                      .view = v,
                      .scales = v_scales,
                      .tolerance = v_tolerance,
                      .row_elements = kWidth,
                      .by_row = false}};
    bench.run = [=](Side side, RowRange range, std::int64_t) {
      const QkNormRope weights{{query_heads, kv_heads, kWidth, kRotary},
                               q_norm.on(side),
                               k_norm.on(side),
                               table.on(side),
                               1e-5F};
      const KvLayer kv{k.on(side), v.on(side), k_scales.on(side), v_scales.on(side)};
      Queries out;
      Activation in;
      (quantized ? out.quantized : out.values) = cut(q.on(side), range);
      (quantized ? in.quantized : in.values) = cut(qkv.on(side), range);
      if (quantized) out.scales = cut(q_scales.on(side), range);
      if (quantized) in.scales = cut(qkv_scales.on(side), range);
      return own->backend(side).qk_norm_rope_store_kv(out, kv, in, cut(positions.on(side), range),
                                                      cut(slots.on(side), range), weights);
    };
    benches.push_back(std::move(bench));
  }
  return benches;
}

}  // namespace

std::vector<OperatorCase> qk_norm_rope_cases() {
  std::vector<OperatorCase> cases;
  const auto rope = [&](const char* name, std::int64_t query_heads, std::int64_t kv_heads,
                        DType heads, DType pages) {
    cases.push_back({std::string("rope_") + name,
                     {1, 16, 64, 256, 8192},
                     [=](const BenchBackends& site, const Rows& chosen) {
                       return build_rope(site, query_heads, kv_heads, heads, pages, chosen);
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
