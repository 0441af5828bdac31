// SPDX-License-Identifier: Apache-2.0
// rms_norm, add_rms_norm and silu_mul: rows that are normed or activated, and quantised as their
// readers need.
#include <memory>

#include "bench/operators/operator_case.h"

namespace koho::bench {
namespace {

// Each side's bf16 values are within 2e-3 of the float64 reference, by two roundings in a row.
constexpr double kRowsL2 = 2 * 2e-3;
constexpr int kRowsRoundings = 2;
constexpr float kEps = 1e-5F;

using Own = std::shared_ptr<Operands>;
using Views = Sides<TensorView>;

std::vector<OpOutput> row_outputs(const Sides<Activation>& out, std::int64_t tokens) {
  return activation_outputs(out, tokens, bf16_tolerance(kRowsL2, kRowsRoundings),
                            quantized_tolerance(kRowsL2));
}

ActivationNeeds without_values(ActivationNeeds needs) {
  needs.values = false;
  return needs;
}

// ---- launches, of the first `tokens` rows

OperatorRun rms_norm_run(const Own& own,
                         std::int64_t tokens,
                         const Views& x,
                         const Views& weight,
                         float eps,
                         const Sides<Activation>& out) {
  const std::int64_t hidden = x.measured.size(1);
  OperatorRun run;
  run.op = "rms_norm";
  run.shape = {{"tokens", tokens}, {"hidden", hidden}};
  run.bytes = static_cast<double>(tokens * hidden * 5);  // x, values and quantised values
  run.rows = tokens;
  run.outputs = row_outputs(out, tokens);
  run.run = [=](Side side, RowRange range, std::int64_t) {
    return own->backend(side).rms_norm(cut(out.on(side), range), cut(x.on(side), range),
                                       weight.on(side), eps);
  };
  return run;
}

OperatorRun add_rms_norm_run(const Own& own,
                             std::int64_t tokens,
                             const Views& residual,
                             ConstTensorView before,
                             const Views& block_output,
                             const Views& weight,
                             const Sides<Activation>& out) {
  const std::int64_t hidden = residual.measured.size(1);
  OperatorRun run;
  run.op = "add_rms_norm";
  run.shape = {{"tokens", tokens}, {"hidden", hidden}};
  run.bytes = static_cast<double>(tokens * hidden * 9);  // residual read and written, block_output
  run.rows = tokens;
  run.outputs = row_outputs(out, tokens);
  // A sum of two bf16 numbers in f32, rounded: the same bits everywhere.
  run.outputs.push_back(
      {.name = "residual", .view = first(residual, tokens), .before = before.first(tokens)});
  run.run = [=](Side side, RowRange range, std::int64_t) {
    return own->backend(side).add_rms_norm(cut(out.on(side), range), cut(residual.on(side), range),
                                           cut(block_output.on(side), range), weight.on(side),
                                           kEps);
  };
  return run;
}

OperatorRun silu_mul_run(const Own& own,
                         std::int64_t tokens,
                         const Views& gate_up,
                         const Sides<Activation>& out) {
  const std::int64_t ffn = gate_up.measured.size(1) / 2;
  OperatorRun run;
  run.op = "silu_mul";
  run.shape = {{"tokens", tokens}, {"ffn", ffn}};
  run.bytes = static_cast<double>(tokens * ffn * 5);  // gate, up and quantised values
  run.rows = tokens;
  run.outputs = row_outputs(out, tokens);
  run.run = [=](Side side, RowRange range, std::int64_t) {
    return own->backend(side).silu_mul(cut(out.on(side), range), cut(gate_up.on(side), range));
  };
  return run;
}

// ---- a model's shapes

Result<std::vector<OperatorRun>> build_norms(const BenchBackends& site,
                                             std::int64_t hidden,
                                             const Rows& token_counts) {
  const auto own = std::make_shared<Operands>(site);
  const std::int64_t most = most_of(token_counts);
  KOHO_TRY_ASSIGN(const TensorView before, own->host(DType::bf16, {most, hidden}, own->normals()));
  KOHO_TRY_ASSIGN(const Views residual, own->changing(before));
  KOHO_TRY_ASSIGN(const Views block_output,
                  own->input(DType::bf16, {most, hidden}, own->normals()));
  KOHO_TRY_ASSIGN(const Views x, own->both(before));
  KOHO_TRY_ASSIGN(const Views weight, own->input(DType::bf16, {hidden}, own->about(1.0)));
  KOHO_TRY_ASSIGN(const Sides<Activation> out,
                  own->output_activation(most, hidden, {.values = true, .per_token = true}));
  std::vector<OperatorRun> runs;
  for (const std::int64_t tokens : token_counts) {
    runs.push_back(add_rms_norm_run(own, tokens, residual, before, block_output, weight, out));
    runs.push_back(rms_norm_run(own, tokens, x, weight, kEps, out));
  }
  return runs;
}

Result<std::vector<OperatorRun>> build_silu(const BenchBackends& site,
                                            std::int64_t ffn,
                                            const Rows& token_counts) {
  const auto own = std::make_shared<Operands>(site);
  const std::int64_t most = most_of(token_counts);
  KOHO_TRY_ASSIGN(const Views gate_up, own->input(DType::bf16, {most, 2 * ffn}, own->normals()));
  KOHO_TRY_ASSIGN(const Sides<Activation> out,
                  own->output_activation(most, ffn, {.per_token = true}));
  std::vector<OperatorRun> runs;
  for (const std::int64_t tokens : token_counts)
    runs.push_back(silu_mul_run(own, tokens, gate_up, out));
  return runs;
}

// ---- random shapes

/// `run_into` with all forms that `needs` names and values; the same bits without values.
Result<OperatorRun> with_and_without_values(
    const Own& own,
    const RowShape& shape,
    const ActivationNeeds& needs,
    const std::function<OperatorRun(const Sides<Activation>&)>& run_into) {
  KOHO_TRY_ASSIGN(const Sides<Activation> out,
                  own->output_activation(shape.tokens, shape.width, with_values(needs)));
  OperatorRun run = run_into(out);
  run.same_bits = {{"without values", [=]() -> Result<OperatorRun> {
                      KOHO_TRY_ASSIGN(
                          const Sides<Activation> some,
                          own->output_activation(shape.tokens, shape.width, without_values(needs)));
                      return run_into(some);
                    }}};
  return run;
}

Result<OperatorRun> build_random_rms_norm(const Own& own, bool many) {
  Random& random = own->random();
  const RowShape shape = random_row_shape(random, many);
  const float eps = random.chance(0.5) ? 1e-5F : 1e-6F;
  NormOperands operands{random_values(random, DType::bf16, {shape.tokens, shape.width},
                                      random_spread(random, true), random.chance(0.2) ? 1e-4 : 1.0),
                        {},
                        random_values(random, DType::bf16, {shape.width}, Spread::normal),
                        eps};
  KOHO_TRY_ASSIGN(const Views x,
                  own->input(operands.x, random.chance(0.3) ? random.integer(1, 40) : 0));
  KOHO_TRY_ASSIGN(const Views weight, own->input(operands.weight));
  const auto run_into = [=](const Sides<Activation>& out) {
    return rms_norm_run(own, shape.tokens, x, weight, eps, out);
  };
  KOHO_TRY_ASSIGN(OperatorRun run,
                  with_and_without_values(own, shape, random_needs(random), run_into));
  run.operands = std::move(operands);
  return run;
}

Result<OperatorRun> build_random_add_rms_norm(const Own& own, bool many) {
  Random& random = own->random();
  const RowShape shape = random_row_shape(random, many);
  const Shape rows{shape.tokens, shape.width};
  NormOperands operands{random_values(random, DType::bf16, rows, random_spread(random, true)),
                        random_values(random, DType::bf16, rows, random_spread(random, false)),
                        random_values(random, DType::bf16, {shape.width}, Spread::normal), kEps};
  KOHO_TRY_ASSIGN(const Views before, own->input(operands.x));
  KOHO_TRY_ASSIGN(const Views residual, own->changing(before.reference));
  KOHO_TRY_ASSIGN(const Views block_output, own->input(operands.block_output));
  KOHO_TRY_ASSIGN(const Views weight, own->input(operands.weight));
  KOHO_TRY_ASSIGN(
      const Sides<Activation> out,
      own->output_activation(shape.tokens, shape.width, with_values(random_needs(random))));
  OperatorRun run =
      add_rms_norm_run(own, shape.tokens, residual, before.reference, block_output, weight, out);
  run.operands = std::move(operands);
  return run;
}

Result<OperatorRun> build_random_silu_mul(const Own& own, bool many) {
  Random& random = own->random();
  const RowShape shape = random_row_shape(random, many);
  SiluOperands operands{random_values(random, DType::bf16, {shape.tokens, 2 * shape.width},
                                      random_spread(random, true), random.chance(0.5) ? 1 : 8)};
  KOHO_TRY_ASSIGN(const Views gate_up,
                  own->input(operands.gate_up, random.chance(0.3) ? random.integer(1, 40) : 0));
  const auto run_into = [=](const Sides<Activation>& out) {
    return silu_mul_run(own, shape.tokens, gate_up, out);
  };
  KOHO_TRY_ASSIGN(OperatorRun run,
                  with_and_without_values(own, shape, random_needs(random), run_into));
  run.operands = std::move(operands);
  return run;
}

}  // namespace

std::vector<OperatorCase> norm_cases() {
  std::vector<OperatorCase> cases;
  const auto random = [&](const std::string& name, auto build) {
    for (const bool many : {false, true})
      cases.push_back({.name = name + (many ? "_many" : ""),
                       .build_random = [=](const Own& own) { return build(own, many); },
                       .is_large = many});
  };
  random("rms_norm", build_random_rms_norm);
  random("add_rms_norm", build_random_add_rms_norm);
  random("silu_mul", build_random_silu_mul);
  const Rows tokens{1, 8, 16, 32, 64, 256, 8192};
  cases.push_back({.name = "rows_5120_norm",
                   .tokens = tokens,
                   .build = [](const BenchBackends& site, const Rows& chosen) {
                     return build_norms(site, 5120, chosen);
                   }});
  cases.push_back({.name = "silu_mul_tp4",
                   .tokens = tokens,
                   .build = [](const BenchBackends& site, const Rows& chosen) {
                     return build_silu(site, 3072, chosen);
                   }});
  return cases;
}

}  // namespace koho::bench
