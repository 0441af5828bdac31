// SPDX-License-Identifier: Apache-2.0
// The work tiles of a decode step, and which CTA takes which. Every CTA makes the list for
// itself from the context lengths on the device, so a captured CUDA graph serves contexts of any
// length.
//
// Segments go round the CTAs first, then whole chunks, then what is left of each context (with few
// chunks on the device: whole KV tiles, then rests). In the order of contexts instead, a CTA would
// meet only long work tiles, or only short ones, whenever the number of CTAs divides that of a
// context. Of many contexts (kMany) short ones may be a work tile each: a rest, in this order.
#pragma once

#include "cuda/attention/attention_decode.cuh"

namespace koho::cuda::decode {

__device__ __forceinline__ bool is_short(const Attention& p, int context) {
  return context <= kCombineAccumulators * p.chunk_tokens;
}

/// What decides whether short contexts, up to eight chunks each, are one work tile each. In KV
/// tiles.
struct ContextSums {
  int all;  // of all contexts
  int of_short;
  int fullest;  // of the short ones that one CTA would take as they go round the CTAs
};
__device__ __forceinline__ int context_columns(const Attention& p) {
  return max(kDecodeCtasPerSm * p.multiprocessors / p.kv_heads, 1);
}
/// Of the contexts that this thread adds up. Sequences s, s + columns, ... meet in the same CTAs,
/// one for each kv head.
__device__ __forceinline__ ContextSums sum_contexts_of_thread(const Attention& p) {
  const int columns = context_columns(p);
  ContextSums sums{};
  for (int column = static_cast<int>(threadIdx.x); column < columns; column += kThreads) {
    int of_column = 0;
    for (int sequence = column; sequence < p.decodes; sequence += columns) {
      const int context = p.context_lengths[sequence];
      sums.all += kv_tiles_of(context);
      if (is_short(p, context)) of_column += kv_tiles_of(context);
    }
    sums.of_short += of_column;
    sums.fullest = max(sums.fullest, of_column);
  }
  return sums;
}
/// Of a step with many contexts: whether the short ones are a work tile each, and wide ones chunks.
/// So it is if the fullest CTA has little more than the others: half of a CTA's KV tiles, since the
/// memory then serves it faster.
__device__ __forceinline__ bool keeps_contexts_whole(const Attention& p,
                                                     int chunks,
                                                     const ContextSums& sums) {
  if (splits_into_kv_tiles(p, chunks) || chunks > kCombineAccumulators * p.decodes) return false;
  const int excess = sums.fullest * context_columns(p) - sums.of_short;
  return 2 * excess <= sums.all;
}

/// How many work tiles a context has: whole ones, and one more if a shorter rest is left.
struct TileCount {
  static constexpr unsigned kWholeBits = 20;  // tokens of 2^20 chunks exceed every memory
  std::uint32_t packed;                       // whole ones low, rests high

  __device__ __forceinline__ int whole() const {
    return static_cast<int>(packed & ((1U << kWholeBits) - 1));
  }
  __device__ __forceinline__ int rests() const { return static_cast<int>(packed >> kWholeBits); }
  __device__ __forceinline__ int all() const { return whole() + rests(); }
};
static_assert(kSequencesMax < 1 << (32 - TileCount::kWholeBits));

/// The work tiles of all sequences: segments, then whole chunks behind them, then shorter rests; or
/// whole KV tiles and rests. Those of one sequence and kv head lie in this order.
struct WorkTiles {
  int tokens;    // of a whole work tile that is no segment: a KV tile, a chunk or (kMany) up to 8
  int segments;  // work tiles that are segments, per kv head
  TileCount before[kSequencesMax + 1];               // chunks or KV tiles before each sequence
  std::uint16_t segments_before[kSequencesMax + 1];  // at most `segments`
  unsigned long long warp_sums[kThreads / 32];
  unsigned warp_segments[kThreads / 32];
  std::uint32_t warp_contexts[kThreads / 32];  // kMany, as the next
  ContextSums warp_context_sums[kThreads / 32];

  /// Tokens of a whole work tile of a context. NOTE: wide contexts are chunks beside whole ones.
  template <bool kMany>
  [[nodiscard]] __device__ __forceinline__ int tokens_of(const Attention& p, int context) const {
    return kMany && !is_short(p, context) ? min(tokens, p.chunk_tokens) : tokens;
  }
  /// Whole work tiles before a sequence, segments left out.
  __device__ __forceinline__ int whole_before(int sequence) const {
    return before[sequence].whole() - kSegmentChunks * segments_before[sequence];
  }
  /// Work tiles before a sequence, per kv head.
  __device__ __forceinline__ int all_before(int sequence) const {
    return before[sequence].all() - (kSegmentChunks - 1) * segments_before[sequence];
  }
  __device__ __forceinline__ int count(const Attention& p) const {
    return all_before(p.decodes) * p.kv_heads;
  }
};

__device__ __forceinline__ std::uint32_t count_work_tiles(int context, int tokens) {
  return static_cast<std::uint32_t>(context / tokens) |
         static_cast<std::uint32_t>(context % tokens != 0) << TileCount::kWholeBits;
}

/// The same where short contexts are a work tile each.
__device__ __forceinline__ std::uint32_t count_contexts(const Attention& p, int context) {
  return is_short(p, context) ? count_work_tiles(context, kCombineAccumulators * p.chunk_tokens)
                              : count_work_tiles(context, p.chunk_tokens);
}

__device__ __forceinline__ void sum_contexts_of_warp(const Attention& p, WorkTiles& work_tiles) {
  const ContextSums of_thread = sum_contexts_of_thread(p);
  const ContextSums of_warp{__reduce_add_sync(0xFFFFFFFFU, of_thread.all),
                            __reduce_add_sync(0xFFFFFFFFU, of_thread.of_short),
                            __reduce_max_sync(0xFFFFFFFFU, of_thread.fullest)};
  if (threadIdx.x % 32 == 0) work_tiles.warp_context_sums[threadIdx.x / 32] = of_warp;
}
/// Of the step, once all warps have stored theirs.
__device__ __forceinline__ ContextSums context_sums(const WorkTiles& work_tiles) {
  ContextSums sums{};
  for (const ContextSums& of_warp : work_tiles.warp_context_sums) {
    sums.all += of_warp.all;
    sums.of_short += of_warp.of_short;
    sums.fullest = max(sums.fullest, of_warp.fullest);
  }
  return sums;
}

/// Fills `work_tiles`. All threads. One prefix sum counts chunks (low word) and KV tiles (high
/// word), since which of them the work tiles are depends on the number of all chunks.
template <bool kMany>
__device__ void list_work_tiles(const Attention& p, WorkTiles& work_tiles) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int each = p.decodes / kThreads + 1;  // at least one entry more than sequences
  struct Counts {
    unsigned long long chunks_kv_tiles;
    unsigned segments;
    std::uint32_t contexts;  // as work tiles: kMany
  };
  const auto count = [&](int i) {
    const int sequence = thread * each + i;
    if (sequence >= p.decodes) return Counts{0, 0, 0};
    const int context = p.context_lengths[sequence];
    return Counts{static_cast<unsigned long long>(count_work_tiles(context, p.chunk_tokens)) |
                      static_cast<unsigned long long>(count_work_tiles(context, kKvTileTokens))
                          << 32U,
                  static_cast<unsigned>(wide_segments_of(p, context)),
                  kMany ? count_contexts(p, context) : 0};
  };
  Counts sum{0, 0, 0};
  const auto add = [](Counts& to, const Counts& more) {
    to.chunks_kv_tiles += more.chunks_kv_tiles;
    to.segments += more.segments;
    to.contexts += more.contexts;
  };
  for (int i = 0; i < each; ++i) add(sum, count(i));
  Counts before = sum;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    Counts other{__shfl_up_sync(0xFFFFFFFFU, before.chunks_kv_tiles, offset),
                 __shfl_up_sync(0xFFFFFFFFU, before.segments, offset), 0};
    if constexpr (kMany) other.contexts = __shfl_up_sync(0xFFFFFFFFU, before.contexts, offset);
    if (lane >= offset) add(before, other);
  }
  if (lane == 31) {
    work_tiles.warp_sums[thread / 32] = before.chunks_kv_tiles;
    work_tiles.warp_segments[thread / 32] = before.segments;
    if constexpr (kMany) work_tiles.warp_contexts[thread / 32] = before.contexts;
  }
  if constexpr (kMany) sum_contexts_of_warp(p, work_tiles);
  __syncthreads();
  before.chunks_kv_tiles -= sum.chunks_kv_tiles;
  before.segments -= sum.segments;
  before.contexts -= sum.contexts;
  Counts all{0, 0, 0};
#pragma unroll
  for (int warp = 0; warp < kThreads / 32; ++warp) {
    if (warp == thread / 32) add(before, all);
    add(all, {work_tiles.warp_sums[warp], work_tiles.warp_segments[warp],
              kMany ? work_tiles.warp_contexts[warp] : 0});
  }
  const int chunks = TileCount{static_cast<std::uint32_t>(all.chunks_kv_tiles)}.all();
  const bool kv_tiles = splits_into_kv_tiles(p, chunks);
  const bool contexts = kMany && keeps_contexts_whole(p, chunks, context_sums(work_tiles));
  const int segments =
      kv_tiles || contexts ? 0 : segment_work_tiles(p, static_cast<int>(all.segments));
  if (thread == 0) {
    work_tiles.tokens = kv_tiles   ? kKvTileTokens
                        : contexts ? kCombineAccumulators * p.chunk_tokens
                                   : p.chunk_tokens;
    work_tiles.segments = segments;
  }
  for (int i = 0; i < each; ++i) {
    const int sequence = thread * each + i;
    if (sequence <= p.decodes) {
      work_tiles.before[sequence].packed =
          static_cast<std::uint32_t>(kv_tiles   ? before.chunks_kv_tiles >> 32U
                                     : contexts ? before.contexts
                                                : before.chunks_kv_tiles);
      work_tiles.segments_before[sequence] =
          static_cast<std::uint16_t>(min(before.segments, static_cast<unsigned>(segments)));
    }
    add(before, count(i));
  }
  __syncthreads();
}

/// Lists those of every `step`-th sequence from `first` on.
__device__ __forceinline__ void store_context_work_tiles(const Attention& p,
                                                         const WorkTiles& work_tiles,
                                                         int first,
                                                         int step) {
  for (int sequence = first; sequence < p.decodes; sequence += step)
    p.context_work_tiles[sequence] = {
        work_tiles.all_before(sequence),
        work_tiles.segments_before[sequence + 1] - work_tiles.segments_before[sequence],
        work_tiles.tokens, p.context_lengths[sequence]};
}

/// The last sequence with `before(sequence)` <= `part`.
template <typename Before>
__device__ __forceinline__ int find_sequence(const Attention& p, int part, const Before& before) {
  int low = 0;
  for (int high = p.decodes; low + 1 < high;) {
    const int middle = (low + high) / 2;
    if (before(middle) <= part)
      low = middle;
    else
      high = middle;
  }
  return low;
}

/// The work tile that comes as number `index`: segments of all sequences, then whole ones, then
/// rests.
template <bool kMany>
__device__ __forceinline__ WorkTile find_work_tile(const Attention& p,
                                                   const WorkTiles& work_tiles,
                                                   int index) {
  const int segments = work_tiles.segments;
  const int whole = work_tiles.whole_before(p.decodes);
  int part = index / p.kv_heads;
  WorkTile work_tile;
  work_tile.kv_head = index % p.kv_heads;
  int begin = 0;
  int of_sequence = 0;
  bool is_whole = false;
  if (part < segments) {
    work_tile.sequence = find_sequence(
        p, part, [&](int sequence) { return int{work_tiles.segments_before[sequence]}; });
    of_sequence = part - work_tiles.segments_before[work_tile.sequence];
    work_tile.tokens = kSegmentChunks * work_tiles.tokens;
    begin = of_sequence * work_tile.tokens;
  } else {
    part -= segments;
    const bool rest = part >= whole;
    if (rest) part -= whole;
    work_tile.sequence = find_sequence(p, part, [&](int sequence) {
      return rest ? work_tiles.before[sequence].rests() : work_tiles.whole_before(sequence);
    });
    const int context = p.context_lengths[work_tile.sequence];
    const int tokens = work_tiles.tokens_of<kMany>(p, context);
    const int own_segments = work_tiles.segments_before[work_tile.sequence + 1] -
                             work_tiles.segments_before[work_tile.sequence];
    const int first = kSegmentChunks * own_segments;  // behind the sequence's segments
    const int at =
        rest ? context / tokens : first + part - work_tiles.whole_before(work_tile.sequence);
    begin = at * tokens;
    work_tile.tokens = min(tokens, context - begin);
    is_whole = context <= work_tiles.tokens;  // as the combine kernel has it
    of_sequence = own_segments + at - first;
  }
  work_tile.first_page = begin / kPage;
  work_tile.place =
      (work_tiles.all_before(work_tile.sequence) + of_sequence) * p.kv_heads + work_tile.kv_head;
  if (kMany && is_whole) work_tile.place = ~(work_tile.sequence * p.kv_heads + work_tile.kv_head);
  return work_tile;
}

}  // namespace koho::cuda::decode
