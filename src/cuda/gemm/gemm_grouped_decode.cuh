// SPDX-License-Identifier: Apache-2.0
// Grouped decode GEMM, swap-AB: weight rows are the MMA's M, up to 64 tokens of a token block its
// N, so every weight byte is read once per block. One pipeline for a linear layer and for experts,
// with two mainloops: wgmma (gemm_grouped_decode_sm90.cu) and mma.sync
// (gemm_grouped_decode_portable.cu).
//
//   grid     persistent: a CTA takes work tiles (token block, tile of 64 weight rows) by stride.
//            With split-K a cluster of split_k CTAs takes one work tile and divides K
//   roles    producer warps (from warp 4 on) fill the ring: 16 KB bulk copies of weights, cp.async
//            of the block's token rows into core matrices. Warps 0-3 multiply 64 rows by 8 * kTiles
//            tokens
//   pairs    row_tiles 2: a work tile has two weight tiles and two MMA warpgroups, a slot half of
//            K; token rows, a quarter of the L2 traffic with full blocks, are then read once for
//            both
//   prefetch a producer asks for weights before it waits for the previous kernel wherever the
//            choice of expert is older: linear layers, a shared expert, the down projection
//   shared   barriers 128 B · sums 8 * kTiles x 66 f32 (not of pairs) · ring of stages of 16 KB + 2
//            KB * kTiles (of pairs half of the latter)
//   sums     f32. The order over K follows from the weight's shape: wgmma sums every stage (or 128
//            columns under block scales) by itself and adds them in order, splits in rank order. It
//            does not depend on the number of tokens, so a row's bits do not
//   bytes    weights once per token block, tokens once per work tile (from L2)
//   files    gemm_grouped_decode_tiles.cuh (shared memory, work tiles), _producer.cuh,
//            _epilogue.cuh
//
// docs/kernels/gemm.md and experts.md: when it runs, how fast, and what was tried.
#pragma once

#include "base/arithmetic.h"
#include "cuda/device/launch.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/gemm_grouped_decode_epilogue.cuh"
#include "cuda/gemm/gemm_grouped_decode_producer.cuh"
#include "cuda/gemm/gemm_grouped_decode_tiles.cuh"

namespace koho::cuda {

/// The MMA warps. `Multiply<kType, kTiles>` is the mainloop: a thread's accumulators, and stage(),
/// which adds a stage to them. Each warpgroup multiplies one of a work tile's kRowTiles weight
/// tiles.
template <template <TileType, int> class Multiply, TileType kType, int kTiles>
__device__ void consume(const Gemm& p, Ring ring, int blocks, int token_blocks, float* sums) {
  constexpr int kRowTiles = Multiply<kType, kTiles>::kRowTiles;
  using Plan = GroupedDecodePlan<kTiles, kRowTiles>;
  const int work_tiles = num_work_tiles<kRowTiles>(p, blocks, token_blocks);
  const int group = kRowTiles > 1 ? warp_index() / 4 : 0;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int split = p.split_k > 1 ? static_cast<int>(cluster_rank()) : 0;
  const int step = static_cast<int>(gridDim.x) / p.split_k;
  const StageRange range = stage_range<Plan::kSlotWidth>(p, split);
  const int late =
      max(range.begin, range.end - 2 * kRowTiles);  // early enough for scales to arrive from L2
  const int first_index = static_cast<int>(blockIdx.x) / p.split_k;
  WorkTile next{};
  if (first_index < work_tiles)
    next = work_tile_at<kRowTiles>(p, blocks, first_index, token_blocks, Plan::kTokens);
  for (int index = first_index; index < work_tiles; index += step) {
    WorkTile work_tile = next;
    if (index + step < work_tiles)
      next = work_tile_at<kRowTiles>(p, blocks, index + step, token_blocks, Plan::kTokens);
    if (work_tile.count == 0) continue;
    take_interleaved_block<kTiles>(p, blocks, index, work_tile);
    work_tile.tile = work_tile.tile * kRowTiles + group;
    const bool present = kRowTiles == 1 || work_tile.tile < tiles_of(p, work_tile);
    if (!present) --work_tile.tile;  // the tile before it, so that there is something to read
    Multiply<kType, kTiles> multiply;
    TileEpilogue<kType, kTiles> end;
    if (p.split_k == 1) end.begin(p, work_tile);
    if constexpr (requires { multiply.begin(p, work_tile, range.begin); })
      multiply.begin(p, work_tile, range.begin);
    for (int stage = range.begin; stage < range.end; ++stage) {
      const std::uint8_t* data = ring.stages + ring.slot * Plan::kStage;
      mbarrier_wait(ring.full + 8U * static_cast<std::uint32_t>(ring.slot), ring.phase);
      if (stage == late && p.split_k == 1) end.fetch_x_scales(p);
      multiply.stage(p, work_tile, stage,
                     shared_address(data + group * (kTileRows * Plan::kSlotWidth)),
                     shared_address(data + kWeightStage));
      mbarrier_arrive(ring.empty + 8U * static_cast<std::uint32_t>(ring.slot));
      ring.advance<Plan::kStages>();
    }
    if (kRowTiles > 1 || p.split_k == 1) {
      if (present) end.finish(p, work_tile, multiply.sum);
      if (present && p.rows_stored != nullptr) {
        __syncwarp();
        if (lane == 0) add_release(p.rows_stored + work_tile.block, 1);
      }
      continue;
    }
    // Row g or g + 8 of the warp's 16, tokens 2t and 2t + 1 of each column tile.
    const int row = warp * 16 + lane / 4;
    const int token = lane % 4 * 2;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        sums[(tile * 8 + token + i % 2) * kSumStride + row + i / 2 * 8] = multiply.sum[tile][i];
    return;  // one work tile per cluster: reduce_split_k() follows the cluster's barrier
  }
}

template <template <TileType, int> class Multiply, TileType kType, int kTiles>
__global__ void __launch_bounds__(
    GroupedDecodePlan<kTiles, Multiply<kType, kTiles>::kRowTiles>::kThreads,
    Multiply<kType, kTiles>::kCtasPerSm)
    gemm_grouped_decode_kernel(const __grid_constant__ Gemm p) {
  constexpr int kRowTiles = Multiply<kType, kTiles>::kRowTiles;
  using Plan = GroupedDecodePlan<kTiles, kRowTiles>;
  extern __shared__ __align__(128) std::uint8_t shared[];
  const Ring ring(shared, Plan::kSumBytes);
  auto* sums = reinterpret_cast<float*>(shared + kBarrierBytes);
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < Plan::kStages; ++slot) {
      mbarrier_init(ring.full + 8U * static_cast<std::uint32_t>(slot), 1 + 32 * Plan::kProducers);
      mbarrier_init(ring.empty + 8U * static_cast<std::uint32_t>(slot), Plan::kConsumers);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  const bool producer = warp_index() >= Plan::kConsumers / 32;
  if (!producer) wait_on_dependent_grids();
  // A producer that must wait for the list of token blocks does so itself, after its prologue.
  const bool readable = !producer || !has_experts(p) || p.token_blocks_early;
  const int token_blocks = readable ? num_token_blocks(p, Plan::kTokens) : 0;
  const int blocks = ceil_div(p.tiles, kRowTiles);
  if (producer) {
    produce<kTiles, kRowTiles>(p, ring, blocks, token_blocks);
    launch_dependent_grids();
  } else {
    launch_dependent_grids();
    consume<Multiply, kType, kTiles>(p, ring, blocks, token_blocks, sums);
  }
  if (kRowTiles > 1 || p.split_k == 1) return;
  __syncwarp();
  cluster_sync();
  const int index = static_cast<int>(blockIdx.x) / p.split_k;
  if (!producer && index < token_blocks * blocks)
    reduce_split_k<kType, kTiles>(
        p, work_tile_at<kRowTiles>(p, blocks, index, token_blocks, Plan::kTokens), sums);
  __syncwarp();
  cluster_sync();  // NOTE: no CTA may exit while another reads its sums
}

template <template <TileType, int> class Multiply, TileType kType, int kTiles>
cudaError_t launch_grouped_decode_config(const Gemm& p, int multiprocessors, cudaStream_t stream) {
  using Plan = GroupedDecodePlan<kTiles, Multiply<kType, kTiles>::kRowTiles>;
  if (Multiply<kType, kTiles>::kRowTiles > 1 && p.split_k > 1) return cudaErrorInvalidValue;
  if (p.rows_stored != nullptr && p.split_k > 1) return cudaErrorInvalidValue;
  if (p.interleave_token_blocks &&
      (kTiles > 1 || p.token_blocks_early || p.first_block_expert >= 0))
    return cudaErrorInvalidValue;
  const auto kernel = gemm_grouped_decode_kernel<Multiply, kType, kTiles>;
  static PerDevice found;
  const int resident = found.number([&] {  // CTAs of a multiprocessor; 0 if the kernel cannot run
    int count = 0;
    if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Plan::kShared) !=
            cudaSuccess ||
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&count, kernel, Plan::kThreads,
                                                      Plan::kShared) != cudaSuccess)
      return 0;
    return count;
  });
  if (resident == 0) return cudaErrorInvalidConfiguration;
  int grid = resident * multiprocessors;
  if (p.token_blocks == nullptr) {
    const int token_blocks = p.single_ids != nullptr
                                 ? p.single_token_blocks
                                 : (p.tokens + Plan::kTokens - 1) / Plan::kTokens;
    const int work_tiles = token_blocks * ceil_div(p.tiles, Multiply<kType, kTiles>::kRowTiles);
    grid = p.split_k > 1 ? work_tiles * p.split_k : (work_tiles < grid ? work_tiles : grid);
  }
  return launch_kernel(kernel,
                       {dim3(static_cast<unsigned>(grid)), dim3(Plan::kThreads),
                        static_cast<std::size_t>(Plan::kShared), p.split_k},
                       stream, p);
}

template <template <TileType, int> class Multiply, TileType kType, bool kTwoTiles>
cudaError_t launch_grouped_decode_tiles(const Gemm& p, int multiprocessors, cudaStream_t stream) {
  switch (p.token_tiles) {
    case 1:
      return launch_grouped_decode_config<Multiply, kType, 1>(p, multiprocessors, stream);
    case 2:
      if constexpr (kTwoTiles)
        return launch_grouped_decode_config<Multiply, kType, 2>(p, multiprocessors, stream);
      else
        return cudaErrorInvalidValue;
    case 4:
      return launch_grouped_decode_config<Multiply, kType, 4>(p, multiprocessors, stream);
    case 8:
      return launch_grouped_decode_config<Multiply, kType, 8>(p, multiprocessors, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

/// kTwoTiles: whether token blocks of 9 to 16 tokens are compiled.
template <template <TileType, int> class Multiply, bool kTwoTiles>
cudaError_t launch_grouped_decode(const Gemm& p, int multiprocessors, cudaStream_t stream) {
  switch (p.type) {
    case TileType::bf16:
      return launch_grouped_decode_tiles<Multiply, TileType::bf16, kTwoTiles>(p, multiprocessors,
                                                                              stream);
    case TileType::fp8:
      return launch_grouped_decode_tiles<Multiply, TileType::fp8, kTwoTiles>(p, multiprocessors,
                                                                             stream);
    case TileType::fp8_block:
      return launch_grouped_decode_tiles<Multiply, TileType::fp8_block, kTwoTiles>(
          p, multiprocessors, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace koho::cuda
