// SPDX-License-Identifier: Apache-2.0
// What the consumer warps of attention_decode.cu do with one KV tile of 128 tokens: scores
// (q k^T), the tile's softmax, and its weights times v. A warp scores 32 of the tokens and sums a
// quarter of the output columns.
#pragma once

#include "cuda/attention/attention_decode.cuh"
#include "cuda/device/numeric.cuh"

namespace koho::cuda::decode {

/// One warp's share of a work tile's rows: the sums of its columns, and the softmax state, which is
/// the same in all warps.
template <int kWidth, bool kFp8>
struct Rows {
  using Plan = DecodePlan<kWidth, kFp8>;
  float sum[Plan::kTiles][4] = {};
  SoftmaxState state[2];  // rows g and g + 8
};

/// This warp's 32 tokens of a KV tile.
struct Scored {
  float scores[kScoreTiles][4];   // raw; over e4m3 pages times the token's k scale
  float scale_v[kScoreTiles][2];  // v scales, e4m3 pages only
};

/// Where this lane reads and writes, in bytes.
struct LaneOffsets {
  std::uint32_t keys;         // in a slot
  std::uint32_t values;       // in a slot
  std::uint32_t weights_out;  // in Exchange::weights
  std::uint32_t weights_in;
};

template <int kWidth, bool kFp8>
__device__ __forceinline__ LaneOffsets lane_offsets() {
  using Page = KvPageLayout<kWidth, kFp8>;
  static_assert(kWarps == 2 * kKvTilePages);  // a warp scores half a page
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto weights = [](int row, int chunk) {
    return static_cast<std::uint32_t>(row * (kKvTileTokens * 2) + (chunk ^ (row & 7)) * 16);
  };
  LaneOffsets at;
  at.keys = static_cast<std::uint32_t>(warp / 2 * Page::kBytes) +
            key_offset<kWidth, kFp8>(warp % 2 * kWarpTokens);
  at.values = Page::swizzled_offset(lane, warp * (Page::kChunks / kWarps));
  at.weights_out = weights(lane / 4, warp * kScoreTiles) + static_cast<std::uint32_t>(lane % 4 * 4);
  at.weights_in = weights(lane % 16, lane / 16);
  return at;
}

/// The largest of four warps.
__device__ __forceinline__ float four_max(const float (&values)[kWarps]) {
  const float4 four = *reinterpret_cast<const float4*>(values);
  return fmaxf(fmaxf(four.x, four.y), fmaxf(four.z, four.w));
}

/// Scores this warp's tokens of the KV tile in `slot`; tokens from `left` on, which lie behind the
/// work tile, get -infinity. Tells the other warps each row's largest score.
template <int kWidth, bool kFp8>
__device__ __forceinline__ void score_tokens(Scored& scored,
                                             const std::uint32_t (&q)[kWidth / 16][4],
                                             Exchange& exchange,
                                             const LaneOffsets& at,
                                             const std::uint8_t* slot,
                                             int left) {
  using Plan = DecodePlan<kWidth, kFp8>;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::uint32_t keys = shared_address(slot) + at.keys;
#pragma unroll
  for (int half = 0; half < kScoreTiles / 2; ++half) {
    float two[2][4];
    mma_qk<kWidth, kFp8>(two, q, keys, half * 16);
#pragma unroll
    for (int tile = 0; tile < 2; ++tile)
#pragma unroll
      for (int i = 0; i < 4; ++i) scored.scores[half * 2 + tile][i] = two[tile][i];
  }
  if constexpr (kFp8) {
    const auto* scales = reinterpret_cast<const float*>(slot + Plan::kSlotScales) +
                         warp * kWarpTokens + lane % 4 * 2;
#pragma unroll
    for (int tile = 0; tile < kScoreTiles; ++tile) {
      const float2 k = *reinterpret_cast<const float2*>(scales + tile * 8);
      const float2 v = *reinterpret_cast<const float2*>(scales + kKvTileTokens + tile * 8);
      scored.scores[tile][0] *= k.x;
      scored.scores[tile][1] *= k.y;
      scored.scores[tile][2] *= k.x;
      scored.scores[tile][3] *= k.y;
      scored.scale_v[tile][0] = v.x;
      scored.scale_v[tile][1] = v.y;
    }
  }
  // NOTE: where no page was loaded the slot holds an older tile; its scores are dropped here.
  const int my_left = left - warp * kWarpTokens;
  if (my_left < kWarpTokens) {
#pragma unroll
    for (int tile = 0; tile < kScoreTiles; ++tile)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (tile * 8 + lane % 4 * 2 + i % 2 >= my_left) {
          scored.scores[tile][i] = -INFINITY;
          if constexpr (kFp8) scored.scale_v[tile][i % 2] = 0.0F;
        }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float largest[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int tile = 0; tile < kScoreTiles; ++tile)
#pragma unroll
      for (int i = 0; i < 2; ++i) largest[i] = fmaxf(largest[i], scored.scores[tile][half * 2 + i]);
    const float of_warp = quad_max(fmaxf(largest[0], largest[1]));
    if (lane % 4 == 0) exchange.largest[lane / 4 + half * 8][warp] = of_warp;
  }
  if constexpr (kFp8) {
    float largest[2] = {};
#pragma unroll
    for (int tile = 0; tile < kScoreTiles; ++tile)
#pragma unroll
      for (int i = 0; i < 2; ++i) largest[i] = fmaxf(largest[i], scored.scale_v[tile][i]);
    const float of_warp = quad_max(fmaxf(largest[0], largest[1]));
    if (lane == 0) exchange.largest_scale[warp] = of_warp;
  }
}

/// Turns scores into softmax weights and writes them to shared memory. Returns the power of two by
/// which the tile's sums of V are to be multiplied (1 over bf16 pages).
template <int kWidth, bool kFp8>
__device__ __forceinline__ float softmax_weights(SoftmaxState (&state)[2],
                                                 Scored& scored,
                                                 Exchange& exchange,
                                                 const LaneOffsets& at) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float scale = kLog2E / sqrtf(static_cast<float>(kWidth));
  float sums_scale = 1.0F;
  if constexpr (kFp8) {
    // Weights are multiplied by their tokens' v scales, in parts of a power of two that leaves
    // their largest between 2^14 and 2^15.
    constexpr std::uint32_t kLargest = 14;
    const std::uint32_t exponent =
        max(__float_as_uint(four_max(exchange.largest_scale)) >> 23, kLargest + 1);
    const float parts = __uint_as_float((2 * 127 + kLargest - exponent) << 23);
    sums_scale = __uint_as_float((exponent - kLargest) << 23);
#pragma unroll
    for (int tile = 0; tile < kScoreTiles; ++tile)
#pragma unroll
      for (int i = 0; i < 2; ++i) scored.scale_v[tile][i] *= parts;
  }
  auto* weights = reinterpret_cast<std::uint8_t*>(exchange.weights);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = lane / 4 + half * 8;
    state[half].largest = four_max(exchange.largest[row]) * scale;
    const float base = state[half].largest == -INFINITY ? 0.0F : state[half].largest;
    float total = 0.0F;
#pragma unroll
    for (int tile = 0; tile < kScoreTiles; ++tile) {
      float weight[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        // Scores are scaled here, in the exponent's own addition.
        const float share = exp2_approximate(fmaf(scored.scores[tile][half * 2 + i], scale, -base));
        // The total adds the weights as rounded for the MMA: the rounding errors cancel in part.
        weight[i] = kFp8 ? share : round_bf16(share);
        total += weight[i];
        if constexpr (kFp8) weight[i] *= scored.scale_v[tile][i];
      }
      *reinterpret_cast<std::uint32_t*>(weights +
                                        (at.weights_out ^ static_cast<std::uint32_t>(tile << 4)) +
                                        half * 8 * (kKvTileTokens * 2)) =
          kFp8 ? pack_f16(weight[0], weight[1]) : pack_bf16(weight[0], weight[1]);
    }
    total = quad_sum(total);
    if (lane % 4 == 0) exchange.total[row][warp] = total;
  }
  return sums_scale;
}

/// part += the weights of page `page` of the KV tile times this warp's columns of V.
template <int kWidth, bool kFp8>
__device__ __forceinline__ void sum_values(float (&part)[DecodePlan<kWidth, kFp8>::kTiles][4],
                                           std::uint32_t weights_at,
                                           std::uint32_t values,
                                           int page) {
  using Page = KvPageLayout<kWidth, kFp8>;
  constexpr int kSteps = kPage / 16;
  static_assert(kSteps == 4);  // so a page's weights are 128 bytes of a row
  std::uint32_t weights[kSteps][4];
#pragma unroll
  for (int step = 0; step < kSteps; ++step)
    ldmatrix_x4(weights[step], (weights_at ^ static_cast<std::uint32_t>(step << 5)) +
                                   static_cast<std::uint32_t>(page * 128));
  constexpr int kChunks = Page::kChunks / kWarps;  // of this warp's columns
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      std::uint32_t v[4];  // tokens 8 * i .. of 32, this chunk
      ldmatrix_x4_trans(
          v, Page::advance(values, chunk) +
                 static_cast<std::uint32_t>(page * Page::kBytes + half * 32 * Page::kPanelBytes));
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const std::uint32_t(&w)[4] = weights[half * 2 + j];
        if constexpr (kFp8) {
          std::uint32_t even[2];
          std::uint32_t odd[2];
#pragma unroll
          for (int i = 0; i < 2; ++i)
            e4m3_to_f16(__byte_perm(v[2 * j + i], 0, 0x3120), even[i], odd[i]);
          mma_f16(part[2 * chunk], w[0], w[1], w[2], w[3], even[0], even[1]);
          mma_f16(part[2 * chunk + 1], w[0], w[1], w[2], w[3], odd[0], odd[1]);
        } else {
          mma_bf16(part[chunk], w[0], w[1], w[2], w[3], v[2 * j], v[2 * j + 1]);
        }
      }
    }
}

/// Zeroes this warp's 32 tokens of a KV tile's V from token `left` on. Memory behind the context
/// may hold NaN, which a weight of 0 would not undo.
template <int kWidth, bool kFp8>
__device__ __forceinline__ void clear_beyond(std::uint8_t* slot, int left) {
  using Page = KvPageLayout<kWidth, kFp8>;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  std::uint8_t* page = slot + warp / 2 * Page::kBytes;
  for (int i = static_cast<int>(threadIdx.x) % 32; i < kWarpTokens * Page::kChunks; i += 32) {
    const int token = i / Page::kChunks;
    if (token >= left)
      *reinterpret_cast<uint4*>(
          page + Page::swizzled_offset(warp % 2 * kWarpTokens + token, i % Page::kChunks)) =
          make_uint4(0, 0, 0, 0);
  }
}

}  // namespace koho::cuda::decode
