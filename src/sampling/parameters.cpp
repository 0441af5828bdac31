// SPDX-License-Identifier: Apache-2.0
#include "sampling/parameters.h"

#include <string_view>

namespace koho {
namespace {

/// A number in low..high, or above low if `open`. Written so that NaN fails.
Status in_range(std::string_view field, double value, double low, double high, bool open = false) {
  const bool above = open ? value > low : value >= low;
  if (above && value <= high) return {};
  return make_error(ErrorCode::invalid_argument, "{} must be in {}{}, {}], found {}", field,
                    open ? "(" : "[", low, high, value);
}

}  // namespace

Status validate(const SamplingParameters& parameters, std::int64_t vocabulary) {
  KOHO_TRY(in_range("temperature", parameters.temperature, 0, 2));
  KOHO_TRY(in_range("top_p", parameters.top_p, 0, 1, true));
  KOHO_TRY(in_range("min_p", parameters.min_p, 0, 1));
  KOHO_TRY(in_range("repetition_penalty", parameters.repetition_penalty, 0, 2, true));
  KOHO_TRY(in_range("frequency_penalty", parameters.frequency_penalty, -2, 2));
  KOHO_TRY(in_range("presence_penalty", parameters.presence_penalty, -2, 2));
  if (parameters.top_k < -1 || parameters.top_k > vocabulary)
    return make_error(ErrorCode::invalid_argument,
                      "top_k must be -1, 0 (both off) or in 1..{}, found {}", vocabulary,
                      parameters.top_k);
  if (parameters.logprobs && (*parameters.logprobs < 0 || *parameters.logprobs > kTopLogprobsMax))
    return make_error(ErrorCode::invalid_argument, "logprobs must be in 0..{}, found {}",
                      kTopLogprobsMax, *parameters.logprobs);
  if (parameters.logit_bias.size() > static_cast<std::size_t>(kLogitBiasMax))
    return make_error(ErrorCode::invalid_argument, "logit_bias may have {} entries, found {}",
                      kLogitBiasMax, parameters.logit_bias.size());
  for (const auto& [token, bias] : parameters.logit_bias) {
    if (token < 0 || token >= vocabulary)
      return make_error(ErrorCode::invalid_argument,
                        "logit_bias names token {}, the vocabulary has 0..{}", token,
                        vocabulary - 1);
    KOHO_TRY(in_range("logit_bias", static_cast<double>(bias), -100, 100));
  }
  return {};
}

SamplingRow make_sampling_row(const SamplingParameters& parameters,
                              std::uint64_t seed,
                              std::int64_t output_position) {
  SamplingRow row;
  row.seed = seed;
  row.output_position = output_position;
  // Below this the division would overflow; the draw would be the argmax anyway.
  constexpr double kGreedyBelow = 1e-5;
  row.temperature =
      parameters.temperature < kGreedyBelow ? 0.0F : static_cast<float>(parameters.temperature);
  row.top_p = static_cast<float>(parameters.top_p);
  row.min_p = static_cast<float>(parameters.min_p);
  row.repetition_penalty = static_cast<float>(parameters.repetition_penalty);
  row.frequency_penalty = static_cast<float>(parameters.frequency_penalty);
  row.presence_penalty = static_cast<float>(parameters.presence_penalty);
  row.top_k = parameters.top_k < 0 ? 0 : static_cast<std::int32_t>(parameters.top_k);
  row.logprobs = parameters.logprobs.value_or(-1);
  return row;
}

}  // namespace koho
