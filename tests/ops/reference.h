// SPDX-License-Identifier: Apache-2.0
// What the float64 references of several operators share.
#pragma once

#include <vector>

#include "ops/backend.h"
#include "ops/compare.h"

namespace koho::testing {

/// A SyntheticActivation on a device, in the forms that `needs` asks for, rows strided where
/// allowed.
class DeviceActivation {
 public:
  DeviceActivation(Backend& backend,
                   const SyntheticActivation& source,
                   const ActivationNeeds& needs,
                   std::int64_t row_gap);
  /// Poisoned outputs [T, K].
  DeviceActivation(Backend& backend,
                   std::int64_t tokens,
                   std::int64_t columns,
                   const ActivationNeeds& needs);
  Activation view() const;
  /// Quantised forms against the bf16 values, and the guard bands. Requires: values are there.
  std::string check_quantized(const std::string& name) const;
  std::string guard_fault(const std::string& name) const;

  DeviceArray values, quantized, scales, block_quantized, block_scales;

 private:
  ActivationNeeds needs_;
};

/// y[t, n] in float64 without the final rounding, and sum |x w| of every element. `steps` is the
/// sum of squares of the largest term of every 32 columns, products and what precedes them in their
/// 256 (128 under block scales) alike: of what a tensor core's FP8 instruction rounds to.
struct LinearReference {
  std::vector<double> sums;
  std::vector<double> magnitudes;
  std::vector<double> steps;
};
LinearReference linear_reference(const SyntheticLinear& weight,
                                 const SyntheticActivation& x,
                                 std::int64_t tokens);

/// What rounding two products to f32 can move where they are below its smallest normal number.
inline constexpr double kSubnormalError = 0x1p-149;

/// Row `row` of x [T, H] normed by its root mean square, as intervals; all rows.
std::vector<Interval> norm_reference(const HostTensor& x,
                                     const HostTensor& weight,
                                     std::int64_t row,
                                     double eps);
std::vector<Interval> norm_reference(const HostTensor& x, const HostTensor& weight, double eps);

/// The backend's error, if there is one, as a case reports it.
std::string fault_of(const std::string& op, const Status& status);

}  // namespace koho::testing
