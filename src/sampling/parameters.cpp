// SPDX-License-Identifier: Apache-2.0
#include "sampling/parameters.h"

#include <algorithm>
#include <string_view>

#include "sampling/parameter_table.h"

namespace koho {
namespace {

/// Written so that NaN fails.
Status in_range(std::string_view name, double value, const ParameterRange& range) {
  const bool above = range.above_low ? value > range.low : value >= range.low;
  if (above && value <= range.high) return {};
  return make_field_error(ErrorCode::invalid_argument, name, "{} must be in {}{}, {}], found {}",
                          range.above_low ? "(" : "[", range.low, range.high, value);
}

Status in_range(const SamplingParameter& parameter, std::int64_t value, std::int64_t vocabulary) {
  const auto low = static_cast<std::int64_t>(parameter.range.low);
  const std::int64_t high = parameter.range.high == kVocabularySize
                                ? vocabulary
                                : static_cast<std::int64_t>(parameter.range.high);
  if (value >= low && value <= high) return {};
  if (low == -1)
    return make_field_error(ErrorCode::invalid_argument, parameter.name,
                            "{} must be -1, 0 (both off) or in 1..{}, found {}", high, value);
  return make_field_error(ErrorCode::invalid_argument, parameter.name,
                          "{} must be in {}..{}, found {}", low, high, value);
}

Status check_logit_bias(const SamplingParameters& parameters, std::int64_t vocabulary) {
  if (parameters.logit_bias.size() > static_cast<std::size_t>(kLogitBiasMax))
    return make_field_error(ErrorCode::invalid_argument, "logit_bias",
                            "{} may have at most {} entries, found {}", kLogitBiasMax,
                            parameters.logit_bias.size());
  for (const auto& [token, bias] : parameters.logit_bias) {
    if (token < 0 || token >= vocabulary)
      return make_field_error(ErrorCode::invalid_argument, "logit_bias",
                              "{} names token {}, the vocabulary has 0..{}", token, vocabulary - 1);
    KOHO_TRY(in_range("logit_bias", static_cast<double>(bias), {-100, 100}));
  }
  return {};
}

}  // namespace

Status validate(const SamplingParameters& parameters, std::int64_t vocabulary) {
  for (const SamplingParameter& row : kSamplingParameters)
    if (row.number != nullptr) KOHO_TRY(in_range(row.name, parameters.*row.number, row.range));
  for (const SamplingParameter& row : kSamplingParameters)
    if (row.integer != nullptr) KOHO_TRY(in_range(row, parameters.*row.integer, vocabulary));
  if (parameters.logprobs)
    KOHO_TRY(in_range(parameter("logprobs"), *parameters.logprobs, vocabulary));
  return check_logit_bias(parameters, vocabulary);
}

bool has_penalties(const SamplingParameters& parameters) {
  const SamplingParameters neutral;
  return std::ranges::any_of(kSamplingParameters, [&](const SamplingParameter& row) {
    return row.penalty && parameters.*row.number != neutral.*row.number;
  });
}

SamplingRow make_sampling_row(const SamplingParameters& parameters,
                              std::uint64_t seed,
                              std::int64_t output_position) {
  SamplingRow row;
  row.seed = seed;
  row.output_position = output_position;
  for (const SamplingParameter& one : kSamplingParameters)
    if (one.number != nullptr && one.row != nullptr)
      row.*one.row = static_cast<float>(parameters.*one.number);
  // Below this the division would overflow; the sampled token would be the argmax anyway.
  constexpr double kGreedyBelow = 1e-5;
  if (parameters.temperature < kGreedyBelow) row.temperature = 0.0F;
  row.top_k = parameters.top_k < 0 ? 0 : static_cast<std::int32_t>(parameters.top_k);
  row.logprobs = parameters.logprobs.value_or(-1);
  return row;
}

}  // namespace koho
