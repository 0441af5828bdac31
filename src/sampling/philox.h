// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10, the counter-based generator behind every draw: the same (seed, position, token)
// gives the same bits on every machine, in every batch, on every rank. Source: Salmon et al.,
// "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 4.2; constants and test vectors
// as in their Random123 library.
#pragma once

#include <array>
#include <cstdint>

namespace koho {

inline std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                               std::uint64_t key) {
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53U;
  constexpr std::uint64_t kMultiplier1 = 0xCD9E8D57U;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9U;
  constexpr std::uint32_t kWeyl1 = 0xBB67AE85U;
  auto key0 = static_cast<std::uint32_t>(key);
  auto key1 = static_cast<std::uint32_t>(key >> 32U);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = kMultiplier0 * counter[0];
    const std::uint64_t product1 = kMultiplier1 * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32U) ^ counter[1] ^ key0,
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32U) ^ counter[3] ^ key1,
               static_cast<std::uint32_t>(product0)};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return counter;
}

/// The random bits of drawing `token` as output token number `position` under `seed`: lane token %
/// 4 of one block.
inline std::uint32_t draw_bits(std::uint64_t seed, std::int64_t position, std::int32_t token) {
  const auto place = static_cast<std::uint64_t>(position);
  const auto block = static_cast<std::uint32_t>(token) / 4;
  return philox4x32(
      {block, 0, static_cast<std::uint32_t>(place), static_cast<std::uint32_t>(place >> 32U)},
      seed)[static_cast<std::uint32_t>(token) % 4];
}

}  // namespace koho
