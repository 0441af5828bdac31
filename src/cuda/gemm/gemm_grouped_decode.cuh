// SPDX-License-Identifier: Apache-2.0
// The decode matrix kernel: weights are the matrix instruction's 64 rows, tokens its columns, so
// every weight byte is read once for up to 64 tokens.
//
//   grid     persistent: a CTA takes work items (entry, tile of 64 weight rows) by stride; with
//            `parts` > 1 one cluster of `parts` CTAs takes one item and divides its width
//   roles    warp 4 produces: 16 KB bulk copies of weights, 16-byte copies of the entry's token
//            rows into the same core-matrix layout; warps 0-3 multiply: 64 rows x 8 * kTiles tokens
//   pairs    with many tokens an entry an item has two tiles and two multiplying warpgroups, and a
//            stage half of K: token rows, that then are a quarter of what L2 gives, pass once for
//            both
//   ahead    weights chosen before the kernel before this one began are asked for while that runs:
//            a single matrix's, a shared expert's, an expert's second matrix
//   shared   barriers 128 B · sums 8 * kTiles x 66 f32 (not of pairs) · ring of stages (16 KB + 2
//   KB
//            * kTiles; of pairs half of the second)
//   sums     f32; the order over K is fixed by the weight's shape: stages in order (wgmma: every
//            stage, or 128 elements under block scales, is summed by itself and then added), parts
//            in rank order. Neither depends on the number of tokens, so a row's bits do not.
//   bytes    weights once an entry, tokens once a tile or pair (from L2)
//
// Numbers: docs/kernels/README.md.
#pragma once

#include <cstddef>
#include <cstring>

#include "base/arithmetic.h"
#include "cuda/device/launch.cuh"
#include "cuda/device/numeric.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/tiled_layout.h"

namespace koho::cuda {

constexpr int kWarpgroup = 128;
constexpr int kSumStride = 66;  // floats of one token's row of sums
constexpr int kWeightStage = kTileRows * kStageWidth;
constexpr int kBarrierBytes = 128;
// One token's experts ask for weights slowly while they wait: the small reads of the kernels before
// would stand behind them. Cycles from one stage to the next, from the third on, and from the first
// piece for L2 to the last.
constexpr int kPacedStageCycles = 3000;
constexpr int kPacedPrefetchCycles = 3000;

/// kRowTiles: tiles of an item. A slot of the ring has as many bytes of weights with two, so half
/// of K.
template <int kTiles, int kRowTiles>
struct GroupedDecodePlan {
  static constexpr int kTokens = 8 * kTiles;
  static constexpr int kConsumers = kWarpgroup * kRowTiles;
  static constexpr int kProducers = kTiles == 8 ? 4 : kTiles == 4 ? 2 : 1;  // warps
  static constexpr int kThreads = kConsumers + 32 * kProducers;
  // NOTE: rounded so that stages begin at 128 bytes: elsewhere bulk copies and wgmma are slower.
  static constexpr int kSumBytes = kRowTiles > 1 ? 0 : round_up(4 * kTokens * kSumStride, 128);
  static constexpr int kSlotWidth = kStageWidth / kRowTiles;  // bytes of K
  static constexpr int kStage = kWeightStage + kTokens * kSlotWidth;
  // CTAs that are resident on a multiprocessor, and as long a ring as lets them be.
  static constexpr int kCtasPerSm = kTiles == 1 ? 3 : 2;
  static constexpr int kStages = kTiles == 2 || kRowTiles > 1 ? 5 : kTiles == 8 ? 3 : 4;
  static constexpr int kShared = kBarrierBytes + kSumBytes + kStages * kStage;
};

/// One work item: what is multiplied and where it goes.
struct WorkTile {
  int expert;
  int tile;   // or block of several
  int first;  // sorted row
  int count;
  std::uint32_t turn;  // the entry's place and places, see take_interleaved_block()
};

__device__ __forceinline__ bool has_experts(const Gemm& p) {
  return p.token_blocks != nullptr || p.single_ids != nullptr;
}

__device__ __forceinline__ int num_token_blocks(const Gemm& p, int tokens_per_block) {
  if (p.single_ids != nullptr) return p.single_token_blocks;
  return p.token_blocks != nullptr ? *p.token_block_count
                                   : (p.tokens + tokens_per_block - 1) / tokens_per_block;
}

/// The row of x that a sorted row multiplies.
__device__ __forceinline__ int x_row_of(const Gemm& p, int row) {
  return p.single_row ? 0 : p.x_rows != nullptr ? p.x_rows[row] : row;
}

/// Entries of one tile follow each other, so that the second reads the tile from L2. Items have
/// one of `blocks` tiles or blocks of tiles.
__device__ __forceinline__ WorkTile
work_tile_at(const Gemm& p, int blocks, int index, int token_blocks, int tokens_per_block) {
  WorkTile work_tile{};
  if (p.single_ids != nullptr) {
    const int token_block = index / blocks;
    const int slot = token_block - (p.single_shared ? 1 : 0);
    const int expert = slot < 0 ? p.single_count : p.single_ids[slot] - p.single_first;
    const bool here = slot < 0 || (expert >= 0 && expert < p.single_count);
    work_tile = {expert, index % blocks, token_block, here ? 1 : 0};
  } else if (p.token_blocks != nullptr) {  // experts: tiles of one entry follow each other
    const ExpertTokenBlock token_block = p.token_blocks[index / blocks];
    std::uint32_t turn;  // place, and places above it
    static_assert(offsetof(ExpertTokenBlock, blocks_of_expert) ==
                  offsetof(ExpertTokenBlock, block_of_expert) + 2);
    std::memcpy(
        &turn,
        reinterpret_cast<const char*>(&token_block) + offsetof(ExpertTokenBlock, block_of_expert),
        sizeof turn);
    work_tile = {token_block.expert, index % blocks, token_block.first, token_block.count, turn};
  } else {
    const int first = index % token_blocks * tokens_per_block;
    work_tile = {0, index / token_blocks, first, min(tokens_per_block, p.tokens - first)};
  }
  return work_tile;
}

/// With p.interleave_token_blocks (one tile of tokens), item `index` becomes the one that has its turn
/// where the expert's entries take each tile one after the other.
/// NOTE: not by work_tile_at(), which looks an item up while the one before it is multiplied: to
/// take the word of places apart is to wait for it.
template <int kTiles>
__device__ __forceinline__ void take_interleaved_block(const Gemm& p,
                                                       int blocks,
                                                       int index,
                                                       WorkTile& work_tile) {
  if constexpr (kTiles > 1) return;
  const int places = static_cast<int>(work_tile.turn >> 16U);
  if (!p.interleave_token_blocks || places <= 1) return;
  const int first = index / blocks - static_cast<int>(work_tile.turn & 0xFFFFU);
  const int among = index - first * blocks;  // items of all these entries
  const ExpertTokenBlock token_block = p.token_blocks[first + among % places];
  work_tile.tile = among / places;
  work_tile.first = token_block.first;
  work_tile.count = token_block.count;
}

/// The stages, of one slot each, of this CTA's part of a tile's width.
struct StageRange {
  int begin;
  int end;
};
template <int kSlotWidth>
__device__ __forceinline__ StageRange stage_range(const Gemm& p, int split) {
  const int stages = (p.width_bytes + kSlotWidth - 1) / kSlotWidth;
  return {stages * split / p.split_k, stages * (split + 1) / p.split_k};
}

struct Ring {
  std::uint32_t full;  // barriers
  std::uint32_t empty;
  std::uint8_t* stages;
  int slot = 0;
  std::uint32_t phase = 0;

  __device__ Ring(std::uint8_t* shared, int sum_bytes)
      : full(shared_address(shared)),
        empty(shared_address(shared) + 64),
        stages(shared + kBarrierBytes + sum_bytes) {}
  template <int kStages>
  __device__ __forceinline__ void advance() {
    if (++slot == kStages) {
      slot = 0;
      phase ^= 1U;
    }
  }
};

/// Where one producer lane copies token rows from: row lane % 8 of each of its warp's token tiles.
template <int kTiles, int kRowTiles>
struct TokenSource {
  using Plan = GroupedDecodePlan<kTiles, kRowTiles>;
  static constexpr int kWarps = Plan::kProducers;
  static constexpr int kEach = kTiles / kWarps;  // token tiles of a warp
  const std::uint8_t* rows[kEach];
  bool present[kEach];

  __device__ __forceinline__ void begin(const Gemm& p, const WorkTile& work_tile, int warp) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int token = (warp * kEach + i) * 8 + lane % 8;
      const int row = min(token, work_tile.count - 1) + work_tile.first;
      const std::int64_t x_row = x_row_of(p, row);
      rows[i] = p.x + x_row * p.x_stride_bytes + lane / 8 * kTileChunk;
      present[i] = token < work_tile.count;
    }
  }

  /// Copies this warp's rows of one stage into core matrices.
  __device__ __forceinline__ void copy(const Gemm& p,
                                       int warp,
                                       int stage,
                                       std::uint32_t destination) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int begin = stage * Plan::kSlotWidth;
    const int left = p.x_bytes - begin - lane / 8 * kTileChunk;  // bytes from this lane's chunk on
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const std::uint32_t tile =
          destination + static_cast<std::uint32_t>((lane / 8 * kTiles + warp * kEach + i) * 128 +
                                                   lane % 8 * kTileChunk);
#pragma unroll
      for (int group = 0; group < Plan::kSlotWidth / kTileChunk / 4; ++group) {
        const int k = group * 4 * kTileChunk;
        const int bytes = min(max(left - k, 0), kTileChunk);
        // Columns of absent tokens keep what the ring held: no result is taken from them.
        if (present[i])
          cp_async_16(tile + static_cast<std::uint32_t>(group * 4 * kTiles * 128),
                      bytes > 0 ? rows[i] + begin + k : p.x, static_cast<std::uint32_t>(bytes));
      }
    }
  }
};

/// Asks L2 for what will be read l2_prefetch, a piece now and then; by one thread of a CTA.
__device__ __forceinline__ void prefetch_paced(const Gemm& p) {
  constexpr std::int64_t kPiece = 16 << 10;
  const std::int64_t step = gridDim.x * kPiece;
  std::int64_t pieces = 0;
#pragma unroll
  for (const Gemm::L2Prefetch& l2_prefetch : p.l2_prefetch)
    pieces += (l2_prefetch.bytes + step - 1) / step;
  const long long begin = clock64();
  int done = 0;
#pragma unroll
  for (const Gemm::L2Prefetch& l2_prefetch : p.l2_prefetch)
    for (std::int64_t at = blockIdx.x * kPiece; at < l2_prefetch.bytes; at += step) {
      if (done > 0) spin_until(begin + done * kPacedPrefetchCycles / (pieces - 1));
      prefetch_bulk(l2_prefetch.data + at,
                    static_cast<std::uint32_t>(min(l2_prefetch.bytes - at, kPiece)));
      ++done;
    }
}

/// Fills the ring.
template <int kTiles, int kRowTiles>
__device__ void produce(const Gemm& p, Ring ring, int blocks, int token_blocks) {
  using Plan = GroupedDecodePlan<kTiles, kRowTiles>;
  const int warp = warp_index() - Plan::kConsumers / 32;
  const bool leads = warp == 0;  // one of its lanes copies weights
  const std::uint64_t policy = evict_first_policy();
  const int split = p.split_k > 1 ? static_cast<int>(cluster_rank()) : 0;
  const int step = static_cast<int>(gridDim.x) / p.split_k;
  const StageRange range = stage_range<Plan::kSlotWidth>(p, split);
  const std::int64_t tile_bytes = static_cast<std::int64_t>(kTileRows) * p.width_bytes;
  const auto weights = [&](const WorkTile& work_tile, int stage, int slot) {
    const int begin = stage * Plan::kSlotWidth;
    const auto bytes =
        static_cast<std::uint32_t>(min(Plan::kSlotWidth, p.width_bytes - begin) * kTileRows);
    const int tile = work_tile.tile * kRowTiles;
    const int present = min(kRowTiles, p.tiles - tile);
    const std::uint32_t barrier = ring.full + 8U * static_cast<std::uint32_t>(slot);
    mbarrier_arrive_expect_tx(barrier, static_cast<std::uint32_t>(present) * bytes);
    const std::uint8_t* from =
        p.weight + (static_cast<std::int64_t>(work_tile.expert) * p.tiles + tile) * tile_bytes +
        static_cast<std::int64_t>(begin) * kTileRows;
    const std::uint32_t to = shared_address(ring.stages + slot * Plan::kStage);
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
      if (i < present)
        bulk_copy(to + static_cast<std::uint32_t>(i * kTileRows * Plan::kSlotWidth),
                  from + i * tile_bytes, bytes, barrier, policy);
  };
  // A single matrix's weights do not depend on the kernel before, nor do an expert's whose choice
  // is older: start the ring, then wait.
  int prologue = 0;
  const int first_index = static_cast<int>(blockIdx.x) / p.split_k;
  const auto start = [&](const WorkTile& work_tile) {
    if (work_tile.count == 0) return;
    prologue = min(Plan::kStages, range.end - range.begin);
    if (leads && elect_one()) {
      const bool slow = p.single_ids != nullptr && p.token_blocks_early;
      const long long begin = clock64();
#pragma unroll 1
      for (int i = 0; i < prologue; ++i) {
        if (slow && i >= 2) spin_until(begin + (i - 1) * kPacedStageCycles);
        weights(work_tile, range.begin + i, i);
      }
    }
  };
  const bool known = !has_experts(p) || p.token_blocks_early;
  int work_tiles = token_blocks * blocks;
  if (known) {
    if (first_index < work_tiles)
      start(work_tile_at(p, blocks, first_index, token_blocks, Plan::kTokens));
  } else if (first_index < blocks && p.first_block_expert >= 0) {
    start({p.first_block_expert, first_index, 0, 1, 0});
  }
  if (leads && elect_one()) prefetch_paced(p);
  wait_on_dependent_grids();
  if (!known) {
    token_blocks = num_token_blocks(p, Plan::kTokens);
    work_tiles = token_blocks * blocks;
  }
  int done = 0;
  WorkTile next{};
  if (first_index < work_tiles)
    next = work_tile_at(p, blocks, first_index, token_blocks, Plan::kTokens);
  TokenSource<kTiles, kRowTiles> tokens;
  for (int index = first_index; index < work_tiles; index += step) {
    WorkTile work_tile = next;
    if (index + step < work_tiles)
      next = work_tile_at(p, blocks, index + step, token_blocks, Plan::kTokens);
    if (work_tile.count == 0) continue;
    take_interleaved_block<kTiles>(p, blocks, index, work_tile);
    for (int stage = range.begin; stage < range.end; ++stage, ++done) {
      const auto slot = static_cast<std::uint32_t>(ring.slot);
      mbarrier_wait(ring.empty + 8U * slot, ring.phase ^ 1U);
      if (leads && done >= prologue && elect_one()) weights(work_tile, stage, ring.slot);
      if (stage == range.begin)
        tokens.begin(p, work_tile, warp);  // while the weights are on their way
      tokens.copy(p, warp, stage,
                  shared_address(ring.stages + ring.slot * Plan::kStage + kWeightStage));
      cp_async_mbarrier_arrive(ring.full + 8U * slot);
      ring.advance<Plan::kStages>();
    }
  }
  cp_async_wait_group<0>();  // NOTE: a thread must not exit before its copies have arrived
}

/// The end of an item that one CTA multiplied alone. A thread has rows g and g + 8 of its warp's
/// 16, tokens 2t and 2t + 1 of each tile; what scales them is fetched while the item is multiplied.
template <TileType kType, int kTiles>
struct TileEpilogue {
  static constexpr int kEach = (kTiles + 3) / 4;  // tokens a lane fetches the scales of

  int row;  // g in the matrix
  float row_scales[2];
  int x_rows[kEach];
  float x_scales[kEach];  // of tokens lane and lane + 32

  __device__ __forceinline__ void begin(const Gemm& p, const WorkTile& work_tile) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    row = work_tile.tile * kTileRows + static_cast<int>(threadIdx.x) % kWarpgroup / 32 * 16 +
          lane / 4;
    if constexpr (kType == TileType::fp8) {
      const float* scales =
          p.row_scales + static_cast<std::int64_t>(work_tile.expert) * p.tiles * kTileRows + row;
      row_scales[0] = scales[0];
      row_scales[1] = scales[8];
#pragma unroll
      for (int i = 0; i < kEach; ++i)
        x_rows[i] = x_row_of(p, work_tile.first + min(i * 32 + lane, work_tile.count - 1));
    }
  }
  __device__ __forceinline__ void fetch_x_scales(const Gemm& p) {
    if constexpr (kType == TileType::fp8)
#pragma unroll
      for (int i = 0; i < kEach; ++i) x_scales[i] = p.x_scales[x_rows[i]];
  }

  __device__ __forceinline__ void finish(const Gemm& p,
                                         const WorkTile& work_tile,
                                         const float (&sum)[kTiles][4]) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float bias[2] = {};
    if (p.bias != nullptr)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (row + i * 8 < p.rows) bias[i] = to_float(p.bias[row + i * 8]);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      if (tile * 8 >= work_tile.count) break;
      float x_scale[2];
      float value[4];
      if constexpr (kType == TileType::fp8) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
          x_scale[i] =
              __shfl_sync(0xFFFFFFFFU, x_scales[tile / 4], tile % 4 * 8 + lane % 4 * 2 + i);
#pragma unroll
        for (int i = 0; i < 4; ++i)
          value[i] = apply_scales<TileType::fp8>(p, sum[tile][i], row_scales[i / 2], x_scale[i % 2],
                                                 bias[i / 2]);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          value[i] = apply_scales<TileType::bf16>(p, sum[tile][i], 1.0F, 1.0F, bias[i / 2]);
      }
      if (p.epilogue == Epilogue::f32) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int token = tile * 8 + lane % 4 * 2 + i % 2;
          if (token < work_tile.count && row + i / 2 * 8 < p.rows)
            store_output(p, work_tile.first + token, row + i / 2 * 8, value[i]);
        }
        continue;
      }
      // Transposed, a lane has two neighbouring rows of one token.
      const int token = tile * 8 + lane / 4;
      const int first = row - lane / 4;  // of the warp's
      if (p.epilogue == Epilogue::silu_mul) {
        const std::uint32_t pair =
            movmatrix_trans(pack_bf16(silu_mul(round_bf16(value[0]), round_bf16(value[2])),
                                      silu_mul(round_bf16(value[1]), round_bf16(value[3]))));
        if (token < work_tile.count)
          store_pair(p, (work_tile.first + token) * p.out_stride, first / 2 + lane % 4 * 2, pair);
      } else {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const std::uint32_t pair =
              movmatrix_trans(pack_bf16(value[2 * half], value[2 * half + 1]));
          if (token < work_tile.count)
            store_pair(p, (work_tile.first + token) * p.out_stride, first + half * 8 + lane % 4 * 2,
                       pair);
        }
      }
    }
  }
};

/// Adds the parts of one matrix in rank order, scales and writes this CTA's share of an item's
/// sums.
template <TileType kType, int kTiles>
__device__ void reduce_split_k(const Gemm& p, const WorkTile& work_tile, const float* sums) {
  const int split = static_cast<int>(cluster_rank());
  const int pairs = work_tile.count * (kTileRows / 2);
  const std::uint32_t base = shared_address(sums);
  for (int i = pairs * split / p.split_k + static_cast<int>(threadIdx.x);
       i < pairs * (split + 1) / p.split_k; i += kWarpgroup) {
    const int token = i / (kTileRows / 2);
    const int row = i % (kTileRows / 2) * 2;
    const int n = work_tile.tile * kTileRows + row;
    if (n >= p.rows) continue;
    float2 total = make_float2(0.0F, 0.0F);
    for (int rank = 0; rank < p.split_k; ++rank) {
      const float2 other =
          cluster_load(base + static_cast<std::uint32_t>(token * kSumStride + row) * 4U,
                       static_cast<std::uint32_t>(rank));
      total = make_float2(total.x + other.x, total.y + other.y);
    }
    const std::int64_t sorted = work_tile.first + token;
    const float x_scale =
        kType == TileType::fp8 ? p.x_scales[x_row_of(p, work_tile.first + token)] : 1.0F;
    const auto write = [&](float sum, int column) {
      if (column >= p.rows) return;
      constexpr TileType kScaled = kType == TileType::fp8 ? TileType::fp8 : TileType::bf16;
      const float row_scale = kType == TileType::fp8 ? p.row_scales[column] : 1.0F;
      const float bias = p.bias != nullptr ? to_float(p.bias[column]) : 0.0F;
      store_output(p, sorted, column, apply_scales<kScaled>(p, sum, row_scale, x_scale, bias));
    };
    write(total.x, n);
    write(total.y, n + 1);
  }
}

/// The scale of one stage half's sums under block quantisation, for weight rows g and g + 8 of
/// every 16 and for one token.
__device__ __forceinline__ float block_scale(
    const Gemm& p, const WorkTile& work_tile, int block, int second, int token_row) {
  const int blocks = (p.width_bytes + kBlockWidth - 1) / kBlockWidth;
  const float weight =
      p.block_scales[((static_cast<std::int64_t>(work_tile.expert) * p.tiles + work_tile.tile) * 2 +
                      second) *
                         blocks +
                     block];
  return weight * p.x_scales[token_row * p.x_scales_stride + block];
}

/// `Multiply<kType, kTiles>` holds a thread's accumulators and adds stages to them; of an item's
/// kRowTiles tiles each warpgroup multiplies one.
template <template <TileType, int> class Multiply, TileType kType, int kTiles>
__device__ void consume(const Gemm& p, Ring ring, int blocks, int token_blocks, float* sums) {
  constexpr int kRowTiles = Multiply<kType, kTiles>::kRowTiles;
  using Plan = GroupedDecodePlan<kTiles, kRowTiles>;
  const int work_tiles = token_blocks * blocks;
  const int group = kRowTiles > 1 ? warp_index() / 4 : 0;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int split = p.split_k > 1 ? static_cast<int>(cluster_rank()) : 0;
  const int step = static_cast<int>(gridDim.x) / p.split_k;
  const StageRange range = stage_range<Plan::kSlotWidth>(p, split);
  const int late = max(range.begin, range.end - 2 * kRowTiles);  // early enough for a read from L2
  const int first_index = static_cast<int>(blockIdx.x) / p.split_k;
  WorkTile next{};
  if (first_index < work_tiles)
    next = work_tile_at(p, blocks, first_index, token_blocks, Plan::kTokens);
  for (int index = first_index; index < work_tiles; index += step) {
    WorkTile work_tile = next;
    if (index + step < work_tiles)
      next = work_tile_at(p, blocks, index + step, token_blocks, Plan::kTokens);
    if (work_tile.count == 0) continue;
    take_interleaved_block<kTiles>(p, blocks, index, work_tile);
    work_tile.tile = work_tile.tile * kRowTiles + group;
    const bool present = kRowTiles == 1 || work_tile.tile < p.tiles;
    if (!present) --work_tile.tile;  // the last of the block before it: there is something to read
    Multiply<kType, kTiles> multiply;
    TileEpilogue<kType, kTiles> end;
    if (p.split_k == 1) end.begin(p, work_tile);
    for (int stage = range.begin; stage < range.end; ++stage) {
      const std::uint8_t* data = ring.stages + ring.slot * Plan::kStage;
      mbarrier_wait(ring.full + 8U * static_cast<std::uint32_t>(ring.slot), ring.phase);
      if (stage == late && p.split_k == 1) end.fetch_x_scales(p);
      multiply.stage(p, work_tile, stage,
                     shared_address(data + group * (kTileRows * Plan::kSlotWidth)),
                     shared_address(data + kWeightStage));
      mbarrier_arrive(ring.empty + 8U * static_cast<std::uint32_t>(ring.slot));
      ring.advance<Plan::kStages>();
    }
    if (kRowTiles > 1 || p.split_k == 1) {
      if (present) end.finish(p, work_tile, multiply.sum);
      continue;
    }
    // Row g or g + 8 of the warp's 16, tokens 2t and 2t + 1 of each column tile.
    const int row = warp * 16 + lane / 4;
    const int token = lane % 4 * 2;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        sums[(tile * 8 + token + i % 2) * kSumStride + row + i / 2 * 8] = multiply.sum[tile][i];
    return;  // one item a cluster: finished after the cluster's barrier
  }
}

template <template <TileType, int> class Multiply, TileType kType, int kTiles>
__global__ void __launch_bounds__(
    GroupedDecodePlan<kTiles, Multiply<kType, kTiles>::kRowTiles>::kThreads,
    kType == TileType::fp8_block && kTiles == 8 ? 1 : GroupedDecodePlan<kTiles, 1>::kCtasPerSm)
    gemm_grouped_decode_kernel(const __grid_constant__ Gemm p) {
  constexpr int kRowTiles = Multiply<kType, kTiles>::kRowTiles;
  using Plan = GroupedDecodePlan<kTiles, kRowTiles>;
  extern __shared__ __align__(128) std::uint8_t shared[];
  const Ring ring(shared, Plan::kSumBytes);
  auto* sums = reinterpret_cast<float*>(shared + kBarrierBytes);
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < Plan::kStages; ++slot) {
      mbarrier_init(ring.full + 8U * static_cast<std::uint32_t>(slot), 1 + 32 * Plan::kProducers);
      mbarrier_init(ring.empty + 8U * static_cast<std::uint32_t>(slot), Plan::kConsumers);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  const bool producer = warp_index() >= Plan::kConsumers / 32;
  if (!producer) wait_on_dependent_grids();
  // A producer that must wait for the entries does so itself, after it has begun what it may.
  const bool readable = !producer || !has_experts(p) || p.token_blocks_early;
  const int token_blocks = readable ? num_token_blocks(p, Plan::kTokens) : 0;
  const int blocks = ceil_div(p.tiles, kRowTiles);
  if (producer) {
    produce<kTiles, kRowTiles>(p, ring, blocks, token_blocks);
    launch_dependent_grids();
  } else {
    launch_dependent_grids();
    consume<Multiply, kType, kTiles>(p, ring, blocks, token_blocks, sums);
  }
  if (kRowTiles > 1 || p.split_k == 1) return;
  __syncwarp();
  cluster_sync();
  const int index = static_cast<int>(blockIdx.x) / p.split_k;
  if (!producer && index < token_blocks * blocks)
    reduce_split_k<kType, kTiles>(p, work_tile_at(p, blocks, index, token_blocks, Plan::kTokens),
                                  sums);
  __syncwarp();
  cluster_sync();  // NOTE: no CTA may leave while another reads its sums
}

template <template <TileType, int> class Multiply, TileType kType, int kTiles>
cudaError_t launch_grouped_decode_config(const Gemm& p, int multiprocessors, cudaStream_t stream) {
  using Plan = GroupedDecodePlan<kTiles, Multiply<kType, kTiles>::kRowTiles>;
  if (Multiply<kType, kTiles>::kRowTiles > 1 && p.split_k > 1) return cudaErrorInvalidValue;
  if (p.interleave_token_blocks &&
      (kTiles > 1 || p.token_blocks_early || p.first_block_expert >= 0))
    return cudaErrorInvalidValue;
  const auto kernel = gemm_grouped_decode_kernel<Multiply, kType, kTiles>;
  static PerDevice found;
  const int resident = found.number([&] {  // CTAs of a multiprocessor; 0 if the kernel cannot run
    int count = 0;
    if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Plan::kShared) !=
            cudaSuccess ||
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&count, kernel, Plan::kThreads,
                                                      Plan::kShared) != cudaSuccess)
      return 0;
    return count;
  });
  if (resident == 0) return cudaErrorInvalidConfiguration;
  int grid = resident * multiprocessors;
  if (p.token_blocks == nullptr) {
    const int token_blocks = p.single_ids != nullptr
                                 ? p.single_token_blocks
                                 : (p.tokens + Plan::kTokens - 1) / Plan::kTokens;
    const int work_tiles = token_blocks * ceil_div(p.tiles, Multiply<kType, kTiles>::kRowTiles);
    grid = p.split_k > 1 ? work_tiles * p.split_k : (work_tiles < grid ? work_tiles : grid);
  }
  return launch_kernel(kernel,
                       {dim3(static_cast<unsigned>(grid)), dim3(Plan::kThreads),
                        static_cast<std::size_t>(Plan::kShared), p.split_k},
                       stream, p);
}

template <template <TileType, int> class Multiply, TileType kType, bool kTwoTiles>
cudaError_t launch_grouped_decode_tiles(const Gemm& p, int multiprocessors, cudaStream_t stream) {
  switch (p.token_tiles) {
    case 1:
      return launch_grouped_decode_config<Multiply, kType, 1>(p, multiprocessors, stream);
    case 2:
      if constexpr (kTwoTiles)
        return launch_grouped_decode_config<Multiply, kType, 2>(p, multiprocessors, stream);
      else
        return cudaErrorInvalidValue;
    case 4:
      return launch_grouped_decode_config<Multiply, kType, 4>(p, multiprocessors, stream);
    case 8:
      return launch_grouped_decode_config<Multiply, kType, 8>(p, multiprocessors, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

/// kTwoTiles: whether there are forms of 9 to 16 tokens for other types than fp8_block.
template <template <TileType, int> class Multiply, bool kTwoTiles>
cudaError_t launch_grouped_decode(const Gemm& p, int multiprocessors, cudaStream_t stream) {
  switch (p.type) {
    case TileType::bf16:
      return launch_grouped_decode_tiles<Multiply, TileType::bf16, kTwoTiles>(p, multiprocessors,
                                                                              stream);
    case TileType::fp8:
      return launch_grouped_decode_tiles<Multiply, TileType::fp8, kTwoTiles>(p, multiprocessors,
                                                                             stream);
    case TileType::fp8_block:
      return launch_grouped_decode_tiles<Multiply, TileType::fp8_block, true>(p, multiprocessors,
                                                                              stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace koho::cuda
