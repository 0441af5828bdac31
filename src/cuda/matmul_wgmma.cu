// SPDX-License-Identifier: Apache-2.0
// The decode matrix kernel (matmul.cuh) on Hopper's wgmma: both operands straight from shared
// memory, e4m3 without conversion. The instruction keeps fewer bits than f32 in its sums, so every
// stage of 256 bytes is summed by itself and added in f32.
#include "cuda/matmul.cuh"
#include "cuda/wgmma.cuh"

namespace koho::cuda {
namespace {

template <TileType kType, int kTiles, int kTilesOfItem>
struct MultiplyRows {
  static constexpr int kRowTiles = kTilesOfItem;
  static constexpr int kSlotWidth = MatmulPlan<kTiles, kRowTiles>::kSlotWidth;

  float sum[kTiles][4] = {};
  float part[kTiles][4] = {};  // of a stage of 256 bytes, while its slots are multiplied

  /// The operands of a stage, of which each product takes the next 32 bytes of K.
  struct Operands {
    std::uint64_t weights;
    std::uint64_t tokens;
  };
  static constexpr std::uint32_t kWeightChunk = kTileRows * kTileChunk;
  static constexpr std::uint32_t kTokenChunk = 8 * kTiles * kTileChunk;

  static __device__ __forceinline__ void multiply(const Operands& at,
                                                  int step,
                                                  float (&part)[kTiles][4],
                                                  int add) {
    const auto chunks = static_cast<std::uint32_t>(step) * 2;
    wgmma<kType, 8 * kTiles>(&part[0][0], operand_at(at.weights, chunks * kWeightChunk),
                             operand_at(at.tokens, chunks * kTokenChunk), add);
  }
  static __device__ __forceinline__ void begin() { wgmma_begin(); }
  static __device__ __forceinline__ void finish() {
    wgmma_commit();
    wgmma_wait<0>();
  }

  /// The product of kSteps times 32 bytes of K is added to `part`, or becomes it.
  template <int kSteps>
  static __device__ __forceinline__ void run(std::uint32_t weights,
                                             std::uint32_t tokens,
                                             float (&part)[kTiles][4],
                                             bool add = false) {
    const Operands at{core_operand(weights, kWeightChunk), core_operand(tokens, kTokenChunk)};
    begin();
#pragma unroll
    for (int i = 0; i < kSteps; ++i) multiply(at, i, part, add || i > 0 ? 1 : 0);
    finish();
  }
  /// As run(), for the short stage at the end of a width: one instruction at a time.
  static __device__ __forceinline__ void run_short(std::uint32_t weights,
                                                   std::uint32_t tokens,
                                                   int steps,
                                                   float (&part)[kTiles][4],
                                                   bool add = false) {
    const Operands at{core_operand(weights, kWeightChunk), core_operand(tokens, kTokenChunk)};
#pragma unroll 1
    for (int i = 0; i < steps; ++i) {
      begin();
      multiply(at, i, part, add || i > 0 ? 1 : 0);
      finish();
    }
  }

  __device__ __forceinline__ void stage(const Matmul& p,
                                        const MatmulItem& item,
                                        int stage,
                                        std::uint32_t weights,
                                        std::uint32_t tokens) {
    const int bytes = min(kSlotWidth, p.width_bytes - stage * kSlotWidth);
    proxy_fence();  // the token rows were written by ordinary copies
    if constexpr (kRowTiles > 1) {
      constexpr int kSlots = kStageWidth / kSlotWidth;
      const bool add = stage % kSlots > 0;
      if (bytes == kSlotWidth)
        run<kSlotWidth / kTileWidthStep>(weights, tokens, part, add);
      else
        run_short(weights, tokens, bytes / kTileWidthStep, part, add);
      if (stage % kSlots + 1 < kSlots && (stage + 1) * kSlotWidth < p.width_bytes) return;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[tile][i] += part[tile][i];
    } else if constexpr (kType != TileType::fp8_block) {
      float part[kTiles][4] = {};
      if (bytes == kStageWidth)
        run<kStageWidth / kTileWidthStep>(weights, tokens, part);
      else if (bytes == kStageWidth / 2)
        run<kStageWidth / kTileWidthStep / 2>(weights, tokens, part);
      else
        run_short(weights, tokens, bytes / kTileWidthStep, part);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[tile][i] += part[tile][i];
    } else {
      const int lane = static_cast<int>(threadIdx.x) % 32;
      for (int half = 0; half * kBlockWidth < bytes; ++half) {
        float part[kTiles][4] = {};
        const std::uint32_t half_weights =
            weights + static_cast<std::uint32_t>(half * kBlockWidth * kTileRows);
        const std::uint32_t half_tokens =
            tokens + static_cast<std::uint32_t>(half * kBlockWidth * 8 * kTiles);
        const int left = bytes - half * kBlockWidth;
        if (left >= kBlockWidth)
          run<kBlockWidth / kTileWidthStep>(half_weights, half_tokens, part);
        else
          run_short(half_weights, half_tokens, left / kTileWidthStep, part);
        const int block = stage * (kStageWidth / kBlockWidth) + half;
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int token = min(tile * 8 + lane % 4 * 2 + i % 2, item.count - 1) + item.first;
            const int row = matmul_x_row(p, token);
            sum[tile][i] += part[tile][i] * block_scale(p, item, block, i / 2, row);
          }
      }
    }
  }
};

template <TileType kType, int kTiles>
using MultiplyWgmma = MultiplyRows<kType, kTiles, 1>;
template <TileType kType, int kTiles>
using MultiplyPairs = MultiplyRows<kType, kTiles, 2>;

}  // namespace

cudaError_t launch_matmul_wgmma(const Matmul& p, int multiprocessors, cudaStream_t stream) {
  if (p.row_tiles == 2) {
    if (p.type != TileType::fp8 || p.token_tiles != 4) return cudaErrorInvalidValue;
    return launch_matmul_form<MultiplyPairs, TileType::fp8, 4>(p, multiprocessors, stream);
  }
  // NOTE: 9 to 16 tokens of other types are matmul_dense.cu's; entries of experts have 8 or 32.
  return launch_matmul<MultiplyWgmma, false>(p, multiprocessors, stream);
}

const void* kernel_of::matmul_wgmma() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
