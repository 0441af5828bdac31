// SPDX-License-Identifier: Apache-2.0
// The element types of a GEMM's operands, and where the scales of FP8 values lie.
#pragma once

#include <cstdint>

namespace koho::cuda {

enum class TileType : std::uint8_t {
  bf16,
  fp8,       // e4m3; one scale per weight row and one per token
  fp8_block  // e4m3; one scale per 128 columns of a token and per 128 x 128 weights
};

}  // namespace koho::cuda
