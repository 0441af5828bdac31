// SPDX-License-Identifier: Apache-2.0
// Cases of operators that take rows: norms, the router, SiLU, embeddings, gathered rows.
#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>

#include "bench/operator_cases.h"
#include "tensor/number.h"

namespace koho::app {
namespace {

using Rows = std::vector<std::int64_t>;

// Each side's bf16 values are within 2e-3 of the float64 reference, by two roundings in a row.
constexpr double kRowsL2 = 2 * 2e-3;
constexpr int kRowsRoundings = 2;
constexpr float kEps = 1e-5F;

std::int64_t most_of(const Rows& tokens) {
  return *std::max_element(tokens.begin(), tokens.end());
}

/// Results in bf16 (`values`) and quantised per token, or only the latter.
struct RowResults {
  Sides<TensorView> values, quantized, scales;

  static Result<RowResults> make(Operands& own,
                                 std::int64_t rows,
                                 std::int64_t width,
                                 bool values) {
    RowResults out;
    if (values) {
      KOHO_TRY_ASSIGN(out.values, own.output(DType::bf16, {rows, width}));
    }
    KOHO_TRY_ASSIGN(out.quantized, own.output(DType::f8_e4m3, {rows, width}));
    KOHO_TRY_ASSIGN(out.scales, own.output(DType::f32, {rows}));
    return out;
  }
  Activation on(Side side, RowRange range) const {
    Activation x;
    x.values = cut(values.on(side), range);
    x.quantized = cut(quantized.on(side), range);
    x.scales = cut(scales.on(side), range);
    return x;
  }
  std::vector<OpOutput> outputs(std::int64_t tokens) const {
    std::vector<OpOutput> found;
    if (!values.measured.empty())
      found.push_back({.name = "out.values",
                       .view = first(values, tokens),
                       .tolerance = bf16_tolerance(kRowsL2, kRowsRoundings)});
    found.push_back({.name = "out.quantized",
                     .view = first(quantized, tokens),
                     .scales = first(scales, tokens),
                     .tolerance = quantized_tolerance(kRowsL2)});
    return found;
  }
};

Result<std::vector<OpBench>> build_norms(const BenchBackends& site,
                                         std::int64_t hidden,
                                         const Rows& token_counts) {
  auto own = std::make_shared<Operands>(site);
  const std::int64_t most = most_of(token_counts);
  KOHO_TRY_ASSIGN(const TensorView before, own->host(DType::bf16, {most, hidden}, own->normals()));
  KOHO_TRY_ASSIGN(const Sides<TensorView> residual, own->changing(before));
  KOHO_TRY_ASSIGN(const Sides<TensorView> block_output,
                  own->input(DType::bf16, {most, hidden}, own->normals()));
  KOHO_TRY_ASSIGN(const Sides<TensorView> x, own->both(before));
  KOHO_TRY_ASSIGN(const Sides<TensorView> weight,
                  own->input(DType::bf16, {hidden}, own->about(1.0)));
  KOHO_TRY_ASSIGN(const RowResults out, RowResults::make(*own, most, hidden, true));
  std::vector<OpBench> benches;
  for (const std::int64_t tokens : token_counts) {
    OpBench add;
    add.op = "add_rms_norm";
    add.shape = {{"tokens", tokens}, {"hidden", hidden}};
    add.bytes = static_cast<double>(tokens * hidden * 9);
    add.rows = tokens;
    add.outputs = out.outputs(tokens);
    // A sum of two bf16 numbers in f32, rounded: the same bits everywhere.
    add.outputs.push_back({.name = "residual",
                           .view = first(residual, tokens),

                           .before = before.first(tokens)});
    add.run = [own, out, residual, block_output, weight](Side side, RowRange range, std::int64_t) {
      return own->backend(side).add_rms_norm(out.on(side, range), cut(residual.on(side), range),
                                             cut(block_output.on(side), range), weight.on(side),
                                             kEps);
    };
    benches.push_back(std::move(add));
    OpBench norm;
    norm.op = "rms_norm";
    norm.shape = {{"tokens", tokens}, {"hidden", hidden}};
    norm.bytes = static_cast<double>(tokens * hidden * 5);
    norm.rows = tokens;
    norm.outputs = out.outputs(tokens);
    norm.run = [own, out, x, weight](Side side, RowRange range, std::int64_t) {
      return own->backend(side).rms_norm(out.on(side, range), cut(x.on(side), range),
                                         weight.on(side), kEps);
    };
    benches.push_back(std::move(norm));
  }
  return benches;
}

/// Whether the choice of a row's experts hangs on less than the scores of both sides are known to,
/// 1e-6 each: two neighbours of the best `top`, or the first that is not chosen.
bool choice_is_close(const ConstTensorView& x,
                     const ConstTensorView& router,
                     const ConstTensorView& bias,
                     std::int64_t row,
                     std::int64_t experts,
                     std::int64_t top) {
  constexpr double kMargin = 2e-6;
  const std::int64_t hidden = x.size(1);
  std::vector<double> scores;
  for (std::int64_t e = 0; e < experts; ++e) {
    double sum = 0.0;
    for (std::int64_t k = 0; k < hidden; ++k)
      sum += static_cast<double>(to_float(x.as<BFloat16>()[row * hidden + k])) *
             static_cast<double>(to_float(router.as<BFloat16>()[e * hidden + k]));
    scores.push_back(1.0 / (1.0 + std::exp(-sum)) + static_cast<double>(bias.as<float>()[e]));
  }
  std::sort(scores.begin(), scores.end(), std::greater<>());
  for (std::int64_t a = 0; a < top; ++a)
    if (scores[static_cast<std::size_t>(a)] - scores[static_cast<std::size_t>(a + 1)] < kMargin)
      return true;
  return false;
}

Result<std::vector<OpBench>> build_route(const BenchBackends& site,
                                         std::int64_t hidden,
                                         const Rows& token_counts) {
  auto own = std::make_shared<Operands>(site);
  constexpr std::int64_t kExperts = 160;
  constexpr std::int64_t kTop = 8;
  constexpr float kScale = 2.5F;
  const std::int64_t copies = site.rotated_bytes > 0.0 ? 64 : 1;
  const std::int64_t most = most_of(token_counts);
  KOHO_TRY_ASSIGN(const Sides<TensorView> x,
                  own->input(DType::bf16, {most, hidden}, own->normals()));
  const double spread = 1.0 / std::sqrt(static_cast<double>(hidden));
  KOHO_TRY_ASSIGN(
      const Sides<TensorView> router,
      own->input(DType::bf16, {kExperts * copies, hidden}, [&] { return spread * own->normal(); }));
  KOHO_TRY_ASSIGN(const Sides<TensorView> bias,
                  own->input(DType::f32, {kExperts}, [&] { return 0.1 * own->normal(); }));
  KOHO_TRY_ASSIGN(const Sides<TensorView> ids, own->output(DType::i32, {most, kTop}));
  KOHO_TRY_ASSIGN(const Sides<TensorView> weights, own->output(DType::f32, {most, kTop}));
  const auto excused = [x, router, bias](std::int64_t row) {
    return choice_is_close(x.reference, router.reference, bias.reference, row, kExperts, kTop);
  };
  // Weights are within 1e-5 of the reference's on both sides, and a row's largest is no less than this.
  constexpr double kWeightError = 2 * 1e-5 / (static_cast<double>(kScale) / kTop);
  std::vector<OpBench> benches;
  for (const std::int64_t tokens : token_counts) {
    OpBench bench;
    bench.op = "route";
    bench.shape = {{"tokens", tokens}, {"hidden", hidden}, {"experts", kExperts}};
    bench.bytes = static_cast<double>(2 * hidden * (kExperts + tokens));
    bench.flops = 2.0 * static_cast<double>(tokens * hidden * kExperts);
    bench.rows = tokens;
    bench.outputs = {
        {.name = "ids", .view = first(ids, tokens), .tolerance = {.excused = excused}},
        {.name = "weights",
         .view = first(weights, tokens),
         .tolerance = {
             .bits = false, .l2 = kWeightError, .of_largest = kWeightError, .excused = excused}}};
    bench.run = [=](Side side, RowRange range, std::int64_t i) {
      return own->backend(side).route({cut(ids.on(side), range), cut(weights.on(side), range)},
                                      cut(x.on(side), range),
                                      router.on(side).slice(0, i % copies * kExperts, kExperts),
                                      bias.on(side), {.top_k = kTop, .scale = kScale});
    };
    benches.push_back(std::move(bench));
  }
  return benches;
}

Result<std::vector<OpBench>> build_silu(const BenchBackends& site,
                                        std::int64_t ffn,
                                        const Rows& token_counts) {
  auto own = std::make_shared<Operands>(site);
  const std::int64_t most = most_of(token_counts);
  KOHO_TRY_ASSIGN(const Sides<TensorView> gate_up,
                  own->input(DType::bf16, {most, 2 * ffn}, own->normals()));
  KOHO_TRY_ASSIGN(const RowResults out, RowResults::make(*own, most, ffn, false));
  std::vector<OpBench> benches;
  for (const std::int64_t tokens : token_counts) {
    OpBench bench;
    bench.op = "silu_mul";
    bench.shape = {{"tokens", tokens}, {"ffn", ffn}};
    bench.bytes = static_cast<double>(tokens * ffn * 5);
    bench.rows = tokens;
    bench.outputs = out.outputs(tokens);
    bench.run = [own, out, gate_up](Side side, RowRange range, std::int64_t) {
      return own->backend(side).silu_mul(out.on(side, range), cut(gate_up.on(side), range));
    };
    benches.push_back(std::move(bench));
  }
  return benches;
}

/// `embed` of a table, or gather_rows of a step's rows: `rows` of them to choose from.
Result<std::vector<OpBench>> build_lookup(const BenchBackends& site,
                                          bool embed,
                                          std::int64_t rows,
                                          std::int64_t hidden,
                                          const Rows& token_counts) {
  auto own = std::make_shared<Operands>(site);
  const std::int64_t most = most_of(token_counts);
  KOHO_TRY_ASSIGN(const Sides<TensorView> table,
                  own->input(DType::bf16, {rows, hidden}, own->normals()));
  std::uniform_int_distribution<std::int32_t> any(0, static_cast<std::int32_t>(rows - 1));
  std::vector<std::int32_t> drawn(static_cast<std::size_t>(most));
  std::generate(drawn.begin(), drawn.end(), [&] { return any(own->random()); });
  KOHO_TRY_ASSIGN(const Sides<TensorView> ids, own->input(DType::i32, {most}, drawn));
  KOHO_TRY_ASSIGN(const Sides<TensorView> out, own->output(DType::bf16, {most, hidden}));
  std::vector<OpBench> benches;
  for (const std::int64_t tokens : token_counts) {
    std::vector<std::int32_t> distinct(drawn.begin(), drawn.begin() + tokens);
    std::sort(distinct.begin(), distinct.end());
    const auto read = std::unique(distinct.begin(), distinct.end()) - distinct.begin();
    OpBench bench;
    bench.op = embed ? "embed" : "gather_rows";
    bench.shape = {{"tokens", tokens}, {"hidden", hidden}, {"rows", rows}};
    bench.bytes = static_cast<double>(2 * hidden * (read + tokens) + 4 * tokens);
    bench.rows = tokens;
    bench.outputs = {{.name = "out", .view = first(out, tokens)}};
    bench.run = [=](Side side, RowRange range, std::int64_t) {
      Backend& backend = own->backend(side);
      const TensorView part = cut(out.on(side), range);
      const TensorView chosen = cut(ids.on(side), range);
      return embed ? backend.embed(part, chosen, table.on(side))
                   : backend.gather_rows(part, table.on(side), chosen);
    };
    benches.push_back(std::move(bench));
  }
  return benches;
}

}  // namespace

std::vector<OpBenchCase> row_bench_cases() {
  constexpr std::int64_t kHidden = 5120;
  constexpr std::int64_t kVocabulary = 151552;
  constexpr std::int64_t kTokensMax = 8192;
  const Rows tokens{1, 8, 16, 32, 64, 256, 8192};
  return {{"rows_5120_norm", tokens,
           [](const BenchBackends& site, const Rows& chosen) {
             return build_norms(site, kHidden, chosen);
           }},
          {"rows_5120_route", tokens,
           [](const BenchBackends& site, const Rows& chosen) {
             return build_route(site, kHidden, chosen);
           }},
          {"silu_mul_tp4", tokens,
           [](const BenchBackends& site, const Rows& chosen) {
             return build_silu(site, 3072, chosen);
           }},
          {"embed_tp4", tokens,
           [](const BenchBackends& site, const Rows& chosen) {
             return build_lookup(site, true, kVocabulary / 4, kHidden, chosen);
           }},
          {"gather_rows_5120", {1, 64, 256}, [](const BenchBackends& site, const Rows& chosen) {
             return build_lookup(site, false, kTokensMax, kHidden, chosen);
           }}};
}

}  // namespace koho::app
