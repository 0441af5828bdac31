// SPDX-License-Identifier: Apache-2.0
// The shapes and random operands of the self-test's GEMMs, and its bounds.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/gemm/gemm_sm90.h"
#include "cuda/gemm/tiled_layout.h"
#include "tensor/number.h"

namespace koho::cuda::self_test {

constexpr int kRows =
    320;  // five weight tiles: a block of four and one more; three unswapped blocks
constexpr int kColumns = 1088;  // more than four stages, the last one short
constexpr int kTokens = 61;
constexpr int kTokensTwo = 125;   // two token blocks of the unswapped kernel
constexpr int kTokensFour = 251;  // four, or two of 128 tokens
constexpr int kTokensMany = 256;  // two token blocks of the prefill kernel
static_assert(kTokensMany >= kPrefillTokensMax + kTokens);
constexpr int kOneCluster =
    2;  // multiprocessors: one cluster takes all work tiles of a prefill GEMM
constexpr int kScaleBlocks = (kColumns + kBlockWidth - 1) / kBlockWidth;
// Of relative L2: f32 sums of both kernels, where wgmma keeps fewer bits within a stage.
constexpr double kErrorMax = 2e-3;
constexpr double kErrorMaxRounded = kErrorMax + 1.0 / 256.0;  // both rounded to bf16

void append(std::vector<std::uint8_t>& bytes, BFloat16 value);

/// Random weights and activations in e4m3 (element_bytes 1) or bf16 (2), and scales around 1.
struct Operands {
  Operands(std::uint32_t seed, int element_bytes);

  std::vector<std::uint8_t> weight;       // [kRows, kColumns]
  std::vector<std::uint8_t> x;            // [kTokensMany, kColumns]
  std::vector<float> row_scales;          // [kRows]
  std::vector<float> token_scales;        // [kTokensMany]
  std::vector<float> block_scales;        // as Gemm::block_scales
  std::vector<float> token_block_scales;  // [kTokensMany, kScaleBlocks]
};

}  // namespace koho::cuda::self_test
