// SPDX-License-Identifier: Apache-2.0
// Tolerances: how far an operator's output may lie from its float64 reference. Where the contract
// says where values are rounded, the reference gives an interval that follows from the error of f32
// arithmetic alone, and the output must lie in it; where sums are long, the tolerances of the table
// apply.
//
//   operator                  tolerance (parity_*.cpp)
//   copies                    bit-equal
//   quantised forms           bit-equal to the quantisation of the operator's own bf16 values
//   norms, rotation, SiLU     within the interval of f32 arithmetic at the contract's roundings
//   linear                    |error| <= 2^-8 |reference| + accumulation * sum|x w|,
//                             relative L2 <= 3e-3, whatever `accumulation` is
//   attention                 each element within the error computed for it: weights rounded, sums
//                             in f32
//   router                    ids equal unless the choice is closer than f32 can tell, weights
//                             within the error computed for each
//   log-probabilities         within the error computed for each
//   experts                   each element within the error computed for it: quantised values of
//                             the inner activation that may lie on the other side of a rounding
//                             boundary; and the gain of each expert over all tokens
//
// Bounds of sums of many roundings: each error is at most its limit, so the sum of limits holds for
// any kernel. Independent errors stay below seven times the root of the sum of their squared limits
// (Hoeffding: beyond it with 5e-11), or, where they are uniform, that divided by sqrt(3). The
// lesser of the two is the bound. Data are random, so roundings are taken for independent.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "bench/operators/device_array.h"
#include "bench/operators/host_tensor.h"
#include "bench/operators/synthetic.h"
#include "ops/batch.h"

namespace koho::testing {

// What the operands are made of (bench/operators/).
using bench::DeviceArray;
using bench::HostTensor;
using bench::integers;
using bench::Random;
using bench::random_quantized;
using bench::random_scales;
using bench::random_spread;
using bench::random_values;
using bench::row_of;
using bench::Spread;
using bench::SyntheticActivation;
using bench::SyntheticLinear;

/// What the reference allows for one element.
struct Interval {
  double low = 0.0;
  double high = 0.0;
};

/// Numbers within relative `error` of `value`.
Interval around(double value, double error);
/// All bf16 roundings of an interval.
Interval rounded_bf16(Interval interval);

/// Each returns "" or a line that says which element, what was found and what was expected.
std::string compare_bits(const std::string& name,
                         const HostTensor& got,
                         const HostTensor& expected);
std::string compare_intervals(const std::string& name,
                              const HostTensor& got,
                              const std::vector<Interval>& expected);
/// Elementwise |got - expected| <= slack, and relative L2 over all finite elements; where sums
/// cancel so that f32 itself is further away than that, half of `f32_slack` is the tolerance.
std::string compare_slack(const std::string& name,
                          const HostTensor& got,
                          const std::vector<double>& expected,
                          const std::vector<double>& slack,
                          const std::vector<double>& f32_slack,
                          double relative_l2_max);
/// |got - expected| <= bounds, elementwise; and the relative L2 over all elements is at most 5e-3
/// or what half the bounds come to. NaN is expected where `expected` is NaN.
std::string compare_bounds(const std::string& name,
                           const HostTensor& got,
                           const std::vector<double>& expected,
                           const std::vector<double>& bounds,
                           std::int64_t columns);

inline constexpr double kBf16Rounding = 0x1p-8;  // half a step, in parts of the least number of it
inline constexpr double kDeviations = 7.0;

/// Errors that add up: what is known of them.
struct ErrorSum {
  double limits = 0.0;   // the sum of their limits
  double squares = 0.0;  // the sum of their variances' bounds

  /// One that is at most `limit` large.
  void add(double limit) {
    limits += limit;
    squares += limit * limit;
  }
  /// One that is uniform in -limit .. limit.
  void add_uniform(double limit) {
    limits += limit;
    squares += limit * limit / 3.0;
  }
  double bound() const { return std::min(limits, kDeviations * std::sqrt(squares)); }
};

/// The quantised values and scales of `out` are those of its bf16 values, exactly.
std::string compare_quantized(const std::string& name,
                              const HostTensor& values,
                              const HostTensor& quantized,
                              const HostTensor& scales,
                              std::int64_t block);

}  // namespace koho::testing
