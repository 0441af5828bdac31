// SPDX-License-Identifier: Apache-2.0
#include "sampling/parameter_table.h"

#include <algorithm>

#include <fmt/core.h>

namespace koho {

std::string flag_of(const SamplingParameter& parameter) {
  std::string flag = fmt::format("--{}", parameter.name);
  std::ranges::replace(flag, '_', '-');
  return flag;
}

std::string range_text(const SamplingParameter& parameter) {
  if (!parameter.range_text.empty()) return std::string(parameter.range_text);
  const ParameterRange& range = parameter.range;
  if (parameter.type == ParameterType::boolean) return "true or false";
  if (parameter.type == ParameterType::number)
    return fmt::format("{}{}, {}]", range.above_low ? "(" : "[", range.low, range.high);
  if (range.high == kVocabularySize) return fmt::format("{} to the vocabulary size", range.low);
  return fmt::format("{}..{}", range.low, range.high);
}

std::string default_text(const SamplingParameter& parameter) {
  constexpr std::string_view kAdvice = " or the model's advice";
  const SamplingParameters neutral;
  std::string text(parameter.default_text);
  if (parameter.number != nullptr) text = fmt::format("{}", neutral.*parameter.number);
  if (parameter.integer != nullptr) text = fmt::format("{}", neutral.*parameter.integer);
  return parameter.advised ? text.append(kAdvice) : text;
}

}  // namespace koho
