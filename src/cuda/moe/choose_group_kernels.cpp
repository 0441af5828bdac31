// SPDX-License-Identifier: Apache-2.0
// Which kernels run a group of experts. docs/kernels/experts.md has the rules as a table.
#include <algorithm>

#include "cuda/gemm/choose_gemm.h"
#include "cuda/gemm/gemm_sm90.h"
#include "cuda/moe/expert_group.h"
#include "cuda/moe/experts_down.h"

namespace koho::cuda {
namespace {

// Token-expert pairs per expert from which on the prefill kernel runs (docs/kernels/experts.md).
// The decode kernels for few experts, and for thin ones, of which a rank has a slice, last longer.
constexpr std::int64_t kPrefillRowsPerExpert = 12;
constexpr std::int64_t kPrefillRowsPerFewExperts = 24;
constexpr std::int64_t kPrefillRowsPerThinExpert = 32;
constexpr std::int64_t kPrefillRowsPerExpertPortable = 24;
constexpr std::int64_t kFewExpertsMax = 40;  // that a rank has
// Token-expert pairs per expert for which token blocks of kPrefillTokensMid are faster: nearly all
// experts need one.
constexpr std::int64_t kMidRowsLeast = 112;
constexpr std::int64_t kMidRowsMost = 140;

/// Whether experts_down.cuh is the faster kernel for the down projection of experts with weight
/// rows of `width_bytes`, `few` or many of which get tokens. It saves the kernel that quantises
/// between both GEMMs, 1 to 4 us whatever the number of experts: 20 and 40 whole experts gain 2 to
/// 4 %, 129 lose 2 %, unless there are few tokens: a step of 2, 4 and 8 gains 1.8, 3.0 and 3.4 %.
bool thin_or_few(std::int64_t width_bytes, bool few) {
  return width_bytes <= kDownThinWidth || (width_bytes <= kDownWidthMax && few);
}

/// Whether a launch_experts_down_*() runs the down projection `p` of experts of `columns` input
/// columns, for token blocks of `tiles` n8 tiles.
bool takes_experts_down(const Gemm& p, std::int64_t columns, bool few, int tiles, bool wgmma) {
  const bool is_compiled = tiles == 1 || (wgmma && tiles == 4);
  return is_compiled && thin_or_few(p.width_bytes, few) && p.type == TileType::fp8 &&
         columns % 8 == 0 && p.rows % 4 == 0 && p.bias == nullptr;
}

/// Whether launch_gemm_prefill_portable() takes both GEMMs of `group`, whose outputs lie in scratch
/// memory.
bool takes_portable_prefill(const ExpertGroup& group) {
  Gemm first = group.gate_up.parameters();
  first.epilogue = Epilogue::silu_mul;
  Gemm second = group.down.parameters();
  second.out_stride = second.rows;
  return prefill_portable_supports(first) && prefill_portable_supports(second);
}

}  // namespace

bool CudaBackend::takes_narrow(const MlpSource& expert,
                               const MlpSource& shared,
                               std::int64_t count) const {
  const LinearSource& down = expert.down;
  const auto row_scales = [](const LinearSource& source) {
    return source.quant == WeightQuant::fp8_channel || source.quant == WeightQuant::fp8_tensor;
  };
  const std::int64_t ffn = down.in_features();
  const std::int64_t shared_ffn = shared.down.in_features();
  return wgmma_ && count <= kFewExpertsMax && row_scales(expert.gate) && row_scales(down) &&
         ffn > kDownThinWidth && round_up<std::int64_t>(ffn, kTileWidthStep) <= kDownWidthMax &&
         ffn % 8 == 0 && shared_ffn < ffn && shared_ffn % 8 == 0 && down.out_features() % 4 == 0;
}

GroupKernels CudaBackend::choose_group_kernels(const GroupCall& call) const {
  const auto& [group, x, routing, tokens, first, count, total, shared] = call;
  const std::int64_t top_k = call.top_k();
  Gemm p;
  set_activation(p, activation_for(x, group.gate_up.type));
  // A token block has room for twice the tokens that an expert gets on average, so that few experts
  // need a second block: at least 32 on wgmma (smaller MMAs are not faster) or with a shared
  // expert, else 16. Exception: blocks of 8 up to 8 tokens; and, without a shared expert, up to 16
  // tokens if 8 are room enough, or up to 64 where experts_down.cuh takes them: few whole experts
  // and, on mma.sync, thin ones.
  const std::int64_t experts = std::max<std::int64_t>(total, 1);
  const std::int64_t roomy_tokens =  // twice an expert's average
      ceil_div(2 * tokens * top_k, experts);
  const bool fp8 = group.gate_up.type == TileType::fp8 && group.down.type == TileType::fp8;
  const bool few_local = count <= kFewExpertsMax;
  const bool down_fused_few = fp8 && thin_or_few(group.down.width_bytes, few_local) &&
                              (!wgmma_ || group.down.width_bytes > kDownThinWidth);
  const std::int64_t few_tokens_max = down_fused_few ? 64 : 16;
  const std::int64_t least = wgmma_ || shared ? 32 : 16;
  const bool narrow = call.narrow();
  const bool wide_shared = shared && !narrow;
  const int any_tiles =
      tokens <= 8 || (tokens <= few_tokens_max && roomy_tokens <= 8 && !wide_shared)
          ? 1
          : choose_token_tiles(std::max(std::min(tokens, roomy_tokens), least));
  const int tiles = narrow ? std::min(any_tiles, 4) : any_tiles;
  // With many rows per expert the GEMMs are compute-bound, and the prefill kernel has larger tiles.
  const std::int64_t prefill_rows = group.down.width_bytes <= kDownThinWidth
                                        ? kPrefillRowsPerThinExpert
                                    : few_local ? kPrefillRowsPerFewExperts
                                                : kPrefillRowsPerExpert;
  const std::int64_t pairs_wanted =
      (wgmma_ ? prefill_rows : kPrefillRowsPerExpertPortable) * experts;
  const std::int64_t all_pairs = tokens * top_k;
  const bool has_scales = group.gate_up.type != TileType::bf16 && group.down.type != TileType::bf16;
  const bool prefill = all_pairs >= pairs_wanted &&
                       (wgmma_ ? has_scales && p.x_bytes % 16 == 0
                               : prefill_portable_ && fp8 && takes_portable_prefill(group));
  const std::int64_t rows_each = all_pairs / experts;
  const int prefill_tokens = fp8 && rows_each >= kMidRowsLeast && rows_each <= kMidRowsMost
                                 ? kPrefillTokensMid
                                 : kPrefillTokensMax;
  // Token rows of full blocks are a fair part of the L2 traffic. A work tile of two weight tiles
  // reads them once for both.
  constexpr std::int64_t kPairTokens = 16;
  const bool pairs =
      wgmma_ && group.gate_up.type == TileType::fp8 && tiles == 4 && roomy_tokens >= kPairTokens;
  // Few tokens meet few experts; measured on sm_90a, so elsewhere one token.
  const std::int64_t few_met_tokens = wgmma_ ? 8 : 1;
  const bool few_met = few_local || (tokens <= few_met_tokens && top_k < kFewExpertsMax);
  const bool down_quantises =
      !prefill &&
      takes_experts_down(group.down.parameters(), group.down.columns, few_met, tiles, wgmma_);
  return {.prefill = prefill,
          .token_tiles = tiles,
          .block_tokens = !prefill ? 8 * tiles
                          : wgmma_ ? prefill_tokens
                                   : kPortablePrefillTokensMax,
          .block_tokens_step = !prefill ? 8 * tiles
                               : wgmma_ ? kPrefillTokenStep
                                        : kPortablePrefillTokenStep,
          .row_tiles = pairs ? 2 : 1,
          .interleave_token_blocks = down_fused_few && !wide_shared && tiles == 1,
          .down_quantises = down_quantises,
          .down_overlaps = down_quantises && tokens >= kOverlapTokens};
}

}  // namespace koho::cuda
