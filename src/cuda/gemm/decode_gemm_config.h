// SPDX-License-Identifier: Apache-2.0
// How Hopper's two decode kernels for one weight matrix (up to 128 tokens; the unswapped one up to
// 512) divide their work, and the list of configurations for which the unswapped one is compiled.
// No configuration changes a result. Host code and kernels include this file; it needs no GPU.
#pragma once

#include <array>
#include <numeric>

#include "base/arithmetic.h"
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/tiled_layout.h"

namespace koho::cuda {

constexpr int kSharedMax = 227 * 1024;  // bytes of shared memory that a CTA of sm_90 may have
constexpr int kUnswappedTokenBlocksMax = 4;
constexpr int kUnswappedTokensMax = 128 * kUnswappedTokenBlocksMax;

struct DecodeGemmConfig {
  int columns = 8;           // tokens that a CTA has room for: 8, 16, 32, 64, 128
  int slot_width = 256;      // bytes of K in a slot of the shared-memory ring: 256 or 128
  int ring_bytes = 0;        // swap-AB: of the ring, at most
  int producer_warps = 1;    // swap-AB: 1, or 2 where a second one copies the token rows
  int rows = 0;              // unswapped: weight rows of a CTA; 0: the swap-AB kernel
  int ctas_per_sm = 1;       // unswapped: CTAs that share a multiprocessor, 1 or 2
  int ctas = 0;              // unswapped, persistent: CTAs along N; 0: one per block of weight rows
  int weight_multicast = 1;  // unswapped: 2 = the CTAs of two token blocks form a cluster, and each
                             // multicasts half of the weights to both
};

/// Whether a CTA of this unswapped configuration may take several blocks of weight rows in turn.
constexpr bool is_persistent(const DecodeGemmConfig& config) {
  return config.slot_width < kStageWidth && config.ctas_per_sm == 1;
}

/// Tokens of a CTA: all of them (swap-AB), or `tokens` divided as evenly as config.columns allows.
constexpr int tokens_per_cta(const DecodeGemmConfig& config, int tokens) {
  return config.rows > 0 ? ceil_div(tokens, ceil_div(tokens, config.columns)) : tokens;
}

/// Token blocks of the unswapped kernel.
constexpr int num_token_blocks_of(const DecodeGemmConfig& config, int tokens) {
  return ceil_div(tokens, tokens_per_cta(config, tokens));
}

/// The swap-AB kernel's slot_width. FP8 with many tokens takes half stages, because two or three
/// CTAs that share a multiprocessor have room for only a few whole ones.
constexpr int swap_ab_slot_width(TileType type, int columns) {
  return type != TileType::bf16 && columns >= 64 ? kStageWidth / 2 : kStageWidth;
}

/// CTAs with `rows` weight rows begin at multiples of this within tiles.
constexpr int unswapped_row_step(int rows) {
  return std::gcd(rows, kTileRows);
}

struct UnswappedConfig {
  TileType type;
  DecodeGemmConfig config;
};

/// One warpgroup and 64 tokens, stages of 256 bytes: the ring takes all of the shared memory.
constexpr UnswappedConfig unswapped_alone(int rows, int weight_multicast = 1) {
  return {TileType::fp8, {.columns = 64, .rows = rows, .weight_multicast = weight_multicast}};
}
/// Two warpgroups with 64 tokens each.
constexpr UnswappedConfig unswapped_128_tokens(int rows) {
  return {TileType::fp8, {.columns = 128, .rows = rows}};
}
/// The same with half stages, so that two CTAs fit on a multiprocessor with enough slots each.
constexpr UnswappedConfig unswapped_two_per_sm(int rows) {
  return {TileType::fp8,
          {.columns = 64, .slot_width = kStageWidth / 2, .rows = rows, .ctas_per_sm = 2}};
}
/// CTAs that may take one block of weight rows after the other.
constexpr UnswappedConfig unswapped_persistent(TileType type, int rows, int columns) {
  return {type, {.columns = columns, .slot_width = kStageWidth / 2, .rows = rows}};
}

/// What gemm_decode_unswapped_sm90.cu is compiled for, for FP8 with either scales and for bf16.
/// NOTE: within a group the fewest rows come first; choose_gemm.cpp takes the first configuration
/// whose CTAs all fit at once.
constexpr UnswappedConfig kUnswappedFp8[] = {
    unswapped_alone(24),
    unswapped_alone(32),
    unswapped_alone(40),
    unswapped_alone(48),
    unswapped_alone(56),
    unswapped_alone(96),
    unswapped_alone(48, 2),
    unswapped_alone(56, 2),
    unswapped_alone(80, 2),
    unswapped_alone(96, 2),
    unswapped_128_tokens(56),
    unswapped_128_tokens(80),
    unswapped_128_tokens(96),
    unswapped_two_per_sm(40),
    unswapped_two_per_sm(80),
    unswapped_persistent(TileType::fp8, 96, 64),
    unswapped_persistent(TileType::fp8, 112, 64),
    unswapped_persistent(TileType::fp8, 96, 128),
    unswapped_persistent(TileType::fp8, 112, 128),
};
constexpr UnswappedConfig kUnswappedBf16[] = {
    unswapped_persistent(TileType::bf16, 144, 64),
    unswapped_persistent(TileType::bf16, 144, 128),
};
constexpr auto kUnswappedConfigs = [] {
  std::array<UnswappedConfig, 2 * std::size(kUnswappedFp8) + std::size(kUnswappedBf16)> all{};
  std::size_t at = 0;
  for (const UnswappedConfig& of : kUnswappedFp8) all[at++] = of;
  for (const UnswappedConfig& of : kUnswappedBf16) all[at++] = of;
  for (const UnswappedConfig& of : kUnswappedFp8) all[at++] = {TileType::fp8_block, of.config};
  return all;
}();

/// Whether a CTA sums split-K's splits one after the other.
constexpr bool sums_splits(const UnswappedConfig& of) {
  return of.type != TileType::bf16 && (of.config.columns == 64 || !is_persistent(of.config));
}

/// Whether a compiled configuration can multiply `p`.
constexpr bool supports(const UnswappedConfig& of, const Gemm& p) {
  const int token_blocks = num_token_blocks_of(of.config, p.tokens);
  return of.type == p.type && token_blocks % of.config.weight_multicast == 0 &&
         token_blocks <= (is_persistent(of.config) ? 1 : kUnswappedTokenBlocksMax) &&
         (sums_splits(of) || p.split_k == 1);
}

}  // namespace koho::cuda
