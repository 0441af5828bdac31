// SPDX-License-Identifier: Apache-2.0
#include "cuda/gemm/choose_gemm.h"

#include <algorithm>

#include "cuda/gemm/gemm_sm90.h"
#include "cuda/gemm/prefill_token_blocks.h"

namespace koho::cuda {
namespace {

constexpr int kDecodeTokensMax = 128;  // up to here GEMMs are memory-bound, beyond compute-bound
constexpr int kManyTiles = 200;        // of 64 weight rows: CTAs enough for every multiprocessor

/// What prefill_192 and (with row scales) cuBLASLt take: an FP8 layer whose sides and rows suit
/// 16-byte vectors.
bool is_aligned_fp8_layer(const Gemm& p) {
  return p.type != TileType::bf16 && p.epilogue == Epilogue::bf16 && p.rows % 16 == 0 &&
         p.x_bytes % 16 == 0 && reinterpret_cast<std::uintptr_t>(p.x) % 16 == 0 &&
         p.x_stride_bytes % 16 == 0 && reinterpret_cast<std::uintptr_t>(p.out) % 16 == 0 &&
         p.out_stride % 8 == 0;
}

/// The ring of the swap-AB kernel. Several CTAs that share a multiprocessor let the next GEMM's
/// CTAs fill their rings while this one's multiply; one CTA with a large ring streams long widths
/// better.
int choose_swap_ab_ring(const Gemm& p, int columns, int multiprocessors) {
  constexpr int kSmall = 50 << 10;
  constexpr int kFewStages = 66 << 10;  // three stages with up to 16 tokens
  constexpr int kMiddle = 75 << 10;
  constexpr int kLarge = 100 << 10;
  constexpr int kAloneMany = 147 << 10;
  constexpr int kAloneFew = 200 << 10;
  constexpr int kShortStages = 6;
  const int ctas = p.tiles * p.split_k;
  const int ctas_per_sm = ceil_div(ctas, multiprocessors);
  // NOTE: 18,944 rows are 296 tiles. With room for three CTAs on each of 132 multiprocessors they
  // took 51 us, with room for two 46.
  if (p.type == TileType::bf16) return columns > 32 ? kSmall : ctas_per_sm <= 3 ? kLarge : kMiddle;
  const bool many = columns >= 64;
  const int stages = ceil_div(p.width_bytes, p.split_k * kStageWidth);
  const bool fills_gpu_once = ctas <= multiprocessors && ctas * 20 >= multiprocessors * 19;
  if (p.split_k > 1 && stages <= kShortStages && columns == 8)
    return stages == 5 ? kFewStages : kMiddle;
  if (stages == 5 && !many) return kMiddle;
  if (stages > kShortStages && fills_gpu_once) return many ? kAloneMany : kAloneFew;
  // NOTE: room for as many CTAs as each multiprocessor is to have, and for no more. With room for
  // four, some multiprocessors got four and others two: 24,576 rows took 33 us, not 29.
  constexpr int kSharedOfSm = 228 << 10;
  const int beside_ring = (p.split_k > 1 ? 11 : 4) << 10;
  return std::min(kLarge, kSharedOfSm / ctas_per_sm - beside_ring);
}

/// From here on multicast saves more than a cluster's start costs.
constexpr int kMulticastRows = 48;

/// More than 128 tokens: of the configurations whose CTAs all run at once, on more than a third of
/// the multiprocessors, the one with the fewest operand bytes a CTA, since these limit it (an SM
/// reads some 50 bytes a cycle from L2); else one of 0 rows.
DecodeGemmConfig choose_unswapped_many(const Gemm& p, int multiprocessors) {
  DecodeGemmConfig best;
  int best_rows = 0;  // of weights and tokens
  for (const UnswappedConfig& of : kUnswappedConfigs) {
    const DecodeGemmConfig& config = of.config;
    const int token_blocks = num_token_blocks_of(config, p.tokens);
    const bool pairs =
        config.columns == 64 && token_blocks % 2 == 0 && config.rows >= kMulticastRows;
    if (of.type != p.type || is_persistent(config) || config.ctas_per_sm > 1 ||
        token_blocks > kUnswappedTokenBlocksMax || config.weight_multicast != (pairs ? 2 : 1))
      continue;
    const int ctas = ceil_div(p.rows, config.rows) * token_blocks;
    if (ctas > multiprocessors || ctas * 3 <= multiprocessors) continue;
    const int rows = config.rows + tokens_per_cta(config, p.tokens);
    if (best.rows > 0 && rows >= best_rows) continue;
    best = config;
    best_rows = rows;
  }
  return best;
}

/// The first configuration whose CTAs all run at once on most multiprocessors; else one of 0 rows.
DecodeGemmConfig choose_unswapped_one_wave(const Gemm& p, int multiprocessors) {
  // Up to 8 stages, two CTAs per multiprocessor overlap consecutive GEMMs, which is worth more than
  // ring slots; measured with 6 stages (better) and 12 (worse).
  constexpr int kShortStages = 8;
  constexpr int kTokensMany = 33;
  const int token_blocks = ceil_div(p.tokens, 64);
  const int ctas_per_sm = p.width_bytes <= kShortStages * kStageWidth ? 2 : 1;
  for (const UnswappedConfig& of : kUnswappedConfigs) {
    const int multicast =
        ctas_per_sm == 1 && token_blocks > 1 && of.config.rows >= kMulticastRows ? 2 : 1;
    if (of.type != p.type || is_persistent(of.config) || of.config.columns != 64 ||
        of.config.weight_multicast != multicast || of.config.ctas_per_sm != ctas_per_sm)
      continue;
    const int ctas = ceil_div(p.rows, of.config.rows) * token_blocks;
    if (ctas > multiprocessors) continue;
    // With few tokens half of the unswapped MMAs are padding: only on nearly all multiprocessors.
    const bool enough =
        p.tokens < kTokensMany ? ctas * 5 >= multiprocessors * 4 : ctas * 2 > multiprocessors;
    return enough ? of.config : DecodeGemmConfig{};
  }
  return {};
}

/// Whether the portable prefill kernel takes `p` and has a work tile for every multiprocessor. Else
/// the decode kernel's smaller tiles, of split K, are faster.
bool fills_prefill_portable(const Gemm& p, int multiprocessors) {
  return prefill_portable_supports(p) &&
         ceil_div(p.tiles, 2) * ceil_div(p.tokens, kPortablePrefillTokensMax) >= multiprocessors;
}

}  // namespace

GemmKernel choose_gemm(const Gemm& p, const GemmSupport& support) {
  const bool prefill = p.tokens > kDecodeTokensMax;
  if (prefill && support.wgmma && choose_unswapped_config(p, support.multiprocessors).rows > 0)
    return GemmKernel::decode;
  if (prefill && is_aligned_fp8_layer(p)) {
    // prefill_192 sums K whole. Without cuBLASLt a row has the bits that it has in decode.
    const bool whole_k = choose_split_k(p.tiles, p.width_bytes) == 1;
    const PrefillTiling tiling = prefill_tiling(p, kPrefillTokensMax, support.multiprocessors);
    const bool faster = prefill_utilization(tiling) >= kPrefillUtilizationMin ||
                        (whole_k && prefill_waves(tiling) == 1);
    if (support.wgmma && (support.cublaslt ? faster : whole_k)) return GemmKernel::prefill_192;
    if (support.cublaslt) return GemmKernel::cublaslt;
  }
  if (prefill && support.prefill_portable && !support.wgmma &&
      fills_prefill_portable(p, support.multiprocessors))
    return GemmKernel::prefill_portable;
  const bool compiled = !prefill || p.type != TileType::fp8_block || p.epilogue != Epilogue::f32;
  if (!support.wgmma || !compiled) return GemmKernel::grouped_decode;
  return prefill ? GemmKernel::prefill_128 : GemmKernel::decode;
}

int choose_split_k(int tiles, int width_bytes) {
  // Measured on an H200 with 132 multiprocessors (docs/kernels/gemm.md). First choice: equal splits
  // whose CTAs are one on nearly every multiprocessor. Second: a few more CTAs than
  // multiprocessors, with at most 12 stages each. Enough tiles, or short widths of many tiles, are
  // not split: the exchange of sums costs more than idle multiprocessors.
  constexpr int kFull = 132;
  constexpr int kNearlyFull = 126;  // 95 %
  constexpr int kMoreThanFull = 136;
  constexpr int kStagesMax = 12;
  constexpr int kShortStages = 6;
  constexpr int kShortTiles = 80;
  const int stages = (width_bytes + kStageWidth - 1) / kStageWidth;
  if (tiles >= kManyTiles || (stages <= kShortStages && tiles >= kShortTiles)) return 1;
  for (int split_k = 1; split_k <= kSplitKMax && split_k <= stages; ++split_k)
    if (tiles * split_k >= kNearlyFull && tiles * split_k <= kFull && stages % split_k == 0)
      return split_k;
  for (int split_k = 1; split_k <= kSplitKMax && split_k <= stages; ++split_k)
    if (tiles * split_k >= kMoreThanFull && stages <= kStagesMax * split_k && stages % split_k == 0)
      return split_k;
  return stages < kSplitKMax ? stages : kSplitKMax;
}

int choose_token_tiles(std::int64_t tokens) {
  return tokens <= 8 ? 1 : tokens <= 16 ? 2 : tokens <= 32 ? 4 : 8;
}

DecodeGemmConfig choose_decode_gemm_config(const Gemm& p, int multiprocessors) {
  DecodeGemmConfig config = choose_unswapped_config(p, multiprocessors);
  if (config.rows > 0) return config;
  config.columns = p.tokens <= 8    ? 8
                   : p.tokens <= 16 ? 16
                   : p.tokens <= 32 ? 32
                   : p.tokens <= 64 ? 64
                                    : 128;
  config.slot_width = swap_ab_slot_width(p.type, config.columns);
  config.ring_bytes = choose_swap_ab_ring(p, config.columns, multiprocessors);
  if (p.type != TileType::bf16) config.producer_warps = p.tiles >= kManyTiles ? 1 : 2;
  return config;
}

DecodeGemmConfig choose_unswapped_config(const Gemm& p, int multiprocessors) {
  constexpr int kTokensMin = 17;
  constexpr int kTokensMinBlock = 33;
  constexpr int kTokensMinPersistentFp8 = 33;
  // NOTE: the kernel multiplies zeros beyond a short last stage, and zeros cut the bits of FP8
  // sums.
  const int tokens_min = p.type == TileType::fp8_block ? kTokensMinBlock : kTokensMin;
  if (p.tokens < tokens_min || p.width_bytes % kStageWidth != 0) return {};
  const bool bf16 = p.type == TileType::bf16;
  if (p.tokens > kDecodeTokensMax)
    return !bf16 && p.tokens <= kUnswappedTokensMax ? choose_unswapped_many(p, multiprocessors)
                                                    : DecodeGemmConfig{};
  if (!bf16) {
    const DecodeGemmConfig one_wave = choose_unswapped_one_wave(p, multiprocessors);
    if (one_wave.rows > 0) return one_wave;
  }
  if (!bf16 && p.tokens < kTokensMinPersistentFp8) return {};
  if (p.split_k > 1 || p.tiles < kManyTiles) return {};
  const int token_blocks = ceil_div(p.tokens, 64);
  // The vocabulary's 151,552 rows on one, four and eight GPUs are 7.97, 1.99 and 0.997 blocks of
  // 144 rows per multiprocessor; of 96 rows they would be 12.0, 3.0 and 1.5.
  const int rows = bf16 ? 144 : ceil_div(p.rows, 112) <= multiprocessors ? 112 : 96;
  DecodeGemmConfig config{
      .columns = token_blocks == 1 ? 64 : 128, .slot_width = kStageWidth / 2, .rows = rows};
  const int blocks = ceil_div(p.rows, rows);
  const int blocks_per_sm = ceil_div(blocks, multiprocessors);
  // Uneven shares lose to the swap-AB kernel: 24,576 rows are 1.3 such blocks per multiprocessor.
  if (bf16 && token_blocks == 1 && blocks * 8 < blocks_per_sm * multiprocessors * 7) return {};
  if (blocks_per_sm > 1) config.ctas = ceil_div(blocks, blocks_per_sm);
  return config;
}

std::vector<DecodeGemmConfig> unswapped_configs(const Gemm& p) {
  std::vector<DecodeGemmConfig> configs;
  for (const UnswappedConfig& of : kUnswappedConfigs)
    if (supports(of, p)) configs.push_back(of.config);
  return configs;
}

}  // namespace koho::cuda
