// SPDX-License-Identifier: Apache-2.0
#include "ops/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "base/arithmetic.h"
#include "ops/reference.h"

namespace koho::testing {
namespace {

double bf16(double value) {
  return static_cast<double>(round_to_bf16(static_cast<float>(value)));
}

std::string fault(const std::string& name,
                  std::int64_t i,
                  double got,
                  const std::string& expected) {
  return fmt::format("{}: element {} is {:.9g}, expected {}\n", name, i, got, expected);
}

}  // namespace

Interval around(double value, double error) {
  const double slack = std::fabs(value) * error;
  return {value - slack, value + slack};
}

Interval rounded_bf16(Interval interval) {
  return {bf16(interval.low), bf16(interval.high)};
}

std::string compare_bits(const std::string& name,
                         const HostTensor& got,
                         const HostTensor& expected) {
  if (got.shape != expected.shape || got.dtype != expected.dtype)
    return name + ": another shape or dtype\n";
  const auto size = static_cast<std::size_t>(dtype_bytes(got.dtype));
  for (std::int64_t i = 0; i < got.elements(); ++i) {
    const auto at = static_cast<std::size_t>(i) * size;
    if (std::memcmp(got.bytes.data() + at, expected.bytes.data() + at, size) != 0)
      return fault(name, i, got.at(i), fmt::format("the bits of {:.9g}", expected.at(i)));
  }
  return {};
}

std::string compare_intervals(const std::string& name,
                              const HostTensor& got,
                              const std::vector<Interval>& expected) {
  if (got.elements() != static_cast<std::int64_t>(expected.size()))
    return name + ": another number of elements\n";
  for (std::int64_t i = 0; i < got.elements(); ++i) {
    const Interval& range = expected[static_cast<std::size_t>(i)];
    const double value = got.at(i);
    const bool nan = std::isnan(range.low) || std::isnan(range.high);
    if (nan ? !std::isnan(value) : !(value >= range.low && value <= range.high))
      return fault(name, i, value, fmt::format("{:.9g}..{:.9g}", range.low, range.high));
  }
  return {};
}

namespace {

/// What the elements of a result add up to, NaNs left out.
struct Squares {
  double errors = 0.0;
  double norm = 0.0;
  double allowed = 0.0;
};

/// Holds each element to expected ± bounds; `allowed` is what else is counted of an element.
/// `columns` > 0: a fault names row and element.
std::string compare_elements(const std::string& name,
                             const HostTensor& got,
                             const std::vector<double>& expected,
                             const std::vector<double>& bounds,
                             const std::vector<double>& allowed,
                             std::int64_t columns,
                             Squares& squares) {
  if (got.elements() != static_cast<std::int64_t>(expected.size()))
    return name + ": another number of elements\n";
  for (std::int64_t i = 0; i < got.elements(); ++i) {
    const auto at = static_cast<std::size_t>(i);
    const double value = got.at(i);
    if (std::isnan(expected[at])) {
      if (!std::isnan(value)) return fault(name, i, value, "NaN");
      continue;
    }
    const double error = std::fabs(value - expected[at]);
    if (!(error <= bounds[at])) {
      const std::string range = fmt::format("{:.9g} ± {:.3g}", expected[at], bounds[at]);
      if (columns == 0) return fault(name, i, value, range);
      return fmt::format("{}: row {}, element {} is {:.9g}, expected {}\n", name, i / columns,
                         i % columns, value, range);
    }
    squares.errors += error * error;
    squares.norm += expected[at] * expected[at];
    squares.allowed += allowed[at] * allowed[at];
  }
  return {};
}

}  // namespace

std::string compare_slack(const std::string& name,
                          const HostTensor& got,
                          const std::vector<double>& expected,
                          const std::vector<double>& slack,
                          const std::vector<double>& f32_slack,
                          double relative_l2_max) {
  Squares squares;
  std::string found = compare_elements(name, got, expected, slack, f32_slack, 0, squares);
  if (found.empty() && squares.errors > std::max(relative_l2_max * relative_l2_max * squares.norm,
                                                 squares.allowed * 0.25))
    found = fmt::format("{}: relative L2 {:.3g}, at most {:.3g}\n", name,
                        std::sqrt(squares.errors / squares.norm), relative_l2_max);
  return found;
}

std::string compare_bounds(const std::string& name,
                           const HostTensor& got,
                           const std::vector<double>& expected,
                           const std::vector<double>& bounds,
                           std::int64_t columns) {
  constexpr double kTensorL2 = 5e-3;
  Squares squares;
  std::string found = compare_elements(name, got, expected, bounds, bounds, columns, squares);
  const double allowed = 0.25 * squares.allowed;
  if (found.empty() && squares.errors > std::max(kTensorL2 * kTensorL2 * squares.norm, allowed))
    found = fmt::format("{}: relative L2 {:.3g}, at most {}, or {:.3g} by the bounds\n", name,
                        std::sqrt(squares.errors / squares.norm), kTensorL2,
                        std::sqrt(allowed / squares.norm));
  return found;
}

std::string compare_quantized(const std::string& name,
                              const HostTensor& values,
                              const HostTensor& quantized,
                              const HostTensor& scales,
                              std::int64_t block) {
  HostTensor expected_quantized(quantized.dtype, quantized.shape);
  HostTensor expected_scales(scales.dtype, scales.shape);
  quantize(values, block, expected_quantized, expected_scales);
  return compare_bits(name + ".scales", scales, expected_scales) +
         compare_bits(name + ".quantized", quantized, expected_quantized);
}

}  // namespace koho::testing
