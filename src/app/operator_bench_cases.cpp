// SPDX-License-Identifier: Apache-2.0
// The list of speed cases: GLM-4.7's shapes on one GPU of 4 and 8 and unsharded, GLM-4.5-Air's
// unsharded. Operands are random; routing is uniform.
#include <algorithm>
#include <memory>
#include <numeric>
#include <random>

#include "app/operator_bench.h"
#include "base/arithmetic.h"
#include "sampling/philox.h"
#include "tensor/number.h"

namespace koho::app {
namespace {

constexpr double kRotatedBytes = 1.2e9;  // distinct weights of one case, well beyond any L2

/// Everything one case owns.
struct Operands {
  explicit Operands(Backend& used) : backend(used) {}

  Backend& backend;
  std::mt19937 random{1};
  std::vector<Tensor> host;
  std::vector<Tensor> device;
  std::vector<Linear> linears;
  std::vector<Experts> experts;

  Result<TensorView> upload(DType dtype, Shape shape, const std::function<double()>& draw) {
    KOHO_TRY_ASSIGN(Tensor values, Tensor::host(dtype, shape));
    fill(values, draw);
    return place(values.view());
  }
  /// A copy of host values on the device.
  Result<TensorView> place(ConstTensorView values) {
    KOHO_TRY_ASSIGN(Tensor placed, backend.allocate(values.dtype, values.shape, "bench"));
    KOHO_TRY(
        backend.upload(placed.view(), {values.data, static_cast<std::size_t>(values.bytes())}));
    device.push_back(std::move(placed));
    return device.back().view();
  }
  Result<TensorView> empty(DType dtype, Shape shape) {
    KOHO_TRY_ASSIGN(Tensor placed, backend.allocate(dtype, shape, "bench"));
    device.push_back(std::move(placed));
    return device.back().view();
  }
  /// Host values; a block of some million random elements repeated.
  Result<ConstTensorView> host_values(DType dtype,
                                      Shape shape,
                                      const std::function<double()>& draw) {
    KOHO_TRY_ASSIGN(Tensor values, Tensor::host(dtype, shape));
    fill(values, draw);
    host.push_back(std::move(values));
    return ConstTensorView(host.back().view());
  }
  void fill(Tensor& values, const std::function<double()>& draw) {
    const std::int64_t bytes = values.view().bytes();
    const std::int64_t size = dtype_bytes(values.view().dtype);
    constexpr std::int64_t kDrawn = 1 << 20;
    std::byte* data = values.view().data;
    const std::int64_t drawn = std::min(bytes / size, kDrawn);
    for (std::int64_t i = 0; i < drawn; ++i) {
      const double value = draw();
      switch (values.view().dtype) {
        case DType::f8_e4m3:
          reinterpret_cast<Float8E4M3*>(data)[i] = to_e4m3(static_cast<float>(value));
          break;
        case DType::bf16:
          reinterpret_cast<BFloat16*>(data)[i] = to_bf16(static_cast<float>(value));
          break;
        case DType::f32:
          reinterpret_cast<float*>(data)[i] = static_cast<float>(value);
          break;
        case DType::i32:
          reinterpret_cast<std::int32_t*>(data)[i] = static_cast<std::int32_t>(value);
          break;
        case DType::i64:
          reinterpret_cast<std::int64_t*>(data)[i] = static_cast<std::int64_t>(value);
          break;
        default:
          reinterpret_cast<std::uint8_t*>(data)[i] = static_cast<std::uint8_t>(value);
      }
    }
    for (std::int64_t at = drawn * size; at < bytes; at += drawn * size)
      std::copy_n(data, std::min(drawn * size, bytes - at), data + at);
  }

  double normal() { return std::normal_distribution<double>()(random); }
  std::function<double()> normals() {
    return [this] { return normal(); };
  }
  static std::function<double()> constant(double value) {
    return [value] { return value; };
  }

  Result<LinearSource> source(std::int64_t rows, std::int64_t columns, WeightQuant quant) {
    LinearSource source;
    source.quant = quant;
    const DType dtype = quant == WeightQuant::none ? DType::bf16 : DType::f8_e4m3;
    KOHO_TRY_ASSIGN(source.weight, host_values(dtype, {rows, columns}, normals()));
    if (quant == WeightQuant::fp8_channel) {
      KOHO_TRY_ASSIGN(source.scale, host_values(DType::f32, {rows}, constant(0.01)));
    }
    return source;
  }
  /// Activations of `tokens` rows in both forms.
  Result<Activation> activation(std::int64_t tokens, std::int64_t width) {
    Activation x;
    KOHO_TRY_ASSIGN(x.values, upload(DType::bf16, {tokens, width}, normals()));
    KOHO_TRY_ASSIGN(x.codes, upload(DType::f8_e4m3, {tokens, width}, normals()));
    KOHO_TRY_ASSIGN(x.scales, upload(DType::f32, {tokens}, constant(0.01)));
    return x;
  }
};

std::int64_t calls_for(double bytes, double flops) {
  const double us = std::max(bytes / 4.4e6, flops / 6e8) + 3.0;  // an H200's ceilings
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(6000.0 / us), 4, 200);
}

OpBench finish(OpBench bench) {
  bench.calls = calls_for(bench.bytes, bench.flops);
  return bench;
}

// ---- linear

Result<std::vector<OpBench>> build_linear(Backend& backend,
                                          std::int64_t rows,
                                          std::int64_t columns,
                                          WeightQuant quant,
                                          const std::vector<std::int64_t>& token_counts) {
  auto own = std::make_shared<Operands>(backend);
  const double weight_bytes =
      static_cast<double>(rows * columns) * (quant == WeightQuant::none ? 2.0 : 1.0);
  KOHO_TRY_ASSIGN(const LinearSource source, own->source(rows, columns, quant));
  const auto copies =
      std::max<std::int64_t>(1, static_cast<std::int64_t>(kRotatedBytes / weight_bytes));
  for (std::int64_t i = 0; i < copies; ++i) {
    KOHO_TRY_ASSIGN(Linear linear, backend.place_linear({&source, 1}));
    own->linears.push_back(std::move(linear));
  }
  KOHO_TRY(
      backend.reserve({.tokens_max = *std::max_element(token_counts.begin(), token_counts.end()),
                       .sequences_max = 1,
                       .context_max = 1,
                       .logit_rows_max = 1}));  // after it the sources are read
  own->host.clear();
  std::vector<OpBench> benches;
  const std::int64_t most = *std::max_element(token_counts.begin(), token_counts.end());
  KOHO_TRY_ASSIGN(const Activation x, own->activation(most, columns));
  const DType out_dtype = quant == WeightQuant::none ? DType::f32 : DType::bf16;
  KOHO_TRY_ASSIGN(const TensorView out, own->empty(out_dtype, {most, rows}));
  for (const std::int64_t tokens : token_counts) {
    OpBench bench;
    bench.op = "linear";
    bench.shape = {{"tokens", tokens}, {"rows", rows}, {"columns", columns}};
    bench.bytes =
        weight_bytes + static_cast<double>(tokens) * static_cast<double>(columns + 2 * rows);
    bench.flops = 2.0 * static_cast<double>(tokens) * static_cast<double>(rows * columns);
    bench.run = [own, x, out, tokens](std::int64_t i) {
      const auto index = static_cast<std::size_t>(i) % own->linears.size();
      return own->backend.linear(out.first(tokens), x.first(tokens), own->linears[index]);
    };
    benches.push_back(finish(std::move(bench)));
  }
  return benches;
}

// ---- experts

struct ExpertShape {
  std::int64_t total, local, ffn, hidden, top_k;
  bool shared;
};

Result<std::vector<OpBench>> build_experts(Backend& backend,
                                           const ExpertShape& shape,
                                           const std::vector<std::int64_t>& token_counts) {
  auto own = std::make_shared<Operands>(backend);
  KOHO_TRY_ASSIGN(const LinearSource gate,
                  own->source(shape.ffn, shape.hidden, WeightQuant::fp8_channel));
  KOHO_TRY_ASSIGN(const LinearSource down,
                  own->source(shape.hidden, shape.ffn, WeightQuant::fp8_channel));
  const MlpSource mlp{gate, gate, down};
  ExpertsSource source;
  source.total = shape.total;
  source.experts.assign(static_cast<std::size_t>(shape.local), mlp);
  if (shape.shared) source.shared = mlp;
  constexpr int kLayers = 3;
  for (int layer = 0; layer < kLayers; ++layer) {
    KOHO_TRY_ASSIGN(Experts experts, backend.place_experts(source));
    own->experts.push_back(std::move(experts));
  }
  const std::int64_t most = *std::max_element(token_counts.begin(), token_counts.end());
  KOHO_TRY(backend.reserve(
      {.tokens_max = most, .sequences_max = 1, .context_max = 1, .logit_rows_max = 1}));
  KOHO_TRY_ASSIGN(const Activation x, own->activation(most, shape.hidden));
  KOHO_TRY_ASSIGN(const TensorView out, own->empty(DType::bf16, {most, shape.hidden}));
  const double expert_bytes = 3.0 * static_cast<double>(shape.ffn * shape.hidden);
  std::vector<OpBench> benches;
  for (const std::int64_t tokens : token_counts) {
    std::vector<Routing> routings;
    double distinct = 0.0;
    double rows = 0.0;
    for (int layer = 0; layer < kLayers; ++layer) {
      std::vector<std::int32_t> chosen;
      std::vector<bool> used(static_cast<std::size_t>(shape.total));
      std::vector<std::int32_t> order(static_cast<std::size_t>(shape.total));
      std::iota(order.begin(), order.end(), 0);
      for (std::int64_t t = 0; t < tokens; ++t) {
        std::shuffle(order.begin(), order.end(), own->random);
        for (std::int64_t a = 0; a < shape.top_k; ++a) {
          const std::int32_t id = order[static_cast<std::size_t>(a)];
          chosen.push_back(id);
          if (id < shape.local) {
            used[static_cast<std::size_t>(id)] = true;
            rows += 1.0 / kLayers;
          }
        }
      }
      distinct += static_cast<double>(std::count(used.begin(), used.end(), true)) / kLayers;
      Routing routing;
      KOHO_TRY_ASSIGN(Tensor ids, backend.allocate(DType::i32, {tokens, shape.top_k}, "bench"));
      KOHO_TRY(backend.upload(ids.view(), std::as_bytes(std::span(chosen))));
      routing.ids = ids.view();
      own->device.push_back(std::move(ids));
      KOHO_TRY_ASSIGN(routing.weights,
                      own->upload(DType::f32, {tokens, shape.top_k}, Operands::constant(0.3)));
      routings.push_back(routing);
    }
    OpBench bench;
    bench.op = "experts";
    bench.shape = {{"tokens", tokens},       {"experts", shape.total},
                   {"local", shape.local},   {"ffn", shape.ffn},
                   {"hidden", shape.hidden}, {"shared", shape.shared ? 1 : 0},
                   {"top_k", shape.top_k}};
    bench.bytes = (distinct + (shape.shared ? 1.0 : 0.0)) * expert_bytes;
    bench.flops = 2.0 * expert_bytes * (rows + (shape.shared ? static_cast<double>(tokens) : 0.0));
    bench.run = [own, x, out, tokens, routings](std::int64_t i) {
      const auto layer = static_cast<std::size_t>(i) % own->experts.size();
      return own->backend.experts(out.first(tokens), x.first(tokens), routings[layer],
                                  own->experts[layer]);
    };
    benches.push_back(finish(std::move(bench)));
  }
  return benches;
}

// ---- attention

struct AttentionShape {
  std::int64_t query_heads, kv_heads;
  DType dtype;
  std::int64_t sequences, context, queries;
};

Result<std::vector<OpBench>> build_attention(Backend& backend, const AttentionShape& shape) {
  auto own = std::make_shared<Operands>(backend);
  constexpr std::int64_t kWidth = 128;
  const std::int64_t pages_each = ceil_div(shape.context, kPageTokens);
  const std::int64_t pages = pages_each * shape.sequences;
  const std::int64_t element = dtype_bytes(shape.dtype);
  const double layer_bytes =
      2.0 * static_cast<double>(shape.sequences * shape.context * shape.kv_heads *
                                (kWidth * element + (element == 1 ? 4 : 0)));
  constexpr double kRotatedCache = 2.5e8;  // four times an H200's L2
  const auto layers =
      std::clamp<std::int64_t>(static_cast<std::int64_t>(kRotatedCache / layer_bytes), 1, 200);
  const Shape cache_shape{pages, shape.kv_heads, kPageTokens, kWidth};
  KOHO_TRY_ASSIGN(const ConstTensorView keys,
                  own->host_values(shape.dtype, cache_shape, own->normals()));
  KOHO_TRY_ASSIGN(const ConstTensorView values,
                  own->host_values(shape.dtype, cache_shape, own->normals()));
  std::vector<KvLayer> caches;  // the same values in each: drawing them takes longer than the rest
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    KvLayer kv;
    KOHO_TRY_ASSIGN(kv.k, own->place(keys));
    KOHO_TRY_ASSIGN(kv.v, own->place(values));
    if (element == 1) {
      const Shape scales_shape{pages, shape.kv_heads, kPageTokens};
      KOHO_TRY_ASSIGN(kv.k_scales, own->upload(DType::f32, scales_shape, Operands::constant(0.02)));
      KOHO_TRY_ASSIGN(kv.v_scales, own->upload(DType::f32, scales_shape, Operands::constant(0.02)));
    }
    caches.push_back(kv);
  }
  const std::int64_t tokens = shape.sequences * shape.queries;
  KOHO_TRY(backend.reserve({.tokens_max = tokens,
                            .sequences_max = shape.sequences,
                            .context_max = shape.context,
                            .logit_rows_max = 1}));
  const bool decode = shape.queries == 1;
  Batch batch;
  batch.tokens = tokens;
  batch.sequences = shape.sequences;
  batch.decodes = decode ? shape.sequences : 0;
  batch.query_max = shape.queries;
  batch.context_max = shape.context;
  std::int64_t at = 0;
  KOHO_TRY_ASSIGN(batch.positions, own->upload(DType::i32, {tokens}, [&] {
    return static_cast<double>(shape.context - shape.queries + at++ % shape.queries);
  }));
  at = 0;
  KOHO_TRY_ASSIGN(batch.query_starts, own->upload(DType::i32, {shape.sequences + 1}, [&] {
    return static_cast<double>(shape.queries * at++);
  }));
  KOHO_TRY_ASSIGN(batch.context_lengths,
                  own->upload(DType::i32, {shape.sequences},
                              Operands::constant(static_cast<double>(shape.context))));
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(pages));
  std::iota(numbers.begin(), numbers.end(), 0);
  std::shuffle(numbers.begin(), numbers.end(), own->random);
  KOHO_TRY_ASSIGN(const TensorView tables, own->empty(DType::i32, {shape.sequences, pages_each}));
  KOHO_TRY(backend.upload(tables, std::as_bytes(std::span(numbers))));
  batch.page_tables = tables;
  const HeadShape heads{shape.query_heads, shape.kv_heads, kWidth, 64};
  KOHO_TRY_ASSIGN(const TensorView q,
                  own->upload(DType::bf16, {tokens, shape.query_heads, kWidth}, own->normals()));
  Activation out;
  KOHO_TRY_ASSIGN(out.codes, own->empty(DType::f8_e4m3, {tokens, shape.query_heads * kWidth}));
  KOHO_TRY_ASSIGN(out.scales, own->empty(DType::f32, {tokens}));
  OpBench bench;
  bench.op = decode ? "attention_decode" : "attention_prefill";
  bench.shape = {{"tokens", tokens},           {"sequences", shape.sequences},
                 {"context", shape.context},   {"query_heads", shape.query_heads},
                 {"kv_heads", shape.kv_heads}, {"kv_bytes", element}};
  bench.bytes = layer_bytes + static_cast<double>(tokens * shape.query_heads * kWidth * 3);
  const double visible =
      static_cast<double>(shape.context) - (static_cast<double>(shape.queries) - 1.0) / 2.0;
  bench.flops = 4.0 * visible * static_cast<double>(tokens * shape.query_heads * kWidth);
  bench.run = [own, out, q, caches, batch, heads](std::int64_t i) {
    return own->backend.attention(out, q, caches[static_cast<std::size_t>(i) % caches.size()],
                                  batch, heads);
  };
  std::vector<OpBench> benches;
  benches.push_back(finish(std::move(bench)));
  return benches;
}

// ---- rows

Result<std::vector<OpBench>> build_rows(Backend& backend, std::int64_t hidden) {
  auto own = std::make_shared<Operands>(backend);
  constexpr std::int64_t kTokensMax = 8192;
  std::vector<OpBench> benches;
  KOHO_TRY_ASSIGN(const TensorView residual,
                  own->upload(DType::bf16, {kTokensMax, hidden}, own->normals()));
  KOHO_TRY_ASSIGN(const TensorView branch,
                  own->upload(DType::bf16, {kTokensMax, hidden}, Operands::constant(0.0)));
  KOHO_TRY_ASSIGN(const TensorView weight, own->upload(DType::bf16, {hidden}, own->normals()));
  KOHO_TRY_ASSIGN(const Activation out, own->activation(kTokensMax, hidden));
  constexpr std::int64_t kExperts = 160;
  constexpr std::int64_t kTop = 8;
  KOHO_TRY_ASSIGN(const TensorView router,
                  own->upload(DType::bf16, {kExperts * 64, hidden}, own->normals()));
  KOHO_TRY_ASSIGN(const TensorView bias, own->upload(DType::f32, {kExperts}, own->normals()));
  Routing routing;
  KOHO_TRY_ASSIGN(routing.ids, own->empty(DType::i32, {kTokensMax, kTop}));
  KOHO_TRY_ASSIGN(routing.weights, own->empty(DType::f32, {kTokensMax, kTop}));
  for (const std::int64_t tokens : {1, 8, 16, 32, 64, 256, 8192}) {
    OpBench norm;
    norm.op = "add_rms_norm";
    norm.shape = {{"tokens", tokens}, {"hidden", hidden}};
    norm.bytes = static_cast<double>(tokens * hidden * 9);
    norm.run = [own, out, residual, branch, weight, tokens](std::int64_t) {
      return own->backend.add_rms_norm(out.first(tokens), residual.first(tokens),
                                       branch.first(tokens), weight, 1e-5F);
    };
    benches.push_back(finish(std::move(norm)));
    OpBench route;
    route.op = "route";
    route.shape = {{"tokens", tokens}, {"hidden", hidden}, {"experts", kExperts}};
    route.bytes = static_cast<double>(2 * hidden * (kExperts + tokens));
    route.flops = 2.0 * static_cast<double>(tokens * hidden * kExperts);
    route.run = [own, out, router, bias, routing, tokens](std::int64_t i) {
      const Routing cut{routing.ids.first(tokens), routing.weights.first(tokens)};
      return own->backend.route(cut, out.values.first(tokens),
                                router.slice(0, i % 64 * kExperts, kExperts), bias,
                                {.top_k = kTop, .scale = 2.5F});
    };
    benches.push_back(finish(std::move(route)));
  }
  return benches;
}

/// `dtype`: of qkv, q and the pages alike.
Result<std::vector<OpBench>> build_rope(Backend& backend,
                                        std::int64_t query_heads,
                                        std::int64_t kv_heads,
                                        DType dtype) {
  auto own = std::make_shared<Operands>(backend);
  constexpr std::int64_t kWidth = 128;
  constexpr std::int64_t kTokensMax = 8192;
  constexpr std::int64_t kPages = kTokensMax / kPageTokens;
  const std::int64_t columns = (query_heads + 2 * kv_heads) * kWidth;
  QkNormRope weights;
  weights.heads = {query_heads, kv_heads, kWidth, 64};
  weights.eps = 1e-5F;
  KOHO_TRY_ASSIGN(weights.q_norm, own->upload(DType::bf16, {kWidth}, own->normals()));
  KOHO_TRY_ASSIGN(weights.k_norm, own->upload(DType::bf16, {kWidth}, own->normals()));
  KOHO_TRY_ASSIGN(weights.rope_table, own->upload(DType::f32, {kTokensMax, 2, 32}, own->normals()));
  const bool codes = dtype == DType::f8_e4m3;
  KOHO_TRY_ASSIGN(const TensorView qkv, own->upload(dtype, {kTokensMax, columns}, own->normals()));
  KOHO_TRY_ASSIGN(const TensorView q, own->empty(dtype, {kTokensMax, query_heads, kWidth}));
  KOHO_TRY_ASSIGN(const TensorView qkv_scales,
                  own->upload(DType::f32, {kTokensMax}, Operands::constant(0.01)));
  KOHO_TRY_ASSIGN(const TensorView q_scales, own->empty(DType::f32, {kTokensMax, query_heads}));
  std::int64_t at = 0;
  KOHO_TRY_ASSIGN(const TensorView positions,
                  own->upload(DType::i32, {kTokensMax}, [&] { return static_cast<double>(at++); }));
  at = 0;
  KOHO_TRY_ASSIGN(const TensorView slots,
                  own->upload(DType::i64, {kTokensMax}, [&] { return static_cast<double>(at++); }));
  KvLayer kv;
  KOHO_TRY_ASSIGN(kv.k, own->empty(dtype, {kPages, kv_heads, kPageTokens, kWidth}));
  KOHO_TRY_ASSIGN(kv.v, own->empty(dtype, {kPages, kv_heads, kPageTokens, kWidth}));
  if (codes) {
    KOHO_TRY_ASSIGN(kv.k_scales, own->empty(DType::f32, {kPages, kv_heads, kPageTokens}));
    KOHO_TRY_ASSIGN(kv.v_scales, own->empty(DType::f32, {kPages, kv_heads, kPageTokens}));
  }
  std::vector<OpBench> benches;
  for (const std::int64_t tokens : {1, 16, 64, 256, 8192}) {
    OpBench bench;
    bench.op = "qk_norm_rope_store_kv";
    bench.shape = {{"tokens", tokens}, {"query_heads", query_heads}, {"kv_heads", kv_heads}};
    bench.bytes = static_cast<double>(2 * dtype_bytes(dtype) * tokens * columns);
    Queries out;
    Activation in;
    (codes ? out.codes : out.values) = q.first(tokens);
    (codes ? in.codes : in.values) = qkv.first(tokens);
    if (codes) {
      bench.shape["qkv_bytes"] = 1;
      bench.bytes += static_cast<double>(4 * tokens * (1 + query_heads + 2 * kv_heads));
      out.scales = q_scales.first(tokens);
      in.scales = qkv_scales.first(tokens);
    }
    bench.run = [=](std::int64_t) {
      return own->backend.qk_norm_rope_store_kv(out, kv, in, positions.first(tokens),
                                                slots.first(tokens), weights);
    };
    benches.push_back(finish(std::move(bench)));
  }
  return benches;
}

// ---- sampling

Result<std::vector<OpBench>> build_sample(Backend& backend) {
  auto own = std::make_shared<Operands>(backend);
  constexpr std::int64_t kVocabulary = 151552;
  constexpr std::int64_t kRowsMax = 256;
  constexpr std::int64_t kPositions = 200;  // calls draw anew, as steps do
  KOHO_TRY_ASSIGN(const TensorView logits, own->upload(DType::f32, {kRowsMax, kVocabulary},
                                                       [&] { return 2.5 * own->normal(); }));
  SamplingOutput out;
  KOHO_TRY_ASSIGN(out.ids, own->empty(DType::i32, {kRowsMax}));
  KOHO_TRY_ASSIGN(const TensorView counts,
                  own->upload(DType::i32, {kRowsMax, kVocabulary}, [at = 0]() mutable {
                    return at++ % 101 == 0 ? 1.0 : 0.0;  // 1,500 tokens a row
                  }));
  const std::int32_t mark_words = race_mark_words(kVocabulary);
  std::vector<std::uint32_t> row_marks(static_cast<std::size_t>(kRowsMax * mark_words));
  for (std::int64_t at = 0; at < kRowsMax * kVocabulary; at += 101) {
    const auto token = static_cast<std::int32_t>(at % kVocabulary);
    row_marks[static_cast<std::size_t>(at / kVocabulary * mark_words + race_mark_word(token))] |=
        race_mark_bit(token);
  }
  KOHO_TRY_ASSIGN(const TensorView marks, own->empty(DType::i32, {kRowsMax, mark_words}));
  KOHO_TRY(backend.upload(marks, std::as_bytes(std::span(row_marks))));
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
  std::vector<OpBench> benches;
  std::int64_t kind = 0;
  for (const SamplingRow& model : {greedy, temperature, top_k, top_p, penalties, raising}) {
    std::vector<SamplingRow> rows(static_cast<std::size_t>(kPositions * kRowsMax), model);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      rows[i].seed = i % kRowsMax;
      rows[i].output_position = static_cast<std::int64_t>(i / kRowsMax);
      if (model.counts_slot >= 0) rows[i].counts_slot = static_cast<std::int32_t>(i % kRowsMax);
    }
    KOHO_TRY_ASSIGN(const TensorView placed, own->empty(DType::u8, {kPositions * kRowsMax, 64}));
    KOHO_TRY(backend.upload(placed, std::as_bytes(std::span(rows))));
    for (const std::int64_t count : {1, 64, 256}) {
      OpBench bench;
      bench.op = "sample";
      // kind: 0 greedy, 1 temperature, 2 top_k 50, 3 top_p 0.95, 4 penalties, 5 negative ones
      bench.shape = {{"tokens", count}, {"vocabulary", kVocabulary}, {"kind", kind}};
      bench.bytes = 4.0 * static_cast<double>(count * kVocabulary);
      bench.run = [=](std::int64_t call) {
        SamplingBatch batch;
        batch.rows = placed.slice(0, call % kPositions * kRowsMax, count);
        batch.counts = {.entries = counts, .marks = marks};
        batch.tokens = 151365;
        SamplingOutput cut;
        cut.ids = out.ids.first(count);
        return own->backend.sample(cut, logits.first(count), batch);
      };
      benches.push_back(finish(std::move(bench)));
    }
    ++kind;
  }
  return benches;
}

}  // namespace

std::vector<OpBenchCase> op_bench_cases() {
  using Rows = std::vector<std::int64_t>;
  std::vector<OpBenchCase> cases;
  const auto linear = [&](const char* name, std::int64_t rows, std::int64_t columns,
                          WeightQuant quant, Rows tokens) {
    cases.push_back({std::string("linear_") + name, [=](Backend& backend) {
                       return build_linear(backend, rows, columns, quant, tokens);
                     }});
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
  linear("head_tp4", 37888, 5120, WeightQuant::none, few);
  linear("head_tp8", 18944, 5120, WeightQuant::none, few);
  linear("head_tp1", 151552, 5120, WeightQuant::none, few);
  linear("head_air", 151552, 4096, WeightQuant::none, few);
  const auto experts = [&](const char* name, ExpertShape shape, Rows tokens) {
    cases.push_back({std::string("experts_") + name,
                     [=](Backend& backend) { return build_experts(backend, shape, tokens); }});
  };
  const Rows batches{1, 8, 16, 32, 64, 128, 256, 8192};
  experts("ep4", {160, 40, 1536, 5120, 8, false}, batches);
  experts("tp4", {160, 160, 384, 5120, 8, false}, batches);
  experts("ep8", {160, 20, 1536, 5120, 8, false}, batches);
  experts("tp8", {160, 160, 192, 5120, 8, false}, batches);
  experts("tp1", {160, 160, 1536, 5120, 8, false}, batches);
  experts("air", {128, 128, 1408, 4096, 8, true}, batches);
  const auto attention = [&](const char* name, AttentionShape shape) {
    cases.push_back({std::string("attention_") + name,
                     [=](Backend& backend) { return build_attention(backend, shape); }});
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
  cases.push_back({"rows_5120", [](Backend& backend) { return build_rows(backend, 5120); }});
  const auto rope = [&](const char* name, std::int64_t query_heads, std::int64_t kv_heads,
                        DType dtype) {
    cases.push_back({std::string("rope_") + name, [=](Backend& backend) {
                       return build_rope(backend, query_heads, kv_heads, dtype);
                     }});
  };
  rope("tp4", 24, 2, DType::bf16);
  rope("tp8", 12, 1, DType::bf16);
  rope("tp1", 96, 8, DType::bf16);
  rope("tp4_e4m3", 24, 2, DType::f8_e4m3);
  rope("tp1_e4m3", 96, 8, DType::f8_e4m3);
  cases.push_back({"sample", [](Backend& backend) { return build_sample(backend); }});
  return cases;
}

}  // namespace koho::app
