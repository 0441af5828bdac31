// SPDX-License-Identifier: Apache-2.0
// GEMM of many tokens on Hopper (launch_gemm_prefill_sm90 in gemm_sm90.h): a linear layer, or the
// experts of a layer whose token rows lie in permuted order. Swap-AB: weight rows are the MMA's M,
// tokens its N.
//
//   grid     persistent clusters of two CTAs. A work tile is 256 weight rows by up to kTileTokens
//            tokens of one token block; each CTA has half of the rows. The MMAs are as wide as the
//            block has tokens, rounded up to one of num_prefill_widths() widths. A linear layer's
//            tokens are divided so that clusters end together (prefill_token_blocks.h)
//   roles    warp 8 (producer) looks work tiles up, one per lane, and fills the ring: 8 KB bulk
//            copies of tiled weights, and its half of the token rows by TMA multicast to both CTAs.
//            Warpgroups 0 and 1 (MMA) multiply 64 weight rows each and leave bf16 in shared memory
//            while the next work tile's first MMAs run. Warps 9 to 11 (epilogue) store it, or have
//            TMA store it; under block scales warp 11 brings scales instead
//   sums     as in the decode kernels: fp8 sums of 256 bytes of K are added in f32 (block scales:
//            of 128, scaled), bf16
//            accumulates in one chain of MMAs; with split-K each split is summed by itself, then
//            added in order. So a token row has the same bits as in decode
//   shared   1 KB of barriers and queue · ring of stages of 16 KB + 128 B * kTileTokens · epilogue
//            buffer · scales and biases of two work tiles; 227 KB in all
//   bytes    of a work tile: its weights and its tokens once, from L2
//   files    gemm_prefill_sm90_tiles.cuh (shared memory, work tiles), _producer.cuh, _mainloop.cuh,
//            _scales.cuh, _epilogue.cuh; here the kernel and its launcher
//
// Best: 3584x5120 at 8,192 tokens in 202 us, 75 % of nominal (H200, 45ea55a, 2026-11-23).
// docs/kernels/gemm.md: when it runs, and what was tried.
#include "cuda/device/launch.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/gemm/gemm_prefill_sm90_epilogue.cuh"
#include "cuda/gemm/gemm_prefill_sm90_mainloop.cuh"
#include "cuda/gemm/gemm_prefill_sm90_producer.cuh"
#include "cuda/gemm/gemm_prefill_sm90_scales.cuh"
#include "cuda/gemm/gemm_prefill_sm90_tiles.cuh"
#include "cuda/gemm/gemm_sm90.h"
#include "cuda/gemm/prefill_token_blocks.h"

namespace koho::cuda {
namespace prefill {
namespace {

template <TileType kType, int kTileTokens, bool kSplitK>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)
    gemm_prefill_kernel(const __grid_constant__ Gemm p,
                        const __grid_constant__ PrefillTensorMaps maps,
                        const __grid_constant__ TokenBlocks slices) {
  using Plan = PrefillPlan<kTileTokens>;
  extern __shared__ std::uint8_t unaligned[];
  const std::uint32_t base = (shared_address(unaligned) + 1023U) / 1024U * 1024U;
  const std::uint32_t full = base;
  const std::uint32_t empty = base + 8U * Plan::kStages;
  const std::uint32_t buffer_full = empty + 8U * Plan::kStages;
  const WorkTileQueue list{base + kBarrierBytes / 2, buffer_full + 32U};
  const std::uint32_t ring = base + kBarrierBytes;
  const std::uint32_t results = ring + Plan::kStages * Plan::kStage;
  auto* scales = reinterpret_cast<float*>(unaligned + (results - shared_address(unaligned)) +
                                          Plan::kEpilogueBytes);
  const EpilogueBuffer<kTileTokens> buffer{results, scales, buffer_full, buffer_full + 16U};
  [[maybe_unused]] const ScaleRing<kTileTokens> scale_ring{list.full + 8U * kQueueTiles,
                                                           scales + 2 * Plan::kScaleWords};
  const int warp = warp_index();
  OperandProducer<kTileTokens> first{p, maps, full, ring, {}};
  int prologue = 0;  // of the producer warp
  if (warp == kConsumers / 32) {
    if (elect_one()) {
      for (int slot = 0; slot < Plan::kStages; ++slot)
        mbarrier_init(full + 8U * static_cast<std::uint32_t>(slot), 1);
      fence_mbarrier_init();
    }
    __syncwarp();
    if (p.token_blocks == nullptr)
      prologue = load_prologue_weights(first, PrefillTileScheduler(p, slices));
  } else if (threadIdx.x == 0) {
    for (int slot = 0; slot < Plan::kStages; ++slot)
      mbarrier_init(empty + 8U * static_cast<std::uint32_t>(slot), 2 * kConsumers / 32);
    for (std::uint32_t group = 0; group < 2; ++group) {
      mbarrier_init(buffer.full + 8U * group, kConsumers / 2);
      mbarrier_init(buffer.empty + 8U * group, kWriters<kType> * 32);
    }
    if constexpr (kType == TileType::fp8_block)
      for (int slot = 0; slot < ScaleRingPlan<kTileTokens>::kSlots; ++slot) {
        mbarrier_init(scale_ring.full(slot), 32);
        mbarrier_init(scale_ring.empty(slot), kConsumers / 32);
      }
    for (std::uint32_t work_tile = 0; work_tile < kQueueTiles; ++work_tile)
      mbarrier_init(list.full + 8U * work_tile, 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  cluster_arrive();
  cluster_wait();             // both CTAs' barriers are ready
  wait_on_dependent_grids();  // the producer releases the next kernel when it has copied everything
  load_prologue_tokens(first, prologue);
  const PrefillTileScheduler work(p, slices);
  if (warp >= kConsumers / 32) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
    if (kType == TileType::fp8_block && warp == kThreads / 32 - 1)
      produce_scales<kTileTokens>(p, work, list, scale_ring);
    else if (warp > kConsumers / 32)
      epilogue_warps<kType, kTileTokens>(p, maps, work, list, buffer, scales);
    else
      produce_operands<kTileTokens>(p, maps, work, list, full, empty, ring);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
    mma_warpgroups<kType, kTileTokens, kSplitK>(p, work, list, full, empty, ring, scale_ring,
                                                buffer);
  }
}

template <TileType kType, int kTileTokens, bool kSplitK>
cudaError_t launch_config(const Gemm& p,
                          const PrefillTensorMaps& maps,
                          int multiprocessors,
                          cudaStream_t stream) {
  constexpr int kShared = PrefillPlan<kTileTokens>::kShared +
                          (kType == TileType::fp8_block ? ScaleRingPlan<kTileTokens>::kBytes : 0);
  static_assert(kShared <= kSharedMax);
  const auto kernel = gemm_prefill_kernel<kType, kTileTokens, kSplitK>;
  static PerDevice prepared;
  const cudaError_t ready = prepared.once([&] {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  });
  if (ready != cudaSuccess) return ready;
  const int clusters = multiprocessors / 2;
  const TokenBlocks slices =
      p.token_blocks != nullptr
          ? TokenBlocks{}
          : prefill_token_blocks(prefill_tiling(p, kTileTokens, multiprocessors));
  return launch_kernel(kernel,
                       {dim3(static_cast<unsigned>(clusters * 2)), dim3(kThreads),
                        static_cast<std::size_t>(kShared)},
                       stream, p, maps, slices);
}

template <TileType kType>
cudaError_t launch_type(const Gemm& p,
                        const PrefillTensorMaps& maps,
                        int columns,
                        int multiprocessors,
                        cudaStream_t stream) {
  const bool whole = p.split_k == 1 && p.epilogue != Epilogue::f32;
  if constexpr (kType != TileType::bf16)
    if (columns == kPrefillTokensMax && whole)
      return launch_config<kType, kPrefillTokensMax, false>(p, maps, multiprocessors, stream);
  if constexpr (kType == TileType::fp8)
    if (columns == kPrefillTokensMid && whole)
      return launch_config<kType, kPrefillTokensMid, false>(p, maps, multiprocessors, stream);
  if (columns != 128 || (kType == TileType::fp8_block && p.epilogue == Epilogue::f32))
    return cudaErrorInvalidValue;
  return p.split_k > 1 ? launch_config<kType, 128, true>(p, maps, multiprocessors, stream)
                       : launch_config<kType, 128, false>(p, maps, multiprocessors, stream);
}

}  // namespace
}  // namespace prefill

cudaError_t launch_gemm_prefill_sm90(const Gemm& p,
                                     const PrefillTensorMaps& maps,
                                     int columns,
                                     int multiprocessors,
                                     cudaStream_t stream) {
  if (p.x_rows != nullptr || multiprocessors < 2) return cudaErrorInvalidValue;
  switch (p.type) {
    case TileType::bf16:
      return prefill::launch_type<TileType::bf16>(p, maps, columns, multiprocessors, stream);
    case TileType::fp8:
      return prefill::launch_type<TileType::fp8>(p, maps, columns, multiprocessors, stream);
    case TileType::fp8_block:
      return prefill::launch_type<TileType::fp8_block>(p, maps, columns, multiprocessors, stream);
  }
  return cudaErrorInvalidValue;
}

const void* kernel_of::gemm_prefill_sm90() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
