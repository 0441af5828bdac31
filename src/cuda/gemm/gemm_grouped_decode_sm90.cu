// SPDX-License-Identifier: Apache-2.0
// The grouped decode GEMM (gemm_grouped_decode.cuh) on Hopper's wgmma: both operands come from
// shared memory, e4m3 without conversion. An e4m3 wgmma keeps fewer bits than f32 in its sums, so
// every stage of 256 bytes of K is summed by itself and added in f32.
#include <type_traits>

#include "cuda/device/wgmma.cuh"
#include "cuda/gemm/block_scales.cuh"
#include "cuda/gemm/gemm_grouped_decode.cuh"

namespace koho::cuda {
namespace {

constexpr int kBlocks = kStageWidth / kBlockWidth;         // of K in a stage
constexpr int kBlockSteps = kBlockWidth / kTileWidthStep;  // MMAs of a block

/// What a mainloop keeps under block scales.
template <int kTiles>
struct OfBlockScales {
  BlockScales<kTiles> scales;
  int x_rows[kTiles];  // of the lane's token of each n8 tile
  int first_stage;
};
struct Nothing {};

template <TileType kType, int kTiles, int kTilesOfItem>
struct WgmmaTileMainloop
    : std::conditional_t<kType == TileType::fp8_block, OfBlockScales<kTiles>, Nothing> {
  static constexpr int kRowTiles = kTilesOfItem;
  static constexpr int kCtasPerSm = GroupedDecodePlan<kTiles, 1>::kCtasPerSm;
  static constexpr int kSlotWidth = GroupedDecodePlan<kTiles, kRowTiles>::kSlotWidth;

  float sum[kTiles][4] = {};
  float partial[kTiles][4] = {};  // of a stage of 256 bytes, while its slots are multiplied

  __device__ __forceinline__ void begin(const Gemm& p,
                                        const WorkTile& work_tile,
                                        int stage) requires(kType == TileType::fp8_block) {
    this->first_stage = stage;
    this->scales.begin_weights(
        p, static_cast<std::int64_t>(work_tile.expert) * p.tiles + work_tile.tile, stage * kBlocks);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int token = tile * 8 + static_cast<int>(threadIdx.x) % 32 / 4;
      this->x_rows[tile] = x_row_of(p, work_tile.first + min(token, work_tile.count - 1));
    }
    this->scales.begin_tokens(p, stage * kBlocks, [this](int tile) { return this->x_rows[tile]; });
  }

  /// Descriptors of a stage's operands. Each MMA takes the next 32 bytes of K.
  struct Operands {
    std::uint64_t weights;
    std::uint64_t tokens;
  };
  static constexpr std::uint32_t kWeightChunk = kTileRows * kTileChunk;
  static constexpr std::uint32_t kTokenChunk = 8 * kTiles * kTileChunk;

  static __device__ __forceinline__ void multiply(const Operands& at,
                                                  int step,
                                                  float (&partial)[kTiles][4],
                                                  int add) {
    const auto chunks = static_cast<std::uint32_t>(step) * 2;
    wgmma<kType, 8 * kTiles>(&partial[0][0], advance_descriptor(at.weights, chunks * kWeightChunk),
                             advance_descriptor(at.tokens, chunks * kTokenChunk), add);
  }
  static __device__ __forceinline__ void finish() {
    wgmma_commit_group();
    wgmma_wait_group<0>();
  }

  /// Multiplies kSteps * 32 bytes of K; the result is added to `partial`, or replaces it.
  template <int kSteps>
  static __device__ __forceinline__ void run(std::uint32_t weights,
                                             std::uint32_t tokens,
                                             float (&partial)[kTiles][4],
                                             bool add = false) {
    const Operands at{core_matrix_descriptor(weights, kWeightChunk),
                      core_matrix_descriptor(tokens, kTokenChunk)};
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kSteps; ++i) multiply(at, i, partial, add || i > 0 ? 1 : 0);
    finish();
  }
  /// As run(), for the short stage at the end of K: one MMA at a time.
  static __device__ __forceinline__ void run_short(std::uint32_t weights,
                                                   std::uint32_t tokens,
                                                   int steps,
                                                   float (&partial)[kTiles][4],
                                                   bool add = false) {
    const Operands at{core_matrix_descriptor(weights, kWeightChunk),
                      core_matrix_descriptor(tokens, kTokenChunk)};
#pragma unroll 1
    for (int i = 0; i < steps; ++i) {
      wgmma_fence();
      multiply(at, i, partial, add || i > 0 ? 1 : 0);
      finish();
    }
  }

  __device__ __forceinline__ void stage(const Gemm& p,
                                        const WorkTile& work_tile,
                                        int stage,
                                        std::uint32_t weights,
                                        std::uint32_t tokens) {
    const int bytes = min(kSlotWidth, p.width_bytes - stage * kSlotWidth);
    fence_proxy_async_shared();  // makes the token rows, which cp.async wrote, visible to wgmma
    if constexpr (kRowTiles > 1) {
      constexpr int kSlots = kStageWidth / kSlotWidth;
      const bool add = stage % kSlots > 0;
      if (bytes == kSlotWidth)
        run<kSlotWidth / kTileWidthStep>(weights, tokens, partial, add);
      else
        run_short(weights, tokens, bytes / kTileWidthStep, partial, add);
      if (stage % kSlots + 1 < kSlots && (stage + 1) * kSlotWidth < p.width_bytes) return;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[tile][i] += partial[tile][i];
    } else if constexpr (kType != TileType::fp8_block) {
      float partial[kTiles][4] = {};
      if (bytes == kStageWidth)
        run<kStageWidth / kTileWidthStep>(weights, tokens, partial);
      else if (bytes == kStageWidth / 2)
        run<kStageWidth / kTileWidthStep / 2>(weights, tokens, partial);
      else
        run_short(weights, tokens, bytes / kTileWidthStep, partial);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[tile][i] += partial[tile][i];
    } else {
      const int four = (stage - this->first_stage) % 2 * kBlocks;  // the stage's first block
      if (four == 0)
        this->scales.take(p, stage * kBlocks, [this](int tile) { return this->x_rows[tile]; });
      if (kTiles < 8 && bytes == kStageWidth) {
        float both[kBlocks][kTiles][4];
        const Operands at{core_matrix_descriptor(weights, kWeightChunk),
                          core_matrix_descriptor(tokens, kTokenChunk)};
        wgmma_fence();
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
          for (int i = 0; i < kBlockSteps; ++i)
            multiply(at, block * kBlockSteps + i, both[block], i > 0 ? 1 : 0);
          wgmma_commit_group();
        }
        wgmma_wait_group<1>();
        this->scales.add(sum, both[0], four);
        wgmma_wait_group<0>();
        this->scales.add(sum, both[1], four + 1);
        return;
      }
      for (int block = 0; block * kBlockWidth < bytes; ++block) {
        const int steps = min(bytes - block * kBlockWidth, kBlockWidth) / kTileWidthStep;
        const std::uint32_t of_weights =
            weights + static_cast<std::uint32_t>(block * kBlockWidth * kTileRows);
        const std::uint32_t of_tokens =
            tokens + static_cast<std::uint32_t>(block * kBlockWidth * 8 * kTiles);
        if (kTiles == 8 && steps == kBlockSteps)
          run<kBlockSteps>(of_weights, of_tokens, partial);
        else
          run_short(of_weights, of_tokens, steps, partial);
        this->scales.add(sum, partial, four + block);
      }
    }
  }
};

template <TileType kType, int kTiles>
using WgmmaMainloop = WgmmaTileMainloop<kType, kTiles, 1>;
template <TileType kType, int kTiles>
using MultiplyPairs = WgmmaTileMainloop<kType, kTiles, 2>;

}  // namespace

cudaError_t launch_gemm_grouped_decode_sm90(const Gemm& p,
                                            int multiprocessors,
                                            cudaStream_t stream) {
  if (p.row_tiles == 2) {
    if (p.type != TileType::fp8 || p.token_tiles != 4) return cudaErrorInvalidValue;
    return launch_grouped_decode_config<MultiplyPairs, TileType::fp8, 4>(p, multiprocessors,
                                                                         stream);
  }
  // NOTE: no blocks of 9 to 16 tokens: gemm_decode_swap_ab_sm90.cu runs such linear layers, and
  // experts have blocks of 8 or of 32 and more.
  return launch_grouped_decode<WgmmaMainloop, false>(p, multiprocessors, stream);
}

const void* kernel_of::gemm_grouped_decode_sm90() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
