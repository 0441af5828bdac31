// SPDX-License-Identifier: Apache-2.0
// The parts of the list, by theme; op_cases() joins them.
#pragma once

#include <vector>

#include "ops/op_cases.h"
#include "ops/random.h"

namespace koho::testing {

std::vector<OpCase> row_cases();
std::vector<OpCase> linear_cases();
std::vector<OpCase> attention_cases();
std::vector<OpCase> expert_cases();
std::vector<OpCase> sampling_cases();

/// Token counts that kernels trip over: none, one, around a power of two, many.
inline std::int64_t random_tokens(Random& random) {
  return random.chance(0.3) ? random.pick({1, 1, 2, 15, 16, 17, 33}) : random.integer(1, 70);
}

/// Of a chunk of a prompt: hundreds, and around powers of two.
inline std::int64_t many_tokens(Random& random) {
  return random.chance(0.5) ? random.integer(71, 300)
                            : random.pick({511, 512, 513, 1023, 1024, 1025, 4096});
}

/// Widths: around vector and block sizes, odd ones, powers of two.
inline std::int64_t random_width(Random& random) {
  return random.chance(0.5)
             ? random.pick({1, 7, 31, 32, 33, 64, 127, 128, 129, 256, 384, 511, 512, 704, 1024})
             : random.integer(1, 700);
}

/// Forms of an output, at least one of them.
inline ActivationNeeds random_needs(Random& random) {
  const std::int64_t bits = random.integer(1, 7);
  return {(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0};
}

/// The same forms, values included.
inline ActivationNeeds with_values(ActivationNeeds needs) {
  needs.values = true;
  return needs;
}

}  // namespace koho::testing
