// SPDX-License-Identifier: Apache-2.0
// Formats numbers for people: bytes, counts, quantisation.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "ops/weights.h"

namespace koho::app {

/// "354.87 GB" (10^9), "12.3 MB", "77 bytes".
std::string bytes_text(std::uint64_t bytes);

/// "352.798 B", "9.4 M", "512".
std::string count_text(std::int64_t count);

/// "fp8_channel", "bf16", …
const char* quant_key(WeightQuant quant);

/// "42,720 FP8 per channel, 3 BF16" from counts by WeightQuant.
std::string quantization_text(const std::array<std::int64_t, 4>& linears);

}  // namespace koho::app
