// SPDX-License-Identifier: Apache-2.0
// The decode matrix kernel (matmul.cuh) on Hopper's wgmma: both operands straight from shared
// memory, e4m3 without conversion. The instruction keeps fewer bits than f32 in its sums, so every
// stage of 256 bytes is summed by itself and added in f32.
#include "cuda/matmul.cuh"

namespace koho::cuda {
namespace {

/// A core-matrix operand without swizzle: `leading` bytes between chunks of K, 128 between 8 rows.
__device__ __forceinline__ std::uint64_t operand(std::uint32_t address, std::uint32_t leading) {
  constexpr std::uint64_t kRowGroup = 128;
  return static_cast<std::uint64_t>((address & 0x3FFFFU) >> 4U) |
         (static_cast<std::uint64_t>(leading >> 4U) << 16U) | ((kRowGroup >> 4U) << 32U);
}

#define KOHO_SUMS4(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define KOHO_SUMS16(i) KOHO_SUMS4(i), KOHO_SUMS4((i) + 4), KOHO_SUMS4((i) + 8), KOHO_SUMS4((i) + 12)

/// d[64, 8 * kTiles] (+)= a[64, 32 bytes] * b[8 * kTiles, 32 bytes]^T
template <TileType kType, int kTiles>
__device__ __forceinline__ void wgmma(float* d, std::uint64_t a, std::uint64_t b, int add) {
  if constexpr (kType != TileType::bf16) {
    if constexpr (kTiles == 1)
      asm volatile(
          "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %6, 0;\n\t"
          "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 "
          "{%0,%1,%2,%3}, "
          "%4, %5, p, 1, 1;\n\t}"
          : KOHO_SUMS4(0)
          : "l"(a), "l"(b), "r"(add));
    else if constexpr (kTiles == 2)
      asm volatile(
          "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %10, 0;\n\t"
          "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 "
          "{%0,%1,%2,%3,%4,%5,%6,%7}, "
          "%8, %9, p, 1, 1;\n\t}"
          : KOHO_SUMS4(0), KOHO_SUMS4(4)
          : "l"(a), "l"(b), "r"(add));
    else if constexpr (kTiles == 4)
      asm volatile(
          "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %18, 0;\n\t"
          "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 "
          "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, "
          "%16, %17, p, 1, 1;\n\t}"
          : KOHO_SUMS16(0)
          : "l"(a), "l"(b), "r"(add));
    else
      asm volatile(
          "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %34, 0;\n\t"
          "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 "
          "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
          "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
          "%32, %33, p, 1, 1;\n\t}"
          : KOHO_SUMS16(0), KOHO_SUMS16(16)
          : "l"(a), "l"(b), "r"(add));
  } else {
    if constexpr (kTiles == 1)
      asm volatile(
          "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %6, 0;\n\t"
          "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
          "{%0,%1,%2,%3}, "
          "%4, %5, p, 1, 1, 0, 0;\n\t}"
          : KOHO_SUMS4(0)
          : "l"(a), "l"(b), "r"(add));
    else if constexpr (kTiles == 2)
      asm volatile(
          "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %10, 0;\n\t"
          "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
          "{%0,%1,%2,%3,%4,%5,%6,%7}, "
          "%8, %9, p, 1, 1, 0, 0;\n\t}"
          : KOHO_SUMS4(0), KOHO_SUMS4(4)
          : "l"(a), "l"(b), "r"(add));
    else if constexpr (kTiles == 4)
      asm volatile(
          "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %18, 0;\n\t"
          "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
          "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, "
          "%16, %17, p, 1, 1, 0, 0;\n\t}"
          : KOHO_SUMS16(0)
          : "l"(a), "l"(b), "r"(add));
    else
      asm volatile(
          "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %34, 0;\n\t"
          "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
          "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
          "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
          "%32, %33, p, 1, 1, 0, 0;\n\t}"
          : KOHO_SUMS16(0), KOHO_SUMS16(16)
          : "l"(a), "l"(b), "r"(add));
  }
}

#undef KOHO_SUMS4
#undef KOHO_SUMS16

template <TileType kType, int kTiles>
struct MultiplyWgmma {
  float sum[kTiles][4] = {};

  static __device__ __forceinline__ void multiply(
      std::uint32_t weights, std::uint32_t tokens, int step, float (&part)[kTiles][4], int add) {
    constexpr std::uint32_t kWeightChunk = kTileRows * kTileChunk;
    constexpr std::uint32_t kTokenChunk = 8 * kTiles * kTileChunk;
    const auto at = static_cast<std::uint32_t>(step) * 2;
    wgmma<kType, kTiles>(&part[0][0], operand(weights + at * kWeightChunk, kWeightChunk),
                         operand(tokens + at * kTokenChunk, kTokenChunk), add);
  }
  static __device__ __forceinline__ void begin() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  }
  static __device__ __forceinline__ void finish() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  }

  /// part = the product of kSteps times 32 bytes of K.
  template <int kSteps>
  static __device__ __forceinline__ void run(std::uint32_t weights,
                                             std::uint32_t tokens,
                                             float (&part)[kTiles][4]) {
    begin();
#pragma unroll
    for (int i = 0; i < kSteps; ++i) multiply(weights, tokens, i, part, i > 0 ? 1 : 0);
    finish();
  }
  /// As run(), for the short stage at the end of a width: one instruction at a time.
  static __device__ __forceinline__ void run_short(std::uint32_t weights,
                                                   std::uint32_t tokens,
                                                   int steps,
                                                   float (&part)[kTiles][4]) {
#pragma unroll 1
    for (int i = 0; i < steps; ++i) {
      begin();
      multiply(weights, tokens, i, part, i > 0 ? 1 : 0);
      finish();
    }
  }

  __device__ __forceinline__ void stage(const Matmul& p,
                                        const MatmulItem& item,
                                        int stage,
                                        std::uint32_t weights,
                                        std::uint32_t tokens) {
    const int bytes = min(kStageWidth, p.width_bytes - stage * kStageWidth);
    proxy_fence();  // the token rows were written by ordinary copies
    if constexpr (kType != TileType::fp8_block) {
      float part[kTiles][4] = {};
      if (bytes == kStageWidth)
        run<kStageWidth / kTileWidthStep>(weights, tokens, part);
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
            const int row = p.x_rows != nullptr ? p.x_rows[token] : token;
            sum[tile][i] += part[tile][i] * block_scale(p, item, block, i / 2, row);
          }
      }
    }
  }
};

}  // namespace

cudaError_t launch_matmul_wgmma(const Matmul& p, int multiprocessors, cudaStream_t stream) {
  return launch_matmul<MultiplyWgmma>(p, multiprocessors, stream);
}

}  // namespace koho::cuda
