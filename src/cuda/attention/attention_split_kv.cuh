// SPDX-License-Identifier: Apache-2.0
// How decode attention splits contexts (split-KV) and combines partial sums: what its two kernels,
// attention_decode.cu and attention_combine.cu, must agree on.
//
// A row's sums are added in one fixed order, whatever the batch:
//
//   KV tile      128 tokens, two pages: summed by itself
//   chunk        `chunk_tokens` of context: its KV tiles in order
//   segment      one chunk in contexts of up to eight chunks; four chunks in order ("wide") beyond
//   accumulator  segments s, s + 8, ... in order make accumulator s % 8; then the eight in order
//
// Who does which step depends on the load. With few chunks on the device a work tile of the decode
// kernel is a KV tile; else it is a chunk; and where whole wide segments fill the CTAs, the first
// of them are work tiles, so that fewer partial sums are written and read (those of a chunk are a
// twentieth of its e4m3 pages). Where many short contexts fill the CTAs (has_many_contexts()), each
// is one work tile, which the decode kernel finishes. The combine kernel does the rest. Both call
// combine(), so a row's bits depend on its context alone.
#pragma once

#include "cuda/device/numeric.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/kernels.h"

namespace koho::cuda {

constexpr int kKvTileTokens = 128;
constexpr int kDecodeCtasPerSm = 2;
/// Chunks (times kv heads) up to which work tiles are KV tiles: of any contexts, and of contexts of
/// up to eight chunks on average, whose KV tiles are combined as fast.
constexpr int kTileSplitChunksAny = 96;
constexpr int kTileSplitChunksMax = 192;
constexpr int kSegmentChunks = 4;    // of a wide segment
constexpr int kSegmentsMax = 65535;  // segments that are work tiles: 16 bits each
constexpr int kCombineAccumulators = 8;
constexpr int kCombineWidthMax = 12288;  // of a row: 96 heads of 128

/// Floats of one work tile's partial sums: [group rows, width], then largest and total of each row;
/// a multiple of 16 bytes.
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
  const bool short_contexts = chunks <= kCombineAccumulators * p.decodes;
  return chunks * p.kv_heads <= (short_contexts ? kTileSplitChunksMax : kTileSplitChunksAny);
}

/// Whether contexts of the step, one work tile each, would keep the CTAs busy: many, or one for
/// nearly every CTA. The host asks, for the kernels of many contexts.
inline bool has_many_contexts(const Attention& p) {
  const int ctas = kDecodeCtasPerSm * p.multiprocessors;
  const std::int64_t contexts = static_cast<std::int64_t>(p.decodes) * p.kv_heads;
  return 4 * contexts >= 7 * ctas || (contexts <= ctas && 10 * contexts >= 9 * ctas);
}
/// Of a context of a step with many: which work tiles are its own. attention_decode.cu lists them
/// for attention_combine_many.cu.
struct alignas(16) ContextWorkTiles {
  int before;    // work tiles of the contexts before it, per kv head
  int segments;  // of its work tiles
  int tokens;    // a context of up to so many is one work tile, any longer one several
  int context;
};
constexpr int kDecodeWarps = 4;  // that sum a work tile, each a quarter of the columns
/// Of the rows that attention_decode.cu writes, [decodes, K, 4]: the largest magnitude of a kv
/// head's columns that a warp sums. Behind the list.
__device__ __forceinline__ float* head_maxima(const Attention& p) {
  return reinterpret_cast<float*>(p.context_work_tiles + p.decodes);
}
/// Floats of both.
constexpr std::int64_t context_floats(std::int64_t decodes, std::int64_t kv_heads) {
  return decodes * static_cast<std::int64_t>(sizeof(ContextWorkTiles) / sizeof(float) +
                                             kDecodeWarps * kv_heads);
}
/// The same parameters with both in front of the partial sums.
inline Attention with_context_work_tiles(Attention p) {
  p.context_work_tiles = reinterpret_cast<ContextWorkTiles*>(p.partial);
  p.partial += context_floats(p.decodes, p.kv_heads);
  return p;
}

/// Wide segments of a context that are whole: what is left of it is combined from chunks.
__device__ __forceinline__ int wide_segments_of(const Attention& p, int context) {
  return context > kCombineAccumulators * p.chunk_tokens ? context / p.chunk_tokens / kSegmentChunks
                                                         : 0;
}
/// How many of the wide segments of all sequences, in order, are work tiles: as many as give every
/// CTA the same number, and the remainder too if its chunks would take as long.
__device__ __forceinline__ int segment_work_tiles(const Attention& p, int segments) {
  const int ctas = kDecodeCtasPerSm * p.multiprocessors;
  const int all = segments * p.kv_heads;
  const int left = all % ctas;
  const int work_tiles = left * kSegmentChunks > (kSegmentChunks - 1) * ctas ? all : all - left;
  return min(work_tiles / p.kv_heads, kSegmentsMax);
}

/// The softmax state of a row over some tokens: its sums are multiples of 2^largest.
struct SoftmaxState {
  float largest = -INFINITY;
  float total = 0.0F;
};

/// Adds `more` to `state`. Returns what the sums of both are to be multiplied by before they are
/// added.
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

/// An element of a row, to be rounded to bf16.
__device__ __forceinline__ float normalize(float sum, const SoftmaxState& state) {
  return sum / state.total;
}

}  // namespace koho::cuda
