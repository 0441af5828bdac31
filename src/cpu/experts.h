// SPDX-License-Identifier: Apache-2.0
// The scratch memory of experts.cpp, which CpuBackend::reserve sizes.
#pragma once

#include <cstdint>

#include "cpu/placed.h"

namespace koho::cpu {

/// The sizes that decide the scratch memory of a layer's experts.
struct ExpertWidths {
  std::int64_t experts = 0;      // without the shared one
  std::int64_t hidden = 0;       // H
  std::int64_t ffn = 0;          // F of the widest
  std::int64_t panel_bytes = 0;  // of the largest panel of tokens that a matrix reads

  ExpertWidths() = default;
  ExpertWidths(const Kernels& kernels, const PlacedExperts& placed, std::int64_t hidden_size);
  /// Raises each size to the other's, so that the scratch suffices for both.
  void cover(const ExpertWidths& other);
};

/// Bytes of scratch memory for a slice of `tokens` tokens with `top_k` experts each.
std::int64_t experts_scratch_bytes(const ExpertWidths& widths,
                                   std::int64_t tokens,
                                   std::int64_t top_k);

}  // namespace koho::cpu
