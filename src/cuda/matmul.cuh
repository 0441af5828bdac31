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
#include "cuda/launch.cuh"
#include "cuda/matmul.h"
#include "cuda/matmul_end.cuh"
#include "cuda/numeric.cuh"
#include "cuda/ptx.cuh"
#include "cuda/tiles.h"

namespace koho::cuda {

constexpr int kWarpgroup = 128;
constexpr int kSumStride = 66;  // floats of one token's row of sums
constexpr int kWeightStage = kTileRows * kStageWidth;
constexpr int kBarrierBytes = 128;
// One token's experts ask for weights slowly while they wait: the small reads of the kernels before
// would stand behind them. Cycles from one stage to the next, from the third on, and from the first
// piece for L2 to the last.
constexpr int kSlowStage = 3000;
constexpr int kSlowPieces = 3000;

/// kRowTiles: tiles of an item. A slot of the ring has as many bytes of weights with two, so half
/// of K.
template <int kTiles, int kRowTiles>
struct MatmulPlan {
  static constexpr int kTokens = 8 * kTiles;
  static constexpr int kConsumers = kWarpgroup * kRowTiles;
  static constexpr int kProducers = kTiles == 8 ? 4 : kTiles == 4 ? 2 : 1;  // warps
  static constexpr int kThreads = kConsumers + 32 * kProducers;
  // NOTE: rounded so that stages begin at 128 bytes: elsewhere bulk copies and wgmma are slower.
  static constexpr int kSumBytes = kRowTiles > 1 ? 0 : round_up(4 * kTokens * kSumStride, 128);
  static constexpr int kSlotWidth = kStageWidth / kRowTiles;  // bytes of K
  static constexpr int kStage = kWeightStage + kTokens * kSlotWidth;
  // CTAs that are resident on a multiprocessor, and as long a ring as lets them be.
  static constexpr int kResident = kTiles == 1 ? 3 : 2;
  static constexpr int kStages = kTiles == 2 || kRowTiles > 1 ? 5 : kTiles == 8 ? 3 : 4;
  static constexpr int kShared = kBarrierBytes + kSumBytes + kStages * kStage;
};

/// One work item: what is multiplied and where it goes.
struct MatmulItem {
  int expert;
  int tile;   // or block of several
  int first;  // sorted row
  int count;
  std::uint32_t turn;  // the entry's place and places, see take_turn()
};

__device__ __forceinline__ bool has_experts(const Matmul& p) {
  return p.entries != nullptr || p.single_ids != nullptr;
}

__device__ __forceinline__ int matmul_entries(const Matmul& p, int tokens_per_entry) {
  if (p.single_ids != nullptr) return p.single_entries;
  return p.entries != nullptr ? *p.entry_count
                              : (p.tokens + tokens_per_entry - 1) / tokens_per_entry;
}

/// The row of x that a sorted row multiplies.
__device__ __forceinline__ int matmul_x_row(const Matmul& p, int row) {
  return p.single_row ? 0 : p.x_rows != nullptr ? p.x_rows[row] : row;
}

/// Entries of one tile follow each other, so that the second reads the tile from L2. Items have
/// one of `blocks` tiles or blocks of tiles.
__device__ __forceinline__ MatmulItem
matmul_item(const Matmul& p, int blocks, int index, int entries, int tokens_per_entry) {
  MatmulItem item{};
  if (p.single_ids != nullptr) {
    const int entry = index / blocks;
    const int slot = entry - (p.single_shared ? 1 : 0);
    const int expert = slot < 0 ? p.single_count : p.single_ids[slot] - p.single_first;
    const bool here = slot < 0 || (expert >= 0 && expert < p.single_count);
    item = {expert, index % blocks, entry, here ? 1 : 0};
  } else if (p.entries != nullptr) {  // experts: tiles of one entry follow each other
    const MatmulEntry entry = p.entries[index / blocks];
    std::uint32_t turn;  // place, and places above it
    static_assert(offsetof(MatmulEntry, places) == offsetof(MatmulEntry, place) + 2);
    std::memcpy(&turn, reinterpret_cast<const char*>(&entry) + offsetof(MatmulEntry, place),
                sizeof turn);
    item = {entry.expert, index % blocks, entry.first, entry.count, turn};
  } else {
    const int first = index % entries * tokens_per_entry;
    item = {0, index / entries, first, min(tokens_per_entry, p.tokens - first)};
  }
  return item;
}

/// With p.entries_together (one tile of tokens), item `index` becomes the one that has its turn
/// where the expert's entries take each tile one after the other.
/// NOTE: not by matmul_item(), which looks an item up while the one before it is multiplied: to
/// take the word of places apart is to wait for it.
template <int kTiles>
__device__ __forceinline__ void take_turn(const Matmul& p,
                                          int blocks,
                                          int index,
                                          MatmulItem& item) {
  if constexpr (kTiles > 1) return;
  const int places = static_cast<int>(item.turn >> 16U);
  if (!p.entries_together || places <= 1) return;
  const int first = index / blocks - static_cast<int>(item.turn & 0xFFFFU);
  const int among = index - first * blocks;  // items of all these entries
  const MatmulEntry entry = p.entries[first + among % places];
  item.tile = among / places;
  item.first = entry.first;
  item.count = entry.count;
}

/// The stages, of one slot each, of this CTA's part of a tile's width.
struct StageRange {
  int begin;
  int end;
};
template <int kSlotWidth>
__device__ __forceinline__ StageRange stage_range(const Matmul& p, int part) {
  const int stages = (p.width_bytes + kSlotWidth - 1) / kSlotWidth;
  return {stages * part / p.parts, stages * (part + 1) / p.parts};
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
  using Plan = MatmulPlan<kTiles, kRowTiles>;
  static constexpr int kWarps = Plan::kProducers;
  static constexpr int kEach = kTiles / kWarps;  // token tiles of a warp
  const std::uint8_t* rows[kEach];
  bool present[kEach];

  __device__ __forceinline__ void begin(const Matmul& p, const MatmulItem& item, int warp) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int token = (warp * kEach + i) * 8 + lane % 8;
      const int row = min(token, item.count - 1) + item.first;
      const std::int64_t x_row = matmul_x_row(p, row);
      rows[i] = p.x + x_row * p.x_stride_bytes + lane / 8 * kTileChunk;
      present[i] = token < item.count;
    }
  }

  /// Copies this warp's rows of one stage into core matrices.
  __device__ __forceinline__ void copy(const Matmul& p,
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
          copy_16(tile + static_cast<std::uint32_t>(group * 4 * kTiles * 128),
                  bytes > 0 ? rows[i] + begin + k : p.x, static_cast<std::uint32_t>(bytes));
      }
    }
  }
};

/// Asks L2 for what will be read soon, a piece now and then; by one thread of a CTA.
__device__ __forceinline__ void bring_slowly(const Matmul& p) {
  constexpr std::int64_t kPiece = 16 << 10;
  const std::int64_t step = gridDim.x * kPiece;
  std::int64_t pieces = 0;
#pragma unroll
  for (const Matmul::Soon& soon : p.soon) pieces += (soon.bytes + step - 1) / step;
  const long long begin = clock64();
  int done = 0;
#pragma unroll
  for (const Matmul::Soon& soon : p.soon)
    for (std::int64_t at = blockIdx.x * kPiece; at < soon.bytes; at += step) {
      if (done > 0) wait_until(begin + done * kSlowPieces / (pieces - 1));
      prefetch_bulk(soon.data + at, static_cast<std::uint32_t>(min(soon.bytes - at, kPiece)));
      ++done;
    }
}

/// Fills the ring.
template <int kTiles, int kRowTiles>
__device__ void produce(const Matmul& p, Ring ring, int blocks, int entries) {
  using Plan = MatmulPlan<kTiles, kRowTiles>;
  const int warp = warp_index() - Plan::kConsumers / 32;
  const bool leads = warp == 0;  // one of its lanes copies weights
  const std::uint64_t policy = evict_first_policy();
  const int part = p.parts > 1 ? static_cast<int>(cluster_rank()) : 0;
  const int step = static_cast<int>(gridDim.x) / p.parts;
  const StageRange range = stage_range<Plan::kSlotWidth>(p, part);
  const std::int64_t tile_bytes = static_cast<std::int64_t>(kTileRows) * p.width_bytes;
  const auto weights = [&](const MatmulItem& item, int stage, int slot) {
    const int begin = stage * Plan::kSlotWidth;
    const auto bytes =
        static_cast<std::uint32_t>(min(Plan::kSlotWidth, p.width_bytes - begin) * kTileRows);
    const int tile = item.tile * kRowTiles;
    const int present = min(kRowTiles, p.tiles - tile);
    const std::uint32_t barrier = ring.full + 8U * static_cast<std::uint32_t>(slot);
    mbarrier_arrive_expect(barrier, static_cast<std::uint32_t>(present) * bytes);
    const std::uint8_t* from =
        p.weight + (static_cast<std::int64_t>(item.expert) * p.tiles + tile) * tile_bytes +
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
  int ahead = 0;
  const int first_index = static_cast<int>(blockIdx.x) / p.parts;
  const auto start = [&](const MatmulItem& item) {
    if (item.count == 0) return;
    ahead = min(Plan::kStages, range.end - range.begin);
    if (leads && elect_one()) {
      const bool slow = p.single_ids != nullptr && p.entries_early;
      const long long begin = clock64();
#pragma unroll 1
      for (int i = 0; i < ahead; ++i) {
        if (slow && i >= 2) wait_until(begin + (i - 1) * kSlowStage);
        weights(item, range.begin + i, i);
      }
    }
  };
  const bool known = !has_experts(p) || p.entries_early;
  int items = entries * blocks;
  if (known) {
    if (first_index < items) start(matmul_item(p, blocks, first_index, entries, Plan::kTokens));
  } else if (first_index < blocks && p.first_entry_expert >= 0) {
    start({p.first_entry_expert, first_index, 0, 1, 0});
  }
  if (leads && elect_one()) bring_slowly(p);
  grid_wait();
  if (!known) {
    entries = matmul_entries(p, Plan::kTokens);
    items = entries * blocks;
  }
  int done = 0;
  MatmulItem next{};
  if (first_index < items) next = matmul_item(p, blocks, first_index, entries, Plan::kTokens);
  TokenSource<kTiles, kRowTiles> tokens;
  for (int index = first_index; index < items; index += step) {
    MatmulItem item = next;
    if (index + step < items) next = matmul_item(p, blocks, index + step, entries, Plan::kTokens);
    if (item.count == 0) continue;
    take_turn<kTiles>(p, blocks, index, item);
    for (int stage = range.begin; stage < range.end; ++stage, ++done) {
      const auto slot = static_cast<std::uint32_t>(ring.slot);
      mbarrier_wait(ring.empty + 8U * slot, ring.phase ^ 1U);
      if (leads && done >= ahead && elect_one()) weights(item, stage, ring.slot);
      if (stage == range.begin) tokens.begin(p, item, warp);  // while the weights are on their way
      tokens.copy(p, warp, stage,
                  shared_address(ring.stages + ring.slot * Plan::kStage + kWeightStage));
      copy_arrive(ring.full + 8U * slot);
      ring.advance<Plan::kStages>();
    }
  }
  copy_wait<0>();  // NOTE: a thread must not exit before its copies have arrived
}

/// The end of an item that one CTA multiplied alone. A thread has rows g and g + 8 of its warp's
/// 16, tokens 2t and 2t + 1 of each tile; what scales them is fetched while the item is multiplied.
template <TileType kType, int kTiles>
struct ItemEnd {
  static constexpr int kEach = (kTiles + 3) / 4;  // tokens a lane fetches the scales of

  int row;  // g in the matrix
  float row_scales[2];
  int x_rows[kEach];
  float x_scales[kEach];  // of tokens lane and lane + 32

  __device__ __forceinline__ void begin(const Matmul& p, const MatmulItem& item) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    row = item.tile * kTileRows + static_cast<int>(threadIdx.x) % kWarpgroup / 32 * 16 + lane / 4;
    if constexpr (kType == TileType::fp8) {
      const float* scales =
          p.row_scales + static_cast<std::int64_t>(item.expert) * p.tiles * kTileRows + row;
      row_scales[0] = scales[0];
      row_scales[1] = scales[8];
#pragma unroll
      for (int i = 0; i < kEach; ++i)
        x_rows[i] = matmul_x_row(p, item.first + min(i * 32 + lane, item.count - 1));
    }
  }
  __device__ __forceinline__ void fetch_x_scales(const Matmul& p) {
    if constexpr (kType == TileType::fp8)
#pragma unroll
      for (int i = 0; i < kEach; ++i) x_scales[i] = p.x_scales[x_rows[i]];
  }

  __device__ __forceinline__ void finish(const Matmul& p,
                                         const MatmulItem& item,
                                         const float (&sum)[kTiles][4]) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float bias[2] = {};
    if (p.bias != nullptr)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (row + i * 8 < p.rows) bias[i] = to_float(p.bias[row + i * 8]);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      if (tile * 8 >= item.count) break;
      float x_scale[2];
      float value[4];
      if constexpr (kType == TileType::fp8) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
          x_scale[i] =
              __shfl_sync(0xFFFFFFFFU, x_scales[tile / 4], tile % 4 * 8 + lane % 4 * 2 + i);
#pragma unroll
        for (int i = 0; i < 4; ++i)
          value[i] = scale_sum<TileType::fp8>(p, sum[tile][i], row_scales[i / 2], x_scale[i % 2],
                                              bias[i / 2]);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          value[i] = scale_sum<TileType::bf16>(p, sum[tile][i], 1.0F, 1.0F, bias[i / 2]);
      }
      if (p.end == MatmulEnd::f32) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int token = tile * 8 + lane % 4 * 2 + i % 2;
          if (token < item.count && row + i / 2 * 8 < p.rows)
            store_sum(p, item.first + token, row + i / 2 * 8, value[i]);
        }
        continue;
      }
      // Transposed, a lane has two neighbouring rows of one token.
      const int token = tile * 8 + lane / 4;
      const int first = row - lane / 4;  // of the warp's
      if (p.end == MatmulEnd::silu_mul) {
        const std::uint32_t pair =
            transposed(pack_bf16(silu_mul(round_bf16(value[0]), round_bf16(value[2])),
                                 silu_mul(round_bf16(value[1]), round_bf16(value[3]))));
        if (token < item.count)
          store_pair(p, (item.first + token) * p.out_stride, first / 2 + lane % 4 * 2, pair);
      } else {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const std::uint32_t pair = transposed(pack_bf16(value[2 * half], value[2 * half + 1]));
          if (token < item.count)
            store_pair(p, (item.first + token) * p.out_stride, first + half * 8 + lane % 4 * 2,
                       pair);
        }
      }
    }
  }
};

/// Adds the parts of one matrix in rank order, scales and writes this CTA's share of an item's
/// sums.
template <TileType kType, int kTiles>
__device__ void finish_parts(const Matmul& p, const MatmulItem& item, const float* sums) {
  const int part = static_cast<int>(cluster_rank());
  const int pairs = item.count * (kTileRows / 2);
  const std::uint32_t base = shared_address(sums);
  for (int i = pairs * part / p.parts + static_cast<int>(threadIdx.x);
       i < pairs * (part + 1) / p.parts; i += kWarpgroup) {
    const int token = i / (kTileRows / 2);
    const int row = i % (kTileRows / 2) * 2;
    const int n = item.tile * kTileRows + row;
    if (n >= p.rows) continue;
    float2 total = make_float2(0.0F, 0.0F);
    for (int rank = 0; rank < p.parts; ++rank) {
      const float2 other =
          cluster_load(base + static_cast<std::uint32_t>(token * kSumStride + row) * 4U,
                       static_cast<std::uint32_t>(rank));
      total = make_float2(total.x + other.x, total.y + other.y);
    }
    const std::int64_t sorted = item.first + token;
    const float x_scale =
        kType == TileType::fp8 ? p.x_scales[matmul_x_row(p, item.first + token)] : 1.0F;
    const auto write = [&](float sum, int column) {
      if (column >= p.rows) return;
      constexpr TileType kScaled = kType == TileType::fp8 ? TileType::fp8 : TileType::bf16;
      const float row_scale = kType == TileType::fp8 ? p.row_scales[column] : 1.0F;
      const float bias = p.bias != nullptr ? to_float(p.bias[column]) : 0.0F;
      store_sum(p, sorted, column, scale_sum<kScaled>(p, sum, row_scale, x_scale, bias));
    };
    write(total.x, n);
    write(total.y, n + 1);
  }
}

/// The scale of one stage half's sums under block quantisation, for weight rows g and g + 8 of
/// every 16 and for one token.
__device__ __forceinline__ float block_scale(
    const Matmul& p, const MatmulItem& item, int block, int second, int token_row) {
  const int blocks = (p.width_bytes + kBlockWidth - 1) / kBlockWidth;
  const float weight =
      p.block_scales[((static_cast<std::int64_t>(item.expert) * p.tiles + item.tile) * 2 + second) *
                         blocks +
                     block];
  return weight * p.x_scales[token_row * p.x_scales_stride + block];
}

/// `Multiply<kType, kTiles>` holds a thread's accumulators and adds stages to them; of an item's
/// kRowTiles tiles each warpgroup multiplies one.
template <template <TileType, int> class Multiply, TileType kType, int kTiles>
__device__ void consume(const Matmul& p, Ring ring, int blocks, int entries, float* sums) {
  constexpr int kRowTiles = Multiply<kType, kTiles>::kRowTiles;
  using Plan = MatmulPlan<kTiles, kRowTiles>;
  const int items = entries * blocks;
  const int group = kRowTiles > 1 ? warp_index() / 4 : 0;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int part = p.parts > 1 ? static_cast<int>(cluster_rank()) : 0;
  const int step = static_cast<int>(gridDim.x) / p.parts;
  const StageRange range = stage_range<Plan::kSlotWidth>(p, part);
  const int late = max(range.begin, range.end - 2 * kRowTiles);  // early enough for a read from L2
  const int first_index = static_cast<int>(blockIdx.x) / p.parts;
  MatmulItem next{};
  if (first_index < items) next = matmul_item(p, blocks, first_index, entries, Plan::kTokens);
  for (int index = first_index; index < items; index += step) {
    MatmulItem item = next;
    if (index + step < items) next = matmul_item(p, blocks, index + step, entries, Plan::kTokens);
    if (item.count == 0) continue;
    take_turn<kTiles>(p, blocks, index, item);
    item.tile = item.tile * kRowTiles + group;
    const bool present = kRowTiles == 1 || item.tile < p.tiles;
    if (!present) --item.tile;  // the last of the block before it: there is something to read
    Multiply<kType, kTiles> multiply;
    ItemEnd<kType, kTiles> end;
    if (p.parts == 1) end.begin(p, item);
    for (int stage = range.begin; stage < range.end; ++stage) {
      const std::uint8_t* data = ring.stages + ring.slot * Plan::kStage;
      mbarrier_wait(ring.full + 8U * static_cast<std::uint32_t>(ring.slot), ring.phase);
      if (stage == late && p.parts == 1) end.fetch_x_scales(p);
      multiply.stage(p, item, stage, shared_address(data + group * (kTileRows * Plan::kSlotWidth)),
                     shared_address(data + kWeightStage));
      mbarrier_arrive(ring.empty + 8U * static_cast<std::uint32_t>(ring.slot));
      ring.advance<Plan::kStages>();
    }
    if (kRowTiles > 1 || p.parts == 1) {
      if (present) end.finish(p, item, multiply.sum);
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
__global__ void __launch_bounds__(MatmulPlan<kTiles, Multiply<kType, kTiles>::kRowTiles>::kThreads,
                                  kType == TileType::fp8_block && kTiles == 8
                                      ? 1
                                      : MatmulPlan<kTiles, 1>::kResident)
    matmul_kernel(const __grid_constant__ Matmul p) {
  constexpr int kRowTiles = Multiply<kType, kTiles>::kRowTiles;
  using Plan = MatmulPlan<kTiles, kRowTiles>;
  extern __shared__ __align__(128) std::uint8_t shared[];
  const Ring ring(shared, Plan::kSumBytes);
  auto* sums = reinterpret_cast<float*>(shared + kBarrierBytes);
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < Plan::kStages; ++slot) {
      mbarrier_init(ring.full + 8U * static_cast<std::uint32_t>(slot), 1 + 32 * Plan::kProducers);
      mbarrier_init(ring.empty + 8U * static_cast<std::uint32_t>(slot), Plan::kConsumers);
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  const bool producer = warp_index() >= Plan::kConsumers / 32;
  if (!producer) grid_wait();
  // A producer that must wait for the entries does so itself, after it has begun what it may.
  const bool readable = !producer || !has_experts(p) || p.entries_early;
  const int entries = readable ? matmul_entries(p, Plan::kTokens) : 0;
  const int blocks = ceil_div(p.tiles, kRowTiles);
  if (producer) {
    produce<kTiles, kRowTiles>(p, ring, blocks, entries);
    grid_release();
  } else {
    grid_release();
    consume<Multiply, kType, kTiles>(p, ring, blocks, entries, sums);
  }
  if (kRowTiles > 1 || p.parts == 1) return;
  __syncwarp();
  cluster_barrier();
  const int index = static_cast<int>(blockIdx.x) / p.parts;
  if (!producer && index < entries * blocks)
    finish_parts<kType, kTiles>(p, matmul_item(p, blocks, index, entries, Plan::kTokens), sums);
  __syncwarp();
  cluster_barrier();  // NOTE: no CTA may leave while another reads its sums
}

template <template <TileType, int> class Multiply, TileType kType, int kTiles>
cudaError_t launch_matmul_form(const Matmul& p, int multiprocessors, cudaStream_t stream) {
  using Plan = MatmulPlan<kTiles, Multiply<kType, kTiles>::kRowTiles>;
  if (Multiply<kType, kTiles>::kRowTiles > 1 && p.parts > 1) return cudaErrorInvalidValue;
  if (p.entries_together && (kTiles > 1 || p.entries_early || p.first_entry_expert >= 0))
    return cudaErrorInvalidValue;
  const auto kernel = matmul_kernel<Multiply, kType, kTiles>;
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
  if (p.entries == nullptr) {
    const int entries =
        p.single_ids != nullptr ? p.single_entries : (p.tokens + Plan::kTokens - 1) / Plan::kTokens;
    const int items = entries * ceil_div(p.tiles, Multiply<kType, kTiles>::kRowTiles);
    grid = p.parts > 1 ? items * p.parts : (items < grid ? items : grid);
  }
  return launch_kernel(kernel,
                       {dim3(static_cast<unsigned>(grid)), dim3(Plan::kThreads),
                        static_cast<std::size_t>(Plan::kShared), p.parts},
                       stream, p);
}

template <template <TileType, int> class Multiply, TileType kType, bool kTwoTiles>
cudaError_t launch_matmul_tiles(const Matmul& p, int multiprocessors, cudaStream_t stream) {
  switch (p.token_tiles) {
    case 1:
      return launch_matmul_form<Multiply, kType, 1>(p, multiprocessors, stream);
    case 2:
      if constexpr (kTwoTiles)
        return launch_matmul_form<Multiply, kType, 2>(p, multiprocessors, stream);
      else
        return cudaErrorInvalidValue;
    case 4:
      return launch_matmul_form<Multiply, kType, 4>(p, multiprocessors, stream);
    case 8:
      return launch_matmul_form<Multiply, kType, 8>(p, multiprocessors, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

/// kTwoTiles: whether there are forms of 9 to 16 tokens for other types than fp8_block.
template <template <TileType, int> class Multiply, bool kTwoTiles>
cudaError_t launch_matmul(const Matmul& p, int multiprocessors, cudaStream_t stream) {
  switch (p.type) {
    case TileType::bf16:
      return launch_matmul_tiles<Multiply, TileType::bf16, kTwoTiles>(p, multiprocessors, stream);
    case TileType::fp8:
      return launch_matmul_tiles<Multiply, TileType::fp8, kTwoTiles>(p, multiprocessors, stream);
    case TileType::fp8_block:
      return launch_matmul_tiles<Multiply, TileType::fp8_block, true>(p, multiprocessors, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace koho::cuda
