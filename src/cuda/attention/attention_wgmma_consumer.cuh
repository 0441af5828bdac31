// SPDX-License-Identifier: Apache-2.0
// The two consumer warpgroups of attention_wgmma.cu: the wgmma instructions, the loop over a tile's
// steps, and its rows' results.
#pragma once

#include <climits>
#include <cstdint>

#include "cuda/attention/attention_wgmma.cuh"
#include "cuda/attention/attention_wgmma_producer.cuh"
#include "cuda/attention/attention_wgmma_softmax.cuh"
#include "cuda/device/numeric.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/device/wgmma.cuh"

namespace koho::cuda {

#define KOHO_SUMS4(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define KOHO_SUMS16(i) KOHO_SUMS4(i), KOHO_SUMS4((i) + 4), KOHO_SUMS4((i) + 8), KOHO_SUMS4((i) + 12)
#define KOHO_SUMS64 KOHO_SUMS16(0), KOHO_SUMS16(16), KOHO_SUMS16(32), KOHO_SUMS16(48)
#define KOHO_NAMES64                                                                         \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"  \
  "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45," \
  "%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}"

// clang-format off
/// d[64, 128] (+)= a[64, 16] * b[128, 16]^T, both in shared memory: bf16, or f16 if `kF16`.
template <bool kF16>
__device__ __forceinline__ void wgmma_ss(float (&d)[kAccumulators], std::uint64_t a, std::uint64_t b, int add) {
  if constexpr (kF16)
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %66, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 " KOHO_NAMES64 ", %64, %65, p, 1, 1, 0, 0;\n\t}"
      : KOHO_SUMS64 : "l"(a), "l"(b), "r"(add));
  else
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %66, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " KOHO_NAMES64 ", %64, %65, p, 1, 1, 0, 0;\n\t}"
      : KOHO_SUMS64 : "l"(a), "l"(b), "r"(add));
}
/// d[64, 128] += a[64, 16] * b[16, 128], a in registers.
template <bool kF16>
__device__ __forceinline__ void wgmma_rs(float (&d)[kAccumulators], const std::uint32_t (&a)[4], std::uint64_t b) {
  if constexpr (kF16)
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 " KOHO_NAMES64 ", {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"
      : KOHO_SUMS64 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  else
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " KOHO_NAMES64 ", {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"
      : KOHO_SUMS64 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
// clang-format on

#undef KOHO_NAMES64
#undef KOHO_SUMS64
#undef KOHO_SUMS16
#undef KOHO_SUMS4

/// The descriptor of an MN-major operand, as V is, in 128-byte swizzle: blocks of 64 columns lie
/// kPanelBytes apart.
__device__ __forceinline__ std::uint64_t mn_major_operand(std::uint32_t address) {
  return (swizzle128_descriptor(address) & ~0xFFFF0000ULL) |
         (static_cast<std::uint64_t>(kPanelBytes >> 4U) << 16U);
}

/// The operand `bytes` further on. NOTE: not advance_descriptor(), which adds to the low word
/// alone; this kernel was tuned with the 64-bit addition.
__device__ __forceinline__ std::uint64_t advance(std::uint64_t operand, std::uint32_t bytes) {
  return operand + (bytes >> 4U);
}

/// Starts score = q * keys^T.
template <bool kF16>
__device__ __forceinline__ void start_qk(float (&score)[kAccumulators],
                                         std::uint64_t query,
                                         std::uint64_t keys) {
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kWidth / 16; ++k) {
    const std::uint32_t at = static_cast<std::uint32_t>(k / 4 * kPanelBytes + k % 4 * 32);
    wgmma_ss<kF16>(score, advance(query, at), advance(keys, at), k > 0 ? 1 : 0);
  }
  wgmma_commit_group();
}
/// Starts sum += weights * values.
template <bool kF16>
__device__ __forceinline__ void start_pv(float (&sum)[kAccumulators],
                                         const std::uint32_t (&weights)[kStepTokens / 16][4],
                                         std::uint64_t values) {
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kStepTokens / 16; ++k)
    wgmma_rs<kF16>(sum, weights[k], advance(values, static_cast<std::uint32_t>(k * 16 * 128)));
  wgmma_commit_group();
}

/// Waits for the MMA with V. NOTE: ptxas schedules this wait before all arithmetic of its basic
/// block that needs no MMA, and the softmax would not run while V is multiplied. The loop of the
/// other wait ends that block; V has arrived long ago.
__device__ __forceinline__ void wait_after_softmax(std::uint32_t values_full,
                                                   std::uint32_t parity) {
  mbarrier_wait(values_full, parity);
  wgmma_wait_group<0>();
}

/// Makes sums NaN in columns whose V has a NaN or infinity among the tokens that the row sees:
/// clean_values() zeroed it and left the first such token in `bad`. Integers come by reference: by
/// value, ptxas makes other code.
template <KvSource kSource>
__device__ __forceinline__ void restore_not_finite(Rows& rows,
                                                   int* const& bad,
                                                   const std::uint32_t& stage,
                                                   const int (&seen)[2],
                                                   const int& warpgroup,
                                                   const int& thread) {
  const int* columns = kSource == KvSource::fp8 ? bad : bad + stage * kWidth;
#pragma unroll
  for (int i = 0; i < kAccumulators; ++i)
    if (columns[i / 4 * 8 + thread % 4 * 2 + i % 2] < seen[i / 2 % 2]) rows.sum[i] = NAN;
  if constexpr (kSource == KvSource::fp8) {  // for the next tile
    named_barrier_sync(kCleanBarrier, kConsumerWarpgroups * kWarpgroup);
    if (warpgroup == 0) bad[thread] = INT_MAX;
    named_barrier_sync(kCleanBarrier, kConsumerWarpgroups * kWarpgroup);
  }
}

/// Cleans V of step `step` in stage `stage`, at the causal edge. Both warpgroups, which meet at a
/// barrier.
__device__ __forceinline__ void clean_edge(std::uint8_t* const& shared,
                                           int* const& bad,
                                           const std::uint32_t& stage,
                                           const int& step,
                                           const PrefillTile& tile,
                                           bool& any_bad) {
  using Plan = SharedPlan<KvSource::fp8>;
  bool found = false;
  clean_values<true, kConsumerWarpgroups * kWarpgroup>(
      EdgeStep{shared + Plan::kValues + stage * kTileBytes, bad, step * kStepTokens}, tile,
      static_cast<int>(threadIdx.x) - kWarpgroup, [&] { found = true; });
  any_bad |= named_barrier_or(kCleanBarrier, kConsumerWarpgroups * kWarpgroup, found);
}

/// Moves the rows' bases to what the scores of step `step` need. True if sums are to be scaled by
/// rows.keep.
template <bool kF16>
__device__ __forceinline__ bool update_step_bases(Rows& rows,
                                                  Fp8RowState& fp8,
                                                  float (&score)[kAccumulators],
                                                  const int& step,
                                                  const bool& masked,
                                                  const int (&seen)[2],
                                                  const StepScales* const& scales,
                                                  const float& scale) {
  CausalBounds bounds;
  bounds.masked = masked;
#pragma unroll
  for (int half = 0; half < 2; ++half) bounds.seen[half] = seen[half] - step * kStepTokens;
  if constexpr (kF16)
    return update_bases(rows, fp8, score, bounds, *scales);
  else
    return update_bases(rows, score, bounds, scale);
}

/// Computes the rows of all tiles of the CTA. Two warpgroups, 64 rows each, which multiply in
/// turns.
template <KvSource kSource>
__device__ void consume(const Attention& p,
                        std::uint8_t* shared,
                        std::uint32_t base,
                        const PipelineBarriers& barriers) {
  using Plan = SharedPlan<kSource>;
  constexpr bool kF16 = kSource != KvSource::bf16;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const int warpgroup =  // by a shuffle, so that descriptors are in uniform registers
      __shfl_sync(0xFFFFFFFFU, static_cast<int>(threadIdx.x) / kWarpgroup, 0) - 1;
  const int row = warpgroup * (kRows / kConsumerWarpgroups) + thread / 32 * 16 + thread % 32 / 4;
  const std::uint64_t query = swizzle128_descriptor(
      base + Plan::kQuery +
      static_cast<std::uint32_t>(warpgroup * (kRows / kConsumerWarpgroups) * 128));
  const std::uint64_t keys_operand = swizzle128_descriptor(base + Plan::kKeys);
  const std::uint64_t values_operand = mn_major_operand(base + Plan::kValues);
  const float scale = kLog2E / sqrtf(static_cast<float>(kWidth));
  const auto* tiles = reinterpret_cast<const PrefillTile*>(shared + Plan::kTiles);
  const auto* scales = reinterpret_cast<const StepScales*>(shared + Plan::kScales);
  int* bad = reinterpret_cast<int*>(shared + Plan::kBad);
  const std::uint32_t query_full = barriers.query_full + 8 * static_cast<std::uint32_t>(warpgroup);
  const std::uint32_t query_empty =
      barriers.query_empty + 8 * static_cast<std::uint32_t>(warpgroup);
  const int my_turn = kWarpgroupOrderBarrier + warpgroup;
  const int other_turn = kWarpgroupOrderBarrier + 1 - warpgroup;
  if (warpgroup == 1) named_barrier_arrive(other_turn, kConsumerWarpgroups * kWarpgroup);
  PipelineState<kTileSlots> tile_at;
  PipelineState<1> query_at;
  KvStage keys, values;
  PipelineState<kScaleSlots> scale_at;
  float score[kAccumulators];
  std::uint32_t weights[kStepTokens / 16][4];

  const auto next_steps = [&] {
    mbarrier_wait(barriers.tile_full + 8 * tile_at.stage, tile_at.parity);
    return tiles[tile_at.stage].steps;
  };
#pragma unroll 1
  for (int steps = next_steps(); steps > 0; steps = next_steps()) {
    const PrefillTile& tile = tiles[tile_at.stage];
    const int least = tile.least;
    int seen[2];  // tokens that the row sees
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int packed = tile.first_row + row + half * 8;
      seen[half] = packed < tile.rows_total ? seen_by(tile, packed) : 0;
    }
    if constexpr (kSource == KvSource::fp8)
      load_queries(p, tile, shared + Plan::kQuery, warpgroup, thread);
    else
      mbarrier_wait(query_full, query_at.parity);
    query_at.next();
    Rows rows;
    Fp8RowState fp8;
    bool any_bad = false;
    const auto masked = [&](int step) { return (step + 1) * kStepTokens > least; };
    const auto values_ready = [&](int step) {
      mbarrier_wait(barriers.values_full + 8 * values.stage, values.parity);
      if constexpr (kSource == KvSource::fp8) {
        if (!masked(step)) return;
        clean_edge(shared, bad, values.stage, step, tile, any_bad);
      }
    };
    // True if sums are to be scaled by rows.keep.
    const auto update_max = [&](int step) {
      return update_step_bases<kF16>(rows, fp8, score, step, masked(step), seen,
                                     scales + scale_at.stage, scale);
    };
    const auto softmax_step = [&] {
      softmax_weights<kF16>(rows, score, scale, scales + scale_at.stage);
      scale_at.next();
    };
    const auto issue_qk = [&] {
      start_qk<kF16>(score, query, advance(keys_operand, keys.stage * kTileBytes));
    };
    const auto issue_pv = [&] {
      start_pv<kF16>(rows.sum, weights, advance(values_operand, values.stage * kTileBytes));
    };
    const auto scored = [&](int step) {
      mbarrier_arrive(barriers.keys_empty + 8 * keys.stage);
      keys.next();
      if (kSource != KvSource::fp8 && step + 1 == steps) mbarrier_arrive(query_empty);
    };
    mbarrier_wait(barriers.keys_full + 8 * keys.stage, keys.parity);
    issue_qk();
    wgmma_wait_group<0>();
    scored(0);
    update_max(0);  // there are no sums yet
    softmax_step();
    pack_weights<kF16>(weights, score);
#pragma unroll 1
    for (int step = 1; step < steps; ++step) {
      values_ready(step - 1);
      mbarrier_wait(barriers.keys_full + 8 * keys.stage, keys.parity);
      named_barrier_sync(my_turn, kConsumerWarpgroups * kWarpgroup);
      issue_qk();
      issue_pv();
      named_barrier_arrive(other_turn, kConsumerWarpgroups * kWarpgroup);
      wgmma_wait_group<1>();
      scored(step);
      const bool moved = update_max(step);
      softmax_step();
      wait_after_softmax(barriers.values_full + 8 * values.stage, values.parity);
      mbarrier_arrive(barriers.values_empty + 8 * values.stage);
      values.next();
      if (moved) rescale(rows);
      pack_weights<kF16>(weights, score);
    }
    values_ready(steps - 1);
    issue_pv();
    wgmma_wait_group<0>();
    mbarrier_arrive(barriers.values_empty + 8 * values.stage);
    values.next();

    if constexpr (kSource != KvSource::fp8)
      any_bad = *const_cast<const volatile int*>(&tile.any_bad) != 0;
    if (any_bad) restore_not_finite<kSource>(rows, bad, tile_at.stage, seen, warpgroup, thread);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int packed = tile.first_row + row + half * 8;
      float total = rows.total[half];
      total += __shfl_xor_sync(0xFFFFFFFFU, total, 1);
      total += __shfl_xor_sync(0xFFFFFFFFU, total, 2);
      const float factor = 1.0F / total;
      Bf16* out =
          p.out + (static_cast<std::int64_t>(tile.start + packed / tile.group) * p.query_heads +
                   tile.kv_head * tile.group + packed % tile.group) *
                      kWidth;
#pragma unroll
      for (int i = 0; i < kAccumulators / 4; i += 4) {
        std::uint32_t words[4];
#pragma unroll
        for (int j = 0; j < 4; ++j)
          words[j] = pack_bf16(rows.sum[(i + j) * 4 + half * 2] * factor,
                               rows.sum[(i + j) * 4 + half * 2 + 1] * factor);
        const uint4 eight = quad_transpose(words);
        if (packed < tile.rows_total) *reinterpret_cast<uint4*>(out + (i + thread % 4) * 8) = eight;
      }
    }
    mbarrier_arrive(barriers.tile_empty + 8 * tile_at.stage);
    tile_at.next();
  }
}

}  // namespace koho::cuda
