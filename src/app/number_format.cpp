// SPDX-License-Identifier: Apache-2.0
#include "app/number_format.h"

#include <cstddef>

#include <fmt/core.h>

namespace koho::app {
namespace {

constexpr std::array<const char*, 4> kQuantKeys{"bf16", "fp8_channel", "fp8_tensor", "fp8_block"};
constexpr std::array<const char*, 4> kQuantTexts{"BF16", "FP8 per channel", "FP8 per tensor",
                                                 "FP8 in blocks of 128 x 128"};

}  // namespace

std::string bytes_text(std::uint64_t bytes) {
  const auto number = static_cast<double>(bytes);
  if (bytes >= 1'000'000'000) return fmt::format("{:.2f} GB", number / 1e9);
  if (bytes >= 1'000'000) return fmt::format("{:.1f} MB", number / 1e6);
  if (bytes >= 10'000) return fmt::format("{:.1f} kB", number / 1e3);
  return fmt::format("{} bytes", bytes);
}

std::string count_text(std::int64_t count) {
  const auto number = static_cast<double>(count);
  if (count >= 1'000'000'000) return fmt::format("{:.3f} B", number / 1e9);
  if (count >= 1'000'000) return fmt::format("{:.2f} M", number / 1e6);
  return std::to_string(count);
}

const char* quant_key(WeightQuant quant) {
  return kQuantKeys[static_cast<std::size_t>(quant)];
}

std::string quantization_text(const std::array<std::int64_t, 4>& linears) {
  std::string text;
  for (const std::size_t i : {1U, 2U, 3U, 0U})
    if (linears[i] > 0)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", linears[i], kQuantTexts[i]);
  return text;
}

}  // namespace koho::app
