// SPDX-License-Identifier: Apache-2.0
#include "bench/operators/operator_case.h"

#include <algorithm>
#include <cmath>

namespace koho::bench {

const std::vector<OperatorCase>& operator_cases() {
  static const std::vector<OperatorCase> kCases = [] {
    std::vector<OperatorCase> all;
    for (const auto& part : {linear_cases(), expert_cases(), attention_cases(),
                             qk_norm_rope_cases(), norm_cases(), router_cases(), lookup_cases(),
                             batch_slot_cases(), page_and_count_cases(), sampling_cases()})
      all.insert(all.end(), part.begin(), part.end());
    return all;
  }();
  return kCases;
}

OutputTolerance bf16_tolerance(double l2, int roundings) {
  constexpr double kBf16Step = 0x1p-7;  // in parts of the least number of its binade
  return {.bits = false, .l2 = l2, .of_largest = roundings * kBf16Step};
}

OutputTolerance quantized_tolerance(double error) {
  // Steps of e4m3 are at most 1/8 of a value. A value that is off by d is rounded to another e4m3
  // value with probability d / step, and is then off by a step: in the mean square d * step.
  constexpr double kStep = 0x1p-3;
  constexpr double kDeviations = 7.0;
  return {.bits = false,
          .l2 = std::sqrt(error * kStep + error * error),
          .of_element = kStep,
          .of_largest = kDeviations * error};
}

std::int64_t most_of(const Rows& tokens) {
  return *std::max_element(tokens.begin(), tokens.end());
}

std::int64_t copies_of(double bytes, double rotated, std::int64_t most) {
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(rotated / bytes), 1, most);
}

std::vector<OpOutput> activation_outputs(const Sides<Activation>& out,
                                         std::int64_t tokens,
                                         const OutputTolerance& values,
                                         const OutputTolerance& quantized) {
  std::vector<OpOutput> outputs;
  const auto views = [&](auto member) {
    return first({out.measured.*member, out.reference.*member}, tokens);
  };
  if (!out.measured.values.empty())
    outputs.push_back(
        {.name = "out.values", .view = views(&Activation::values), .tolerance = values});
  if (!out.measured.quantized.empty())
    outputs.push_back({.name = "out.quantized",
                       .view = views(&Activation::quantized),
                       .scales = views(&Activation::scales),
                       .tolerance = quantized});
  if (!out.measured.block_quantized.empty())
    outputs.push_back({.name = "out.block_quantized",
                       .view = views(&Activation::block_quantized),
                       .scales = views(&Activation::block_scales),
                       .tolerance = quantized});
  return outputs;
}

RowShape random_row_shape(Random& random, bool many) {
  const std::int64_t tokens = many ? many_tokens(random) : random_tokens(random);
  return {tokens, tokens > 600 ? random.integer(1, 256) : random_width(random)};
}

HostTensor random_indices(Random& random, std::int64_t count, std::int64_t size) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(count));
  for (std::int64_t& value : values) value = random.integer(0, size - 1);
  return integers(DType::i32, values);
}

std::int64_t random_tokens(Random& random) {
  return random.chance(0.3) ? random.pick({1, 1, 2, 15, 16, 17, 33}) : random.integer(1, 70);
}

std::int64_t many_tokens(Random& random) {
  return random.chance(0.5) ? random.integer(71, 300)
                            : random.pick({511, 512, 513, 1023, 1024, 1025, 4096});
}

std::int64_t random_width(Random& random) {
  return random.chance(0.5)
             ? random.pick({1, 7, 31, 32, 33, 64, 127, 128, 129, 256, 384, 511, 512, 704, 1024})
             : random.integer(1, 700);
}

ActivationNeeds random_needs(Random& random) {
  const std::int64_t bits = random.integer(1, 7);
  return {(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0};
}

ActivationNeeds with_values(ActivationNeeds needs) {
  needs.values = true;
  return needs;
}

WeightQuant random_quant(Random& random) {
  return static_cast<WeightQuant>(random.integer(0, 3));
}

}  // namespace koho::bench
