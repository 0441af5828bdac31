// SPDX-License-Identifier: Apache-2.0
// experts against float64.
//
// The inner activation is quantised from sums that a backend knows only so well: a code may lie on
// the other side of a rounding boundary, and all of a row's depend on its largest. So the reference
// carries an interval through gate, up and SiLU, and asks of every code what it could be.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/compare.h"
#include "ops/operator_parity.h"
#include "ops/reference.h"

namespace koho::testing {
namespace {

using bench::SyntheticMlp;

constexpr double kF32Sum = 4e-6;   // of sum |x w|, in any order of some thousand products
constexpr double kF32Ends = 4e-6;  // SiLU's exponential, products
constexpr double kBf16Step = 2.0 * kBf16Rounding;

/// The values of a down projection, [hidden, ffn].
std::vector<double> values_of(const SyntheticLinear& weight) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < weight.rows; ++i) {
    const std::vector<double> row = weight.row(i);
    values.insert(values.end(), row.begin(), row.end());
  }
  return values;
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
                      const SyntheticActivation& inner,
                      WeightQuant quant) {
  const auto count = static_cast<std::int64_t>(ranges.size());
  Inner out;
  out.block = quant == WeightQuant::fp8_block ? kQuantBlock : count;
  out.values = inner.seen(quant, 0);
  for (std::int64_t j = 0; j < count; ++j) {
    const Interval& range = ranges[static_cast<std::size_t>(j)];
    const double value = inner.values.at(j);
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

MlpReference mlp_reference(const SyntheticMlp& mlp,
                           const std::vector<double>& down_values,
                           const SyntheticActivation& x,
                           std::int64_t t,
                           const OpCaseOptions& options) {
  const SyntheticActivation row = x.row(t);
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
  const SyntheticActivation activation(std::move(values));
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
      const double weight = down_values[static_cast<std::size_t>(i * ffn + j)];
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

/// What one expert adds to a token.
struct Part {
  MlpReference reference;
  double weight = 1.0;
  std::size_t gain = 0;  // the expert; the shared one is the last
};

/// A token's parts: `routed` ones, and the shared expert's.
struct TokenReference {
  std::int64_t token = 0;
  std::vector<Part> parts;
  std::size_t routed = 0;
};

/// The tokens that are compared.
std::vector<TokenReference> references_of(const bench::ExpertsOperands& in,
                                          const OpCaseOptions& options) {
  std::vector<std::vector<double>> down_values;
  for (const SyntheticMlp& mlp : in.experts) down_values.push_back(values_of(mlp.down));
  if (in.shared) down_values.push_back(values_of(in.shared->down));
  std::vector<TokenReference> references;
  const std::int64_t choices = in.ids.shape[1];
  for (std::int64_t t = in.first_compared; t < in.x.values.shape[0]; t += in.step) {
    TokenReference reference;
    reference.token = t;
    for (std::int64_t a = 0; a < choices; ++a) {
      const auto expert = static_cast<std::int64_t>(in.ids.at(t * choices + a)) - in.first;
      if (expert < 0 || expert >= static_cast<std::int64_t>(in.experts.size())) continue;
      const auto e = static_cast<std::size_t>(expert);
      reference.parts.push_back({mlp_reference(in.experts[e], down_values[e], in.x, t, options),
                                 in.weights.at(t * choices + a), e});
    }
    reference.routed = reference.parts.size();
    if (in.shared)
      reference.parts.push_back({mlp_reference(*in.shared, down_values.back(), in.x, t, options),
                                 1.0, in.experts.size()});
    references.push_back(std::move(reference));
  }
  return references;
}

/// Adds up what float64 knows of `out`, token by token.
class ExpertsComparison {
 public:
  ExpertsComparison(const bench::ExpertsOperands& in, const HostTensor& out)
      : out_(out), gains_(in.experts.size() + 1) {}

  void add(const TokenReference& reference) {
    for (const Part& part : reference.parts)
      if (std::isfinite(part.reference.along))  // no NaN in this token
        gains_[part.gain].variance += std::pow(part.weight, 4.0) * part.reference.along;
    for (std::int64_t i = 0; i < out_.shape[1]; ++i)
      add_element(reference.token, i, reference.parts, reference.routed);
  }

  std::string faults() const {
    const std::int64_t hidden = out_.shape[1];
    HostTensor rows(DType::bf16, {static_cast<std::int64_t>(expected_.size()) / hidden, hidden});
    for (std::size_t i = 0; i < compared_.size(); ++i)
      rows.set(static_cast<std::int64_t>(i), compared_[i]);
    std::string found = compare_bounds("out", rows, expected_, bounds_, hidden);
    for (std::size_t e = 0; e < gains_.size(); ++e)
      found += gains_[e].fault("expert " + std::to_string(e));
    return found;
  }

 private:
  void add_element(std::int64_t t,
                   std::int64_t i,
                   const std::vector<Part>& parts,
                   std::size_t routed) {
    const auto at = static_cast<std::size_t>(i);
    const double got = out_.at(t * out_.shape[1] + i);
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
    compared_.push_back(got);
    expected_.push_back(result);
    bounds_.push_back(error.bound() + 1e-37);
    if (std::isnan(result)) return;
    for (const Part& part : parts) {
      const double y = part.weight * part.reference.y[at];
      Gain& gain = gains_[part.gain];
      gain.along += y * (got - result);
      gain.norm += y * y;
      gain.variance += y * y * error.squares;
    }
  }

  const HostTensor& out_;
  std::vector<Gain> gains_;  // the shared expert's is the last
  std::vector<double> compared_, expected_, bounds_;
};

}  // namespace

Comparison compare_reference(const std::shared_ptr<const bench::ExpertsOperands>& operands,
                             const OpCaseOptions& options) {
  return [&in = *operands, references = references_of(*operands, options)](const Results& results) {
    const HostTensor& out = results.at("out");
    // All rows were written, also those that are not compared below: poison is NaN, x has a row of
    // NaN at most.
    std::int64_t nan_rows = 0;
    for (std::int64_t t = 0; t < out.shape[0]; ++t)
      nan_rows += std::isnan(out.at(t * out.shape[1])) ? 1 : 0;
    std::string faults;
    if (nan_rows > 1) faults += std::to_string(nan_rows) + " rows of out are NaN\n";
    ExpertsComparison comparison(in, out);
    for (const TokenReference& reference : references) comparison.add(reference);
    return faults + comparison.faults();
  };
}

}  // namespace koho::testing
