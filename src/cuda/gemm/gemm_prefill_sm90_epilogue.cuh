// SPDX-License-Identifier: Apache-2.0
// The prefill GEMM's epilogue: the MMA warpgroups scale their sums and leave bf16 in shared memory;
// the epilogue warps store it, or have TMA store it, while the next work tile is multiplied.
#pragma once

#include "cuda/device/ptx.cuh"
#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/gemm_prefill_sm90_tiles.cuh"

namespace koho::cuda::prefill {

/// Where an MMA warpgroup leaves a work tile's output in bf16 for the epilogue warps, and where
/// these leave its scales and biases before. Each token has a row of 64 columns; its 16-byte piece
/// i lies at i ^ (token % 8), so that neither side meets bank conflicts.
template <int kTileTokens>
struct EpilogueBuffer {
  static constexpr int kRowBytes = kTileRows * 2;
  static constexpr int kPieces = kRowBytes / 16;
  static constexpr int kGroupBytes = kTileTokens * kRowBytes;

  std::uint32_t results;
  const float* scales;  // see PrefillPlan
  std::uint32_t full;   // barriers, of each warpgroup
  std::uint32_t empty;

  __device__ __forceinline__ std::uint32_t place(int group, int token, int piece) const {
    return results + static_cast<std::uint32_t>(group * kGroupBytes + token * kRowBytes +
                                                ((piece ^ (token % 8)) * 16));
  }
};

/// Scales a warp's 16 rows of sums and writes them in f32.
template <TileType kType, int kTileTokens>
__device__ __forceinline__ void write_sums(const Gemm& p,
                                           const PrefillWorkTile& work_tile,
                                           int first_row,
                                           const float (&sum)[kTileTokens / 8][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int rows_all = p.tiles * kTileRows;
  float row_scales[2] = {1.0F, 1.0F};
  float bias[2] = {0.0F, 0.0F};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int n = min(first_row + lane / 4 + i * 8, rows_all - 1);
    if (kType == TileType::fp8)
      row_scales[i] = p.row_scales[static_cast<std::int64_t>(work_tile.expert) * rows_all + n];
    if (p.bias != nullptr && n < p.rows) bias[i] = to_float(p.bias[n]);
  }
#pragma unroll
  for (int tile = 0; tile < kTileTokens / 8; ++tile) {
    if (tile * 8 >= work_tile.count) break;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = tile * 8 + lane % 4 * 2 + i % 2;
      const int n = first_row + lane / 4 + i / 2 * 8;
      if (token >= work_tile.count || n >= p.rows) continue;
      const float x_scale = kType == TileType::fp8 ? p.x_scales[work_tile.first + token] : 1.0F;
      static_cast<float*>(p.out)[(work_tile.first + token) * p.out_stride + n] =
          apply_scales<kType>(p, sum[tile][i], row_scales[i / 2], x_scale, bias[i / 2]);
    }
  }
}

/// Whether the output may be f32.
template <TileType kType, int kTileTokens>
constexpr bool kMayBeF32 = kType != TileType::fp8_block&& kTileTokens == 128;

/// Whether TMA may store the output.
template <int kTileTokens>
constexpr bool kMayTmaStore = kTileTokens == kPrefillTokensMax;

/// A work tile whose sums are complete and not in the epilogue buffer yet.
struct FinishedTile {
  PrefillWorkTile work_tile;
  int row;  // the warp's first
};

/// Scales a warp's 16 rows of sums and leaves them in the epilogue buffer as bf16; f32 output is
/// stored from registers. Calls `halfway` after half of the tokens.
template <TileType kType, int kTileTokens, typename Halfway>
__device__ __forceinline__ void store_to_epilogue_buffer(const Gemm& p,
                                                         const FinishedTile& finished,
                                                         const float (&sum)[kTileTokens / 8][4],
                                                         const EpilogueBuffer<kTileTokens>& buffer,
                                                         std::uint32_t phase,
                                                         const Halfway& halfway) {
  constexpr int kTogether = 4;  // tiles whose scales are loaded while the previous ones are used
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (kMayBeF32<kType, kTileTokens> && p.epilogue == Epilogue::f32) {
    halfway();
    write_sums<kType, kTileTokens>(p, finished.work_tile, finished.row, sum);
    return;
  }
  const auto group = static_cast<std::uint32_t>(warp / 4);
  mbarrier_wait(buffer.empty + 8U * group, phase);
  const float* of_tile = buffer.scales + phase * PrefillPlan<kTileTokens>::kScaleWords;
  const float* x_scales = of_tile + lane % 4 * 2;
  const float* of_rows = of_tile + kTileTokens + warp * 16 + lane / 4;
  float row_scales[2] = {1.0F, 1.0F};
  float bias[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (kType == TileType::fp8) row_scales[i] = of_rows[i * 8];
    bias[i] = of_rows[kBlockRows + i * 8];
  }
  const std::uint32_t to =
      buffer.place(warp / 4, lane / 16 * 8 + lane % 8, warp % 4 * 2 + lane / 8 % 2);
  float2 scales[2][kTogether];
  const auto load = [&](int tile) {
#pragma unroll
    for (int i = 0; i < kTogether; ++i)
      if (tile + i < kTileTokens / 8)
        scales[tile / kTogether % 2][i] =
            kType == TileType::fp8 ? *reinterpret_cast<const float2*>(x_scales + (tile + i) * 8)
                                   : make_float2(1.0F, 1.0F);
  };
  const auto scaled = [&](float value, int i, float x_scale) {
    return apply_scales<kType>(value, row_scales[i], x_scale, bias[i]);
  };
  load(0);
#pragma unroll
  for (int first = 0; first < kTileTokens / 8; first += kTogether) {
    if (first == kTileTokens / 16 / kTogether * kTogether) halfway();
    load(first + kTogether);
#pragma unroll
    for (int tile = first; tile < first + kTogether && tile < kTileTokens / 8; tile += 2) {
      std::uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 scale = scales[first / kTogether % 2][tile - first + i / 2];
        const float* value = &sum[tile + i / 2][i % 2 * 2];
        pairs[i] = pack_bf16(scaled(value[0], i % 2, scale.x), scaled(value[1], i % 2, scale.y));
      }
      stmatrix_x4_trans(
          to + static_cast<std::uint32_t>(tile * 8 * EpilogueBuffer<kTileTokens>::kRowBytes),
          pairs);
    }
  }
  mbarrier_arrive(buffer.full + 8U * group);
}

/// silu(gate) * up for two columns.
__device__ __forceinline__ std::uint32_t swiglu(std::uint32_t gate, std::uint32_t up) {
  const auto low = [](std::uint32_t word) { return __uint_as_float(word << 16U); };
  const auto high = [](std::uint32_t word) { return __uint_as_float(word & 0xFFFF0000U); };
  return pack_bf16(silu_mul(low(gate), low(up)), silu_mul(high(gate), high(up)));
}

/// Stores eight adjacent columns from `n` on for the tokens of epilogue warp `writer` of kWarps.
/// kLanes lanes take one token; `read(token)` returns its columns. kInFlight tokens are in flight.
template <int kLanes, int kInFlight, int kWarps, typename Read>
__device__ __forceinline__ void write_columns(
    const Gemm& p, const PrefillWorkTile& work_tile, int writer, int n, const Read& read) {
  constexpr int kStep = kWarps * 32 / kLanes;
  int token = (writer * 32 + static_cast<int>(threadIdx.x) % 32) / kLanes;
  Bf16* to = static_cast<Bf16*>(p.out) + (work_tile.first + token) * p.out_stride + n;
  const std::int64_t stride = kStep * p.out_stride;
  const bool whole =
      n + 8 <= p.rows && p.out_stride % 8 == 0 && reinterpret_cast<std::uintptr_t>(p.out) % 16 == 0;
  if (whole) {
#pragma unroll 1
    for (; token + (kInFlight - 1) * kStep < work_tile.count; token += kInFlight * kStep) {
      uint4 eight[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) eight[i] = read(token + i * kStep);
#pragma unroll
      for (int i = 0; i < kInFlight; ++i, to += stride) *reinterpret_cast<uint4*>(to) = eight[i];
    }
  }
#pragma unroll 1
  for (; token < work_tile.count; token += kStep, to += stride) {
    const uint4 eight = read(token);
    if (whole) {
      *reinterpret_cast<uint4*>(to) = eight;
    } else {
      const std::int64_t place = (work_tile.first + token) * p.out_stride;
      store_pair(p, place, n, eight.x);
      store_pair(p, place, n + 2, eight.y);
      store_pair(p, place, n + 4, eight.z);
      store_pair(p, place, n + 6, eight.w);
    }
  }
}

/// Stores what an MMA warpgroup left of a work tile: 64 columns from weight row `row` on.
template <int kTileTokens, int kWarps>
__device__ __forceinline__ void write_results(const Gemm& p,
                                              const PrefillWorkTile& work_tile,
                                              const EpilogueBuffer<kTileTokens>& buffer,
                                              int group,
                                              int row,
                                              int writer) {
  constexpr int kPieces = EpilogueBuffer<kTileTokens>::kPieces;
  const auto piece_of = [&](int token, int piece) {
    std::uint32_t words[4];
    load_shared(words, buffer.place(group, token, piece));
    return make_uint4(words[0], words[1], words[2], words[3]);
  };
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (p.epilogue == Epilogue::silu_mul) {  // gate and up columns alternate by 8
    const int pair = lane % (kPieces / 2);
    write_columns<kPieces / 2, 1, kWarps>(p, work_tile, writer, row / 2 + pair * 8, [&](int token) {
      const uint4 gate = piece_of(token, pair * 2);
      const uint4 up = piece_of(token, pair * 2 + 1);
      return make_uint4(swiglu(gate.x, up.x), swiglu(gate.y, up.y), swiglu(gate.z, up.z),
                        swiglu(gate.w, up.w));
    });
  } else {
    const int piece = lane % kPieces;
    write_columns<kPieces, 4, kWarps>(p, work_tile, writer, row + piece * 8,
                                      [&](int token) { return piece_of(token, piece); });
  }
}

/// Has TMA store what an MMA warpgroup left of a work tile; one thread. Returns when TMA has read
/// the buffer. NOTE: TMA boxes have kPrefillTokenStep tokens, since rows beyond belong to another
/// work tile. Each waits for the previous one: stored at once, they delay the producer's copies
/// when the ring is emptiest.
template <int kTileTokens>
__device__ __forceinline__ void store_results(const PrefillTensorMaps& maps,
                                              const PrefillWorkTile& work_tile,
                                              const EpilogueBuffer<kTileTokens>& buffer,
                                              int group,
                                              int row,
                                              bool last) {
  fence_proxy_async_shared();
#pragma unroll 1
  for (int token = 0; token < work_tile.count; token += kPrefillTokenStep) {
    tma_store(&maps.out, row * 2, work_tile.first + token, buffer.place(group, token, 0));
    if (!last) tma_store_wait_read();
  }
  if (last) tma_store_wait_read();
}

/// The epilogue warps store a work tile while the next one is multiplied. Before they release the
/// buffer, they have written the scales and biases of the work tile that will use it next.
template <TileType kType, int kTileTokens>
__device__ void epilogue_warps(const Gemm& p,
                               const PrefillTensorMaps& maps,
                               const PrefillTileScheduler& work,
                               const WorkTileQueue& list,
                               const EpilogueBuffer<kTileTokens>& buffer,
                               float* scales) {
  if (p.epilogue == Epilogue::f32) return;
  using Plan = PrefillPlan<kTileTokens>;
  constexpr int kTurn = kWriters<kType> * 32;
  constexpr int kEach = (kTileTokens + kTurn - 1) / kTurn;  // scales of a lane
  constexpr int kEachRow = (kBlockRows + kTurn - 1) / kTurn;
  const int thread = static_cast<int>(threadIdx.x) - kConsumers - 32;
  const int writer = warp_index() - kConsumers / 32 - 1;
  const int first = static_cast<int>(blockIdx.x) / 2;
  const int stride = static_cast<int>(gridDim.x) / 2;
  const auto arrive = [&](int group) {
    __syncwarp();
    mbarrier_arrive(buffer.empty + 8U * static_cast<std::uint32_t>(group));
  };
  const int rows_all = p.tiles * kTileRows;
  float next[kEach] = {};
  float next_rows[kEachRow] = {};
  const auto row_of = [&](const PrefillWorkTile& work_tile, int i) {
    return (work_tile.block * 2 + cta_rank()) * kBlockRows + thread + i * kTurn;
  };
  const auto load_scales = [&](const PrefillWorkTile& work_tile) {
    if constexpr (kType == TileType::fp8)
      for (int i = 0; i < kEach; ++i)
        next[i] = p.x_scales[work_tile.first + min(thread + i * kTurn, work_tile.count - 1)];
    if constexpr (kType == TileType::fp8)
      for (int i = 0; i < kEachRow; ++i)
        next_rows[i] = p.row_scales[static_cast<std::int64_t>(work_tile.expert) * rows_all +
                                    min(row_of(work_tile, i), rows_all - 1)];
  };
  const auto store_scales = [&](const PrefillWorkTile& work_tile, std::uint32_t phase) {
    float* to = scales + phase * Plan::kScaleWords + thread;
    for (int i = 0; i < kEach; ++i)
      if (thread + i * kTurn < kTileTokens) to[i * kTurn] = next[i];
    for (int i = 0; i < kEachRow; ++i) {
      if (thread + i * kTurn >= kBlockRows) continue;
      to[kTileTokens + i * kTurn] = next_rows[i];
      const int n = row_of(work_tile, i);
      to[kTileTokens + kBlockRows + i * kTurn] =
          p.bias != nullptr && n < p.rows ? to_float(p.bias[n]) : kNoBias;
    }
  };
  if (first >= work.work_tiles) return;
  PrefillWorkTile following = list.get(0);
  load_scales(following);
  store_scales(following, 0);
  arrive(0);
  arrive(1);
  std::uint32_t phase = 0;
  int number = 0;
  for (int index = first; index < work.work_tiles; index += stride, phase ^= 1U) {
    const PrefillWorkTile work_tile = following;
    const bool last = index + stride >= work.work_tiles;
    if (!last) following = list.get(++number);
    load_scales(following);
    const int tile = (work_tile.block * 2 + cta_rank()) * kRowTiles;
    for (int group = 0; group < 2; ++group) {
      mbarrier_wait(buffer.full + 8U * static_cast<std::uint32_t>(group), phase);
      const int row = (tile + group) * kTileRows;
      if (tile + group < p.tiles) {
        if (!kMayTmaStore<kTileTokens> || !maps.stores)
          write_results<kTileTokens, kWriters<kType>>(p, work_tile, buffer, group, row, writer);
        else if (writer == (last ? group : 0) && elect_one())
          store_results<kTileTokens>(maps, work_tile, buffer, group, row, last);
      }
      if (group == 0) store_scales(following, phase ^ 1U);
      arrive(group);
    }
  }
}

}  // namespace koho::cuda::prefill
