// SPDX-License-Identifier: Apache-2.0
// What reserve() must know of experts.cpp.
#pragma once

#include <cstdint>

#include "cpu/placed.h"

namespace koho::cpu {

/// What the scratch of a layer of experts depends on.
struct ExpertWidths {
  std::int64_t experts = 0;      // without the shared one
  std::int64_t hidden = 0;       // H
  std::int64_t ffn = 0;          // F of the widest
  std::int64_t panel_bytes = 0;  // of the largest panel of tokens that a matrix reads

  ExpertWidths() = default;
  ExpertWidths(const Kernels& kernels, const PlacedExperts& placed, std::int64_t hidden_size);
  /// Becomes what suffices for both.
  void cover(const ExpertWidths& other);
};

/// Scratch of one slice of tokens whose routers choose so many experts.
std::int64_t experts_scratch_bytes(const ExpertWidths& widths,
                                   std::int64_t tokens,
                                   std::int64_t top_k);

}  // namespace koho::cpu
