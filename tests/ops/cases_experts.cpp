// SPDX-License-Identifier: Apache-2.0
// Cases of experts: any mix of quantisations, experts of which only some live here, tokens that
// full batch on one expert, with and without a shared one.
//
// The inner activation is quantised from sums that a backend knows only so well: a code may lie on
// the other side of a rounding boundary, and all of a row's depend on its largest. So the reference
// carries an interval through gate, up and SiLU, and asks of every code what it could be.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/cases.h"
#include "ops/compare.h"
#include "ops/device_array.h"
#include "ops/reference.h"
#include "support/step_limits.h"

namespace koho::testing {
namespace {

constexpr double kF32Sum = 4e-6;   // of sum |x w|, in any order of some thousand products
constexpr double kF32Ends = 4e-6;  // SiLU's exponential, products
constexpr double kBf16Step = 2.0 * kBf16Rounding;

struct RandomMlp {
  RandomLinear gate, up, down;
  std::vector<double> down_values;  // [hidden, ffn]

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
  RandomMlp mlp{RandomLinear(random, quant.gate, ffn, hidden, false),
                RandomLinear(random, quant.up, ffn, hidden, false),
                RandomLinear(random, quant.down, hidden, ffn, false),
                {}};
  for (std::int64_t i = 0; i < hidden; ++i)
    for (std::int64_t j = 0; j < ffn; ++j)
      mlp.down_values.push_back(mlp.down.code(i, j) * mlp.down.multiplier(i, j));
  return mlp;
}

double bf16(double value) {
  return static_cast<double>(round_to_bf16(static_cast<float>(value)));
}

/// How far a backend's sum may be from the reference's.
double sum_error(const LinearReference& reference,
                 std::int64_t i,
                 WeightQuant quant,
                 const OpCaseOptions& options) {
  const auto at = static_cast<std::size_t>(i);
  return kF32Sum * reference.magnitudes[at] +
         (quant == WeightQuant::none
              ? 0.0
              : kDeviations * options.instruction_error * std::sqrt(reference.steps[at]));
}

Interval bf16_sum(const LinearReference& reference,
                  std::int64_t i,
                  WeightQuant quant,
                  const OpCaseOptions& options) {
  const double sum = reference.sums[static_cast<std::size_t>(i)];
  const double error = sum_error(reference, i, quant, options);
  return rounded_bf16({sum - error, sum + error});
}

double silu(double value) {
  return value / (1.0 + std::exp(-value));
}

/// Interval around both, for factors in f32.
Interval widened(double a, double b) {
  const double low = std::min(a, b);
  const double high = std::max(a, b);
  return {low - kF32Ends * std::fabs(low), high + kF32Ends * std::fabs(high)};
}

Interval silu(Interval x) {
  constexpr double kLeast = -1.2784645;  // where SiLU is least
  Interval y = widened(silu(x.low), silu(x.high));
  if (x.low < kLeast && x.high > kLeast) y.low = std::min(y.low, silu(kLeast) * (1.0 + kF32Ends));
  return rounded_bf16(y);
}

Interval product(Interval a, Interval b) {
  const auto [low, high] =
      std::minmax({a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high});
  return rounded_bf16(widened(low, high));
}

/// The inner activation of a token as the down projection sees it.
struct Inner {
  std::vector<double> values;
  std::vector<double> errors;  // limits, by other quantised values or other bf16 values
  /// What a block of values may be scaled by besides, in parts of itself: its largest element is
  /// not known better. Blocks of `block` values.
  std::vector<double> scale_errors;
  std::int64_t block = 1;
};

Inner quantized_inner(const std::vector<Interval>& ranges,
                      const RandomActivation& inner,
                      WeightQuant quant) {
  const auto count = static_cast<std::int64_t>(ranges.size());
  Inner out;
  out.block = quant == WeightQuant::fp8_block ? kQuantBlock : count;
  for (std::int64_t j = 0; j < count; ++j) {
    const Interval& range = ranges[static_cast<std::size_t>(j)];
    const double value = inner.values.at(j);
    out.values.push_back(inner.value(quant, 0, j));
    out.errors.push_back(std::max(range.high - value, value - range.low));
  }
  if (quant == WeightQuant::none) return out;
  const HostTensor& quantized =
      quant == WeightQuant::fp8_block ? inner.block_quantized : inner.quantized;
  for (std::int64_t first = 0; first < count; first += out.block) {
    const std::int64_t end = std::min(count, first + out.block);
    double least = 0.0;  // that the largest element may be
    double most = 0.0;
    for (std::int64_t j = first; j < end; ++j) {
      const Interval& range = ranges[static_cast<std::size_t>(j)];
      const bool around_zero = range.low < 0.0 && range.high > 0.0;
      const auto [low, high] = std::minmax({std::fabs(range.low), std::fabs(range.high)});
      least = std::max(least, around_zero ? 0.0 : low);
      most = std::max(most, high);
    }
    const auto scale_of = [](double largest) {
      return static_cast<double>(
          std::max(static_cast<float>(largest) / 448.0F, 1.0F / (448.0F * 512.0F)));
    };
    const double scale = quant == WeightQuant::fp8_block
                             ? inner.block_scales.at(first / kQuantBlock)
                             : inner.scales.at(0);
    const double scales[2] = {scale_of(least), scale_of(most)};
    out.scale_errors.push_back(std::max(scales[1] - scale, scale - scales[0]) / scale);
    for (std::int64_t j = first; j < end; ++j) {
      const auto at = static_cast<std::size_t>(j);
      const double code = quantized.at(j);
      out.errors[at] = 0.0;
      for (const double other_scale : scales)
        for (const double value : {ranges[at].low, ranges[at].high}) {
          const double quotient = std::clamp(value / other_scale, -448.0, 448.0);
          const double other = to_float(to_e4m3(static_cast<float>(quotient)));
          out.errors[at] = std::max(out.errors[at], std::fabs(other - code) * scales[1]);
        }
    }
  }
  return out;
}

/// One expert's output for token t, in float64 between the contract's rounding points, and what is
/// known of a backend's errors.
struct MlpReference {
  std::vector<double> y;         // [hidden], bf16
  std::vector<ErrorSum> errors;  // of its elements
  /// Variance of the sum of y[i] * error[i]: errors of one inner value are one for all elements.
  double along = 0.0;
};

MlpReference mlp_reference(const RandomMlp& mlp,
                           const RandomActivation& x,
                           std::int64_t t,
                           const OpCaseOptions& options) {
  const RandomActivation row = x.row(t);
  const LinearReference gate = linear_reference(mlp.gate, row, 1);
  const LinearReference up = linear_reference(mlp.up, row, 1);
  const std::int64_t ffn = mlp.gate.rows;
  HostTensor values(DType::bf16, {1, ffn});
  std::vector<Interval> ranges;
  for (std::int64_t j = 0; j < ffn; ++j) {
    const double value = bf16(gate.sums[static_cast<std::size_t>(j)]);
    values.set(j, bf16(silu(value)) * bf16(up.sums[static_cast<std::size_t>(j)]));
    ranges.push_back(product(silu(bf16_sum(gate, j, mlp.gate.quant, options)),
                             bf16_sum(up, j, mlp.up.quant, options)));
  }
  const RandomActivation activation(std::move(values));
  const LinearReference down = linear_reference(mlp.down, activation, 1);
  const Inner inner = quantized_inner(ranges, activation, mlp.down.quant);
  const std::int64_t hidden = mlp.down.rows;
  MlpReference reference;
  std::vector<double> along(static_cast<std::size_t>(ffn), 0.0);
  std::vector<double> blocks_along(inner.scale_errors.size(), 0.0);
  for (std::int64_t i = 0; i < hidden; ++i) {
    const double y = bf16(down.sums[static_cast<std::size_t>(i)]);
    ErrorSum error;
    std::vector<double> blocks(inner.scale_errors.size(), 0.0);
    for (std::int64_t j = 0; j < ffn; ++j) {
      const auto at = static_cast<std::size_t>(j);
      const double weight = mlp.down_values[static_cast<std::size_t>(i * ffn + j)];
      error.add(std::fabs(weight) * inner.errors[at]);
      along[at] += weight * inner.errors[at] * y;
      if (!blocks.empty())
        blocks[static_cast<std::size_t>(j / inner.block)] += weight * inner.values[at];
    }
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      error.add(inner.scale_errors[b] * std::fabs(blocks[b]));
      blocks_along[b] += blocks[b] * y;
    }
    error.add(sum_error(down, i, mlp.down.quant, options));
    error.add(kBf16Step * std::fabs(y));  // both are rounded
    reference.y.push_back(y);
    reference.errors.push_back(error);
  }
  for (const double one : along) reference.along += one * one;
  for (std::size_t b = 0; b < blocks_along.size(); ++b) {
    // Of the largest element two bf16 roundings, uniform, and what the sums' error may be at most.
    const double limit = inner.scale_errors[b];
    const double variance =
        2.0 / 3.0 * kBf16Rounding * kBf16Rounding + limit * limit / (kDeviations * kDeviations);
    reference.along += std::min(limit * limit, variance) * blocks_along[b] * blocks_along[b];
  }
  return reference;
}

/// Whether an expert's part of the results is as large as it should be, over all tokens.
struct Gain {
  double along = 0.0;     // sum of its part times the error found
  double norm = 0.0;      // of the squares of its part
  double variance = 0.0;  // of `along`

  std::string fault(const std::string& name) const {
    if (!(std::fabs(along) > kDeviations * std::sqrt(variance))) return {};
    return name + ": its part is " + std::to_string(1.0 + along / norm) +
           " of what it should be, ±" + std::to_string(kDeviations * std::sqrt(variance) / norm) +
           "\n";
  }
};

/// How many tokens there are. What backends have other kernels for: `one` or two, whose shared
/// expert is stored and shaped like the others; `many` rows an expert, aligned; a `full_batch` of more
/// than 8,192 choices, of whose tokens some are compared.
enum class Size { one, few, many, full_batch };

std::string run_experts(Backend& backend,
                        std::uint64_t seed,
                        const OpCaseOptions& options,
                        WeightQuant quant,
                        bool mixed,
                        Size size) {
  Random random(seed);
  const bool one = size == Size::one;
  const bool many = size == Size::many;
  const bool full_batch = size == Size::full_batch;
  const std::int64_t hidden = full_batch ? random.pick({16, 32, 128, 272})
                              : many     ? random.pick({64, 128, 272, 512})
                              : one      ? random.pick({33, 160, 272, 528, 784, 1040})
                                         : random.pick({16, 33, 64, 128, 160, 256});
  const std::int64_t ffn = full_batch ? random.pick({24, 520, 776})
                           : many     ? random.pick({32, 72, 192, 384})
                           : one      ? random.pick({24, 65, 136, 264, 392, 520, 1000})
                                      : random.pick({24, 64, 65, 130, 192});
  const std::int64_t count = full_batch           ? random.integer(4, 20)
                             : many               ? random.integer(1, 3)
                             : one                ? random.integer(1, 6)
                             : random.chance(0.1) ? 0
                                                  : random.integer(1, 9);
  const std::int64_t first = random.integer(0, 3);
  const std::int64_t total = first + count + random.integer(count == 0 ? 2 : 0, 3);
  const std::int64_t choices =
      full_batch ? 4 : random.integer(1, std::min<std::int64_t>(total, one ? 8 : 4));
  const bool shared = count == 0 || random.chance(0.7);
  const std::int64_t tokens = full_batch           ? random.integer(2049, 2150)
                              : many               ? random.integer(97, 400)
                              : one                ? random.integer(1, 2)
                              : random.chance(0.3) ? 1
                                                   : random.integer(1, 40);
  std::vector<RandomMlp> mlps;
  ExpertsSource source;
  source.first = first;
  source.total = random.chance(0.5) ? total : 0;
  const auto other_format = [&] {
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
    mlps.push_back(random_mlp(random, hidden, ffn, each ? other_format() : routed_quant));
  for (const RandomMlp& mlp : mlps) source.experts.push_back(mlp.source());
  RandomMlp shared_mlp;
  if (shared) {
    shared_mlp = random_mlp(random, hidden, one ? ffn : random.pick({16, 64, 200}),
                            each ? other_format() : alike());
    source.shared = shared_mlp.source();
  }
  Result<Experts> placed = backend.place_experts(source);
  if (!placed.ok()) return fault_of("place_experts", std::move(placed).error());
  std::string faults =
      fault_of("reserve", backend.reserve(with_glm47_facts({.tokens_max = tokens,
                                                            .sequences_max = tokens,
                                                            .context_max = 1,
                                                            .logit_rows_max = 1,
                                                            .vocabulary = 1})));

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
  DeviceArray out(backend, DType::bf16, {tokens, hidden});
  const Routing routing{ids_array.view(), weights_array.view()};
  faults += fault_of("experts", backend.experts(out.view(), x_arrays.view(), routing, *placed));

  const HostTensor got = out.get();
  // All rows were written, also those that a full batch leaves out below: poison is NaN, x has one at
  // most.
  std::int64_t nan_rows = 0;
  for (std::int64_t t = 0; t < tokens; ++t) nan_rows += std::isnan(got.at(t * hidden)) ? 1 : 0;
  if (nan_rows > 1) faults += std::to_string(nan_rows) + " rows of out are NaN\n";
  std::vector<double> compared;
  std::vector<double> expected;
  std::vector<double> bounds;
  std::vector<Gain> gains(static_cast<std::size_t>(count) + 1);  // the shared one's is the last
  const std::int64_t step = full_batch ? 41 : 1;
  for (std::int64_t t = full_batch ? random.integer(0, step - 1) : 0; t < tokens; t += step) {
    struct Part {
      MlpReference reference;
      double weight = 1.0;
      std::size_t gain = 0;
    };
    std::vector<Part> parts;
    for (std::int64_t a = 0; a < choices; ++a) {
      const auto expert = static_cast<std::int64_t>(ids.at(t * choices + a)) - first;
      if (expert < 0 || expert >= count) continue;
      parts.push_back({mlp_reference(mlps[static_cast<std::size_t>(expert)], x, t, options),
                       weights.at(t * choices + a), static_cast<std::size_t>(expert)});
    }
    const std::size_t routed = parts.size();
    if (shared) parts.push_back({mlp_reference(shared_mlp, x, t, options), 1.0, gains.size() - 1});
    for (const Part& part : parts)
      if (std::isfinite(part.reference.along))  // no NaN in this token
        gains[part.gain].variance += std::pow(part.weight, 4.0) * part.reference.along;
    for (std::int64_t i = 0; i < hidden; ++i) {
      const auto at = static_cast<std::size_t>(i);
      double sum = 0.0;
      double magnitude = 0.0;
      ErrorSum error;
      for (std::size_t p = 0; p < parts.size(); ++p) {
        const Part& part = parts[p];
        if (p == routed) {
          sum = bf16(sum);
          error.add(kBf16Step * std::fabs(sum));
        }
        sum += part.weight * part.reference.y[at];
        magnitude += std::fabs(part.weight * part.reference.y[at]);
        const double bound = std::fabs(part.weight) * part.reference.errors[at].limits;
        error.limits += bound;
        error.squares += part.weight * part.weight * part.reference.errors[at].squares;
      }
      error.add(kF32Sum * magnitude);
      const double result = bf16(sum);
      error.add(kBf16Step * std::fabs(result));
      compared.push_back(got.at(t * hidden + i));
      expected.push_back(result);
      bounds.push_back(error.bound() + 1e-37);
      if (std::isnan(result)) continue;
      for (const Part& part : parts) {
        const double y = part.weight * part.reference.y[at];
        Gain& gain = gains[part.gain];
        gain.along += y * (got.at(t * hidden + i) - result);
        gain.norm += y * y;
        gain.variance += y * y * error.squares;
      }
    }
  }
  HostTensor rows(DType::bf16, {static_cast<std::int64_t>(expected.size()) / hidden, hidden});
  for (std::size_t i = 0; i < compared.size(); ++i)
    rows.set(static_cast<std::int64_t>(i), compared[i]);
  faults += compare_bounds("out", rows, expected, bounds, hidden) + out.guard_fault("out");
  for (std::size_t e = 0; e < gains.size(); ++e)
    faults += gains[e].fault("expert " + std::to_string(e));

  // Again, then one row alone.
  out.poison();
  faults += fault_of("experts", backend.experts(out.view(), x_arrays.view(), routing, *placed));
  faults += compare_bits("out, run again", out.get(), got);
  if (!options.batch_invariant) return faults;
  const std::int64_t row = random.integer(0, tokens - 1);
  const DeviceActivation x_row(backend, x.row(row), placed->needs, 0);
  const DeviceArray id_row(backend, row_of(ids, row));
  const DeviceArray weight_row(backend, row_of(weights, row));
  DeviceArray alone(backend, DType::bf16, {1, hidden});
  for (int time = 0; time < (one ? 2 : 1); ++time) {
    alone.poison();
    faults += fault_of("experts", backend.experts(alone.view(), x_row.view(),
                                                  {id_row.view(), weight_row.view()}, *placed));
    faults += compare_bits("a row alone", alone.get(), row_of(got, row));
  }
  return faults + alone.guard_fault("a row alone");
}

OpCase expert_case(const char* name, WeightQuant quant, bool mixed, Size size = Size::few) {
  return {name,
          [=](Backend& backend, std::uint64_t seed, const OpCaseOptions& options) {
            return run_experts(backend, seed, options, quant, mixed, size);
          },
          size != Size::few};
}

}  // namespace

std::vector<OpCase> expert_cases() {
  return {expert_case("experts_bf16", WeightQuant::none, false),
          expert_case("experts_fp8_channel", WeightQuant::fp8_channel, false),
          expert_case("experts_fp8_block", WeightQuant::fp8_block, false),
          expert_case("experts_mixed", WeightQuant::none, true),
          expert_case("experts_fp8_one", WeightQuant::fp8_channel, false, Size::one),
          expert_case("experts_fp8_many", WeightQuant::fp8_channel, false, Size::many),
          expert_case("experts_fp8_full_batch", WeightQuant::fp8_channel, false, Size::full_batch)};
}

}  // namespace koho::testing
