// SPDX-License-Identifier: Apache-2.0 sample, reset_counts and count_sampled against
// sampling/sampler.h, which defines them: ids and counts are equal, log-probabilities are within
// f32.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/arithmetic.h"
#include "ops/compare.h"
#include "ops/operator_parity.h"
#include "sampling/sampler.h"

namespace koho::testing {
namespace {

/// Whether the row samples `id` with a top_p that the backend cannot tell from its own. It compares
/// A / (A + B), the probabilities of the tokens kept and of the others, each of which it knows to
/// `error`; and each of its tokens to 2^-33 of the likeliest's besides.
bool sampled_at_threshold(
    Sampler& sampler, const SamplingRow& row, const SamplerInput& input, double error, int id) {
  if (error == 0.0 || row.top_p >= 1.0F || !input.counts.empty()) return false;
  const double top_p = row.top_p;
  // 1 % for the terms of second order.
  const double off =
      1.01 * (2.0 * error * top_p * (1.0 - top_p) + static_cast<double>(input.tokens) * 0x1p-33);
  SamplingRow moved = row;
  SamplerOutput out;
  moved.top_p = std::nextafter(static_cast<float>(top_p - off), 0.0F);
  sampler.sample(moved, input, out);
  if (out.id == id) return true;
  moved.top_p = std::min(1.0F, std::nextafter(static_cast<float>(top_p + off), 2.0F));
  sampler.sample(moved, input, out);
  return out.id == id;
}

/// How far a log-probability, logit - largest - log(sum of exp(logit - largest)), may be from the
/// reference's. A term of the sum is off by its difference's rounding, 2^-24 of that, and by an f32
/// exponential of two ulps. Weighed by the probabilities the differences are ln V on the mean at
/// most (their entropy), so the logarithm is off by 2^-24 ln V + 2^-22. The sum and the rest are in
/// f64; the result and the reference's are each rounded to f32.
double logprob_error(double logprob, std::int64_t tokens) {
  return 0x1p-24 * std::log(static_cast<double>(tokens)) + 0x1p-22 + 0x1p-23 * std::fabs(logprob);
}

/// The log-probabilities of row r, `out` being the reference's.
std::string compare_logprobs(std::int64_t r,
                             std::int64_t tokens,
                             const SamplerOutput& out,
                             const Results& results) {
  const auto differs = [&](double found, double expected) {
    return !(std::fabs(found - expected) <= logprob_error(expected, tokens));
  };
  std::string faults;
  const float logprob = results.at("logprobs").as<float>()[r];
  if (differs(logprob, out.logprob))
    faults += fmt::format("row {}: logprob {:.9g}, expected {:.9g} ± {:.3g}\n", r, logprob,
                          out.logprob, logprob_error(out.logprob, tokens));
  for (std::size_t i = 0; i < out.top_ids.size(); ++i) {
    const auto at = static_cast<std::size_t>(r * kTopLogprobsMax) + i;
    if (results.at("top_ids").as<std::int32_t>()[at] != out.top_ids[i] ||
        differs(results.at("top_logprobs").as<float>()[at], out.top_logprobs[i]))
      faults += fmt::format("row {}: alternative {} differs\n", r, i);
  }
  return faults;
}

std::string compare_sampled(const bench::SampleOperands& in,
                            const Results& results,
                            const OpCaseOptions& options) {
  const std::int64_t vocabulary = in.logits.shape[1];
  const auto v = static_cast<std::size_t>(vocabulary);
  const auto words = static_cast<std::size_t>(in.masks.shape[1]);
  Sampler sampler(vocabulary);
  SamplerOutput out;
  HostTensor counts = in.counts;
  std::string faults;
  for (std::int64_t r = 0; r < in.logits.shape[0]; ++r) {
    const SamplingRow& row = in.rows[static_cast<std::size_t>(r)];
    SamplerInput input;
    input.logits = {in.logits.as<float>() + r * vocabulary, v};
    input.tokens = in.tokens;
    if (row.bias_count > 0)
      input.biases = {in.biases.data() + row.bias_begin, static_cast<std::size_t>(row.bias_count)};
    if (row.mask_row >= 0)
      input.mask = {in.masks.as<std::int32_t>() + row.mask_row * in.masks.shape[1], words};
    if (row.counts_slot >= 0)
      input.counts = {counts.as<std::int32_t>() + row.counts_slot * vocabulary, v};
    sampler.sample(row, input, out);
    const std::int32_t id = results.at("ids").as<std::int32_t>()[r];
    if (id != out.id &&
        !sampled_at_threshold(sampler, row, input, options.sampling_weight_error, id))
      faults += fmt::format("row {}: id {}, expected {}\n", r, id, out.id);
    if (row.logprobs >= 0 && out.id >= 0) faults += compare_logprobs(r, in.tokens, out, results);
  }
  return faults + compare_bits("counts", results.at("counts.entries"), counts) +
         compare_bits("nonzero", results.at("counts.nonzero"), bench::nonzero_of(counts));
}

}  // namespace

Comparison compare_reference(const std::shared_ptr<const bench::SampleOperands>& operands,
                             const OpCaseOptions& options) {
  return [&in = *operands, &options](const Results& results) {
    return compare_sampled(in, results, options);
  };
}

Comparison compare_reference(const bench::ResetCountsOperands& operands, const OpCaseOptions&) {
  HostTensor counts = operands.entries;
  const std::int64_t vocabulary = counts.shape[1];
  std::int32_t* row = counts.as<std::int32_t>() + operands.slot * vocabulary;
  std::fill_n(row, vocabulary, 0);
  for (std::int64_t i = 0; i < operands.prompt.elements(); ++i)
    row[operands.prompt.as<std::int32_t>()[i]] |= static_cast<std::int32_t>(0x80000000U);
  for (std::int64_t i = 0; i < operands.output.elements(); ++i)
    ++row[operands.output.as<std::int32_t>()[i]];
  HostTensor nonzero = operands.nonzero;
  bench::copy_row(bench::nonzero_of(counts), operands.slot, nonzero);
  return [=](const Results& results) {
    return compare_bits("counts", results.at("counts.entries"), counts) +
           compare_bits("nonzero", results.at("counts.nonzero"), nonzero);
  };
}

Comparison compare_reference(const bench::CountSampledOperands& operands, const OpCaseOptions&) {
  HostTensor counts = operands.counts;
  for (std::size_t r = 0; r < operands.rows.size(); ++r) {
    const std::int64_t slot = operands.rows[r].counts_slot;
    if (slot >= 0 && operands.ids[r] >= 0)
      ++counts.as<std::int32_t>()[slot * counts.shape[1] + operands.ids[r]];
  }
  return [=](const Results& results) {
    return compare_bits("counts", results.at("counts.entries"), counts) +
           compare_bits("nonzero", results.at("counts.nonzero"), bench::nonzero_of(counts));
  };
}

}  // namespace koho::testing
