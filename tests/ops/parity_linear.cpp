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

/// What some rows of `out` are compared with, taken together.
struct RowsReference {
  std::string name;
  std::vector<std::int64_t> rows;
  std::vector<double> expected, slack, f32_slack;

  std::string compare(const HostTensor& out) const {
    return compare_slack(name, bench::rows_of(out, rows), expected, slack, f32_slack, kLinearL2);
  }
};

RowsReference reference_of(const std::string& name,
                           const bench::LinearOperands& in,
                           const std::vector<std::int64_t>& rows,
                           const OpCaseOptions& options) {
  const SyntheticActivation x = in.x->rows(rows);
  const auto tokens = static_cast<std::int64_t>(rows.size());
  std::int64_t width = 0;
  for (const SyntheticLinear& weight : *in.weights) width += weight.rows;
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
  return {name, rows, std::move(expected), std::move(slack), std::move(f32_slack)};
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

Comparison compare_reference(const bench::LinearOperands& operands, const OpCaseOptions& options) {
  const bool all_compared = operands.compared.empty();
  std::vector<RowsReference> references;
  if (all_compared) {
    std::vector<std::int64_t> all(static_cast<std::size_t>(operands.x->values.shape[0]));
    std::iota(all.begin(), all.end(), 0);
    references.push_back(reference_of("out", operands, all, options));
  }
  for (const std::vector<std::int64_t>& rows : operands.compared) {
    const std::string name =
        rows.size() == 1 ? "token " + std::to_string(rows[0]) : std::string("some tokens");
    references.push_back(reference_of(name, operands, rows, options));
  }
  return [all_compared, references](const Results& results) {
    const HostTensor& out = results.at("out");
    std::string faults = all_compared ? std::string() : check_written(out);
    for (const RowsReference& reference : references) faults += reference.compare(out);
    return faults;
  };
}

}  // namespace koho::testing
