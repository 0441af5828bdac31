// SPDX-License-Identifier: Apache-2.0
// What reserve() must know of experts.cpp.
#pragma once

#include <cstdint>

#include "cpu/placed.h"

namespace koho::cpu {

/// Scratch of one slice of tokens whose routers choose up to 16 of these experts.
std::int64_t experts_scratch_bytes(const Kernels& kernels,
                                   const PlacedExperts& placed,
                                   std::int64_t hidden);

}  // namespace koho::cpu
