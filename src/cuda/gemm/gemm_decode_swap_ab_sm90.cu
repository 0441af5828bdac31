// SPDX-License-Identifier: Apache-2.0
// One matrix for few tokens on Hopper: what decode runs for every linear layer.
//
//   grid     a CTA a piece of work: a block of 64 weight rows and one of `parts` parts of the
//            width; the parts are a cluster. gemm_decode_unswapped_sm90.cu has whole widths
//   roles    one warp copies weights (bulk copies of tiled weights, started before the kernel
//            before has ended) and it or another one boxes of token rows (128 bytes of K,
//            swizzled; as many rows as there are tokens: what lies beyond is multiplied and
//            dropped); one or two warpgroups multiply (wgmma m64nXk32), each its columns
//   sums     fp8: each stage of 256 bytes of K is summed by itself and added in f32, as in
//            gemm_grouped_decode.cuh; bf16: one chain of instructions (kChained, wgmma.cuh). The parts' sums are
//            added in their order by the CTA that owns the rows. Neither depends on the number of
//            tokens or on the form, so a row's bits do not.
//   shared   barriers and scales · sums received · ring of slots of kSlotWidth * (64 + kTileTokens) B
//   bytes    weights once; tokens once a tile, from L2
//
// Numbers: docs/kernels/README.md.
#include <algorithm>

#include "base/arithmetic.h"
#include "cuda/device/launch.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/device/wgmma.cuh"
#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/gemm_sm90.h"

namespace koho::cuda {
namespace {

constexpr int kRingSlotsMax = 16;  // barriers there are
constexpr int kBarrierBytes = 384;
constexpr int kRowGroups = kTileRows / 16;  // of rows, one a warp of a warpgroup

template <int kTileTokens, int kSlotWidth>
struct SwapAbPlan {
  static constexpr int kWarpgroups = kTileTokens > 64 ? 2 : 1;
  static constexpr int kConsumers = 128 * kWarpgroups;
  static constexpr int kThreadsMax = kConsumers + 64;
  static constexpr int kTiles = kTileTokens / 8;
  static constexpr int kEach = kTiles / kWarpgroups;  // tiles of a warpgroup
  static constexpr int kWeightBytes = kTileRows * kSlotWidth;
  static constexpr int kSlot = kWeightBytes + kTileTokens * kSlotWidth;
  static constexpr int kScaleBytes = (2 * kTileRows + kTileTokens) * 4;
  // Where sums arrive: beside the ring while they are small, else in its place once all are done.
  static constexpr bool kReuseRing = kTileTokens > 32;
  // How they travel: 16 bytes a lane while they are few, else a warp's as one bulk copy.
  static constexpr bool kBulkSums = kTileTokens > 16;
  static constexpr int sums_bytes(int ctas) {
    return ctas == 1 ? 0 : ctas * ((kRowGroups + ctas - 1) / ctas) * kTiles * 512;
  }
  static constexpr int ring_begin(int ctas) {
    const int before = kBarrierBytes + kScaleBytes + (kReuseRing ? 0 : sums_bytes(ctas));
    return (before + 1023) / 1024 * 1024;
  }
  static int shared_bytes(int ctas, int slots) {
    const int sums =
        (kReuseRing ? sums_bytes(ctas) : 0) + (kBulkSums ? kRowGroups * kTiles * 512 : 0);
    return 1024 + ring_begin(ctas) + std::max(slots * kSlot, ctas > 1 ? sums : 0);
  }
};

/// Groups of 16 rows that CTA `rank` of the cluster owns: first .. last - 1.
__device__ __forceinline__ int first_group(int rank, int ctas) {
  return (rank * kRowGroups + ctas - 1) / ctas;
}

/// How a launch is cut, beside what the kernel's template says.
struct SwapAbLaunch {
  int slots;           // of the ring
  int producer_warps;  // warps: 1, or 2 where one copies token rows alone
  bool releases_late;  // the next call's CTAs begin when this one's first slot is there
};

/// What a CTA has of the matrix.
struct SwapAbCtaTile {
  int block;  // of 64 weight rows
  int split;  // of the width, and the rank in the cluster
  int begin;  // stages of 256 bytes of K
  int end;

  __device__ __forceinline__ explicit SwapAbCtaTile(const Gemm& p) {
    // The rank in the cluster, as ptxas knows it to be one for all lanes.
    split = static_cast<int>(blockIdx.x) % p.split_k;
    block = static_cast<int>(blockIdx.x) / p.split_k;
    const int stages = (p.width_bytes + kStageWidth - 1) / kStageWidth;
    begin = stages * split / p.split_k;
    end = stages * (split + 1) / p.split_k;
  }
};

/// Where a ring lies and who waits for what.
struct SwapAbRing {
  std::uint32_t full;  // barriers
  std::uint32_t empty;
  std::uint32_t slots;  // the first byte
  int count;
};

/// Copies a piece's weights, token rows or both into the ring; one lane. Weights do not depend on
/// the kernel before: they fill the ring, then the wait follows. Who copies token rows releases the
/// next kernel, if that is to be late.
template <int kTileTokens, int kSlotWidth, bool kWeights, bool kTokens>
__device__ __forceinline__ void produce_operands(const Gemm& p,
                                                 const CUtensorMap& x_map,
                                                 const SwapAbCtaTile& piece,
                                                 const SwapAbRing& ring,
                                                 bool releases_late,
                                                 std::uint64_t policy) {
  using Plan = SwapAbPlan<kTileTokens, kSlotWidth>;
  constexpr int kHalves = kStageWidth / kSlotWidth;
  const std::uint8_t* weights =
      p.weight + static_cast<std::int64_t>(piece.block) * kTileRows * p.width_bytes;
  const auto width_at = [&](int unit) {
    return min(kSlotWidth, p.width_bytes - unit * kSlotWidth);
  };
  const auto place = [&](int slot) {
    return ring.slots + static_cast<std::uint32_t>(slot * Plan::kSlot);
  };
  const auto copy_weights = [&](int unit, int slot) {
    const auto bytes = static_cast<std::uint32_t>(width_at(unit) * kTileRows);
    const std::uint32_t barrier = ring.full + 8U * static_cast<std::uint32_t>(slot);
    mbarrier_arrive_expect_tx(barrier, bytes);
    bulk_copy(place(slot), weights + static_cast<std::int64_t>(unit) * kSlotWidth * kTileRows,
              bytes, barrier, policy);
  };
  const auto copy_tokens = [&](int unit, int slot) {
    const int boxes = (width_at(unit) + kTmaBoxBytes - 1) / kTmaBoxBytes;
    const std::uint32_t barrier = ring.full + 8U * static_cast<std::uint32_t>(slot);
    mbarrier_arrive_expect_tx(barrier, static_cast<std::uint32_t>(boxes * kTmaBoxBytes * p.tokens));
#pragma unroll
    for (int box = 0; box < kSlotWidth / kTmaBoxBytes; ++box)
      if (box < boxes)
        tma_load(place(slot) + static_cast<std::uint32_t>(Plan::kWeightBytes +
                                                          box * kTmaBoxBytes * kTileTokens),
                 &x_map, unit * kSlotWidth + box * kTmaBoxBytes, 0, barrier);
  };
  const int begin = piece.begin * kHalves;
  const int end = min(piece.end * kHalves, (p.width_bytes + kSlotWidth - 1) / kSlotWidth);
  const int prologue = min(ring.count, end - begin);
  if constexpr (kTokens) prefetch_tensor_map(&x_map);
  if constexpr (kWeights) {
#pragma unroll 1
    for (int i = 0; i < prologue; ++i) copy_weights(begin + i, i);
  }
  if constexpr (kTokens) {
    wait_on_dependent_grids();
#pragma unroll 1
    for (int i = 0; i < prologue; ++i) copy_tokens(begin + i, i);
    if (releases_late) {
      mbarrier_wait(ring.full, 0);
      launch_dependent_grids();
    }
  }
  int slot = 0;
  std::uint32_t phase = 0;
  for (int unit = begin + prologue; unit < end; ++unit) {
    mbarrier_wait(ring.empty + 8U * static_cast<std::uint32_t>(slot), phase);
    if constexpr (kWeights) copy_weights(unit, slot);
    if constexpr (kTokens) copy_tokens(unit, slot);
    if (++slot == ring.count) {
      slot = 0;
      phase ^= 1U;
    }
  }
}

template <TileType kType, int kTileTokens, int kSlotWidth>
__global__ void __launch_bounds__(SwapAbPlan<kTileTokens, kSlotWidth>::kThreadsMax)
    gemm_decode_swap_ab_kernel(const __grid_constant__ Gemm p,
                               const __grid_constant__ CUtensorMap x_map,
                               const SwapAbLaunch cut) {
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
                        shared_address(shared) + static_cast<std::uint32_t>(ring_begin), cut.slots};
  const std::uint32_t received = ring.empty + 8U * kRingSlotsMax;
  auto* row_scales = reinterpret_cast<float*>(shared + kBarrierBytes);
  float* bias = row_scales + kTileRows;
  float* x_scales = bias + kTileRows;
  std::uint8_t* sums =
      Plan::kReuseRing ? shared + ring_begin : shared + kBarrierBytes + Plan::kScaleBytes;

  const int thread = static_cast<int>(threadIdx.x);
  const int warp = warp_index();
  const SwapAbCtaTile piece(p);
  const int first_row = piece.block * kTileRows;
  const int owned_first = first_group(piece.split, ctas);
  const int owned = first_group(piece.split + 1, ctas) - owned_first;

  if (thread == 0) {
    for (int slot = 0; slot < cut.slots; ++slot) {
      mbarrier_init(ring.full + 8U * static_cast<std::uint32_t>(slot), 2);
      mbarrier_init(ring.empty + 8U * static_cast<std::uint32_t>(slot), kConsumers / 32);
    }
    mbarrier_init(received, 1);
    fence_mbarrier_init();
    // NOTE: nothing needs this: the line above orders the barriers for TMA and for the
    // cluster. But with it 5120x3072 takes 5.0 us at 16 tokens, without 5.6, and a wait of the same
    // length does not do the same.
    fence_proxy_async();
    if (ctas > 1)  // from all others
      mbarrier_arrive_expect_tx(
          received, static_cast<std::uint32_t>((ctas - 1) * owned * Plan::kTiles * 512));
  }
  __syncthreads();
  // NOTE: by all warps: under compute-sanitizer the others wait here for those that arrive later.
  if (!Plan::kReuseRing && ctas > 1) cluster_arrive();
  if (warp >= kConsumers / 32) {  // ---- the copying warps
    if (elect_one()) {
      const std::uint64_t policy = evict_first_policy();
      if (cut.producer_warps == 1)
        produce_operands<kTileTokens, kSlotWidth, true, true>(p, x_map, piece, ring,
                                                              cut.releases_late, policy);
      else if (warp == kConsumers / 32)
        produce_operands<kTileTokens, kSlotWidth, true, false>(p, x_map, piece, ring, false,
                                                               policy);
      else
        produce_operands<kTileTokens, kSlotWidth, false, true>(p, x_map, piece, ring,
                                                               cut.releases_late, policy);
    }
    return;  // NOTE: at once, or ptxas takes what is copied lane by lane; no barrier needs them
  }

  // ---- the multiplying warps
  for (int i = thread; i < kTileRows; i += kConsumers) {
    const int n = first_row + i;
    row_scales[i] = kType == TileType::fp8 && n < p.rows ? p.row_scales[n] : 1.0F;
    bias[i] = p.bias != nullptr && n < p.rows ? to_float(p.bias[n]) : 0.0F;
  }
  wait_on_dependent_grids();
  if (!cut.releases_late) launch_dependent_grids();
  for (int i = thread; i < kTileTokens; i += kConsumers)
    x_scales[i] = kType == TileType::fp8 && i < p.tokens ? p.x_scales[i] : 1.0F;

  const int first_tile = warp / 4 * kEach;
  float sum[kEach][4] = {};
  {
    const std::uint64_t weights = core_matrix_descriptor(ring.slots, 1024U);
    const std::uint64_t boxes =
        swizzle128_descriptor(ring.slots + static_cast<std::uint32_t>(
                                               Plan::kWeightBytes + first_tile * 8 * kTmaBoxBytes));
    int slot = 0;
    std::uint32_t phase = 0;
    const auto advance = [&] {
      if (++slot == cut.slots) {
        slot = 0;
        phase ^= 1U;
      }
    };
    const auto release = [&](int of) {
      if (thread % 32 == 0) mbarrier_arrive(ring.empty + 8U * static_cast<std::uint32_t>(of));
    };
    // 32 bytes of K from the slot.
    const auto step = [&](float(&partial)[kEach][4], int i, bool accumulate) {
      const auto at = static_cast<std::uint32_t>(slot * Plan::kSlot);
      wgmma<kType, 8 * kEach>(
          &partial[0][0],
          advance_descriptor(advance_descriptor(weights, at),
                             static_cast<std::uint32_t>(i) * 2048U),
          advance_descriptor(advance_descriptor(boxes, at),
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
    // Issues the products of a slot. Gives the slot.
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
    const int whole_end = min(piece.end, p.width_bytes / kStageWidth);
    if constexpr (kChained<kType>) {
      // NOTE: issued before those before have ended, a slot's products would wait for its bytes
      // while the slot before is not given back: 1 % slower.
      for (int unit = (whole_end - piece.begin) * kHalves; unit > 0; --unit) {
        const int issued = issue(sum, true);
        wgmma_wait_group<0>();
        release(issued);
      }
    } else {
      for (int stage = piece.begin; stage < whole_end; ++stage) {
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
    if (whole_end < piece.end) {  // the short stage at a width's end
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
  // Two tiles at once: 16 bytes of a token's row a lane, where they are aligned.
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
  // Leaves this warp's sums in shared memory, tile after tile, in the order of fragments.
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
    } else {  // the same through the ring, which all are done with: this code is there once
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
  cluster_wait();  // every CTA has begun (or, in the ring's place, is done with its ring)
  // Sums travel in the order of fragments and are read again as they are.
  const int owner = warp % 4 * ctas / kRowGroups;
  const int owner_first = first_group(owner, ctas);
  const int owner_groups = first_group(owner + 1, ctas) - owner_first;
  const int place =
      ((piece.split * owner_groups + warp % 4 - owner_first) * Plan::kTiles + first_tile) * 512;
  if (owner == piece.split) {
    put(sums + place);
  } else {
    const auto rank = static_cast<std::uint32_t>(owner);
    const std::uint32_t remote =
        map_shared_rank(shared_address(sums) + static_cast<std::uint32_t>(place), rank);
    const std::uint32_t remote_barrier = map_shared_rank(received, rank);
    if constexpr (Plan::kBulkSums) {
      // Sent from the ring, behind where sums may arrive.
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
cudaError_t launch_form(const Gemm& p,
                        const CUtensorMap& x_map,
                        const DecodeGemmConfig& form,
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
  const int slots = std::min({longest, kRingSlotsMax, std::max(2, form.ring_bytes / Plan::kSlot)});
  // Where most of a CTA's weights are still to come, the next call's would only stand before them.
  const SwapAbLaunch cut{
      .slots = slots, .producer_warps = form.producer_warps, .releases_late = longest >= 2 * slots};
  return launch_kernel(
      kernel,
      {dim3(static_cast<unsigned>(p.tiles * p.split_k)),
       dim3(static_cast<unsigned>(Plan::kConsumers + 32 * cut.producer_warps)),
       static_cast<std::size_t>(Plan::shared_bytes(p.split_k, cut.slots)), p.split_k},
      stream, p, x_map, cut);
}

/// Slots of half a stage where few whole ones are as much as a CTA of two or three may have.
constexpr int slot_width_of(TileType type, int columns) {
  return type == TileType::fp8 && columns >= 64 ? kStageWidth / 2 : kStageWidth;
}

template <TileType kType, int kTileTokens>
cudaError_t launch_columns(const Gemm& p,
                           const CUtensorMap& x_map,
                           const DecodeGemmConfig& form,
                           cudaStream_t stream) {
  constexpr int kSlotWidth = slot_width_of(kType, kTileTokens);
  return form.slot_width == kSlotWidth
             ? launch_form<kType, kTileTokens, kSlotWidth>(p, x_map, form, stream)
             : cudaErrorInvalidValue;
}

template <TileType kType>
cudaError_t launch_type(const Gemm& p,
                        const CUtensorMap& x_map,
                        const DecodeGemmConfig& form,
                        cudaStream_t stream) {
  switch (form.columns) {
    case 8:
      return launch_columns<kType, 8>(p, x_map, form, stream);
    case 16:
      return launch_columns<kType, 16>(p, x_map, form, stream);
    case 32:
      return launch_columns<kType, 32>(p, x_map, form, stream);
    case 64:
      return launch_columns<kType, 64>(p, x_map, form, stream);
    case 128:
      return launch_columns<kType, 128>(p, x_map, form, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

DecodeGemmConfig choose_decode_gemm_config(const Gemm& p, int multiprocessors) {
  constexpr int kSmall = 50 << 10;
  constexpr int kFewStages = 66 << 10;  // three of up to 16 tokens
  constexpr int kMiddle = 75 << 10;
  constexpr int kLarge = 100 << 10;
  constexpr int kAlone = 147 << 10;
  constexpr int kLargest = 200 << 10;
  // NOTE: room for as many CTAs as a multiprocessor is to have and for no other: with 8 tokens and
  // three slots (57 KB) there was room for four, and 24576 rows took 33 us, not 29, since some had
  // four and others two.
  constexpr int kSharedOfOne = 228 << 10;  // of a multiprocessor
  const int beside_ring = (p.split_k > 1 ? 11 : 4) << 10;
  constexpr int kTilesEnough = 200;
  constexpr int kShort = 6;  // stages
  DecodeGemmConfig form = choose_unswapped_config(p, multiprocessors);
  if (form.rows > 0) return form;
  form.columns = p.tokens <= 8    ? 8
                 : p.tokens <= 16 ? 16
                 : p.tokens <= 32 ? 32
                 : p.tokens <= 64 ? 64
                                  : 128;
  form.slot_width = slot_width_of(p.type, form.columns);
  const int blocks = p.tiles * p.split_k;
  const int each = ceil_div(blocks, multiprocessors);
  if (p.type == TileType::bf16) {
    // NOTE: 18944 rows are 296 tiles: with room for three on each of 132 multiprocessors they took
    // 51 us, with room for two 46; 592 tiles 85 and 88.
    form.ring_bytes = form.columns > 32 ? kSmall : each <= 3 ? kLarge : kMiddle;
    return form;
  }
  form.producer_warps = p.tiles >= kTilesEnough ? 1 : 2;
  const bool many = form.columns >= 64;
  const int length = ceil_div(p.width_bytes, p.split_k * kStageWidth);
  // As long as the next call's beginning beside it would not gain more.
  const bool alone =
      length > kShort && blocks <= multiprocessors && blocks * 20 >= multiprocessors * 19;
  form.ring_bytes =
      alone ? (many ? kAlone : kLargest) : std::min(kLarge, kSharedOfOne / each - beside_ring);
  if (p.split_k > 1 && length <= kShort && form.columns == 8)
    form.ring_bytes = length == 5 ? kFewStages : kMiddle;
  else if (length == 5 && !many)
    form.ring_bytes = kMiddle;
  return form;
}

cudaError_t launch_gemm_decode_swap_ab_sm90(const Gemm& p,
                                            const CUtensorMap& x_map,
                                            const DecodeGemmConfig& form,
                                            cudaStream_t stream) {
  if (p.type == TileType::fp8_block || p.token_blocks != nullptr || p.tokens > form.columns ||
      p.split_k < 1 || p.split_k > std::min(kSplitKMax, ceil_div(p.width_bytes, kStageWidth)))
    return cudaErrorInvalidValue;
  return p.type == TileType::bf16 ? launch_type<TileType::bf16>(p, x_map, form, stream)
                                  : launch_type<TileType::fp8>(p, x_map, form, stream);
}

const void* kernel_of::gemm_decode_swap_ab_sm90() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
