// SPDX-License-Identifier: Apache-2.0
// What the roles of attention_wgmma.cu share: the sizes of a tile and of a step, the plan of shared
// memory and its barriers, and the tile scheduler.
#pragma once

#include <cstdint>

#include "cuda/attention/kv_tensor_map.h"
#include "cuda/attention/tile_order.h"
#include "cuda/device/ptx.cuh"
#include "cuda/kernels.h"

namespace koho::cuda {

constexpr int kWidth = 128;
constexpr int kRows = 128;       // of a tile
constexpr int kWarpgroup = 128;  // threads
constexpr int kConsumerWarpgroups = 2;
constexpr int kThreads = (1 + kConsumerWarpgroups) * kWarpgroup;
constexpr int kStepPages = 2;
constexpr int kStepTokens = kStepPages * kPageRows;
constexpr int kStages = 2;
constexpr int kPanels = 2;                      // of 64 columns, 128 bytes
constexpr int kPanelBytes = kStepTokens * 128;  // of K, of V and of Q (128 rows each)
constexpr int kTileBytes = kPanels * kPanelBytes;
constexpr int kBoxBytes = kPageRows * 128;
constexpr int kAccumulators = 64;  // of a thread: 64 rows x 128 columns over a warpgroup
constexpr int kTileSlots = 2;
/// The next tile is scheduled when the first of a tile's last four steps has been requested.
constexpr int kSchedulePrefetchSteps = 4;
constexpr int kFp8TileBytes = kStepTokens * kWidth;  // of K, and of V, as e4m3 values
constexpr int kFp8Stages = 3;
constexpr int kScaleSlots = 4;
constexpr float kLog2E = 1.4426950408889634F;

// Named barriers: 0 is __syncthreads().
constexpr int kWarpgroupOrderBarrier = 1;  // and 2: a consumer warpgroup's turn to multiply
constexpr int kCleanBarrier = 3;           // both consumer warpgroups
constexpr int kQueryBarrier = 4;           // and 5: one consumer warpgroup

/// Where K and V come from: bf16 pages, e4m3 pages, or f16 as upcast_pages_kernel() left it.
enum class KvSource { bf16, fp8, upcast };

/// The scales of a step's tokens as the softmax takes them. Zero for tokens beyond the context, and
/// for tokens whose v scale is NaN or infinite: their V is NaN instead.
struct StepScales {
  float keys[kStepTokens];    // of k, times what makes scores base 2
  float values[kStepTokens];  // of v
  float largest[4];           // of v's, of 32 tokens each
};

/// The sequences and kv heads of one launch.
struct WorkRange {
  int first_sequence;
  int sequences;
  int first_head;
  int heads;
  int head_block;   // heads whose tiles alternate
  TileOrder order;  // of a single sequence without earlier context
  // KvSource::upcast: rows [sequence, head, tokens, 128] of K and of V, scales [sequence, head,
  // steps].
  std::uint16_t* keys;
  std::uint16_t* values;
  StepScales* scales;
  int tokens;  // of a sequence and head: whole steps
};

/// One tile: 128 packed rows of a sequence and kv head.
struct PrefillTile {
  int steps;  // 0: there are no more tiles
  int sequence;
  int kv_head;
  int group;       // query heads of the kv head
  int start;       // first token row of the sequence
  int first_row;   // packed
  int rows_total;  // packed, of the sequence
  int before;      // tokens of the context before the sequence's rows
  int visible;     // tokens that any row sees
  int least;       // tokens that every row sees
  int any_bad;     // clean_values() found a NaN or infinity in V
};

template <KvSource kSource>
struct SharedPlan {
  static constexpr bool kFp8 = kSource == KvSource::fp8;
  static constexpr int kQuery = 0;
  static constexpr int kKeys = kTileBytes;
  static constexpr int kValues = kKeys + kStages * kTileBytes;
  static constexpr int kFp8Ring = kValues + kStages * kTileBytes;  // K, V, K, V, …
  static constexpr int kRawScales = kFp8Ring + (kFp8 ? kFp8Stages * kFp8TileBytes : 0);
  static constexpr int kRawScaleBytes =
      2 * kStepTokens * 4;  // of K, then of V; beside K's e4m3 values
  static constexpr int kScales = kRawScales + (kFp8 ? kFp8Stages * kRawScaleBytes : 0);
  static constexpr int kBarriers =
      kScales +
      (kSource == KvSource::bf16 ? 0 : kScaleSlots * static_cast<int>(sizeof(StepScales)));
  static constexpr int kTiles = kBarriers + 256;
  static constexpr int kBad = kTiles + 128;  // of each slot and column, see clean_values()
  static constexpr int kBytes = kBad + kTileSlots * kWidth * 4 + 1024;  // 1024: the swizzle's
};
static_assert(SharedPlan<KvSource::fp8>::kBytes <= 227 << 10);
static_assert(kTileSlots * sizeof(PrefillTile) <= 128 && sizeof(StepScales) % 16 == 0);

/// Shared-memory addresses of the mbarriers. Those of queries are one for each consumer warpgroup.
struct PipelineBarriers {
  std::uint32_t keys_full, keys_empty, values_full, values_empty;
  std::uint32_t values_raw;           // V at the causal edge has arrived and is to be cleaned
  std::uint32_t fp8_full, fp8_empty;  // e4m3 pages
  std::uint32_t query_raw;            // bf16 queries have arrived and are to become f16
  std::uint32_t query_full, query_empty;
  std::uint32_t tile_full, tile_empty;
  std::uint32_t tile_requested;  // the next tile is to be scheduled
};

/// Packed rows that are contiguous in memory wherever a tile begins, for `group` query heads a kv
/// head: the rows of one TMA box.
__host__ __device__ constexpr int query_box_rows(int group) {
  const int rows = group & -group;
  return rows < kRows / kConsumerWarpgroups ? rows : kRows / kConsumerWarpgroups;
}

template <int kCount>
struct PipelineState {
  std::uint32_t stage = 0;
  std::uint32_t parity = 0;
  __device__ __forceinline__ void next() {
    if (++stage == kCount) {
      stage = 0;
      parity ^= 1;
    }
  }
};
using KvStage = PipelineState<kStages>;

/// The offset of 16-byte chunk `chunk` of row `row` in a tile of 128 swizzled rows.
__device__ __forceinline__ std::uint32_t swizzled_offset(int row, int chunk) {
  return static_cast<std::uint32_t>(chunk / 8 * kPanelBytes + row * 128 +
                                    ((chunk % 8 ^ (row & 7)) << 4));
}

/// The first step of a tile with tokens that not every row sees.
__device__ __forceinline__ int edge_step(const PrefillTile& tile) {
  return tile.least / kStepTokens;
}

/// How many tokens packed row `row` sees.
__device__ __forceinline__ int seen_by(const PrefillTile& tile, int row) {
  return tile.before + row / tile.group + 1;
}

/// Fetches tiles from a counter in global memory and passes them to the other warps. One warp.
class TileScheduler {
 public:
  __device__ __forceinline__ TileScheduler(const Attention& p, const WorkRange& range)
      : p_(p), range_(range) {}

  /// Puts the next tile in its slot; a tile without steps if there is none.
  __device__ __forceinline__ PrefillTile next(PrefillTile* slots,
                                              const PipelineBarriers& barriers) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    unsigned number = blockIdx.x;  // of the first one
    if (fetched_) {
      if (lane == 0) number = gridDim.x + atomicAdd(p_.tile_counters, 1U);
      number = __shfl_sync(0xFFFFFFFFU, number, 0);
    }
    fetched_ = true;
    PrefillTile tile{};
    if (find(static_cast<int>(number))) tile = describe(static_cast<int>(number));
    if (lane == 0) {
      mbarrier_wait(barriers.tile_empty + 8 * at_.stage, at_.parity ^ 1);
      slots[at_.stage] = tile;
      mbarrier_arrive(barriers.tile_full + 8 * at_.stage);
    }
    __syncwarp();
    at_.next();
    return tile;
  }

  /// The last CTA to leave resets the counters for the next launch.
  __device__ __forceinline__ void leave() const {
    if (threadIdx.x % 32 != 0) return;
    __threadfence();
    if (atomicAdd(p_.tile_counters + 1, 1U) + 1 != gridDim.x) return;
    p_.tile_counters[0] = 0;
    p_.tile_counters[1] = 0;
  }

 private:
  /// Moves on to the group of 32 sequences that holds tile `number`; false if none does.
  __device__ __forceinline__ bool find(int number) {
    for (;;) {
      const int here = __shfl_sync(0xFFFFFFFFU, upto_, 31);
      if (number - before_ < here) return true;
      before_ += here;
      first_ += 32;
      if (first_ >= range_.sequences) {
        first_ -= 32;
        before_ -= here;
        return false;
      }
      const int lane = static_cast<int>(threadIdx.x) % 32;
      count_ = 0;
      if (first_ + lane < range_.sequences) {
        const int sequence = range_.first_sequence + first_ + lane;
        const int rows = (p_.query_starts[sequence + 1] - p_.query_starts[sequence]) *
                         (p_.query_heads / p_.kv_heads);
        if (p_.context_lengths[sequence] > 0) count_ = (rows + kRows - 1) / kRows * range_.heads;
      }
      upto_ = count_;
#pragma unroll
      for (int offset = 1; offset < 32; offset *= 2) {
        const int other = __shfl_up_sync(0xFFFFFFFFU, upto_, offset);
        if (lane >= offset) upto_ += other;
      }
    }
  }
  __device__ __forceinline__ PrefillTile describe(int number) const {
    const int here = number - before_;
    const int owner = __ffs(static_cast<int>(__ballot_sync(0xFFFFFFFFU, here < upto_))) - 1;
    const int tiles = __shfl_sync(0xFFFFFFFFU, count_, owner) / range_.heads;  // of a head
    int rest = here - __shfl_sync(0xFFFFFFFFU, upto_ - count_, owner);
    PrefillTile tile;
    tile.sequence = range_.first_sequence + first_ + owner;
    tile.group = p_.query_heads / p_.kv_heads;
    tile.start = p_.query_starts[tile.sequence];
    tile.rows_total = (p_.query_starts[tile.sequence + 1] - tile.start) * tile.group;
    // A sequence's rows are the last of its context.
    tile.before = p_.context_lengths[tile.sequence] - tile.rows_total / tile.group;
    if (tile.before == 0 && range_.order.from + range_.order.count <= tiles * range_.heads)
      rest = tile_at(range_.order, rest);
    const int first_head = rest / (tiles * range_.head_block) * range_.head_block;
    const int heads = min(range_.head_block, range_.heads - first_head);
    rest -= first_head * tiles;
    tile.kv_head = range_.first_head + first_head + rest % heads;
    tile.first_row = (tiles - 1 - rest / heads) * kRows;
    tile.visible = seen_by(tile, min(tile.first_row + kRows, tile.rows_total) - 1);
    tile.least = seen_by(tile, tile.first_row);
    tile.steps = (tile.visible + kStepTokens - 1) / kStepTokens;
    tile.any_bad = 0;
    return tile;
  }

  const Attention& p_;
  const WorkRange& range_;
  PipelineState<kTileSlots> at_;
  bool fetched_ = false;
  int first_ = -32;  // the first of the 32 sequences in the lanes
  int before_ = 0;   // tiles of the sequences before them
  int count_ = 0;    // tiles of this lane's
  int upto_ = 0;     // and of the lanes before it
};

}  // namespace koho::cuda
