// SPDX-License-Identifier: Apache-2.0
// How decode attention cuts contexts and combines what it finds: the shared knowledge of its two
// kernels.
//
// The sums of a row have one fixed shape. A KV tile of 128 tokens, two pages, is summed by itself; the
// KV tiles of a chunk (`chunk_tokens` of context) are combined in order. A context of up to eight chunks
// has as many segments; a longer one has wide segments of four chunks, combined in order. Segments s, s + 8, …
// are combined in order by accumulator s % 8, then the accumulators in order. What is combined by whom depends on the
// load: with few chunks on the device a work tile is a KV tile, else a chunk, and with many whole wide
// segments the first of them are work tiles, so that less is written and read again: a chunk's sums are a
// twentieth of its e4m3 pages. The combine kernel combines the rest. combine() is the same operation in both
// places, so a row's bits depend on its context alone.
#pragma once

#include "cuda/device/numeric.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/kernels.h"

namespace koho::cuda {

constexpr int kKvTileTokens = 128;
constexpr int kDecodeCtasPerSm = 2;  // an SM
constexpr int kTileSplitChunksMax =
    96;  // chunks (times kv heads) up to which work tiles are single KV tiles
constexpr int kSegmentChunks = 4;    // of a wide one
constexpr int kSegmentsMax = 65535;  // that are work tiles
constexpr int kCombineAccumulators = 8;
constexpr int kCombineWidthMax = 12288;  // of a row: 96 heads of 128

/// Floats of one work tile: sums [group rows, width], then largest and total of each row; a multiple of
/// 16 bytes.
__host__ __device__ constexpr int work_tile_floats(int group, int width) {
  return group * width + (2 * group + 3) / 4 * 4;
}

__device__ __forceinline__ int kv_tiles_of(int context) {
  return (context + kKvTileTokens - 1) / kKvTileTokens;
}
__device__ __forceinline__ int chunks_of(const Attention& p, int context) {
  return (context + p.chunk_tokens - 1) / p.chunk_tokens;
}
__device__ __forceinline__ bool splits_into_kv_tiles(const Attention& p, int chunks) {
  return chunks * p.kv_heads <= kTileSplitChunksMax;
}

/// Whole wide segments.
__device__ __forceinline__ int wide_segments_of(const Attention& p, int context) {
  return context > kCombineAccumulators * p.chunk_tokens ? context / p.chunk_tokens / kSegmentChunks
                                                         : 0;
}
/// How many of the wide segments of all sequences, in order, are work tiles: as many as go round the CTAs,
/// and what is left too if its chunks would take as long.
__device__ __forceinline__ int segment_work_tiles(const Attention& p, int segments) {
  const int ctas = kDecodeCtasPerSm * p.multiprocessors;
  const int all = segments * p.kv_heads;
  const int left = all % ctas;
  const int work_tiles = left * kSegmentChunks > (kSegmentChunks - 1) * ctas ? all : all - left;
  return min(work_tiles / p.kv_heads, kSegmentsMax);
}

/// A row's softmax over some tokens but for the sums: their scale is 2^largest.
struct SoftmaxState {
  float largest = -INFINITY;
  float total = 0.0F;
};

/// What both sides' sums are multiplied by when `more` combines `state`, which is updated.
__device__ __forceinline__ float2 combine(SoftmaxState& state, const SoftmaxState& more) {
  const float largest = fmaxf(state.largest, more.largest);
  const float base = largest == -INFINITY ? 0.0F : largest;
  const float2 factor =
      make_float2(exp2_approximate(state.largest - base), exp2_approximate(more.largest - base));
  state.largest = largest;
  state.total = __fmaf_rn(more.total, factor.y, __fmul_rn(state.total, factor.x));
  return factor;
}
__device__ __forceinline__ float combine_sum(float sum, float more, float2 factor) {
  return __fmaf_rn(more, factor.y, __fmul_rn(sum, factor.x));
}

}  // namespace koho::cuda
