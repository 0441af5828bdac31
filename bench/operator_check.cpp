// SPDX-License-Identifier: Apache-2.0
#include "bench/operator_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "tensor/number.h"

namespace koho::bench {
namespace {

constexpr std::byte kPoison{0xFF};  // NaN in every float dtype, no id, no code of a row's end

std::span<const std::byte> bytes_of_packed(const ConstTensorView& view) {
  return {view.data, static_cast<std::size_t>(view.bytes())};
}

/// Rows that are compared: all of a few, else three runs.
std::vector<RowRange> compared_rows(const OperatorRun& run) {
  constexpr std::int64_t kRun = kRowsCompared;
  if (run.whole || run.rows <= kRun) return {{0, run.rows}};
  if (run.rows <= 2 * kRun) return {{0, kRun}, {kRun, run.rows - kRun}};
  std::vector<RowRange> ranges{{0, kRun}, {run.rows - kRun, kRun}};
  // In the middle, at no round number.
  if (run.rows >= 4 * kRun) ranges.insert(ranges.begin() + 1, {run.rows * 5 / 9, kRun});
  return ranges;
}

Status restore(Backend& backend, const TensorView& view, const ConstTensorView& before) {
  if (view.empty()) return {};
  if (!before.empty()) return backend.upload(view, bytes_of_packed(before));
  const std::vector<std::byte> poison(static_cast<std::size_t>(view.bytes()), kPoison);
  return backend.upload(view, poison);
}

bool poisoned(const std::byte* data, std::size_t bytes) {
  return std::all_of(data, data + bytes, [](std::byte one) { return one == kPoison; });
}

double number(const ConstTensorView& view, std::int64_t i) {
  switch (view.dtype) {
    case DType::f8_e4m3:
      return to_float(view.as<Float8E4M3>()[i]);
    case DType::bf16:
      return to_float(view.as<BFloat16>()[i]);
    case DType::f32:
      return view.as<float>()[i];
    case DType::i32:
      return view.as<std::int32_t>()[i];
    case DType::i64:
      return static_cast<double>(view.as<std::int64_t>()[i]);
    default:
      return view.as<std::uint8_t>()[i];
  }
}

/// One side's result on the host, as numbers.
struct Numbers {
  ConstTensorView values;
  ConstTensorView scales;

  double at(std::int64_t i) const {
    const double value = number(values, i);
    if (scales.empty()) return value;
    return value * scales.as<float>()[i / (values.elements() / scales.elements())];
  }
};

/// Compares rows of an output and keeps the worst.
class Comparison {
 public:
  Comparison(const OpOutput& output,
             const Numbers& got,
             const Numbers& expected,
             std::int64_t width)
      : output_(output), got_(got), expected_(expected), width_(width) {}

  void row(std::int64_t index) {
    const Worst worst = output_.tolerance.bits ? bits(index) : numbers(index);
    if (worst.share <= largest_) return;
    if (worst.share > 1.0) {
      if (output_.tolerance.excused != nullptr && output_.tolerance.excused(index)) return;
      fault_ = fmt::format("{}, row {}: {}", output_.name, index, worst.words);
    }
    largest_ = worst.share;
  }
  double largest() const { return largest_; }
  const std::string& fault() const { return fault_; }

 private:
  /// The largest error of a row in parts of its limit, and in words if it is beyond it.
  struct Worst {
    double share = 0.0;
    std::string words;
  };

  Worst bits(std::int64_t row) const {
    const auto size = static_cast<std::size_t>(dtype_bytes(got_.values.dtype));
    for (std::int64_t i = row * width_; i < (row + 1) * width_; ++i) {
      const std::size_t at = static_cast<std::size_t>(i) * size;
      if (std::memcmp(got_.values.data + at, expected_.values.data + at, size) != 0)
        return {INFINITY, fmt::format("element {} is {:.9g}, expected {:.9g}", i % width_,
                                      number(got_.values, i), number(expected_.values, i))};
    }
    return {};
  }

  Worst numbers(std::int64_t row) const {
    const OutputTolerance& tolerance = output_.tolerance;
    double most = 0.0;
    double norm = 0.0;
    for (std::int64_t i = row * width_; i < (row + 1) * width_; ++i) {
      const double expected = expected_.at(i);
      most = std::max(most, std::fabs(expected));
      norm += expected * expected;
    }
    Worst worst;
    double errors = 0.0;
    for (std::int64_t i = row * width_; i < (row + 1) * width_; ++i) {
      const double expected = expected_.at(i);
      const double error = std::fabs(got_.at(i) - expected);
      if (error == 0.0) continue;
      const double limit = tolerance.of_element * std::fabs(expected) + tolerance.of_largest * most;
      errors += error * error;
      const double share = error / limit;
      if (share <= worst.share) continue;
      worst.share = std::isnan(share) ? INFINITY : share;
      if (worst.share > 1.0)
        worst.words = fmt::format("element {} is {:.6g}, expected {:.6g} ± {:.3g}", i % width_,
                                  got_.at(i), expected, limit);
    }
    const double l2 = errors > 0.0 ? std::sqrt(errors / norm) : 0.0;
    if (!(l2 / tolerance.l2 <= worst.share) && worst.share < INFINITY) {
      worst.share = l2 / tolerance.l2;
      if (worst.share > 1.0)
        worst.words = fmt::format("relative L2 {:.3g}, at most {:.3g}", l2, tolerance.l2);
    }
    return worst;
  }

  const OpOutput& output_;
  Numbers got_;
  Numbers expected_;
  std::int64_t width_;
  double largest_ = 0.0;
  std::string fault_;
};

/// The measured side's tensor on the host.
Result<Tensor> fetched(Backend& backend, const TensorView& view) {
  if (view.empty()) return Tensor();
  KOHO_TRY_ASSIGN(Tensor host, Tensor::host(view.dtype, view.shape));
  const TensorView on_host = host.view();
  KOHO_TRY(backend.download({on_host.data, static_cast<std::size_t>(on_host.bytes())}, view));
  return host;
}

/// The first element that is still poison, or -1.
std::int64_t unwritten(const ConstTensorView& view) {
  const auto size = static_cast<std::size_t>(dtype_bytes(view.dtype));
  for (std::int64_t i = 0; i < view.elements(); ++i) {
    const std::byte* at = view.data + static_cast<std::size_t>(i) * size;
    if (*at == kPoison && poisoned(at, size)) return i;
  }
  return -1;
}

Status compare(const BenchBackends& site,
               const OpOutput& output,
               const std::vector<RowRange>& ranges,
               CheckResult& result) {
  KOHO_TRY_ASSIGN(const Tensor values, fetched(site.measured, output.view.measured));
  KOHO_TRY_ASSIGN(const Tensor scales, fetched(site.measured, output.scales.measured));
  const Numbers got{values.view(), scales.empty() ? ConstTensorView() : scales.view()};
  const Numbers expected{output.view.reference, output.scales.reference};
  const std::int64_t elements = got.values.elements();
  const std::int64_t width =
      output.row_elements > 0 ? output.row_elements : elements / got.values.size(0);
  if (output.by_row && output.before.empty())
    for (const ConstTensorView& view : {got.values, got.scales})
      if (const std::int64_t i = view.empty() ? -1 : unwritten(view); i >= 0) {
        result.fault = fmt::format("{}: element {} was not written", output.name, i);
        result.largest = INFINITY;
        return {};
      }
  Comparison comparison(output, got, expected, width);
  if (output.by_row) {
    const std::int64_t rows_each = elements / got.values.size(0) / width;
    for (const RowRange& range : ranges)
      for (std::int64_t row = range.first * rows_each;
           row < (range.first + range.count) * rows_each; ++row)
        comparison.row(row);
  } else {
    const auto row_bytes = static_cast<std::size_t>(width * dtype_bytes(got.values.dtype));
    for (std::int64_t row = 0; row < elements / width; ++row)
      if (!output.before.empty() ||
          !poisoned(expected.values.data + static_cast<std::size_t>(row) * row_bytes, row_bytes))
        comparison.row(row);
  }
  if (comparison.largest() > result.largest) {
    result.largest = comparison.largest();
    if (!comparison.fault().empty()) result.fault = comparison.fault();
  }
  return {};
}

}  // namespace

Result<CheckResult> check_operator(const BenchBackends& site, const OperatorRun& run) {
  for (const OpOutput& output : run.outputs)
    for (const Side side : {Side::measured, Side::reference}) {
      Backend& backend = side == Side::measured ? site.measured : *site.reference;
      KOHO_TRY(restore(backend, output.view.on(side), output.before));
      KOHO_TRY(restore(backend, output.scales.on(side), {}));
    }
  KOHO_TRY(run.run(Side::measured, {0, run.rows}, 0));
  KOHO_TRY(site.measured.synchronize());
  const std::vector<RowRange> ranges = compared_rows(run);
  CheckResult result;
  for (const RowRange& range : ranges) {
    KOHO_TRY(run.run(Side::reference, range, 0));
    result.rows += range.count;
  }
  for (const OpOutput& output : run.outputs) KOHO_TRY(compare(site, output, ranges, result));
  return result;
}

Status restore_changed(Backend& backend, Side side, const OperatorRun& run) {
  for (const OpOutput& output : run.outputs)
    if (!output.before.empty()) KOHO_TRY(restore(backend, output.view.on(side), output.before));
  return {};
}

}  // namespace koho::bench
