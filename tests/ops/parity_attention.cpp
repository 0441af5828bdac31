// SPDX-License-Identifier: Apache-2.0
// attention against float64.
#include <algorithm>
#include <cmath>

#include "ops/compare.h"
#include "ops/operator_parity.h"
#include "ops/reference.h"

namespace koho::testing {
namespace {

using bench::Cache;
using bench::cache_row;
using bench::Sequence;
using bench::Step;

/// Attention of one row and query head in float64, and how far a backend may be from it.
struct Attended {
  std::vector<double> out;
  std::vector<double> bounds;
};

constexpr double kTiniest = 2.0 * 0x1p-126;

std::vector<double> head_of(const HostTensor& q, std::int64_t head, std::int64_t width) {
  std::vector<double> values(static_cast<std::size_t>(width));
  q.read(head * width, values);
  return values;
}

/// What a weight is rounded by before it multiplies v: parts of it, and over e4m3 pages no less
/// than parts of the largest with v's largest scale. The rest is f32: scores from a sum of products
/// that loses 2^-23 of sum |q k| a term (tensor cores truncate), their difference from the largest,
/// the exponential; the sum over positions, of which tensor cores truncate every sixteen and others
/// round each; and the result, rounded to bf16. A weight, or what combines split-KV
/// chunks, may become zero below f32's normal numbers.
Attended attend(const Step& step,
                const Sequence& sequence,
                const Cache& cache,
                const HostTensor& q,
                std::int64_t q_row,
                std::int64_t head,
                std::int64_t visible,
                const OpCaseOptions& options) {
  const double weight_error = options.attention_weight_error;
  const std::int64_t width = step.heads.width;
  const std::int64_t kv_head = head / (step.heads.query_heads / step.heads.kv_heads);
  const std::vector<double> query = head_of(q, q_row * step.heads.query_heads + head, width);
  std::vector<double> read(query.size());  // a row of k or v
  std::vector<double> scores;
  std::vector<double> score_errors;
  for (std::int64_t token = 0; token < visible; ++token) {
    const std::int64_t at = cache_row(step, sequence, token, kv_head);
    double sum = 0.0;
    double magnitude = 0.0;
    cache.k.read(at * width, read);
    for (std::size_t i = 0; i < read.size(); ++i) {
      const double product = query[i] * read[i];
      sum += product;
      magnitude += std::fabs(product);
    }
    const double scale = (step.quantized ? cache.k_scales.at(at) : 1.0) / std::sqrt(double(width));
    scores.push_back(sum * scale);
    score_errors.push_back(static_cast<double>(width + 8) * 0x1p-23 * magnitude * scale);
  }
  const double largest = *std::max_element(scores.begin(), scores.end());
  double largest_scale = 0.0;
  for (std::int64_t token = 0; step.quantized && token < visible; ++token)
    largest_scale =
        std::max(largest_scale, cache.v_scales.at(cache_row(step, sequence, token, kv_head)));
  double total = 0.0;
  ErrorSum total_error;
  struct Element {
    double sum = 0.0;
    ErrorSum error;      // of the weights
    ErrorSum magnitude;  // of the terms
  };
  std::vector<Element> elements(query.size());
  for (std::int64_t token = 0; token < visible; ++token) {
    const auto t = static_cast<std::size_t>(token);
    const std::int64_t at = cache_row(step, sequence, token, kv_head);
    const double share = std::exp(scores[t] - largest);
    const double exponent_error =
        score_errors[t] + 0x1p-22 * (std::fabs(scores[t]) + std::fabs(largest)) + 0x1p-20;
    const double share_error = share * std::expm1(std::min(exponent_error, 50.0));
    total += share;
    total_error.add(share_error);
    total_error.add_uniform(share * weight_error);
    const double scale = step.quantized ? cache.v_scales.at(at) : 1.0;
    cache.v.read(at * width, read);
    for (std::size_t i = 0; i < read.size(); ++i) {
      Element& element = elements[i];
      const double code = read[i];
      const double value = scale * code;
      element.sum += share * value;
      element.error.add(share_error * std::fabs(value));
      element.error.add_uniform(share * weight_error * std::fabs(value));
      element.error.add(kTiniest * std::fabs(value));
      if (step.quantized)
        element.error.add(options.attention_weight_step * largest_scale * std::fabs(code));
      element.magnitude.add(share * std::fabs(value));
    }
  }
  const auto n = static_cast<double>(visible);
  const double accumulation = (n / 16.0 + 32.0) * 0x1p-23 + kDeviations * std::sqrt(n) * 0x1p-24;
  Attended attended;
  for (const Element& element : elements) {
    const double out = element.sum / total;
    const double before = (element.error.bound() + std::fabs(out) * total_error.bound() +
                           accumulation * (std::fabs(element.sum) + element.magnitude.bound())) /
                          total;
    attended.out.push_back(out);
    attended.bounds.push_back(before + kBf16Rounding * (std::fabs(out) + before) + 1e-37);
  }
  return attended;
}

/// `in` at one row and query head.
Attended attend_row(const bench::AttentionOperands& in,
                    std::int64_t row,
                    std::int64_t head,
                    const OpCaseOptions& options) {
  std::size_t s = 0;
  std::int64_t query = row;
  while (query >= in.step.sequences[s].queries) query -= in.step.sequences[s++].queries;
  const Sequence& sequence = in.step.sequences[s];
  return attend(in.step, sequence, in.cache, in.q, row, head,
                sequence.context - sequence.queries + query + 1, options);
}

/// Rows from `first` on are finite.
std::string check_finite(const HostTensor& out, std::int64_t first) {
  const std::int64_t width = out.shape[1];
  for (std::int64_t i = first * width; i < out.elements(); ++i)
    if (!std::isfinite(out.at(i))) return "row " + std::to_string(i / width) + " is not finite\n";
  return {};
}

Comparison compare_all_rows(const bench::AttentionOperands& in, const OpCaseOptions& options) {
  Attended all;
  std::vector<std::int64_t> rows;
  for (std::int64_t row = 0; row < in.step.tokens(); ++row) {
    rows.push_back(row);
    for (std::int64_t head = 0; head < in.step.heads.query_heads; ++head) {
      const Attended one = attend_row(in, row, head, options);
      all.out.insert(all.out.end(), one.out.begin(), one.out.end());
      all.bounds.insert(all.bounds.end(), one.bounds.begin(), one.bounds.end());
    }
  }
  return [&in, all, rows](const Results& results) {
    const HostTensor& out = results.at("out.values");
    return check_quantized(results, "out") +
           compare_bounds("out", bench::rows_of(out, rows), all.out, all.bounds,
                          in.step.heads.width) +
           check_finite(out, in.step.tokens());  // padding
  };
}

Comparison compare_some_heads(const bench::AttentionOperands& in, const OpCaseOptions& options) {
  std::vector<Attended> attended;
  for (const auto& [row, head] : in.compared)
    attended.push_back(attend_row(in, row, head, options));
  return [&in, attended](const Results& results) {
    const HostTensor& out = results.at("out.values");
    const std::int64_t width = in.step.heads.width;
    std::string faults = check_quantized(results, "out") + check_finite(out, 0);
    for (std::size_t i = 0; i < attended.size(); ++i) {
      const auto& [row, head] = in.compared[i];
      HostTensor part(DType::bf16, {1, width});
      for (std::int64_t j = 0; j < width; ++j)
        part.set(j, out.at(row * out.shape[1] + head * width + j));
      faults += compare_bounds("row " + std::to_string(row) + ", head " + std::to_string(head),
                               part, attended[i].out, attended[i].bounds, width);
    }
    return faults;
  };
}

}  // namespace

Comparison compare_reference(const std::shared_ptr<const bench::AttentionOperands>& operands,
                             const OpCaseOptions& options) {
  const bench::AttentionOperands& in = *operands;
  return in.compared.empty() ? compare_all_rows(in, options) : compare_some_heads(in, options);
}

}  // namespace koho::testing
