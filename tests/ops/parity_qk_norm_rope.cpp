// SPDX-License-Identifier: Apache-2.0
// qk_norm_rope_store_kv against float64: every head of q, and every row of the pages, those that no
// slot names included.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "ops/compare.h"
#include "ops/operator_parity.h"
#include "ops/reference.h"

namespace koho::testing {
namespace {

/// Head `head` of the projections of token t, normed and rotated, as intervals.
std::vector<Interval> rotated(const HostTensor& qkv,
                              std::int64_t t,
                              std::int64_t head,
                              const HostTensor& norm,
                              const HostTensor& table,
                              std::int64_t position,
                              const HeadShape& heads) {
  HostTensor row(DType::bf16, {1, heads.width});
  for (std::int64_t i = 0; i < heads.width; ++i)
    row.as<BFloat16>()[i] = qkv.as<BFloat16>()[t * qkv.shape[1] + head * heads.width + i];
  std::vector<Interval> normed;
  if (!norm.empty()) normed = norm_reference(row, norm, 0, 1e-5);
  if (norm.empty())
    for (std::int64_t i = 0; i < heads.width; ++i) normed.push_back({row.at(i), row.at(i)});
  const std::int64_t half = heads.rotary / 2;
  const auto mixed = [](Interval a, double c, Interval b, double s) {
    // a * c + b * s over both intervals, with the rounding of two products and a sum in f32.
    const double error = 2e-7 * (std::max(std::fabs(a.low), std::fabs(a.high)) * std::fabs(c) +
                                 std::max(std::fabs(b.low), std::fabs(b.high)) * std::fabs(s)) +
                         kSubnormalError;
    const double low = std::min(a.low * c, a.high * c) + std::min(b.low * s, b.high * s);
    const double high = std::max(a.low * c, a.high * c) + std::max(b.low * s, b.high * s);
    return rounded_bf16({low - error, high + error});
  };
  std::vector<Interval> out = normed;
  for (std::int64_t j = 0; j < half; ++j) {
    const double cosine = table.at(position * heads.rotary + j);
    const double sine = table.at(position * heads.rotary + half + j);
    const Interval a = normed[static_cast<std::size_t>(j)];
    const Interval b = normed[static_cast<std::size_t>(j + half)];
    const bool nan = std::isnan(a.low) || std::isnan(b.low);
    const Interval both{a.low + b.low, a.high + b.high};
    out[static_cast<std::size_t>(j)] = nan ? both : mixed(a, cosine, b, -sine);
    out[static_cast<std::size_t>(j + half)] = nan ? both : mixed(b, cosine, a, sine);
  }
  return out;
}

/// The quantised values of head `at` of `got`, times their scale, against what its values may be;
/// the scale says that the largest element has the largest e4m3 value.
std::string compare_quantized_bits(const std::string& name,
                                   const HostTensor& got,
                                   const HostTensor& scales,
                                   std::int64_t at,
                                   const std::vector<Interval>& expected) {
  const auto width = static_cast<std::int64_t>(expected.size());
  double largest = 0.0;  // that it can be
  double least = 0.0;    // that the largest can be
  for (const Interval& range : expected) {
    if (std::isnan(range.low)) continue;
    const double low = std::fabs(range.low);
    const double high = std::fabs(range.high);
    largest = std::max({largest, low, high});
    if (range.low * range.high > 0.0) least = std::max(least, std::min(low, high));
  }
  HostTensor scale(DType::f32, {1});
  scale.set(0, scales.at(at));
  HostTensor values(DType::f32, {width});
  std::vector<Interval> widened;
  for (std::int64_t i = 0; i < width; ++i) {
    values.set(i, got.at(at * width + i) * scale.at(0));
    // A quantised value is within half a step: 1/16 of the value, or 2^-10 of the scale.
    const Interval range = expected[static_cast<std::size_t>(i)];
    const double step = std::max(std::max(std::fabs(range.low), std::fabs(range.high)) / 16.0,
                                 largest / 448.0 * 0x1p-10);
    widened.push_back({range.low - step * 1.0001, range.high + step * 1.0001});
  }
  std::string faults = compare_intervals(name, values, widened);
  if (largest > 1e-30)
    faults += compare_intervals(name + "_scale", scale,
                                {{least / 448.0 * 0.999999, largest / 448.0 * 1.000001}});
  if (largest == 0.0 && scale.at(0) != 1.0)
    faults += name + ": the scale of a zero row must be 1\n";
  return faults;
}

/// Every head of q and k, token by token, normed and rotated.
struct Rotated {
  std::vector<std::vector<Interval>> q, k;

  explicit Rotated(const bench::QkOperands& in) {
    const HeadShape& heads = in.heads;
    for (std::int64_t t = 0; t < in.tokens(); ++t) {
      for (std::int64_t head = 0; head < heads.query_heads; ++head)
        q.push_back(rotated(in.qkv, t, head, in.q_norm, in.table, in.position(t), heads));
      for (std::int64_t head = 0; head < heads.kv_heads; ++head)
        k.push_back(in.slot(t) < 0 ? std::vector<Interval>()
                                   : rotated(in.qkv, t, heads.query_heads + head, in.k_norm,
                                             in.table, in.position(t), heads));
    }
  }
};

/// Where the cache was to be written, its rows; everything else is still poisoned.
std::string check_cache(const bench::QkOperands& in, const Rotated& expected, const Results& out) {
  const HeadShape& heads = in.heads;
  std::string faults;
  std::vector<bool> written(static_cast<std::size_t>(in.pages * heads.kv_heads * kPageTokens),
                            false);
  const auto check = [&](const char* name, const HostTensor& got, const HostTensor& scales,
                         std::int64_t at, const std::vector<Interval>& ranges) {
    if (in.has_quantized_pages()) {
      faults += compare_quantized_bits(name, got, scales, at, ranges);
      return;
    }
    HostTensor row(DType::bf16, {heads.width});
    for (std::int64_t i = 0; i < heads.width; ++i)
      row.as<BFloat16>()[i] = got.as<BFloat16>()[at * heads.width + i];
    faults += compare_intervals(name, row, ranges);
  };
  for (std::int64_t t = 0; t < in.tokens(); ++t) {
    for (std::int64_t head = 0; head < heads.kv_heads && in.slot(t) >= 0; ++head) {
      const std::int64_t at = in.place(t, head);
      written[static_cast<std::size_t>(at)] = true;
      const std::int64_t k_head = heads.query_heads + head;
      check("k", out.at("k"), out.scales("k"), at,
            expected.k[static_cast<std::size_t>(t * heads.kv_heads + head)]);
      std::vector<Interval> value;
      const std::int64_t first = t * in.qkv.shape[1] + (k_head + heads.kv_heads) * heads.width;
      for (std::int64_t i = 0; i < heads.width; ++i)
        value.push_back({in.qkv.at(first + i), in.qkv.at(first + i)});
      check("v", out.at("v"), out.scales("v"), at, value);
    }
  }
  std::vector<const HostTensor*> tensors{&out.at("k"), &out.at("v")};
  if (in.has_quantized_pages()) tensors.insert(tensors.end(), {&out.scales("k"), &out.scales("v")});
  for (const HostTensor* tensor : tensors) {
    const std::size_t bytes = tensor->bytes.size() / written.size();
    for (std::size_t i = 0; i < tensor->bytes.size(); ++i)
      if (!written[i / bytes] && tensor->bytes[i] != std::byte{0xFF})
        return faults + "a cache row that no slot names was written\n";
  }
  return faults;
}

/// q as its values may be, or its quantised values and their scales.
std::string check_q(const bench::QkOperands& in, const Rotated& expected, const Results& out) {
  std::string faults;
  std::vector<Interval> q_expected;
  for (std::size_t i = 0; i < expected.q.size(); ++i) {
    const std::vector<Interval>& one = expected.q[i];
    if (in.has_quantized())
      faults += compare_quantized_bits("q", out.at("q"), out.scales("q"),
                                       static_cast<std::int64_t>(i), one);
    else
      q_expected.insert(q_expected.end(), one.begin(), one.end());
  }
  return in.has_quantized() ? faults : compare_intervals("q", out.at("q"), q_expected);
}

/// A number's NaNs have one bit pattern: which they have is no part of the contract.
HostTensor one_nan(HostTensor tensor) {
  for (std::int64_t i = 0; i < tensor.elements(); ++i)
    if (std::isnan(tensor.at(i))) tensor.set(i, std::numeric_limits<double>::quiet_NaN());
  return tensor;
}

/// Quantised values are those of what the operator makes of the bf16 values that they mean, bit by
/// bit.
std::string compare_as_values(const bench::QkOperands& in, const Results& out) {
  const Result<bench::OperatorRun> run = in.as_values();
  if (!run.ok()) return fault_of("as values", run.error());
  std::string faults = fault_of("as values", run->run(bench::Side::measured, {0, run->rows}, 0));
  const Results expected(*in.own, *run);
  const HostTensor& q = expected.at("q");
  const std::int64_t width = in.heads.width;
  HostTensor quantized(DType::f8_e4m3, q.shape);
  HostTensor scales(DType::f32, out.scales("q").shape);
  for (std::int64_t head = 0; head < scales.elements(); ++head) {
    const BFloat16* values = q.as<BFloat16>() + head * width;
    float largest = 0.0F;
    for (std::int64_t i = 0; i < width; ++i)
      largest = std::fmax(largest, std::fabs(to_float(values[i])));
    const float scale = largest == 0.0F ? 1.0F : largest / 448.0F;
    scales.as<float>()[head] = scale;
    for (std::int64_t i = 0; i < width; ++i)
      quantized.as<Float8E4M3>()[head * width + i] = to_e4m3(to_float(values[i]) / scale);
  }
  faults += compare_bits("q", one_nan(out.at("q")), one_nan(quantized)) +
            compare_bits("q.scales", out.scales("q"), scales);
  for (const char* name : {"k", "v"}) {
    faults += compare_bits(std::string(name) + " of quantised values", one_nan(out.at(name)),
                           one_nan(expected.at(name)));
    if (in.has_quantized_pages())
      faults += compare_bits(std::string(name) + ".scales of quantised values", out.scales(name),
                             expected.scales(name));
  }
  return faults;
}

}  // namespace

Comparison compare_reference(const std::shared_ptr<const bench::QkOperands>& operands,
                             const OpCaseOptions&) {
  return [&in = *operands, expected = Rotated(*operands)](const Results& results) {
    std::string faults = check_q(in, expected, results) + check_cache(in, expected, results);
    if (in.has_quantized()) faults += compare_as_values(in, results);
    return faults;
  };
}

}  // namespace koho::testing
