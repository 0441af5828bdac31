// SPDX-License-Identifier: Apache-2.0
// The list of cases: GLM-4.7's shapes on one GPU of 4 and 8 and unsharded, GLM-4.5-Air's
// unsharded. Operands are random; routing is uniform. Here what reads weights and the cache; rows,
// batch slots and sampling in files of their own.
#include "bench/operator_cases.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "base/arithmetic.h"

namespace koho::app {
namespace {

using Rows = std::vector<std::int64_t>;

std::int64_t most_of(const Rows& tokens) {
  return *std::max_element(tokens.begin(), tokens.end());
}

/// How many copies of so many bytes are rotated.
std::int64_t copies_of(double bytes, double rotated, std::int64_t most) {
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(rotated / bytes), 1, most);
}

// ---- linear

// Both are within 3e-3 of the float64 reference.
constexpr double kLinearL2 = 2 * 3e-3;

/// Sums of bf16 products in f32, each instruction of which takes 16 into a chain and drops less
/// than a unit in the last place of the sum; four deviations of an element.
OutputTolerance accumulation_tolerance(std::int64_t columns) {
  const double error = static_cast<double>(columns) / 16.0 * 0x1p-23;
  return {.bits = false, .l2 = error, .of_largest = 4.0 * error};
}

Result<std::vector<OpBench>> build_linear(const BenchBackends& site,
                                          std::int64_t rows,
                                          std::int64_t columns,
                                          WeightQuant quant,
                                          const Rows& token_counts) {
  auto own = std::make_shared<Operands>(site);
  const bool bf16 = quant == WeightQuant::none;
  const bool blocks = quant == WeightQuant::fp8_block;
  const double weight_bytes = static_cast<double>(rows * columns) * (bf16 ? 2.0 : 1.0);
  KOHO_TRY_ASSIGN(const LinearSource source, own->source(rows, columns, quant));
  for (std::int64_t i = copies_of(weight_bytes, site.rotated_bytes, 1000); i > 0; --i) {
    KOHO_TRY_ASSIGN(Linear linear, site.measured.place_linear({&source, 1}));
    own->linears.measured.push_back(std::move(linear));
  }
  KOHO_TRY_ASSIGN(Linear linear, site.reference.place_linear({&source, 1}));
  own->linears.reference.push_back(std::move(linear));
  const std::int64_t most = most_of(token_counts);
  KOHO_TRY(own->reserve({.tokens_max = most,
                         .sequences_max = 1,
                         .context_max = 1,
                         .logit_rows_max = 1}));  // after it the sources are read
  KOHO_TRY_ASSIGN(const Sides<Activation> x, own->activation(most, columns, blocks));
  KOHO_TRY_ASSIGN(const Sides<TensorView> out,
                  own->output(bf16 ? DType::f32 : DType::bf16, {most, rows}));
  std::vector<OpBench> benches;
  for (const std::int64_t tokens : token_counts) {
    OpBench bench;
    bench.op = "linear";
    bench.shape = {{"tokens", tokens}, {"rows", rows}, {"columns", columns}};
    const std::int64_t token_bytes = bf16 ? 2 * columns + 4 * rows : columns + 2 * rows;
    bench.bytes = weight_bytes + static_cast<double>(tokens * token_bytes);
    bench.flops = 2.0 * static_cast<double>(tokens) * static_cast<double>(rows * columns);
    bench.math = bf16 ? DType::bf16 : DType::f8_e4m3;
    bench.rows = tokens;
    bench.outputs = {
        {.name = "out",
         .view = first(out, tokens),
         .tolerance = bf16 ? accumulation_tolerance(columns) : bf16_tolerance(kLinearL2, 2)}};
    bench.run = [own, x, out](Side side, RowRange range, std::int64_t i) {
      const std::vector<Linear>& linears = own->linears.on(side);
      return own->backend(side).linear(cut(out.on(side), range), cut(x.on(side), range),
                                       linears[static_cast<std::size_t>(i) % linears.size()]);
    };
    benches.push_back(std::move(bench));
  }
  return benches;
}

// ---- experts

struct ExpertShape {
  std::int64_t total, local, ffn, hidden, top_k;
  bool shared;
};

/// Experts that all differ, out of three weights: expert e has their rows from e on.
struct ExpertWeights {
  LinearSource gate, up, down;

  MlpSource expert(std::int64_t index, const ExpertShape& shape) const {
    const auto rows = [index](const LinearSource& source, std::int64_t count) {
      return LinearSource{source.weight.slice(0, index, count),
                          source.scale.slice(0, index, count),
                          {},
                          source.quant};
    };
    return {rows(gate, shape.ffn), rows(up, shape.ffn), rows(down, shape.hidden)};
  }
};

/// Uniform routing of a layer's tokens, and what it touches of the local experts. The same for the
/// same shape and layer whatever else is timed, and of some draws the one that touches as many
/// experts as uniform routing does in the mean: with few experts here a draw more or less is 5 %.
struct RandomRouting {
  std::vector<std::int32_t> ids;
  double distinct = 0.0;
  double rows = 0.0;

  static RandomRouting of(const ExpertShape& shape, std::int64_t tokens, std::int64_t layer) {
    constexpr int kDraws = 16;
    const double chosen = static_cast<double>(shape.top_k) / static_cast<double>(shape.total);
    const double expected = static_cast<double>(shape.local) *
                            (1.0 - std::pow(1.0 - chosen, static_cast<double>(tokens)));
    std::seed_seq seed{shape.total, shape.local, shape.hidden, shape.ffn, tokens, layer};
    std::mt19937 random(seed);
    RandomRouting best(random, shape, tokens);
    for (int i = 1; i < kDraws; ++i) {
      RandomRouting drawn(random, shape, tokens);
      if (std::abs(drawn.distinct - expected) < std::abs(best.distinct - expected))
        best = std::move(drawn);
    }
    return best;
  }

  RandomRouting(std::mt19937& random, const ExpertShape& shape, std::int64_t tokens) {
    std::vector<bool> used(static_cast<std::size_t>(shape.total));
    std::vector<std::int32_t> order(static_cast<std::size_t>(shape.total));
    std::iota(order.begin(), order.end(), 0);
    for (std::int64_t t = 0; t < tokens; ++t) {
      std::shuffle(order.begin(), order.end(), random);
      for (std::int64_t a = 0; a < shape.top_k; ++a) {
        const std::int32_t id = order[static_cast<std::size_t>(a)];
        ids.push_back(id);
        if (id >= shape.local) continue;
        used[static_cast<std::size_t>(id)] = true;
        ++rows;
      }
    }
    distinct = static_cast<double>(std::count(used.begin(), used.end(), true));
  }
};

/// The inner activation is quantised: gate, up, SiLU and their product are each a bf16 rounding
/// that may fall to the other side, 2^-8 in the mean square at most.
OutputTolerance experts_tolerance() {
  const double l2 = quantized_tolerance(2.0 * 0x1p-8).l2;
  return {.bits = false, .l2 = l2, .of_largest = 7.0 * l2};  // of 7 deviations
}

Result<std::vector<OpBench>> build_experts(const BenchBackends& site,
                                           const ExpertShape& shape,
                                           const Rows& token_counts) {
  auto own = std::make_shared<Operands>(site);
  const std::int64_t experts = shape.local + (shape.shared ? 1 : 0);
  ExpertWeights expert_weights;
  KOHO_TRY_ASSIGN(expert_weights.gate,
                  own->source(shape.ffn + experts, shape.hidden, WeightQuant::fp8_channel));
  KOHO_TRY_ASSIGN(expert_weights.up,
                  own->source(shape.ffn + experts, shape.hidden, WeightQuant::fp8_channel));
  KOHO_TRY_ASSIGN(expert_weights.down,
                  own->source(shape.hidden + experts, shape.ffn, WeightQuant::fp8_channel));
  ExpertsSource source;
  source.total = shape.total;
  for (std::int64_t e = 0; e < shape.local; ++e)
    source.experts.push_back(expert_weights.expert(e, shape));
  if (shape.shared) source.shared = expert_weights.expert(shape.local, shape);
  const double expert_bytes = 3.0 * static_cast<double>(shape.ffn * shape.hidden);
  const std::int64_t layers = site.rotated_bytes > 0.0 ? 3 : 1;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    KOHO_TRY_ASSIGN(Experts placed, site.measured.place_experts(source));
    own->experts.measured.push_back(std::move(placed));
  }
  KOHO_TRY_ASSIGN(Experts placed, site.reference.place_experts(source));
  own->experts.reference.push_back(std::move(placed));
  const std::int64_t most = most_of(token_counts);
  KOHO_TRY(own->reserve(
      {.tokens_max = most, .sequences_max = 1, .context_max = 1, .logit_rows_max = 1}));
  KOHO_TRY_ASSIGN(const Sides<Activation> x, own->activation(most, shape.hidden));
  KOHO_TRY_ASSIGN(const Sides<TensorView> out, own->output(DType::bf16, {most, shape.hidden}));
  std::vector<OpBench> benches;
  for (const std::int64_t tokens : token_counts) {
    std::vector<Sides<Routing>> routings;
    double distinct = 0.0;
    double rows = 0.0;
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      const RandomRouting drawn = RandomRouting::of(shape, tokens, layer);
      distinct += drawn.distinct / static_cast<double>(layers);
      rows += drawn.rows / static_cast<double>(layers);
      const Shape choices{tokens, shape.top_k};
      KOHO_TRY_ASSIGN(const Sides<TensorView> ids, own->input(DType::i32, choices, drawn.ids));
      KOHO_TRY_ASSIGN(const Sides<TensorView> weights,
                      own->input(DType::f32, choices, own->about(0.3)));
      routings.push_back({{ids.measured, weights.measured}, {ids.reference, weights.reference}});
    }
    OpBench bench;
    bench.op = "experts";
    bench.shape = {{"tokens", tokens},       {"experts", shape.total},
                   {"local", shape.local},   {"ffn", shape.ffn},
                   {"hidden", shape.hidden}, {"shared", shape.shared ? 1 : 0},
                   {"top_k", shape.top_k}};
    bench.bytes = (distinct + (shape.shared ? 1.0 : 0.0)) * expert_bytes;
    bench.flops = 2.0 * expert_bytes * (rows + (shape.shared ? static_cast<double>(tokens) : 0.0));
    bench.math = DType::f8_e4m3;
    bench.rows = tokens;
    bench.outputs = {{.name = "out", .view = first(out, tokens), .tolerance = experts_tolerance()}};
    bench.run = [own, x, out, routings](Side side, RowRange range, std::int64_t i) {
      const std::vector<Experts>& layers_of = own->experts.on(side);
      const auto layer = static_cast<std::size_t>(i) % layers_of.size();
      const Routing& routing = routings[layer].on(side);
      return own->backend(side).experts(cut(out.on(side), range), cut(x.on(side), range),
                                        {cut(routing.ids, range), cut(routing.weights, range)},
                                        layers_of[layer]);
    };
    benches.push_back(std::move(bench));
  }
  return benches;
}

// ---- attention

struct AttentionShape {
  std::int64_t query_heads, kv_heads;
  DType dtype;
  std::int64_t sequences, context, queries;
};

/// Token rows of a batch whose sequences have `queries` each: whole sequences of one row, or some
/// rows of the only one.
Batch cut(const Batch& batch, RowRange rows, const Sides<TensorView>& starts, Side side) {
  Batch part = batch;
  part.tokens = rows.count;
  part.positions = batch.positions.slice(0, rows.first, rows.count);
  part.query_starts = starts.on(side);
  if (batch.decodes == 0) {
    part.query_max = rows.count;
    return part;
  }
  part.sequences = part.decodes = rows.count;
  part.query_starts = starts.on(side).first(rows.count + 1);
  part.context_lengths = batch.context_lengths.slice(0, rows.first, rows.count);
  part.page_tables = batch.page_tables.slice(0, rows.first, rows.count);
  return part;
}

Result<std::vector<OpBench>> build_attention(const BenchBackends& site,
                                             const AttentionShape& shape) {
  auto own = std::make_shared<Operands>(site);
  constexpr std::int64_t kWidth = 128;
  // Softmax and sums of both within 5e-3 of the reference, then quantised values.
  const OutputTolerance tolerance = quantized_tolerance(2 * 5e-3);
  const bool decode = shape.queries == 1;
  KOHO_CHECK(decode || shape.sequences == 1);
  const std::int64_t pages_each = ceil_div(shape.context, kPageTokens);
  const std::int64_t pages = pages_each * shape.sequences;
  const std::int64_t element = dtype_bytes(shape.dtype);
  const double layer_bytes =
      2.0 * static_cast<double>(shape.sequences * shape.context * shape.kv_heads *
                                (kWidth * element + (element == 1 ? 4 : 0)));
  const double rotated = std::min(site.rotated_bytes, 2.5e8);  // four times an H200's L2
  const Shape cache_shape{pages, shape.kv_heads, kPageTokens, kWidth};
  const Shape scales_shape{pages, shape.kv_heads, kPageTokens};
  KvLayer drawn;
  KOHO_TRY_ASSIGN(drawn.k, own->host(shape.dtype, cache_shape, own->normals()));
  KOHO_TRY_ASSIGN(drawn.v, own->host(shape.dtype, cache_shape, own->normals()));
  if (element == 1) {
    KOHO_TRY_ASSIGN(drawn.k_scales, own->host(DType::f32, scales_shape, own->about(1.0)));
    KOHO_TRY_ASSIGN(drawn.v_scales, own->host(DType::f32, scales_shape, own->about(0.02)));
  }
  Sides<std::vector<KvLayer>> caches;
  caches.reference.push_back(drawn);
  for (std::int64_t layer = copies_of(layer_bytes, rotated, 200); layer > 0; --layer) {
    KvLayer kv;  // the same values in each: drawing them takes longer than the rest
    KOHO_TRY_ASSIGN(kv.k, own->copy(drawn.k));
    KOHO_TRY_ASSIGN(kv.v, own->copy(drawn.v));
    if (element == 1) {
      KOHO_TRY_ASSIGN(kv.k_scales, own->copy(drawn.k_scales));
      KOHO_TRY_ASSIGN(kv.v_scales, own->copy(drawn.v_scales));
    }
    caches.measured.push_back(kv);
  }
  const std::int64_t tokens = shape.sequences * shape.queries;
  KOHO_TRY(own->reserve({.tokens_max = tokens,
                         .sequences_max = shape.sequences,
                         .context_max = shape.context,
                         .logit_rows_max = 1}));
  const auto numbers = [&](const Shape& sizes, auto value) {
    std::vector<std::int32_t> values(static_cast<std::size_t>(sizes.elements()));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<std::int32_t>(value(static_cast<std::int64_t>(i)));
    return own->input(DType::i32, sizes, values);
  };
  KOHO_TRY_ASSIGN(const Sides<TensorView> positions, numbers({tokens}, [&](std::int64_t i) {
                    return shape.context - shape.queries + i % shape.queries;
                  }));
  KOHO_TRY_ASSIGN(
      const Sides<TensorView> starts,
      numbers({shape.sequences + 1}, [&](std::int64_t i) { return shape.queries * i; }));
  KOHO_TRY_ASSIGN(const Sides<TensorView> lengths,
                  numbers({shape.sequences}, [&](std::int64_t) { return shape.context; }));
  std::vector<std::int32_t> order(static_cast<std::size_t>(pages));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), own->random());
  KOHO_TRY_ASSIGN(const Sides<TensorView> tables,
                  own->input(DType::i32, {shape.sequences, pages_each}, order));
  Sides<Batch> batches;
  const auto fill = [&](Batch& batch, Side side) {
    batch.tokens = tokens;
    batch.sequences = shape.sequences;
    batch.decodes = decode ? shape.sequences : 0;
    batch.query_max = shape.queries;
    batch.context_max = shape.context;
    batch.positions = positions.on(side);
    batch.query_starts = starts.on(side);
    batch.context_lengths = lengths.on(side);
    batch.page_tables = tables.on(side);
  };
  fill(batches.measured, Side::measured);
  fill(batches.reference, Side::reference);
  // The only sequence of a prompt's rows that the reference computes: its 4 rows or fewer.
  KOHO_TRY_ASSIGN(const Sides<TensorView> few,
                  numbers({2}, [](std::int64_t i) { return i * kRowsCompared; }));
  const Sides<TensorView> reference_starts{starts.measured,
                                           decode ? starts.reference : few.reference};
  const HeadShape heads{shape.query_heads, shape.kv_heads, kWidth, 64};
  const std::int64_t width = shape.query_heads * kWidth;
  KOHO_TRY_ASSIGN(const Sides<TensorView> q,
                  own->input(DType::bf16, {tokens, shape.query_heads, kWidth}, own->normals()));
  KOHO_TRY_ASSIGN(const Sides<TensorView> quantized, own->output(DType::f8_e4m3, {tokens, width}));
  KOHO_TRY_ASSIGN(const Sides<TensorView> scales, own->output(DType::f32, {tokens}));
  OpBench bench;
  bench.op = decode ? "attention_decode" : "attention_prefill";
  bench.shape = {{"tokens", tokens},           {"sequences", shape.sequences},
                 {"context", shape.context},   {"query_heads", shape.query_heads},
                 {"kv_heads", shape.kv_heads}, {"kv_bytes", element}};
  bench.bytes = layer_bytes + static_cast<double>(tokens * width * 3);
  const double visible =
      static_cast<double>(shape.context) - (static_cast<double>(shape.queries) - 1.0) / 2.0;
  bench.flops = 4.0 * visible * static_cast<double>(tokens * width);
  bench.rows = tokens;
  bench.outputs = {{.name = "out", .view = quantized, .scales = scales, .tolerance = tolerance}};
  bench.run = [own, quantized, scales, q, caches, batches, reference_starts, heads](
                  Side side, RowRange range, std::int64_t i) {
    Activation out;
    out.quantized = cut(quantized.on(side), range);
    out.scales = cut(scales.on(side), range);
    const std::vector<KvLayer>& layers = caches.on(side);
    const Batch batch = side == Side::measured
                            ? batches.measured
                            : cut(batches.reference, range, reference_starts, side);
    return own->backend(side).attention(out, cut(q.on(side), range),
                                        layers[static_cast<std::size_t>(i) % layers.size()], batch,
                                        heads);
  };
  std::vector<OpBench> benches;
  benches.push_back(std::move(bench));
  return benches;
}

// ---- rope

/// `heads`: of qkv and q; `pages_of`: of the pages.
Result<std::vector<OpBench>> build_rope(const BenchBackends& site,
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
  std::vector<OpBench> benches;
  for (const std::int64_t tokens : token_counts) {
    OpBench bench;
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

std::vector<OpBenchCase> op_bench_cases() {
  std::vector<OpBenchCase> cases;
  const auto linear = [&](const char* name, std::int64_t rows, std::int64_t columns,
                          WeightQuant quant, const Rows& tokens) {
    cases.push_back({std::string("linear_") + name, tokens,
                     [=](const BenchBackends& site, const Rows& chosen) {
                       return build_linear(site, rows, columns, quant, chosen);
                     },
                     quant == WeightQuant::none && rows > 40000});
  };
  const Rows all{1, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 8192};
  const Rows few{1, 8, 16, 32, 64, 128, 256};
  linear("qkv_tp4", 3584, 5120, WeightQuant::fp8_channel, all);
  linear("o_tp4", 5120, 3072, WeightQuant::fp8_channel, all);
  linear("dense_tp4", 6144, 5120, WeightQuant::fp8_channel, all);
  linear("qkv_tp8", 1792, 5120, WeightQuant::fp8_channel, all);
  linear("o_tp8", 5120, 1536, WeightQuant::fp8_channel, all);
  linear("dense_tp8", 3072, 5120, WeightQuant::fp8_channel, all);
  linear("qkv_tp1", 14336, 5120, WeightQuant::fp8_channel, all);
  linear("o_tp1", 5120, 12288, WeightQuant::fp8_channel, all);
  linear("dense_tp1", 24576, 5120, WeightQuant::fp8_channel, all);
  linear("qkv_air", 14336, 4096, WeightQuant::fp8_channel, all);
  linear("o_air", 4096, 12288, WeightQuant::fp8_channel, all);
  linear("qkv_tp4_block", 3584, 5120, WeightQuant::fp8_block, few);
  linear("head_tp4", 37888, 5120, WeightQuant::none, few);
  linear("head_tp8", 18944, 5120, WeightQuant::none, few);
  linear("head_tp1", 151552, 5120, WeightQuant::none, few);
  linear("head_air", 151552, 4096, WeightQuant::none, few);
  const auto experts = [&](const char* name, ExpertShape shape, const Rows& tokens) {
    cases.push_back({std::string("experts_") + name, tokens,
                     [=](const BenchBackends& site, const Rows& chosen) {
                       return build_experts(site, shape, chosen);
                     },
                     shape.local * shape.ffn > 100000});
  };
  const Rows batches{1, 8, 16, 32, 64, 128, 256, 8192};
  experts("ep4", {160, 40, 1536, 5120, 8, false}, batches);
  experts("tp4", {160, 160, 384, 5120, 8, false}, batches);
  experts("ep8", {160, 20, 1536, 5120, 8, false}, batches);
  experts("tp8", {160, 160, 192, 5120, 8, false}, batches);
  experts("tp1", {160, 160, 1536, 5120, 8, false}, batches);
  experts("air", {128, 128, 1408, 4096, 8, true}, batches);
  const auto attention = [&](const char* name, AttentionShape shape) {
    cases.push_back(
        {std::string("attention_") + name,
         {shape.sequences * shape.queries},
         [=](const BenchBackends& site, const Rows&) { return build_attention(site, shape); },
         shape.sequences * shape.context > 100000 ||
             shape.query_heads * shape.queries * shape.context > 12 * 4096 * 4096});
  };
  attention("decode_1x1k_tp1", {96, 8, DType::bf16, 1, 1024, 1});
  attention("decode_1x8k_tp4", {24, 2, DType::bf16, 1, 8192, 1});
  attention("decode_16x1k_tp1", {96, 8, DType::bf16, 16, 1024, 1});
  attention("decode_64x1k_tp4", {24, 2, DType::bf16, 64, 1024, 1});
  attention("decode_64x1k_tp1", {96, 8, DType::bf16, 64, 1056, 1});
  attention("decode_64x8k_tp4", {24, 2, DType::bf16, 64, 8192, 1});
  attention("decode_64x8k_tp4_e4m3", {24, 2, DType::f8_e4m3, 64, 8192, 1});
  attention("decode_64x8k_tp8", {12, 1, DType::bf16, 64, 8192, 1});
  attention("decode_64x8k_tp8_e4m3", {12, 1, DType::f8_e4m3, 64, 8192, 1});
  attention("decode_64x8k_tp1", {96, 8, DType::bf16, 64, 8192, 1});
  attention("decode_64x8k_tp1_e4m3", {96, 8, DType::f8_e4m3, 64, 8192, 1});
  attention("decode_1x1k_tp1_e4m3", {96, 8, DType::f8_e4m3, 1, 1024, 1});
  attention("decode_4x1k_tp1", {96, 8, DType::bf16, 4, 1024, 1});
  attention("decode_1x128k_tp4", {24, 2, DType::bf16, 1, 131072, 1});
  attention("prefill_4k_tp4", {24, 2, DType::bf16, 1, 4096, 4096});
  attention("prefill_4k_tp4_e4m3", {24, 2, DType::f8_e4m3, 1, 4096, 4096});
  attention("prefill_4k_tp8", {12, 1, DType::bf16, 1, 4096, 4096});
  attention("prefill_8k_tp1", {96, 8, DType::bf16, 1, 8192, 8192});
  attention("prefill_8k_tp1_e4m3", {96, 8, DType::f8_e4m3, 1, 8192, 8192});
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
  for (const auto& part : {row_bench_cases(), batch_slot_bench_cases(), sampling_bench_cases()})
    cases.insert(cases.end(), part.begin(), part.end());
  return cases;
}

}  // namespace koho::app
