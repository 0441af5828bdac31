// SPDX-License-Identifier: Apache-2.0
// Decode GEMM of one weight matrix on Hopper, swap-AB: weight rows are the MMA's M, up to 128
// tokens its N (launch_gemm_decode_swap_ab_sm90 in gemm_sm90.h).
//
//   grid     one CTA per tile of 64 weight rows and split of K; the split_k CTAs of a tile are a
//            cluster
//   roles    one producer warp copies weights (bulk copies of tiles, before it waits for the
//            previous kernel) and token rows (TMA boxes of 128 bytes of K, swizzled), or two warps
//            one each. One or two MMA warpgroups (wgmma m64nXk32) have half of the tokens each
//   sums     fp8: each stage of 256 bytes of K is summed by itself and added in f32. Block scales:
//            each 128 bytes, scaled. bf16: one chain of MMAs (kChained). The CTA that owns a weight
//            row adds the splits' sums in rank order, through DSMEM. Neither depends on the number
//            of tokens or on the configuration, so a row's bits do not
//   shared   barriers and scales · received sums · ring of slots of kSlotWidth * (64 + kTileTokens)
//            bytes
//   bytes    weights once from memory; tokens once per tile from L2
//   files    gemm_decode_swap_ab_sm90_plan.cuh, _producer.cuh, _blocks.cuh (the mainloop of block
//            scales); here MMA warps, epilogue and launcher
//
// docs/kernels/gemm.md: when it runs, how fast, and what was tried.
#include <algorithm>

#include "base/arithmetic.h"
#include "cuda/device/launch.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/device/wgmma.cuh"
#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/gemm_decode_swap_ab_sm90_blocks.cuh"
#include "cuda/gemm/gemm_decode_swap_ab_sm90_plan.cuh"
#include "cuda/gemm/gemm_decode_swap_ab_sm90_producer.cuh"
#include "cuda/gemm/gemm_sm90.h"

namespace koho::cuda {
namespace swap_ab {
namespace {

template <TileType kType, int kTileTokens, int kSlotWidth>
__global__ void __launch_bounds__(SwapAbPlan<kTileTokens, kSlotWidth>::kThreadsMax)
    gemm_decode_swap_ab_kernel(const __grid_constant__ Gemm p,
                               const __grid_constant__ CUtensorMap x_map,
                               const SwapAbLaunch launch) {
  using Plan = SwapAbPlan<kTileTokens, kSlotWidth>;
  constexpr int kConsumers = Plan::kConsumers;
  constexpr int kEach = Plan::kEach;
  constexpr int kHalves = kStageWidth / kSlotWidth;
  extern __shared__ std::uint8_t unaligned[];
  std::uint8_t* shared = unaligned + (1024U - shared_address(unaligned) % 1024U) % 1024U;
  const int ctas = p.split_k;  // of a cluster
  const int ring_begin = Plan::ring_begin(ctas);
  const std::uint32_t full = shared_address(shared);
  const SwapAbRing ring{full, full + 8U * kRingSlotsMax,
                        shared_address(shared) + static_cast<std::uint32_t>(ring_begin),
                        launch.slots};
  const std::uint32_t received = ring.empty + 8U * kRingSlotsMax;
  auto* row_scales = reinterpret_cast<float*>(shared + kBarrierBytes);
  float* bias = row_scales + kTileRows;
  float* x_scales = bias + kTileRows;
  std::uint8_t* sums =
      Plan::kReuseRing ? shared + ring_begin : shared + kBarrierBytes + Plan::kScaleBytes;

  const int thread = static_cast<int>(threadIdx.x);
  const int warp = warp_index();
  const SwapAbCtaTile cta(p);
  const int first_row = cta.block * kTileRows;
  const int owned_first = first_group(cta.split, ctas);
  const int owned = first_group(cta.split + 1, ctas) - owned_first;

  if (thread == 0) {
    for (int slot = 0; slot < launch.slots; ++slot) {
      mbarrier_init(ring.full + 8U * static_cast<std::uint32_t>(slot), 2);
      mbarrier_init(ring.empty + 8U * static_cast<std::uint32_t>(slot), kConsumers / 32);
    }
    mbarrier_init(received, 1);
    fence_mbarrier_init();
    // NOTE: correctness does not need this fence, as the one above orders the barriers for TMA and
    // for the cluster. But with it 5120x3072 takes 5.0 us at 16 tokens, without it 5.6, and a delay
    // of the same length does not help.
    fence_proxy_async();
    if (ctas > 1)  // the sums of all other CTAs
      mbarrier_arrive_expect_tx(
          received, static_cast<std::uint32_t>((ctas - 1) * owned * Plan::kTiles * 512));
  }
  __syncthreads();
  // NOTE: all warps arrive here: under compute-sanitizer a warp's arrival waits for the CTA's other
  // warps.
  if (!Plan::kReuseRing && ctas > 1) cluster_arrive();
  if (warp >= kConsumers / 32) {  // ---- the producer warps
    if (elect_one()) {
      const std::uint64_t policy = evict_first_policy();
      if (launch.producer_warps == 1)
        produce_operands<kTileTokens, kSlotWidth, true, true>(p, x_map, cta, ring,
                                                              launch.releases_late, policy);
      else if (warp == kConsumers / 32)
        produce_operands<kTileTokens, kSlotWidth, true, false>(p, x_map, cta, ring, false, policy);
      else
        produce_operands<kTileTokens, kSlotWidth, false, true>(p, x_map, cta, ring,
                                                               launch.releases_late, policy);
    }
    return;  // NOTE: at once, or ptxas puts every copy into a loop over lanes
  }

  // ---- the MMA warps
  for (int i = thread; i < kTileRows; i += kConsumers) {
    const int n = first_row + i;
    row_scales[i] = kType == TileType::fp8 && n < p.rows ? p.row_scales[n] : 1.0F;
    bias[i] = p.bias != nullptr && n < p.rows ? to_float(p.bias[n]) : 0.0F;
  }
  wait_on_dependent_grids();
  if (!launch.releases_late) launch_dependent_grids();
  for (int i = thread; i < kTileTokens; i += kConsumers)
    x_scales[i] = kType == TileType::fp8 && i < p.tokens ? p.x_scales[i] : 1.0F;

  const int first_tile = warp / 4 * kEach;
  float sum[kEach][4] = {};
  {
    const std::uint64_t weights = core_matrix_descriptor(ring.slots, 1024U);
    const std::uint64_t token_rows =
        swizzle128_descriptor(ring.slots + static_cast<std::uint32_t>(
                                               Plan::kWeightBytes + first_tile * 8 * kTmaBoxBytes));
    int slot = 0;
    std::uint32_t phase = 0;
    const auto advance = [&] {
      if (++slot == launch.slots) {
        slot = 0;
        phase ^= 1U;
      }
    };
    const auto release = [&](int of) {
      if (thread % 32 == 0) mbarrier_arrive(ring.empty + 8U * static_cast<std::uint32_t>(of));
    };
    // Multiplies 32 bytes of K from the slot.
    const auto step = [&](float(&partial)[kEach][4], int i, bool accumulate) {
      const auto at = static_cast<std::uint32_t>(slot * Plan::kSlot);
      wgmma<kType, 8 * kEach>(
          &partial[0][0],
          advance_descriptor(advance_descriptor(weights, at),
                             static_cast<std::uint32_t>(i) * 2048U),
          advance_descriptor(advance_descriptor(token_rows, at),
                             static_cast<std::uint32_t>(i / 4 * kTmaBoxBytes * kTileTokens +
                                                        i % 4 * kTileWidthStep)),
          accumulate ? 1 : 0);
    };
    // Adds a stage's sums.
    const auto add = [&](const float(&partial)[kEach][4]) {
#pragma unroll
      for (int tile = 0; tile < kEach; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[tile][i] += partial[tile][i];
    };
    // Issues the MMAs of a slot and returns the slot.
    const auto issue = [&](float(&partial)[kEach][4], bool accumulate) {
      const int issued = slot;
      mbarrier_wait(ring.full + 8U * static_cast<std::uint32_t>(slot), phase);
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < kSlotWidth / kTileWidthStep; ++i) step(partial, i, accumulate || i > 0);
      wgmma_commit_group();
      advance();
      return issued;
    };
    const int whole_end = min(cta.end, p.width_bytes / kStageWidth);
    if constexpr (kType == TileType::fp8_block) {
      multiply_blocks<kTileTokens, kSlotWidth>(p, cta, ring, first_tile, weights, token_rows, sum);
    } else if constexpr (kChained<kType>) {
      // NOTE: a warp releases a slot before it issues the next slot's MMAs. The other order held
      // the slot until the next one's bytes were there: 1 % slower.
      for (int k_tile = (whole_end - cta.begin) * kHalves; k_tile > 0; --k_tile) {
        const int issued = issue(sum, true);
        wgmma_wait_group<0>();
        release(issued);
      }
    } else {
      for (int stage = cta.begin; stage < whole_end; ++stage) {
        float partial[kEach][4];
        int held[kHalves];
#pragma unroll
        for (int half = 0; half < kHalves; ++half) held[half] = issue(partial, half > 0);
        if constexpr (kHalves > 1) {
          wgmma_wait_group<1>();
          release(held[0]);
        }
        wgmma_wait_group<0>();
        release(held[kHalves - 1]);
        add(partial);
      }
    }
    if (kType != TileType::fp8_block && whole_end < cta.end) {  // the short stage at the end of K
      const int width = p.width_bytes - whole_end * kStageWidth;
      float partial[kEach][4] = {};
      for (int begin = 0; begin < width; begin += kSlotWidth) {
        mbarrier_wait(ring.full + 8U * static_cast<std::uint32_t>(slot), phase);
        const int steps = min(kSlotWidth, width - begin) / kTileWidthStep;
#pragma unroll 1
        for (int i = 0; i < steps; ++i) {
          wgmma_fence();
          if constexpr (kChained<kType>)
            step(sum, i, true);
          else
            step(partial, i, begin > 0 || i > 0);
          wgmma_commit_group();
          wgmma_wait_group<0>();
        }
        release(slot);
        advance();
      }
      if constexpr (!kChained<kType>) add(partial);
    }
  }

  named_barrier_sync(1, kConsumers);  // scales are there, and all sums
  const int lane = thread % 32;
  const auto scaled = [&](int group, int tile, const float(&of)[4], float(&value)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = group * 16 + lane / 4 + i / 2 * 8;
      value[i] = apply_scales<kType>(p, of[i], row_scales[row],
                                     x_scales[tile * 8 + lane % 4 * 2 + i % 2], bias[row]);
    }
  };
  const auto finish = [&](int group, int tile, const float(&of)[4]) {
    float value[4];
    scaled(group, tile, of, value);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = tile * 8 + lane % 4 * 2 + i % 2;
      const int row = group * 16 + lane / 4 + i / 2 * 8;
      if (token < p.tokens && first_row + row < p.rows)
        store_output(p, token, first_row + row, value[i]);
    }
  };
  // Stores two tiles, 16 bytes of a token's row per lane, if they are aligned.
  const bool aligned = p.epilogue == Epilogue::bf16 && first_row + kTileRows <= p.rows &&
                       p.out_stride % 8 == 0 && reinterpret_cast<std::uintptr_t>(p.out) % 16 == 0;
  const auto finish_two = [&](int group, int tile, const float(&a)[4], const float(&b)[4]) {
    std::uint32_t words[4];
    float value[4];
    scaled(group, tile, a, value);
    words[0] = movmatrix_trans(pack_bf16(value[0], value[1]));
    words[1] = movmatrix_trans(pack_bf16(value[2], value[3]));
    scaled(group, tile + 1, b, value);
    words[2] = movmatrix_trans(pack_bf16(value[0], value[1]));
    words[3] = movmatrix_trans(pack_bf16(value[2], value[3]));
    const uint4 eight = quad_transpose(words);
    const int mine = lane % 4;
    const int token = (tile + mine / 2) * 8 + lane / 4;
    if (token < p.tokens)
      *reinterpret_cast<uint4*>(static_cast<Bf16*>(p.out) + token * p.out_stride + first_row +
                                group * 16 + mine % 2 * 8) = eight;
  };
  constexpr bool kTwo = kEach >= 4;
  // Leaves this warp's sums in shared memory, tile after tile, as the MMA's fragments hold them.
  const auto put = [&](std::uint8_t* at) {
#pragma unroll
    for (int tile = 0; tile < kEach; ++tile)
      reinterpret_cast<float4*>(at)[tile * 32 + lane] =
          make_float4(sum[tile][0], sum[tile][1], sum[tile][2], sum[tile][3]);
  };
  if (ctas == 1) {
    if constexpr (!kTwo) {
#pragma unroll
      for (int tile = 0; tile < kEach; ++tile)
        if ((first_tile + tile) * 8 < p.tokens) finish(warp % 4, first_tile + tile, sum[tile]);
    } else if (aligned) {
#pragma unroll
      for (int tile = 0; tile < kEach; tile += 2) {
        if ((first_tile + tile) * 8 >= p.tokens) break;
        finish_two(warp % 4, first_tile + tile, sum[tile], sum[tile + 1]);
      }
    } else {  // through the free ring, so that the code for one tile exists once
      std::uint8_t* mine = shared + ring_begin + warp * kEach * 512;
      put(mine);
#pragma unroll 1
      for (int tile = 0; tile < kEach && (first_tile + tile) * 8 < p.tokens; ++tile) {
        const float4 four = reinterpret_cast<const float4*>(mine)[tile * 32 + lane];
        const float of[4] = {four.x, four.y, four.z, four.w};
        finish(warp % 4, first_tile + tile, of);
      }
    }
    return;
  }
  if (Plan::kReuseRing) cluster_arrive();
  cluster_wait();  // every CTA has started (or, if sums arrive in the ring, has left its mainloop)
  // Sends the sums, in the order of fragments, to the CTA that owns the rows.
  const int owner = warp % 4 * ctas / kRowGroups;
  const int owner_first = first_group(owner, ctas);
  const int owner_groups = first_group(owner + 1, ctas) - owner_first;
  const int place =
      ((cta.split * owner_groups + warp % 4 - owner_first) * Plan::kTiles + first_tile) * 512;
  if (owner == cta.split) {
    put(sums + place);
  } else {
    const auto rank = static_cast<std::uint32_t>(owner);
    const std::uint32_t remote =
        map_shared_rank(shared_address(sums) + static_cast<std::uint32_t>(place), rank);
    const std::uint32_t remote_barrier = map_shared_rank(received, rank);
    if constexpr (Plan::kBulkSums) {
      // From the ring, behind where sums may arrive.
      std::uint8_t* mine = shared + ring_begin + (Plan::kReuseRing ? Plan::sums_bytes(ctas) : 0) +
                           warp * kEach * 512;
      put(mine);
      fence_proxy_async_shared();
      __syncwarp();
      if (elect_one())
        bulk_copy_to_cluster(remote, shared_address(mine), static_cast<std::uint32_t>(kEach * 512),
                             remote_barrier);
    } else {
#pragma unroll
      for (int tile = 0; tile < kEach; ++tile)
        st_async(remote + static_cast<std::uint32_t>(tile * 512 + lane * 16),
                 make_float4(sum[tile][0], sum[tile][1], sum[tile][2], sum[tile][3]),
                 remote_barrier);
    }
  }
  if (owned > 0) {
    named_barrier_sync(1, kConsumers);  // this CTA's own sums are there
    mbarrier_wait_cluster(received, 0);
  }
  __syncwarp();
  if (Plan::kBulkSums) cluster_arrive();
  const auto add = [&](int item, float(&of)[4]) {
    const float4* from = reinterpret_cast<const float4*>(sums) + item * 32 + lane;
#pragma unroll 8
    for (int rank = 0; rank < ctas; ++rank) {
      const float4 other = from[rank * owned * Plan::kTiles * 32];
      of[0] += other.x;
      of[1] += other.y;
      of[2] += other.z;
      of[3] += other.w;
    }
  };
  constexpr int kStep = kTwo ? 2 : 1;
#pragma unroll 1
  for (int item = warp * kStep; item < owned * Plan::kTiles; item += kConsumers / 32 * kStep) {
    const int group = owned_first + item / Plan::kTiles;
    const int tile = item % Plan::kTiles;
    if (tile * 8 >= p.tokens) continue;
    float all[kStep][4] = {};
#pragma unroll
    for (int i = 0; i < kStep; ++i) add(item + i, all[i]);
    if (kTwo && aligned) {
      finish_two(group, tile, all[0], all[kStep - 1]);
    } else {
#pragma unroll
      for (int i = 0; i < kStep; ++i) finish(group, tile + i, all[i]);
    }
  }
  __syncwarp();
  if (Plan::kBulkSums) cluster_wait();  // NOTE: all copies from this CTA have arrived
}

template <TileType kType, int kTileTokens, int kSlotWidth>
cudaError_t launch_config(const Gemm& p,
                          const CUtensorMap& x_map,
                          const DecodeGemmConfig& config,
                          cudaStream_t stream) {
  using Plan = SwapAbPlan<kTileTokens, kSlotWidth>;
  const auto kernel = gemm_decode_swap_ab_kernel<kType, kTileTokens, kSlotWidth>;
  static PerDevice prepared;
  const cudaError_t ready = prepared.once([&] {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedMax);
  });
  if (ready != cudaSuccess) return ready;
  const int stages = ceil_div(p.width_bytes, kStageWidth);
  const int longest = ceil_div(stages, p.split_k) * (kStageWidth / kSlotWidth);
  const int slots =
      std::min({longest, kRingSlotsMax, std::max(2, config.ring_bytes / Plan::kSlot)});
  // Where most of a CTA's weights are still to come, the next kernel's weights would only delay
  // them.
  const SwapAbLaunch launch{.slots = slots,
                            .producer_warps = config.producer_warps,
                            .releases_late = longest >= 2 * slots};
  return launch_kernel(
      kernel,
      {dim3(static_cast<unsigned>(p.tiles * p.split_k)),
       dim3(static_cast<unsigned>(Plan::kConsumers + 32 * launch.producer_warps)),
       static_cast<std::size_t>(Plan::shared_bytes(p.split_k, launch.slots)), p.split_k},
      stream, p, x_map, launch);
}

template <TileType kType, int kTileTokens>
cudaError_t launch_columns(const Gemm& p,
                           const CUtensorMap& x_map,
                           const DecodeGemmConfig& config,
                           cudaStream_t stream) {
  constexpr int kSlotWidth = swap_ab_slot_width(kType, kTileTokens);
  return config.slot_width == kSlotWidth
             ? launch_config<kType, kTileTokens, kSlotWidth>(p, x_map, config, stream)
             : cudaErrorInvalidValue;
}

template <TileType kType>
cudaError_t launch_type(const Gemm& p,
                        const CUtensorMap& x_map,
                        const DecodeGemmConfig& config,
                        cudaStream_t stream) {
  switch (config.columns) {
    case 8:
      return launch_columns<kType, 8>(p, x_map, config, stream);
    case 16:
      return launch_columns<kType, 16>(p, x_map, config, stream);
    case 32:
      return launch_columns<kType, 32>(p, x_map, config, stream);
    case 64:
      return launch_columns<kType, 64>(p, x_map, config, stream);
    case 128:
      return launch_columns<kType, 128>(p, x_map, config, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace
}  // namespace swap_ab

cudaError_t launch_gemm_decode_swap_ab_sm90(const Gemm& p,
                                            const CUtensorMap& x_map,
                                            const DecodeGemmConfig& config,
                                            cudaStream_t stream) {
  if (p.token_blocks != nullptr || p.tokens > config.columns || p.split_k < 1 ||
      p.split_k > std::min(kSplitKMax, ceil_div(p.width_bytes, kStageWidth)))
    return cudaErrorInvalidValue;
  switch (p.type) {
    case TileType::bf16:
      return swap_ab::launch_type<TileType::bf16>(p, x_map, config, stream);
    case TileType::fp8:
      return swap_ab::launch_type<TileType::fp8>(p, x_map, config, stream);
    case TileType::fp8_block:
      return swap_ab::launch_type<TileType::fp8_block>(p, x_map, config, stream);
  }
  return cudaErrorInvalidValue;
}

const void* kernel_of::gemm_decode_swap_ab_sm90() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
