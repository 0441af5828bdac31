// SPDX-License-Identifier: Apache-2.0
// Cases of experts: any mix of quantisations, experts of which only some live here, tokens that
// crowd on one expert, with and without a shared one.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/cases.h"
#include "ops/compare.h"
#include "ops/device_array.h"
#include "ops/twin.h"

namespace koho::testing {
namespace {

constexpr RowGate kExpertsGate{.tensor_l2 = 5e-3, .row_l2 = 3e-2, .row_max = 3e-2};

struct RandomMlp {
  RandomLinear gate, up, down;

  MlpSource source() const { return {gate.source(), up.source(), down.source()}; }
};

/// How the matrices of an expert are stored.
struct MlpQuant {
  WeightQuant gate, up, down;
};

WeightQuant random_quant(Random& random) {
  return static_cast<WeightQuant>(random.integer(0, 3));
}

RandomMlp random_mlp(Random& random, std::int64_t hidden, std::int64_t ffn, const MlpQuant& quant) {
  return {RandomLinear(random, quant.gate, ffn, hidden, false),
          RandomLinear(random, quant.up, ffn, hidden, false),
          RandomLinear(random, quant.down, hidden, ffn, false)};
}

double bf16(double value) {
  return static_cast<double>(round_to_bf16(static_cast<float>(value)));
}

/// One expert's output for token t, in float64 between the contract's rounding points.
std::vector<double> mlp_twin(const RandomMlp& mlp, const RandomActivation& x, std::int64_t t) {
  const RandomActivation row = x.row(t);
  const LinearTwin gate = linear_twin(mlp.gate, row, 1);
  const LinearTwin up = linear_twin(mlp.up, row, 1);
  HostTensor inner(DType::bf16, {1, mlp.gate.rows});
  for (std::int64_t i = 0; i < mlp.gate.rows; ++i) {
    const double value = bf16(gate.sums[static_cast<std::size_t>(i)]);
    const double silu = bf16(value / (1.0 + std::exp(-value)));
    inner.set(i, silu * bf16(up.sums[static_cast<std::size_t>(i)]));
  }
  LinearTwin down = linear_twin(mlp.down, RandomActivation(std::move(inner)), 1);
  for (double& value : down.sums) value = bf16(value);
  return down.sums;
}

std::string run_experts(Backend& backend,
                        std::uint64_t seed,
                        const OpCaseOptions& options,
                        WeightQuant quant,
                        bool mixed,
                        bool many) {
  Random random(seed);
  // Many rows an expert, aligned: what backends have other kernels for.
  const std::int64_t hidden =
      many ? random.pick({64, 128, 272, 512}) : random.pick({16, 33, 64, 128, 160, 256});
  const std::int64_t ffn =
      many ? random.pick({32, 72, 192, 384}) : random.pick({24, 64, 65, 130, 192});
  const std::int64_t count = many                 ? random.integer(1, 3)
                             : random.chance(0.1) ? 0
                                                  : random.integer(1, 9);
  const std::int64_t first = random.integer(0, 3);
  const std::int64_t total = first + count + random.integer(count == 0 ? 2 : 0, 3);
  const std::int64_t choices = random.integer(1, std::min<std::int64_t>(total, 4));
  const bool shared = count == 0 || random.chance(0.7);
  const std::int64_t tokens = many                 ? random.integer(97, 400)
                              : random.chance(0.3) ? 1
                                                   : random.integer(1, 40);
  std::vector<RandomMlp> mlps;
  ExpertsSource source;
  source.first = first;
  const auto unlike = [&] {
    return MlpQuant{random_quant(random), random_quant(random), random_quant(random)};
  };
  const auto alike = [&] {
    if (!mixed) return MlpQuant{quant, quant, quant};
    const WeightQuant both = random_quant(random);
    return MlpQuant{both, both, random_quant(random)};
  };
  const bool each = mixed;
  const MlpQuant routed_quant = alike();
  for (std::int64_t e = 0; e < count; ++e)
    mlps.push_back(random_mlp(random, hidden, ffn, each ? unlike() : routed_quant));
  for (const RandomMlp& mlp : mlps) source.experts.push_back(mlp.source());
  RandomMlp shared_mlp;
  if (shared) {
    shared_mlp = random_mlp(random, hidden, random.pick({16, 64, 200}), each ? unlike() : alike());
    source.shared = shared_mlp.source();
  }
  Result<Experts> placed = backend.place_experts(source);
  if (!placed.ok()) return fault_of("place_experts", std::move(placed).error());
  std::string faults = fault_of("reserve", backend.reserve({.tokens_max = tokens,
                                                            .sequences_max = tokens,
                                                            .context_max = 1,
                                                            .logit_rows_max = 1,
                                                            .vocabulary = 1}));

  const RandomActivation x(
      random_values(random, DType::bf16, {tokens, hidden},
                    random.chance(0.8) ? Spread::normal : Spread::one_nan_row));
  HostTensor ids(DType::i32, {tokens, choices});
  HostTensor weights = random_scales(random, DType::f32, {tokens, choices}, 0.5);
  const bool crowded = random.chance(0.3);
  for (std::int64_t t = 0; t < tokens; ++t) {
    std::vector<std::int64_t> order(static_cast<std::size_t>(total));
    std::iota(order.begin(), order.end(), 0);
    if (!crowded)
      for (std::size_t i = order.size(); i > 1; --i)
        std::swap(
            order[i - 1],
            order[static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(i) - 1))]);
    for (std::int64_t a = 0; a < choices; ++a)
      ids.set(t * choices + a, static_cast<double>(order[static_cast<std::size_t>(a)]));
  }
  const DeviceActivation x_arrays(backend, x, placed->needs, 0);
  const DeviceArray ids_array(backend, ids);
  const DeviceArray weights_array(backend, weights);
  const DeviceArray out(backend, DType::bf16, {tokens, hidden});
  const Routing routing{ids_array.view(), weights_array.view()};
  faults += fault_of("experts", backend.experts(out.view(), x_arrays.view(), routing, *placed));

  std::vector<double> expected;
  for (std::int64_t t = 0; t < tokens; ++t) {
    std::vector<double> sums(static_cast<std::size_t>(hidden), 0.0);
    for (std::int64_t a = 0; a < choices; ++a) {
      const auto expert = static_cast<std::int64_t>(ids.at(t * choices + a)) - first;
      if (expert < 0 || expert >= count) continue;
      const auto y = mlp_twin(mlps[static_cast<std::size_t>(expert)], x, t);
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += weights.at(t * choices + a) * y[i];
    }
    if (shared) {
      const auto y = mlp_twin(shared_mlp, x, t);
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = bf16(sums[i]) + y[i];
    }
    for (const double sum : sums) expected.push_back(bf16(sum));
  }
  const HostTensor got = out.get();
  RowGate gate = kExpertsGate;
  gate.tensor_l2 += options.expert_flip;
  gate.row_l2 += options.expert_flip;
  gate.row_max += options.expert_flip;
  faults += compare_rows("out", got, expected, hidden, gate) + out.guard_fault("out");
  if (!options.batch_invariant) return faults;
  const std::int64_t row = random.integer(0, tokens - 1);
  const DeviceActivation x_row(backend, x.row(row), placed->needs, 0);
  const DeviceArray id_row(backend, row_of(ids, row));
  const DeviceArray weight_row(backend, row_of(weights, row));
  const DeviceArray alone(backend, DType::bf16, {1, hidden});
  faults += fault_of("experts", backend.experts(alone.view(), x_row.view(),
                                                {id_row.view(), weight_row.view()}, *placed));
  return faults + compare_bits("a row alone", alone.get(), row_of(got, row));
}

OpCase expert_case(const char* name, WeightQuant quant, bool mixed, bool many = false) {
  return {name,
          [=](Backend& backend, std::uint64_t seed, const OpCaseOptions& options) {
            return run_experts(backend, seed, options, quant, mixed, many);
          },
          many};
}

}  // namespace

std::vector<OpCase> expert_cases() {
  return {expert_case("experts_bf16", WeightQuant::none, false),
          expert_case("experts_fp8_channel", WeightQuant::fp8_channel, false),
          expert_case("experts_fp8_block", WeightQuant::fp8_block, false),
          expert_case("experts_mixed", WeightQuant::none, true),
          expert_case("experts_fp8_many", WeightQuant::fp8_channel, false, true)};
}

}  // namespace koho::testing
