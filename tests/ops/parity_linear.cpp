// SPDX-License-Identifier: Apache-2.0
// linear against float64.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/compare.h"
#include "ops/operator_parity.h"
#include "ops/reference.h"

namespace koho::testing {
namespace {

// Half a unit of bf16's last place, and f32's accumulation over the longest rows tested.
constexpr double kHalfUlp = 0x1p-8 * 1.001;
constexpr double kLinearL2 = 3e-3;

/// What a sum may be off by, in parts of its magnitude.
double sum_error(const OpCaseOptions& options, bool bf16, std::int64_t columns) {
  if (!bf16 || options.chain_error == 0.0) return options.accumulation_error;
  return std::max(OpCaseOptions{}.accumulation_error,
                  options.chain_error * static_cast<double>(columns) / 16.0);
}

/// Compares some rows of `out`, taken together.
std::string compare_rows(const std::string& name,
                         const bench::LinearOperands& in,
                         const HostTensor& out,
                         const std::vector<std::int64_t>& rows,
                         const OpCaseOptions& options) {
  const SyntheticActivation x = in.x->rows(rows);
  const auto tokens = static_cast<std::int64_t>(rows.size());
  const std::int64_t width = out.shape[1];
  std::vector<double> expected(static_cast<std::size_t>(tokens * width));
  std::vector<double> slack(expected.size());
  std::vector<double> f32_slack(expected.size());
  const double error = sum_error(options, in.bf16, x.values.shape[1]);
  std::int64_t first = 0;
  for (const SyntheticLinear& weight : *in.weights) {
    const LinearReference reference = linear_reference(weight, x, tokens);
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t n = 0; n < weight.rows; ++n) {
        const auto from = static_cast<std::size_t>(t * weight.rows + n);
        const auto to = static_cast<std::size_t>(t * width + first + n);
        expected[to] = reference.sums[from];
        const double rounding =
            (in.unrounded ? 0.0 : kHalfUlp * std::fabs(reference.sums[from])) + 1e-38;
        slack[to] = rounding + error * reference.magnitudes[from];
        f32_slack[to] = rounding + OpCaseOptions{}.accumulation_error * reference.magnitudes[from];
      }
    }
    first += weight.rows;
  }
  return compare_slack(name, bench::rows_of(out, rows), expected, slack, f32_slack, kLinearL2);
}

/// Rows that are not compared were written: poison is NaN, and x has a row of NaN at most.
std::string check_written(const HostTensor& out) {
  const std::int64_t width = out.shape[1];
  std::int64_t nan_rows = 0;
  for (std::int64_t t = 0; t < out.shape[0]; ++t) {
    bool nan = std::isnan(out.at((t + 1) * width - 1));
    for (std::int64_t n = 0; n < width; n += 8) nan = nan || std::isnan(out.at(t * width + n));
    nan_rows += nan ? 1 : 0;
  }
  return nan_rows > 1 ? std::to_string(nan_rows) + " rows of out are NaN\n" : std::string();
}

}  // namespace

std::string compare_reference(const bench::LinearOperands& operands,
                              const Results& results,
                              const OpCaseOptions& options) {
  const HostTensor& out = results.at("out");
  if (operands.compared.empty()) {
    std::vector<std::int64_t> all(static_cast<std::size_t>(out.shape[0]));
    std::iota(all.begin(), all.end(), 0);
    return compare_rows("out", operands, out, all, options);
  }
  std::string faults = check_written(out);
  for (const std::vector<std::int64_t>& rows : operands.compared) {
    const std::string name =
        rows.size() == 1 ? "token " + std::to_string(rows[0]) : std::string("some tokens");
    faults += compare_rows(name, operands, out, rows, options);
  }
  return faults;
}

}  // namespace koho::testing
