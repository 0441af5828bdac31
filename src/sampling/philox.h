// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10, the counter-based generator behind every draw: the same seed, position and token,
// or group of tokens, give the same bits on every machine, in every batch, on every rank. Source:
// Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 4.2; constants and
// test vectors as in their Random123 library.
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

/// The random bits of `token` as output token number `position` under `seed`: word token % 4 of one
/// block.
inline std::uint32_t draw_bits(std::uint64_t seed, std::int64_t position, std::int32_t token) {
  const auto place = static_cast<std::uint64_t>(position);
  const auto block = static_cast<std::uint32_t>(token) / 4;
  return philox4x32(
      {block, 0, static_cast<std::uint32_t>(place), static_cast<std::uint32_t>(place >> 32U)},
      seed)[static_cast<std::uint32_t>(token) % 4];
}

// A draw is an exponential race: token t arrives at an exponential time divided by its probability,
// and the first to arrive wins. This is Gumbel-max, with -log(time) as the noise added to a logit.
// Tokens run in groups of 16. The earliest of 16 exponential times is 1/16 of one exponential
// variable; each member has it with the same probability, and the others arrive after it by an
// exponential time of their own, because exponential times have no memory. So a group whose
// earliest time cannot win needs no more random bits, and the tokens' times are independent all the
// same.
inline constexpr std::int32_t kRaceGroup = 16;
/// 32 groups lie in a block of 512 tokens: group g has tokens 128 k + 4 g + c for k and c from 0 to
/// 3, its members 4 k + c. So the 32 lanes of a warp read contiguous memory.
inline constexpr std::int32_t kRaceBlock = 512;

inline constexpr std::int32_t race_group(std::int32_t token) {
  return token / kRaceBlock * (kRaceBlock / kRaceGroup) + token / 4 % 32;
}
inline constexpr std::int32_t race_groups(std::int32_t tokens) {
  return (tokens + kRaceBlock - 1) / kRaceBlock * (kRaceBlock / kRaceGroup);
}
inline constexpr std::int32_t race_member(std::int32_t token) {
  return token / 128 % 4 * 4 + token % 4;
}
inline constexpr std::int32_t race_token(std::int32_t group, std::int32_t member) {
  return group / 32 * kRaceBlock + member / 4 * 128 + group % 32 * 4 + member % 4;
}

/// A bitmap over a row's tokens, 16 bits a group, one a member, two groups a word: the word and the
/// bit of a token.
inline constexpr std::int32_t race_bitmap_words(std::int32_t tokens) {
  return race_groups(tokens) / 2;
}
inline constexpr std::int32_t race_bitmap_word(std::int32_t token) {
  return race_group(token) / 2;
}
inline constexpr std::uint32_t race_bitmap_bit(std::int32_t token) {
  return 1U << (race_group(token) % 2 * kRaceGroup + race_member(token));
}

/// A group's random bits: those of its earliest time, and which member has it.
struct RaceDraw {
  std::uint32_t bits;
  std::int32_t member;
};
inline RaceDraw race_draw(std::uint64_t seed, std::int64_t position, std::int32_t group) {
  const auto place = static_cast<std::uint64_t>(position);
  const auto words =
      philox4x32({static_cast<std::uint32_t>(group), 1, static_cast<std::uint32_t>(place),
                  static_cast<std::uint32_t>(place >> 32U)},
                 seed);
  return {words[0], static_cast<std::int32_t>(words[1] % kRaceGroup)};
}

}  // namespace koho
