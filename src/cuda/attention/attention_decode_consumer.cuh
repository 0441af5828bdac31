// SPDX-License-Identifier: Apache-2.0
// The four consumer warps of attention_decode.cu. They combine the KV tiles of a work tile,
// chunk by chunk, in the fixed order of attention_split_kv.cuh, and store the partial sums, or the
// rows of a context that is one work tile.
#pragma once

#include "cuda/attention/attention_decode_kv_tile.cuh"
#include "cuda/attention/attention_decode_newest_token.cuh"
#include "cuda/attention/attention_decode_work_tiles.cuh"

namespace koho::cuda::decode {

/// part += the KV tile's weights times this warp's columns of V in slot `values`, which it waits
/// for and releases; `tokens` are left of the work tile.
template <int kWidth, bool kFp8>
__device__ __forceinline__ void sum_kv_tile(float (&part)[DecodePlan<kWidth, kFp8>::kTiles][4],
                                            const Exchange& exchange,
                                            const LaneOffsets& at,
                                            const PipelineRing& ring,
                                            const PipelineState& values,
                                            const int& tokens) {
  using Plan = DecodePlan<kWidth, kFp8>;
  mbarrier_wait(ring.full + 8 * values.slot, values.parity);
#pragma unroll
  for (int page = 0; page < kKvTilePages; ++page)
    if (page == 0 || tokens > page * kPage)
      sum_values<kWidth, kFp8>(
          part, shared_address(exchange.weights) + at.weights_in,
          ring.slots + values.slot * static_cast<std::uint32_t>(Plan::kSlot) + at.values, page);
  if (tokens < kKvTileTokens) fence_proxy_async_shared();  // tokens were cleared by ordinary writes
  mbarrier_arrive(ring.empty + 8 * values.slot);
}

/// Adds a KV tile's sums `part` to those of its chunk. `tile` holds the tile's largest scores.
template <int kWidth, bool kFp8>
__device__ __forceinline__ void combine_kv_tile(
    Rows<kWidth, kFp8>& chunk,
    SoftmaxState (&tile_state)[2],
    const float (&part)[DecodePlan<kWidth, kFp8>::kTiles][4],
    const Exchange& exchange,
    float sums_scale) {
  const int row = static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float4 totals = *reinterpret_cast<const float4*>(exchange.total[row + half * 8]);
    tile_state[half].total = ((totals.x + totals.y) + totals.z) + totals.w;
    const float2 factor = combine(chunk.state[half], tile_state[half]);
#pragma unroll
    for (int tile = 0; tile < DecodePlan<kWidth, kFp8>::kTiles; ++tile)
#pragma unroll
      for (int i = half * 2; i < half * 2 + 2; ++i) {
        float of_kv_tile = part[tile][i];
        if constexpr (kFp8) of_kv_tile = __fmul_rn(of_kv_tile, sums_scale);
        chunk.sum[tile][i] = combine_sum(chunk.sum[tile][i], of_kv_tile, factor);
      }
  }
}

/// Adds a chunk's sums to those of its segment.
template <int kWidth, bool kFp8>
__device__ __forceinline__ void combine_chunk(Rows<kWidth, kFp8>& segment,
                                              const Rows<kWidth, kFp8>& chunk) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float2 factor = combine(segment.state[half], chunk.state[half]);
#pragma unroll
    for (int tile = 0; tile < DecodePlan<kWidth, kFp8>::kTiles; ++tile)
#pragma unroll
      for (int i = half * 2; i < half * 2 + 2; ++i)
        segment.sum[tile][i] = combine_sum(segment.sum[tile][i], chunk.sum[tile][i], factor);
  }
}

/// Whether the KV tile from which on `left` of a work tile's `tokens` are left ends a chunk. NOTE:
/// chunk_tokens is a power of two, and a segment's last KV tile ends a chunk.
template <bool kMany>
__device__ __forceinline__ bool ends_chunk(const Attention& p, const int& left, const int& tokens) {
  const int behind = left - kKvTileTokens;
  if constexpr (kMany) return behind <= 0 || ((behind - tokens) & (p.chunk_tokens - 1)) == 0;
  return (behind & (p.chunk_tokens - 1)) == 0;
}

/// Stores a work tile's partial sums of this warp's columns, and (warp 0) its softmax state, at
/// `place`. NOTE: integers are passed by reference; by value, ptxas makes other machine code.
template <int kWidth, bool kFp8>
__device__ __forceinline__ void store_partial(const Rows<kWidth, kFp8>& rows,
                                              const Attention& p,
                                              const std::int64_t& place,
                                              const int& group,
                                              const int& row,
                                              const int& warp,
                                              const int& lane) {
  using Plan = DecodePlan<kWidth, kFp8>;
  float* out = p.partial + place * work_tile_floats(group, kWidth);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int of_group = row + half * 8;
    if (of_group >= group) continue;
    float* sums = out + of_group * kWidth + warp * Plan::kColumns;
    if constexpr (kFp8) {
#pragma unroll
      for (int tile = 0; tile < Plan::kTiles; tile += 2)  // of four adjacent columns
        *reinterpret_cast<float4*>(sums + sum_column<kFp8>(tile, 0)) =
            make_float4(rows.sum[tile][half * 2], rows.sum[tile + 1][half * 2],
                        rows.sum[tile][half * 2 + 1], rows.sum[tile + 1][half * 2 + 1]);
    } else {
#pragma unroll
      for (int tile = 0; tile < Plan::kTiles; ++tile)
        *reinterpret_cast<float2*>(sums + sum_column<kFp8>(tile, 0)) =
            make_float2(rows.sum[tile][half * 2], rows.sum[tile][half * 2 + 1]);
    }
    if (warp == 0 && lane % 4 == 0)
      *reinterpret_cast<float2*>(out + group * kWidth + 2 * of_group) =
          make_float2(rows.state[half].largest, rows.state[half].total);
  }
}

/// Stores this warp's columns of a context that is one work tile, in bf16 as the combine kernel
/// would make them, and their largest magnitude. `place`: of the kv heads of all sequences.
template <int kWidth, bool kFp8>
__device__ __forceinline__ void store_rows(const Rows<kWidth, kFp8>& rows,
                                           const Attention& p,
                                           const std::int64_t& place,
                                           const int& group,
                                           const int& row,
                                           const int& warp,
                                           const int& lane) {
  using Plan = DecodePlan<kWidth, kFp8>;
  Bf16* out = p.out + place * (group * kWidth) + warp * Plan::kColumns;
  float largest = 0.0F;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int of_group = row + half * 8;
    SoftmaxState state;
    const float2 factor = combine(state, rows.state[half]);
    std::uint32_t words[Plan::kTiles];  // pairs of adjacent columns
#pragma unroll
    for (int tile = 0; tile < Plan::kTiles; ++tile) {
      float v[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        // NOTE: of four adjacent columns of e4m3 pages two tiles hold every other one.
        const int from = kFp8 ? tile / 2 * 2 + i : tile;
        const int at = half * 2 + (kFp8 ? tile % 2 : i);
        v[i] = normalize(combine_sum(0.0F, rows.sum[from][at], factor), state);
      }
      words[tile] = pack_bf16(v[0], v[1]);
      if (of_group < group)
        largest = fmaxf(largest, fmaxf(fabsf(__uint_as_float(words[tile] << 16)),
                                       fabsf(__uint_as_float(words[tile] & 0xFFFF0000U))));
    }
    Bf16* to = out + of_group * kWidth;
    if constexpr (kFp8) {
#pragma unroll
      for (int tile = 0; tile < Plan::kTiles; tile += 2)
        if (of_group < group)
          *reinterpret_cast<uint2*>(to + sum_column<kFp8>(tile, 0)) =
              make_uint2(words[tile], words[tile + 1]);
    } else if constexpr (Plan::kTiles == 4) {
      const uint4 adjacent = quad_transpose(words);
      if (of_group < group) *reinterpret_cast<uint4*>(to + lane % 4 * 8) = adjacent;
    } else {
#pragma unroll
      for (int tile = 0; tile < Plan::kTiles; ++tile)
        if (of_group < group)
          *reinterpret_cast<std::uint32_t*>(to + sum_column<kFp8>(tile, 0)) = words[tile];
    }
  }
  largest = warp_largest(largest);
  if (lane == 0) head_maxima(p)[place * kDecodeWarps + warp] = largest;
}

/// Stores what a work tile leaves: rows where `place` is ~place of theirs, else partial sums.
template <int kWidth, bool kFp8, bool kMany>
__device__ __forceinline__ void store_work_tile(const Rows<kWidth, kFp8>& rows,
                                                const Attention& p,
                                                const std::int64_t& place,
                                                const int& group,
                                                const int& row,
                                                const int& warp,
                                                const int& lane) {
  if (kMany && place < 0)
    store_rows<kWidth, kFp8>(rows, p, ~place, group, row, warp, lane);
  else
    store_partial<kWidth, kFp8>(rows, p, place, group, row, warp, lane);
}

/// Computes the partial sums of all work tiles of the CTA. Four warps, which meet twice a KV tile:
/// when all have found their largest scores, and when all have written their softmax weights. The
/// scores of the next KV tile, of this work tile or of the CTA's next one, are computed at the end
/// of the loop.
template <int kWidth, bool kFp8, bool kMany>
__device__ void consume(const Attention& p,
                        const WorkTiles& work_tiles,
                        Query<kWidth>& query,
                        Exchange& exchange,
                        std::uint8_t* shared,
                        const PipelineRing& ring) {
  using Plan = DecodePlan<kWidth, kFp8>;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int group = p.query_heads / p.kv_heads;
  const int row = lane / 4;
  const int count = work_tiles.count(p);
  const LaneOffsets at = lane_offsets<kWidth, kFp8>();
  PipelineState kv_state{0, 0};
  std::uint32_t query_parity = 0;
  int of_segment = 0;  // tokens of the work tile, if it is a segment or has several chunks
  std::uint32_t q[kWidth / 16][4];
  Scored scored;
  int index = static_cast<int>(blockIdx.x);
  int left = 0;  // tokens of the work tile from the KV tile in hand on
  std::int64_t place = 0;
  const auto take_work_tile = [&] {
    left = query.work_tile.tokens;
    of_segment = left > p.chunk_tokens ? left : 0;
    place = query.work_tile.place;
    load_query<kWidth, kFp8>(q, row < group ? query.rows[row] : nullptr,
                             row + 8 < group ? query.rows[row + 8] : nullptr);
    mbarrier_arrive(ring.query_empty);
  };
  const auto begin_work_tile = [&] {
    mbarrier_wait(ring.query_full, query_parity);
    query_parity ^= 1;
    take_work_tile();
  };
  const auto score = [&] {
    mbarrier_wait(ring.full + 8 * kv_state.slot, kv_state.parity);
    score_tokens<kWidth, kFp8>(scored, q, exchange, at, shared + kv_state.slot * Plan::kSlot, left);
    mbarrier_arrive(ring.empty + 8 * kv_state.slot);
    kv_state.next(Plan::kSlots);
  };
  if (index >= count) {
    pdl_begin();
    return;
  }
  mbarrier_wait(ring.query_full, query_parity);
  query_parity ^= 1;
  load_newest_token<kWidth, kFp8>(p, query, shared, ring);
  take_work_tile();
  score();
  Rows<kWidth, kFp8> rows;  // of the chunk; of the work tile if it is no segment
  Rows<kWidth, kFp8> segment;
#pragma unroll 1
  for (;;) {
    const PipelineState values = kv_state;
    kv_state.next(Plan::kSlots);
    const int here = left;
    const std::int64_t place_here = place;
    const int of_segment_here = of_segment;
    SoftmaxState more[2];
    named_barrier_sync(kRowBarrier, kConsumers);  // the largest scores
    const float sums_scale = softmax_weights<kWidth, kFp8>(more, scored, exchange, at);
    if (here < kKvTileTokens) {
      mbarrier_wait(ring.full + 8 * values.slot, values.parity);
      clear_beyond<kWidth, kFp8>(shared + values.slot * Plan::kSlot, here - warp * kWarpTokens);
    }

    const bool ends = here <= kKvTileTokens;
    if (ends) index += static_cast<int>(gridDim.x);
    const bool goes_on = index < count;

    named_barrier_sync(kRowBarrier, kConsumers);  // the weights
    float part[Plan::kTiles][4] = {};
    sum_kv_tile<kWidth, kFp8>(part, exchange, at, ring, values, here);
    combine_kv_tile<kWidth, kFp8>(rows, more, part, exchange, sums_scale);
    if (of_segment_here != 0 && ends_chunk<kMany>(p, here, of_segment_here)) {
      combine_chunk<kWidth, kFp8>(segment, rows);
      rows = Rows<kWidth, kFp8>{};
      if (ends) {
        rows = segment;
        segment = Rows<kWidth, kFp8>{};
      }
    }
    if (ends) {
      store_work_tile<kWidth, kFp8, kMany>(rows, p, place_here, group, row, warp, lane);
      rows = Rows<kWidth, kFp8>{};
    }
    if (!goes_on) break;
    if (ends)
      begin_work_tile();
    else
      left -= kKvTileTokens;
    score();
  }
}

}  // namespace koho::cuda::decode
