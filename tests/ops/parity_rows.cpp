// SPDX-License-Identifier: Apache-2.0
// Norms, SiLU and looked-up rows against float64.
#include <algorithm>
#include <cmath>
#include <utility>

#include "ops/compare.h"
#include "ops/operator_parity.h"
#include "ops/reference.h"

namespace koho::testing {
namespace {

// Relative error of SiLU in f32, with room for an exponential of a few ulps.
constexpr double kSiluError = 4e-6;
/// Relative error of x / sqrt(mean of squares + eps) in f32. The squares are positive and added in
/// 32 sums or more side by side: in a sum of n the k-th addition rounds k / n of 1/32 of the whole,
/// so the squares of all these roundings come to width / (3 * 32 * 32) times 2^-48 of the whole's,
/// those of joining the sums, each half as many and twice as large as before, to 2; the root halves
/// what comes out. Then one rounding each: mean and eps (halved), root, reciprocal, product.
double factor_error(std::int64_t width) {
  const double roundings = static_cast<double>(width) / (3.0 * 32.0 * 32.0) + 2.0;
  const double sum = kDeviations * 0x1p-24 / std::sqrt(3.0) * std::sqrt(roundings);
  return 0.5 * sum + 4.0 * 0x1p-24;
}

}  // namespace

/// Row `row` of x normalised, as intervals.
std::vector<Interval> norm_reference(const HostTensor& x,
                                     const HostTensor& weight,
                                     std::int64_t row,
                                     double eps) {
  const std::int64_t width = x.shape[1];
  double squares = 0.0;
  for (std::int64_t i = 0; i < width; ++i) squares += x.at(row * width + i) * x.at(row * width + i);
  const double factor = 1.0 / std::sqrt(squares / static_cast<double>(width) + eps);
  std::vector<Interval> out;
  for (std::int64_t i = 0; i < width; ++i) {
    const Interval exact = around(x.at(row * width + i) * factor, factor_error(width));
    const Interval normalised =
        rounded_bf16({exact.low - kSubnormalError, exact.high + kSubnormalError});
    Interval scaled{weight.at(i) * normalised.low, weight.at(i) * normalised.high};
    if (scaled.low > scaled.high) std::swap(scaled.low, scaled.high);
    out.push_back(rounded_bf16({scaled.low - kSubnormalError, scaled.high + kSubnormalError}));
  }
  return out;
}

std::vector<Interval> norm_reference(const HostTensor& x, const HostTensor& weight, double eps) {
  std::vector<Interval> out;
  for (std::int64_t row = 0; row < x.shape[0]; ++row) {
    const std::vector<Interval> one = norm_reference(x, weight, row, eps);
    out.insert(out.end(), one.begin(), one.end());
  }
  return out;
}

Comparison compare_reference(const bench::NormOperands& operands, const OpCaseOptions&) {
  HostTensor x = operands.x;
  std::vector<Interval> sums;
  if (!operands.block_output.empty()) {
    for (std::int64_t i = 0; i < x.elements(); ++i) {
      x.as<BFloat16>()[i] = to_bf16(to_float(operands.x.as<BFloat16>()[i]) +
                                    to_float(operands.block_output.as<BFloat16>()[i]));
      sums.push_back({x.at(i), x.at(i)});
    }
  }
  const std::vector<Interval> expected =
      norm_reference(x, operands.weight, static_cast<double>(operands.eps));
  return [&operands, sums, expected](const Results& results) {
    std::string faults;
    if (!operands.block_output.empty())
      faults = compare_intervals("residual", results.at("residual"), sums);
    return faults + compare_intervals("out", results.at("out.values"), expected) +
           check_quantized(results, "out");
  };
}

Comparison compare_reference(const bench::SiluOperands& operands, const OpCaseOptions&) {
  const HostTensor& gate_up = operands.gate_up;
  const std::int64_t width = gate_up.shape[1] / 2;
  std::vector<Interval> expected;
  for (std::int64_t i = 0; i < gate_up.shape[0] * width; ++i) {
    const double gate = gate_up.at(i / width * 2 * width + i % width);
    const double up = gate_up.at(i / width * 2 * width + width + i % width);
    const Interval silu = rounded_bf16(around(gate / (1.0 + std::exp(-gate)), kSiluError));
    Interval product{silu.low * up, silu.high * up};
    if (product.low > product.high) std::swap(product.low, product.high);
    // Beyond x = -88.7 exp(-x) overflows f32, and SiLU becomes zero at less than 3e-37.
    const double tiny = std::fabs(silu.low) < 3e-37 ? std::fabs(up) * 3e-37 : 0.0;
    expected.push_back(rounded_bf16({product.low - tiny, product.high + tiny}));
  }
  return [expected](const Results& results) {
    return compare_intervals("out", results.at("out.values"), expected) +
           check_quantized(results, "out");
  };
}

Comparison compare_reference(const bench::LookupOperands& operands, const OpCaseOptions&) {
  const auto* ids = operands.ids.as<std::int32_t>();
  const std::vector<std::int64_t> rows(ids, ids + operands.ids.elements());
  return [expected = bench::rows_of(operands.table, rows)](const Results& results) {
    return compare_bits("out", results.at("out"), expected);
  };
}

}  // namespace koho::testing
