// SPDX-License-Identifier: Apache-2.0
// One matrix for up to 128 tokens on Hopper: what decode runs for every linear layer.
//
//   grid     one CTA a piece of work: a block of 64 weight rows and one of `parts` parts of the
//            width; the parts of a block are a cluster
//   roles    the last warp copies: 16 KB bulk copies of tiled weights, started before the kernel
//            before has ended, and boxes of token rows (128 bytes of K, swizzled); the others, one
//            warpgroup, multiply (wgmma m64nXk32)
//   sums     each stage of 256 bytes of K is summed by itself and added in f32, as in matmul.cuh;
//            the parts send their sums to the CTA that owns those rows, which adds them in rank
//            order.
//            Neither depends on the number of tokens, so a row's bits do not.
//   shared   barriers and scales · sums received · ring of (16 KB + 256 B * kColumns)
//   bytes    weights once; tokens once a tile, from L2
//
// Numbers: docs/kernels/README.md.
#include <algorithm>

#include "cuda/launch.cuh"
#include "cuda/matmul_end.cuh"
#include "cuda/matmul_hopper.h"
#include "cuda/ptx.cuh"
#include "cuda/wgmma.cuh"

namespace koho::cuda {
namespace {

constexpr int kBox = 128;          // bytes of K of one box of tokens
constexpr int kRingStagesMax = 8;  // barriers there are
constexpr int kBarrierBytes = 256;

constexpr int kConsumers = 128;
constexpr int kThreads = kConsumers + 32;
constexpr int kGroups = kTileRows / 16;  // of rows, one a warp
constexpr int kWeightBytes = kTileRows * kStageWidth;

template <int kColumns>
struct DensePlan {
  static constexpr int kTiles = kColumns / 8;
  static constexpr int kStage = kWeightBytes + kColumns * kStageWidth;
  static constexpr int kScaleBytes = (2 * kTileRows + kColumns) * 4;
  // Where sums arrive: beside the ring while they are small, else in its place once all are done.
  static constexpr bool kReuseRing = kColumns > 32;
  // How they travel: 16 bytes a lane while they are few, else a warp's as one bulk copy.
  static constexpr bool kBulkSums = kColumns > 16;
  static constexpr int sums_bytes(int parts) {
    return parts == 1 ? 0 : parts * ((kGroups + parts - 1) / parts) * kTiles * 512;
  }
  static constexpr int ring_begin(int parts) {
    const int before = kBarrierBytes + kScaleBytes + (kReuseRing ? 0 : sums_bytes(parts));
    return (before + 1023) / 1024 * 1024;
  }
  static int shared_bytes(int parts, int stages) {
    const int sums =
        (kReuseRing ? sums_bytes(parts) : 0) + (kBulkSums ? kGroups * kTiles * 512 : 0);
    return 1024 + ring_begin(parts) + std::max(stages * kStage, parts > 1 ? sums : 0);
  }
};

/// Groups of 16 rows that CTA `rank` of the cluster owns: first .. last - 1.
__device__ __forceinline__ int first_group(int rank, int parts) {
  return (rank * kGroups + parts - 1) / parts;
}

template <TileType kType, int kColumns>
__global__ void __launch_bounds__(kThreads) dense_kernel(const __grid_constant__ Matmul p,
                                                         const __grid_constant__ CUtensorMap x_map,
                                                         const int stages) {
  using Plan = DensePlan<kColumns>;
  extern __shared__ std::uint8_t unaligned[];
  std::uint8_t* shared = unaligned + (1024U - shared_address(unaligned) % 1024U) % 1024U;
  const std::uint32_t full = shared_address(shared);
  const std::uint32_t empty = full + 8U * kRingStagesMax;
  const std::uint32_t received = empty + 8U * kRingStagesMax;
  auto* row_scales = reinterpret_cast<float*>(shared + kBarrierBytes);
  float* bias = row_scales + kTileRows;
  float* x_scales = bias + kTileRows;
  const int ring_begin = Plan::ring_begin(p.parts);
  const std::uint32_t ring = shared_address(shared) + static_cast<std::uint32_t>(ring_begin);
  std::uint8_t* sums =
      Plan::kReuseRing ? shared + ring_begin : shared + kBarrierBytes + Plan::kScaleBytes;

  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int part = p.parts > 1 ? static_cast<int>(cluster_rank()) : 0;
  const int block = static_cast<int>(blockIdx.x) / p.parts;
  const int first_row = block * kTileRows;
  const int stages_all = (p.width_bytes + kStageWidth - 1) / kStageWidth;
  const int begin = stages_all * part / p.parts;
  const int end = stages_all * (part + 1) / p.parts;
  const int owned_first = first_group(part, p.parts);
  const int owned = first_group(part + 1, p.parts) - owned_first;

  if (thread == 0) {
    for (int slot = 0; slot < stages; ++slot) {
      mbarrier_init(full + 8U * static_cast<std::uint32_t>(slot), 1);
      mbarrier_init(empty + 8U * static_cast<std::uint32_t>(slot), kConsumers);
    }
    mbarrier_init(received, 1);
    mbarrier_init_fence();
    if (p.parts > 1)
      mbarrier_arrive_expect(received,
                             static_cast<std::uint32_t>(p.parts * owned * Plan::kTiles * 512));
  }
  __syncthreads();
  if (!Plan::kReuseRing && p.parts > 1) cluster_arrive();

  if (thread >= kConsumers) {  // ---- the copying warp
    if (thread == kConsumers) {
      tensor_map_prefetch(&x_map);
      const std::uint64_t policy = evict_first_policy();
      const std::int64_t tile_bytes = static_cast<std::int64_t>(kTileRows) * p.width_bytes;
      const auto place = [&](int slot) {
        return ring + static_cast<std::uint32_t>(slot * Plan::kStage);
      };
      const auto copy_weights = [&](int stage, int slot) {
        const int width = min(kStageWidth, p.width_bytes - stage * kStageWidth);
        const int boxes = (width + kBox - 1) / kBox;
        const std::uint32_t barrier = full + 8U * static_cast<std::uint32_t>(slot);
        mbarrier_arrive_expect(
            barrier, static_cast<std::uint32_t>(width * kTileRows + boxes * kBox * kColumns));
        bulk_copy(place(slot),
                  p.weight + block * tile_bytes +
                      static_cast<std::int64_t>(stage) * kStageWidth * kTileRows,
                  static_cast<std::uint32_t>(width * kTileRows), barrier, policy);
      };
      const auto copy_tokens = [&](int stage, int slot) {
        const int width = min(kStageWidth, p.width_bytes - stage * kStageWidth);
        for (int box = 0; box * kBox < width; ++box)
          tensor_copy(
              place(slot) + static_cast<std::uint32_t>(kWeightBytes + box * kBox * kColumns),
              &x_map, stage * kStageWidth + box * kBox, 0,
              full + 8U * static_cast<std::uint32_t>(slot));
      };
      // Weights do not depend on the kernel before: fill the ring, then wait.
      const int ahead = min(stages, end - begin);
      for (int i = 0; i < ahead; ++i) copy_weights(begin + i, i);
      grid_wait();
      for (int i = 0; i < ahead; ++i) copy_tokens(begin + i, i);
      int slot = 0;
      std::uint32_t phase = 0;
      for (int stage = begin + ahead; stage < end; ++stage) {
        mbarrier_wait(empty + 8U * static_cast<std::uint32_t>(slot), phase);
        copy_weights(stage, slot);
        copy_tokens(stage, slot);
        if (++slot == stages) {
          slot = 0;
          phase ^= 1U;
        }
      }
    }
    if (p.parts > 1) {
      __syncwarp();
      if (Plan::kReuseRing) cluster_arrive();
      cluster_wait();
      if (Plan::kBulkSums) {
        cluster_arrive();
        cluster_wait();
      }
    }
    return;
  }

  // ---- the multiplying warps
  for (int i = thread; i < kTileRows; i += kConsumers) {
    const int n = first_row + i;
    row_scales[i] = kType == TileType::fp8 && n < p.rows ? p.row_scales[n] : 1.0F;
    bias[i] = p.bias != nullptr && n < p.rows ? to_float(p.bias[n]) : 0.0F;
  }
  grid_wait();
  grid_release();
  for (int i = thread; i < kColumns; i += kConsumers)
    x_scales[i] = kType == TileType::fp8 && i < p.tokens ? p.x_scales[i] : 1.0F;

  float sum[Plan::kTiles][4] = {};
  {
    int slot = 0;
    std::uint32_t phase = 0;
    for (int stage = begin; stage < end; ++stage) {
      const int width = min(kStageWidth, p.width_bytes - stage * kStageWidth);
      const std::uint32_t place = ring + static_cast<std::uint32_t>(slot * Plan::kStage);
      const std::uint32_t tokens = place + static_cast<std::uint32_t>(kWeightBytes);
      float partial[Plan::kTiles][4] = {};
      const auto step = [&](int i) {
        wgmma<kType, kColumns>(
            &partial[0][0], core_operand(place + static_cast<std::uint32_t>(i) * 2048U, 1024U),
            swizzled_operand(tokens + static_cast<std::uint32_t>(i / 4 * kBox * kColumns +
                                                                 i % 4 * kTileWidthStep)),
            i > 0 ? 1 : 0);
      };
      mbarrier_wait(full + 8U * static_cast<std::uint32_t>(slot), phase);
      if (width == kStageWidth) {
        wgmma_begin();
#pragma unroll
        for (int i = 0; i < kStageWidth / kTileWidthStep; ++i) step(i);
        wgmma_commit();
        wgmma_wait<0>();
      } else {
#pragma unroll 1
        for (int i = 0; i < width / kTileWidthStep; ++i) {  // the short stage at a width's end
          wgmma_begin();
          step(i);
          wgmma_commit();
          wgmma_wait<0>();
        }
      }
      mbarrier_arrive(empty + 8U * static_cast<std::uint32_t>(slot));
#pragma unroll
      for (int tile = 0; tile < Plan::kTiles; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[tile][i] += partial[tile][i];
      if (++slot == stages) {
        slot = 0;
        phase ^= 1U;
      }
    }
  }

  named_barrier(1, kConsumers);  // scales are there, and all sums
  const int lane = thread % 32;
  const auto scaled = [&](int group, int tile, const float(&total)[4], float(&value)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = group * 16 + lane / 4 + i / 2 * 8;
      value[i] = scale_sum<kType>(p, total[i], row_scales[row],
                                  x_scales[tile * 8 + lane % 4 * 2 + i % 2], bias[row]);
    }
  };
  const auto finish = [&](int group, int tile, const float(&total)[4]) {
    float value[4];
    scaled(group, tile, total, value);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = tile * 8 + lane % 4 * 2 + i % 2;
      const int row = group * 16 + lane / 4 + i / 2 * 8;
      if (token < p.tokens && first_row + row < p.rows)
        store_sum(p, token, first_row + row, value[i]);
    }
  };
  // Two tiles at once: 16 bytes of a token's row a lane, where they are aligned.
  const bool aligned = p.end == MatmulEnd::bf16 && first_row + kTileRows <= p.rows &&
                       p.out_stride % 8 == 0 && reinterpret_cast<std::uintptr_t>(p.out) % 16 == 0;
  const auto finish_two = [&](int group, int tile, const float(&a)[4], const float(&b)[4]) {
    if (!aligned) {
      finish(group, tile, a);
      finish(group, tile + 1, b);
      return;
    }
    std::uint32_t words[4];
    float value[4];
    scaled(group, tile, a, value);
    words[0] = transposed(pack_bf16(value[0], value[1]));
    words[1] = transposed(pack_bf16(value[2], value[3]));
    scaled(group, tile + 1, b, value);
    words[2] = transposed(pack_bf16(value[0], value[1]));
    words[3] = transposed(pack_bf16(value[2], value[3]));
    const uint4 eight = gather_quad(words);
    const int mine = lane % 4;
    const int token = (tile + mine / 2) * 8 + lane / 4;
    if (token < p.tokens)
      *reinterpret_cast<uint4*>(static_cast<Bf16*>(p.out) + token * p.out_stride + first_row +
                                group * 16 + mine % 2 * 8) = eight;
  };
  constexpr bool kTwo = kColumns >= 32;
  if (p.parts == 1) {
#pragma unroll
    for (int tile = 0; tile < Plan::kTiles; tile += kTwo ? 2 : 1) {
      if (tile * 8 >= p.tokens) break;
      if constexpr (kTwo)
        finish_two(warp, tile, sum[tile], sum[tile + 1]);
      else
        finish(warp, tile, sum[tile]);
    }
    return;
  }
  if (Plan::kReuseRing) cluster_arrive();
  cluster_wait();  // every CTA has begun (or, in the ring's place, is done with its ring)
  // Sums travel in the order of fragments and are read again as they are.
  const int owner = warp * p.parts / kGroups;
  const int owner_first = first_group(owner, p.parts);
  const int owner_groups = first_group(owner + 1, p.parts) - owner_first;
  const std::uint32_t remote = cluster_address(
      shared_address(sums) + static_cast<std::uint32_t>((part * owner_groups + warp - owner_first) *
                                                        Plan::kTiles * 512),
      static_cast<std::uint32_t>(owner));
  const std::uint32_t remote_barrier = cluster_address(received, static_cast<std::uint32_t>(owner));
  if constexpr (Plan::kBulkSums) {
    // Sent from the ring, behind where sums may arrive.
    const int begin = ring_begin + (Plan::kReuseRing ? Plan::sums_bytes(p.parts) : 0);
    auto* mine = reinterpret_cast<float4*>(shared + begin + warp * Plan::kTiles * 512) + lane;
#pragma unroll
    for (int tile = 0; tile < Plan::kTiles; ++tile)
      mine[tile * 32] = make_float4(sum[tile][0], sum[tile][1], sum[tile][2], sum[tile][3]);
    proxy_fence();
    __syncwarp();
    if (lane == 0)
      cluster_copy(remote, shared_address(mine), static_cast<std::uint32_t>(Plan::kTiles * 512),
                   remote_barrier);
  } else {
#pragma unroll
    for (int tile = 0; tile < Plan::kTiles; ++tile)
      cluster_send(remote + static_cast<std::uint32_t>(tile * 512 + lane * 16),
                   make_float4(sum[tile][0], sum[tile][1], sum[tile][2], sum[tile][3]),
                   remote_barrier);
  }
  if (owned > 0) mbarrier_wait_cluster(received, 0);
  __syncwarp();
  if (Plan::kBulkSums) cluster_arrive();
  const auto add = [&](int item, float(&total)[4]) {
    const float4* from = reinterpret_cast<const float4*>(sums) + item * 32 + lane;
#pragma unroll 8
    for (int rank = 0; rank < p.parts; ++rank) {
      const float4 other = from[rank * owned * Plan::kTiles * 32];
      total[0] += other.x;
      total[1] += other.y;
      total[2] += other.z;
      total[3] += other.w;
    }
  };
  constexpr int kStep = kTwo ? 2 : 1;
  for (int item = warp * kStep; item < owned * Plan::kTiles; item += kConsumers / 32 * kStep) {
    const int group = owned_first + item / Plan::kTiles;
    const int tile = item % Plan::kTiles;
    if (tile * 8 >= p.tokens) continue;
    float total[kStep][4] = {};
#pragma unroll
    for (int i = 0; i < kStep; ++i) add(item + i, total[i]);
    if constexpr (kTwo)
      finish_two(group, tile, total[0], total[1]);
    else
      finish(group, tile, total[0]);
  }
  __syncwarp();
  if (Plan::kBulkSums) cluster_wait();  // NOTE: all copies from this CTA have arrived
}

template <TileType kType, int kColumns>
cudaError_t launch_form(const Matmul& p,
                        const CUtensorMap& x_map,
                        int ring_bytes,
                        cudaStream_t stream) {
  using Plan = DensePlan<kColumns>;
  constexpr int kSharedMax = 227 * 1024;
  const auto kernel = dense_kernel<kType, kColumns>;
  static const cudaError_t prepared =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedMax);
  if (prepared != cudaSuccess) return prepared;
  const int stages_all = (p.width_bytes + kStageWidth - 1) / kStageWidth;
  const int longest = (stages_all + p.parts - 1) / p.parts;
  const int stages = std::min({longest, kRingStagesMax, std::max(2, ring_bytes / Plan::kStage)});
  return launch_kernel(kernel,
                       {dim3(static_cast<unsigned>(p.tiles * p.parts)), dim3(kThreads),
                        static_cast<std::size_t>(Plan::shared_bytes(p.parts, stages)), p.parts},
                       stream, p, x_map, stages);
}

template <TileType kType>
cudaError_t launch_type(const Matmul& p,
                        const CUtensorMap& x_map,
                        DenseForm form,
                        cudaStream_t stream) {
  switch (form.columns) {
    case 8:
      return launch_form<kType, 8>(p, x_map, form.ring_bytes, stream);
    case 16:
      return launch_form<kType, 16>(p, x_map, form.ring_bytes, stream);
    case 32:
      return launch_form<kType, 32>(p, x_map, form.ring_bytes, stream);
    case 64:
      return launch_form<kType, 64>(p, x_map, form.ring_bytes, stream);
    case 128:
      return launch_form<kType, 128>(p, x_map, form.ring_bytes, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t launch_matmul_dense(const Matmul& p,
                                const CUtensorMap& x_map,
                                const DenseForm& form,
                                cudaStream_t stream) {
  return p.type == TileType::bf16 ? launch_type<TileType::bf16>(p, x_map, form, stream)
                                  : launch_type<TileType::fp8>(p, x_map, form, stream);
}

}  // namespace koho::cuda
