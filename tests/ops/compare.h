// SPDX-License-Identifier: Apache-2.0
// Gates: how far an operator's output may lie from its float64 twin. Where rounding points are
// known, the twin gives an interval that follows from the error of f32 arithmetic alone, and the
// output must lie in it; where sums are long, the gates of the table below apply.
//
//   op                        gate
//   copies, codes of a quant  bit-equal (codes: from the operator's own bf16 values)
//   norms, rotation, SiLU     within the interval of f32 arithmetic at the contract's roundings
//   linear                    |error| <= 2^-8 |twin| + accumulation * sum|x w|,
//                             relative L2 <= 3e-3, whatever `accumulation` is
//   attention                 a row's relative L2 <= 5e-3, largest error <= 1e-2 of its largest
//   router                    ids equal unless the margin is < 1e-6; weights within 1e-5
//   experts                   relative L2 <= 5e-3 over the tensor, 3e-2 in a row: a code of the
//                             inner activation may flip on a rounding border
#pragma once

#include <string>
#include <vector>

#include "ops/batch.h"
#include "ops/host_tensor.h"

namespace koho::testing {

/// What the twin allows for one element.
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
/// cancel so that f32 itself is further away than that, half of `f32_slack` is the gate.
std::string compare_slack(const std::string& name,
                          const HostTensor& got,
                          const std::vector<double>& expected,
                          const std::vector<double>& slack,
                          const std::vector<double>& f32_slack,
                          double relative_l2_max);
/// Relative L2 over the tensor and over each row of `columns`, and the largest error of a row
/// against its largest element.
struct RowGate {
  double tensor_l2 = 0.0;
  double row_l2 = 0.0;
  double row_max = 0.0;
};
std::string compare_rows(const std::string& name,
                         const HostTensor& got,
                         const std::vector<double>& expected,
                         std::int64_t columns,
                         const RowGate& gate);

/// The codes and scales of `out` are those of its bf16 values, exactly.
std::string compare_quantised(const std::string& name,
                              const HostTensor& values,
                              const HostTensor& codes,
                              const HostTensor& scales,
                              std::int64_t block);

}  // namespace koho::testing
