// SPDX-License-Identifier: Apache-2.0
// What the mma.sync attention kernels (decode, prefill) share: cache pages in shared memory,
// swizzled so that ldmatrix meets no bank conflict, q k^T and weights times v, and one step of the
// online softmax.
//
// bf16 pages: both MMAs are bf16. e4m3 pages: e4m3 values become f16 in registers (exact). A
// token's k scale multiplies its score. Its v scale goes into the exponent of the weight that
// multiplies v, which has a running maximum of its own: the largest such weight is 2^15 whatever
// the scales are.
#pragma once

#include <cuda_fp16.h>

#include "cuda/attention/kv_tensor_map.h"
#include "cuda/device/numeric.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/kernels.h"

namespace koho::cuda {

constexpr int kPage = kPageRows;  // tokens
constexpr float kLog2E = 1.4426950408889634F;
/// e4m3 pages: the exponent of the largest weight that multiplies v. f16's normal numbers then
/// reach down to 2^-29 of it, and half its last step is 2^-40: where v's large weights meet zeros,
/// what is left of an element is made of weights as small as that.
constexpr float kWeightExponent = 15.0F;

template <int kWidth, bool kFp8>
struct KvPageLayout {
  static constexpr int kRowBytes = kFp8 ? kWidth : 2 * kWidth;
  static constexpr int kChunks = kRowBytes / 16;
  static constexpr int kPanelBytes = kRowBytes < kPanelBytesMax ? kRowBytes : kPanelBytesMax;
  static constexpr int kPanels = kRowBytes / kPanelBytes;
  static constexpr int kBytes = kPage * kRowBytes;          // of K, and of V
  static constexpr int kScaleBytes = kFp8 ? kPage * 4 : 0;  // of K, and of V
  // K, V, K scales, V scales. NOTE: the swizzle counts from multiples of 1024 bytes.
  static constexpr int kStage = (2 * kBytes + 2 * kScaleBytes + 1023) / 1024 * 1024;

  /// The offset of 16-byte chunk `chunk` of token row `row` in TMA's 128- or 64-byte swizzle.
  static __device__ __forceinline__ std::uint32_t swizzled_offset(int row, int chunk) {
    if constexpr (kPanelBytes == 128)
      return static_cast<std::uint32_t>(chunk / 8 * (kPage * 128) + row * 128 +
                                        ((chunk % 8 ^ (row & 7)) << 4));
    else
      return static_cast<std::uint32_t>(row * kPanelBytes + ((chunk ^ (row / 2 & 3)) << 4));
  }
  /// The address of the chunk `chunks` after the one at `address`, whose index must have none of
  /// the bits of
  /// `chunks`. A page begins at a multiple of 128 bytes.
  static __device__ __forceinline__ std::uint32_t advance(std::uint32_t address, int chunks) {
    constexpr int kPanelChunks = kPanelBytes / 16;
    return (address ^ static_cast<std::uint32_t>(chunks % kPanelChunks << 4)) +
           static_cast<std::uint32_t>(chunks / kPanelChunks * kPage * kPanelBytes);
  }
};

/// Starts copying one page's K and V of one head; tokens >= `valid` become zero. All threads.
template <int kWidth, bool kFp8, int kThreads>
__device__ __forceinline__ void load_page_async(
    const Attention& p, std::int64_t page, int kv_head, int valid, std::uint32_t stage) {
  using Page = KvPageLayout<kWidth, kFp8>;
  const std::int64_t place = (page * p.kv_heads + kv_head) * kPage;
  const auto* k = static_cast<const std::uint8_t*>(p.k) + place * Page::kRowBytes;
  const auto* v = static_cast<const std::uint8_t*>(p.v) + place * Page::kRowBytes;
#pragma unroll
  for (int i = 0; i < kPage * Page::kChunks / kThreads; ++i) {
    const int index = i * kThreads + static_cast<int>(threadIdx.x);
    const int row = index / Page::kChunks;
    const int chunk = index % Page::kChunks;
    const std::uint32_t bytes = row < valid ? 16 : 0;
    cp_async_16(stage + Page::swizzled_offset(row, chunk), k + index * 16, bytes);
    cp_async_16(stage + Page::kBytes + Page::swizzled_offset(row, chunk), v + index * 16, bytes);
  }
  if constexpr (kFp8) {
    const int index = static_cast<int>(threadIdx.x);
    if (index < 2 * kPage / 4) {
      const float* scales = index < kPage / 4 ? p.k_scales : p.v_scales;
      const int token = index % (kPage / 4) * 4;
      const int left = min(max(valid - token, 0), 4);
      cp_async_16(stage + 2 * Page::kBytes + static_cast<std::uint32_t>(index * 16),
                  scales + place + token, static_cast<std::uint32_t>(left * 4));
    }
  }
}

/// The column of the head that sum[tile][i] of this lane belongs to.
template <bool kFp8>
__device__ __forceinline__ int sum_column(int tile, int i) {
  const int quad = static_cast<int>(threadIdx.x) % 4;
  if constexpr (kFp8) return tile / 2 * 16 + quad * 4 + i % 2 * 2 + tile % 2;
  return tile * 8 + quad * 2 + i % 2;
}

/// The registers of 16 query rows.
template <int kWidth>
struct Rows16 {
  float sum[kWidth / 8][4] = {};                // of v, rows g and g + 8
  float largest[2] = {-INFINITY, -INFINITY};    // of scores (base 2)
  float largest_v[2] = {-INFINITY, -INFINITY};  // of scores + log2(v scale); e4m3 pages
  float total[2] = {};                          // this lane's share of the weights' sum
};

/// Fragments of 16 query rows for `kWidth / 16` steps.
template <int kWidth, bool kFp8>
__device__ __forceinline__ void load_query(std::uint32_t (&q)[kWidth / 16][4],
                                           const Bf16* low,
                                           const Bf16* high) {
  const int quad = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int step = 0; step < kWidth / 16; ++step) {
    if constexpr (kFp8) {  // 4 adjacent elements, the order in which e4m3 values are upcast
      const auto as_f16 = [&](const Bf16* row, std::uint32_t& first, std::uint32_t& second) {
        uint2 raw = make_uint2(0, 0);
        if (row != nullptr) raw = *reinterpret_cast<const uint2*>(row + step * 16 + quad * 4);
        first = bf16_to_f16(raw.x);
        second = bf16_to_f16(raw.y);
      };
      as_f16(low, q[step][0], q[step][2]);
      as_f16(high, q[step][1], q[step][3]);
    } else {
      const auto at = [&](const Bf16* row, int k) {
        return row == nullptr
                   ? 0U
                   : *reinterpret_cast<const std::uint32_t*>(row + step * 16 + quad * 2 + k);
      };
      q[step][0] = at(low, 0);
      q[step][1] = at(high, 0);
      q[step][2] = at(low, 8);
      q[step][3] = at(high, 8);
    }
  }
}

/// Where this lane's first chunk lies of 16 tokens' keys that begin at row `first` of a page.
template <int kWidth, bool kFp8>
__device__ __forceinline__ std::uint32_t key_offset(int first) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return KvPageLayout<kWidth, kFp8>::swizzled_offset(first + lane % 8 + lane / 16 * 8,
                                                     lane / 8 % 2);
}

/// Scores of 16 query rows and 16 tokens. The tokens are `first` rows (a multiple of 8) after where
/// `keys` points, which is a page's address plus key_offset().
template <int kWidth, bool kFp8>
__device__ __forceinline__ void mma_qk(float (&score)[2][4],
                                       const std::uint32_t (&q)[kWidth / 16][4],
                                       std::uint32_t keys,
                                       int first) {
  using Page = KvPageLayout<kWidth, kFp8>;
  const auto row = static_cast<std::uint32_t>(first * Page::kPanelBytes);
#pragma unroll
  for (int tile = 0; tile < 2; ++tile)
#pragma unroll
    for (int i = 0; i < 4; ++i) score[tile][i] = 0.0F;
  if constexpr (kFp8) {
#pragma unroll
    for (int chunk = 0; chunk < Page::kChunks; chunk += 2) {
      // (tokens 0-7, chunk), (0-7, chunk + 1), (8-15, chunk), (8-15, chunk + 1)
      std::uint32_t r[4];
      ldmatrix_x4(r, Page::advance(keys, chunk) + row);
#pragma unroll
      for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int tile = 0; tile < 2; ++tile) {
          std::uint32_t b[2];
          e4m3_to_f16(r[tile * 2 + j], b[0], b[1]);
          const std::uint32_t(&a)[4] = q[chunk + j];
          mma_f16(score[tile], a[0], a[1], a[2], a[3], b[0], b[1]);
        }
    }
  } else {
#pragma unroll
    for (int step = 0; step < kWidth / 16; ++step) {
      std::uint32_t r[4];  // (tokens 0-7, k 0-7), (0-7, k 8-15), (8-15, k 0-7), (8-15, k 8-15)
      ldmatrix_x4(r, Page::advance(keys, step * 2) + row);
      const std::uint32_t(&a)[4] = q[step];
      mma_bf16(score[0], a[0], a[1], a[2], a[3], r[0], r[1]);
      mma_bf16(score[1], a[0], a[1], a[2], a[3], r[2], r[3]);
    }
  }
}

/// sum += weight[16 rows, 16 tokens] * v[16 tokens, width].
template <int kWidth, bool kFp8>
__device__ __forceinline__ void mma_pv(float (&sum)[kWidth / 8][4],
                                       const std::uint32_t (&weight)[4],
                                       std::uint32_t values,
                                       int first) {
  using Page = KvPageLayout<kWidth, kFp8>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = first + lane % 16;
#pragma unroll
  for (int chunk = 0; chunk < Page::kChunks; chunk += 2) {
    std::uint32_t r[4];  // (tokens 0-7, chunk), (8-15, chunk), (0-7, chunk + 1), (8-15, chunk + 1)
    ldmatrix_x4_trans(r, values + Page::swizzled_offset(row, chunk + lane / 16));
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if constexpr (kFp8) {
        // A register holds two tokens of columns 2g and 2g + 1: sorted by column, then upcast.
        // Sums 2c and 2c + 1 are the even and the odd columns of chunk c.
        std::uint32_t even[2];
        std::uint32_t odd[2];
#pragma unroll
        for (int half = 0; half < 2; ++half)
          e4m3_to_f16(__byte_perm(r[2 * j + half], 0, 0x3120), even[half], odd[half]);
        mma_f16(sum[2 * (chunk + j)], weight[0], weight[1], weight[2], weight[3], even[0], even[1]);
        mma_f16(sum[2 * (chunk + j) + 1], weight[0], weight[1], weight[2], weight[3], odd[0],
                odd[1]);
      } else {
        mma_bf16(sum[chunk + j], weight[0], weight[1], weight[2], weight[3], r[2 * j],
                 r[2 * j + 1]);
      }
    }
  }
}

__device__ __forceinline__ float quad_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFU, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xFFFFFFFFU, value, 2));
}
__device__ __forceinline__ float quad_sum(float value) {
  value += __shfl_xor_sync(0xFFFFFFFFU, value, 1);
  return value + __shfl_xor_sync(0xFFFFFFFFU, value, 2);
}

/// One step of the online softmax over kTiles * 8 tokens: rescales the sums and leaves the weights
/// that multiply v in `score`. Scores come in base 2, masked ones as -infinity. `log_v` is log2(v
/// scale) of each of this lane's tokens.
template <int kWidth, bool kFp8, int kTiles>
__device__ __forceinline__ void online_softmax(Rows16<kWidth>& rows,
                                               float (&score)[kTiles][4],
                                               const float (&log_v)[kTiles][2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float largest = rows.largest[half];
    float largest_v = rows.largest_v[half];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        largest = fmaxf(largest, score[tile][half * 2 + i]);
        if constexpr (kFp8)
          largest_v = fmaxf(largest_v, score[tile][half * 2 + i] + log_v[tile][i]);
      }
    largest = quad_max(largest);
    const float base = largest == -INFINITY ? 0.0F : largest;
    float keep = exp2f(rows.largest[half] - base);
    rows.total[half] *= keep;
    rows.largest[half] = largest;
    float base_v = base;
    if constexpr (kFp8) {
      largest_v = quad_max(largest_v);
      base_v = largest_v == -INFINITY ? 0.0F : largest_v;
      keep = exp2f(rows.largest_v[half] - base_v);
      rows.largest_v[half] = largest_v;
      base_v -= kWeightExponent;
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& s = score[tile][half * 2 + i];
        // The total adds the weights as rounded for the MMA: the rounding errors cancel in part.
        const float weight = kFp8 ? exp2f(s - base) : round_bf16(exp2f(s - base));
        rows.total[half] += weight;
        if constexpr (kFp8)
          s = s == -INFINITY ? 0.0F : exp2f(s + log_v[tile][i] - base_v);
        else
          s = weight;
      }
#pragma unroll
    for (int tile = 0; tile < kWidth / 8; ++tile) {
      rows.sum[tile][half * 2] *= keep;
      rows.sum[tile][half * 2 + 1] *= keep;
    }
  }
}

/// True if this thread's share of a page of V holds a NaN or infinity.
template <int kWidth, bool kFp8, int kThreads>
__device__ __forceinline__ bool not_finite(const std::uint8_t* values) {
  bool found = false;
  for (int i = static_cast<int>(threadIdx.x); i < KvPageLayout<kWidth, kFp8>::kBytes / 4;
       i += kThreads) {
    const std::uint32_t word = reinterpret_cast<const std::uint32_t*>(values)[i];
    if constexpr (kFp8) {
#pragma unroll
      for (int byte = 0; byte < 4; ++byte) found |= (word >> (8 * byte) & 0x7FU) == 0x7FU;
    } else {
      found |= (word & 0x7F80U) == 0x7F80U || (word & 0x7F800000U) == 0x7F800000U;
    }
  }
  return found;
}

/// Adds a page's NaNs and infinities to the rows that see their tokens: the first seen[0] tokens of
/// the page for row g, seen[1] for row g + 8. In other rows they would become 0 * NaN. Slow,
/// and only for pages at the causal edge that hold one.
template <int kWidth, bool kFp8>
__device__ void add_not_finite(float (&sum)[kWidth / 8][4],
                               const int (&seen)[2],
                               const std::uint8_t* values) {
  using Page = KvPageLayout<kWidth, kFp8>;
#pragma unroll 1
  for (int token = 0; token < kPage; ++token) {
#pragma unroll
    for (int tile = 0; tile < kWidth / 8; ++tile)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int byte = sum_column<kFp8>(tile, i) * (kFp8 ? 1 : 2);
        const std::uint8_t* at = values + Page::swizzled_offset(token, byte / 16) + byte % 16;
        const float v = kFp8 ? from_e4m3(*at) : to_float(*reinterpret_cast<const Bf16*>(at));
        if (!isfinite(v) && token < seen[i / 2]) sum[tile][i] += v;
      }
  }
}

/// Makes this thread's share of a page's NaNs and infinities zero.
template <int kWidth, bool kFp8, int kThreads>
__device__ __forceinline__ void clear_not_finite(std::uint8_t* values) {
  constexpr int kBytes = kFp8 ? 1 : 2;
  for (int i = static_cast<int>(threadIdx.x); i < KvPageLayout<kWidth, kFp8>::kBytes / kBytes;
       i += kThreads) {
    if constexpr (kFp8) {
      if ((values[i] & 0x7FU) == 0x7FU) values[i] = 0;
    } else {
      Bf16& value = reinterpret_cast<Bf16*>(values)[i];
      if ((value & 0x7F80U) == 0x7F80U) value = 0;
    }
  }
}

/// Two tiles of weights as the A operand of the MMA with v.
template <bool kFp8>
__device__ __forceinline__ void pack_weights(std::uint32_t (&packed)[4],
                                             const float (&a)[4],
                                             const float (&b)[4]) {
  const auto pair = [](float low, float high) {
    return kFp8 ? pack_f16(low, high) : pack_bf16(low, high);
  };
  packed[0] = pair(a[0], a[1]);
  packed[1] = pair(a[2], a[3]);
  packed[2] = pair(b[0], b[1]);
  packed[3] = pair(b[2], b[3]);
}

}  // namespace koho::cuda
