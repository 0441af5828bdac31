// SPDX-License-Identifier: Apache-2.0
// Hopper's wgmma: d[64, kN] (+)= a[64, 32 bytes of K] * b[kN, 32 bytes of K]^T. Both operands lie
// in shared memory, the f32 accumulators in registers: accumulator 4 * i + j of a thread is row g
// (+ 8 for j >= 2) of its warp's 16 and column 8 * i + 2 * t + j % 2, with g = lane / 4 and t =
// lane % 4. A column's bits do not depend on kN.
#pragma once

#include <cstdint>

#include "cuda/device/tile_type.h"

namespace koho::cuda {

/// The descriptor of an operand of core matrices without swizzle: `leading` bytes from one chunk of
/// K to the next, `row_group` bytes from 8 rows to the next 8. Weight tiles in shared memory have
/// 1024 and 128.
__device__ __forceinline__ std::uint64_t core_matrix_descriptor(std::uint32_t address,
                                                                std::uint32_t leading,
                                                                std::uint32_t row_group = 128) {
  return static_cast<std::uint64_t>((address & 0x3FFFFU) >> 4U) |
         (static_cast<std::uint64_t>(leading >> 4U) << 16U) |
         (static_cast<std::uint64_t>(row_group >> 4U) << 32U);
}
/// The descriptor of an operand whose rows of 128 bytes of K TMA has swizzled: 1024 bytes from 8
/// rows to the next 8. The next 32 bytes of K begin 32 bytes further.
__device__ __forceinline__ std::uint64_t swizzle128_descriptor(std::uint32_t address) {
  constexpr std::uint64_t kRowGroup = 1024;
  constexpr std::uint64_t kSwizzle128 = 1;
  return static_cast<std::uint64_t>((address & 0x3FFFFU) >> 4U) | (1ULL << 16U) |
         ((kRowGroup >> 4U) << 32U) | (kSwizzle128 << 62U);
}

/// The descriptor of the operand `bytes` (a multiple of 16) further on. One addition; a new
/// descriptor takes five dependent instructions. The address stays within its field, as shared
/// memory ends below 256 KB.
__device__ __forceinline__ std::uint64_t advance_descriptor(std::uint64_t operand,
                                                            std::uint32_t bytes) {
  return (operand & 0xFFFFFFFF00000000ULL) | (static_cast<std::uint32_t>(operand) + (bytes >> 4U));
}

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit_group() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

#define KOHO_SUMS4(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define KOHO_SUMS16(i) KOHO_SUMS4(i), KOHO_SUMS4((i) + 4), KOHO_SUMS4((i) + 8), KOHO_SUMS4((i) + 12)
#define KOHO_SUMS8(i) KOHO_SUMS4(i), KOHO_SUMS4((i) + 4)
#define KOHO_SUMS64(i) \
  KOHO_SUMS16(i), KOHO_SUMS16((i) + 16), KOHO_SUMS16((i) + 32), KOHO_SUMS16((i) + 48)

// clang-format off
#define KOHO_REGS8 "%0,%1,%2,%3"
#define KOHO_REGS16 "%0,%1,%2,%3,%4,%5,%6,%7"
#define KOHO_REGS24 KOHO_REGS16 ",%8,%9,%10,%11"
#define KOHO_REGS32 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define KOHO_REGS40 KOHO_REGS32 ",%16,%17,%18,%19"
#define KOHO_REGS48 KOHO_REGS40 ",%20,%21,%22,%23"
#define KOHO_REGS56 KOHO_REGS48 ",%24,%25,%26,%27"
#define KOHO_REGS64 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define KOHO_REGS128 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define KOHO_REGS72 KOHO_REGS64 ",%32,%33,%34,%35"
#define KOHO_REGS80 KOHO_REGS64 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define KOHO_REGS96 KOHO_REGS80 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define KOHO_REGS112 KOHO_REGS96 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define KOHO_REGS144 KOHO_REGS128 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define KOHO_REGS160 KOHO_REGS144 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define KOHO_REGS176 KOHO_REGS160 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define KOHO_REGS192 KOHO_REGS176 ",%88,%89,%90,%91,%92,%93,%94,%95"

// One instruction: the numbers of its operands after the accumulators, then the accumulators.
#define KOHO_MULTIPLY(form, end, n, weights_at, tokens_at, accumulate_at, ...)                     \
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %" #accumulate_at ", 0;\n\t"                  \
    "wgmma.mma_async.sync.aligned.m64n" #n form " {" KOHO_REGS##n "}, %" #weights_at               \
    ", %" #tokens_at ", p, 1, 1" end ";\n\t}"                                                      \
    : __VA_ARGS__ : "l"(weights), "l"(tokens), "r"(accumulate))
#define KOHO_FP8(n, ...)                                    \
  if constexpr (kType != TileType::bf16 && kN == n) \
    KOHO_MULTIPLY("k32.f32.e4m3.e4m3", "", n, __VA_ARGS__)
#define KOHO_BF16(n, ...)                                   \
  if constexpr (kType == TileType::bf16 && kN == n) \
    KOHO_MULTIPLY("k16.f32.bf16.bf16", ", 0, 0", n, __VA_ARGS__)

/// Whether a GEMM accumulates all of K in one chain of instructions. bf16 does, as the accumulator
/// keeps f32's bits. An e4m3 instruction keeps 13 bits below its largest term, the accumulator
/// among them; so every 256 bytes of K start a fresh accumulator, which the kernel adds in f32.
template <TileType kType>
constexpr bool kChained = kType == TileType::bf16;

/// `accumulate` = 0 replaces d.
template <TileType kType, int kN>
__device__ __forceinline__ void wgmma(float* d,
                                      std::uint64_t weights,
                                      std::uint64_t tokens,
                                      int accumulate) {
  KOHO_FP8(8, 4, 5, 6, KOHO_SUMS4(0));
  else KOHO_BF16(8, 4, 5, 6, KOHO_SUMS4(0));
  else KOHO_FP8(16, 8, 9, 10, KOHO_SUMS4(0), KOHO_SUMS4(4));
  else KOHO_BF16(16, 8, 9, 10, KOHO_SUMS4(0), KOHO_SUMS4(4));
  else KOHO_FP8(24, 12, 13, 14, KOHO_SUMS8(0), KOHO_SUMS4(8));
  else KOHO_FP8(32, 16, 17, 18, KOHO_SUMS16(0));
  else KOHO_BF16(32, 16, 17, 18, KOHO_SUMS16(0));
  else KOHO_FP8(40, 20, 21, 22, KOHO_SUMS16(0), KOHO_SUMS4(16));
  else KOHO_FP8(48, 24, 25, 26, KOHO_SUMS16(0), KOHO_SUMS8(16));
  else KOHO_FP8(56, 28, 29, 30, KOHO_SUMS16(0), KOHO_SUMS8(16), KOHO_SUMS4(24));
  else KOHO_FP8(64, 32, 33, 34, KOHO_SUMS16(0), KOHO_SUMS16(16));
  else KOHO_BF16(64, 32, 33, 34, KOHO_SUMS16(0), KOHO_SUMS16(16));
  else KOHO_BF16(72, 36, 37, 38, KOHO_SUMS16(0), KOHO_SUMS16(16), KOHO_SUMS4(32));
  else KOHO_FP8(80, 40, 41, 42, KOHO_SUMS16(0), KOHO_SUMS16(16), KOHO_SUMS8(32));
  else KOHO_FP8(96, 48, 49, 50, KOHO_SUMS16(0), KOHO_SUMS16(16), KOHO_SUMS16(32));
  else KOHO_FP8(112, 56, 57, 58, KOHO_SUMS16(0), KOHO_SUMS16(16), KOHO_SUMS16(32), KOHO_SUMS8(48));
  else KOHO_FP8(128, 64, 65, 66, KOHO_SUMS64(0));
  else KOHO_BF16(128, 64, 65, 66, KOHO_SUMS64(0));
  else KOHO_FP8(144, 72, 73, 74, KOHO_SUMS64(0), KOHO_SUMS8(64));
  else KOHO_BF16(144, 72, 73, 74, KOHO_SUMS64(0), KOHO_SUMS8(64));
  else KOHO_FP8(160, 80, 81, 82, KOHO_SUMS64(0), KOHO_SUMS16(64));
  else KOHO_FP8(176, 88, 89, 90, KOHO_SUMS64(0), KOHO_SUMS16(64), KOHO_SUMS8(80));
  else KOHO_FP8(192, 96, 97, 98, KOHO_SUMS64(0), KOHO_SUMS16(64), KOHO_SUMS16(80));
  else
    static_assert(kN == 0, "no such instruction here");
}
// clang-format on

#undef KOHO_MULTIPLY
#undef KOHO_FP8
#undef KOHO_BF16
#undef KOHO_REGS8
#undef KOHO_REGS16
#undef KOHO_REGS24
#undef KOHO_REGS32
#undef KOHO_REGS40
#undef KOHO_REGS48
#undef KOHO_REGS56
#undef KOHO_REGS64
#undef KOHO_REGS128
#undef KOHO_REGS72
#undef KOHO_REGS80
#undef KOHO_REGS96
#undef KOHO_REGS112
#undef KOHO_REGS144
#undef KOHO_REGS160
#undef KOHO_REGS176
#undef KOHO_REGS192
#undef KOHO_SUMS4
#undef KOHO_SUMS8
#undef KOHO_SUMS16
#undef KOHO_SUMS64

}  // namespace koho::cuda
