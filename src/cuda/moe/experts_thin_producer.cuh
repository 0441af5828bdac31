// SPDX-License-Identifier: Apache-2.0
// What the roles of experts_thin_sm90.cu share: the ring of weights, and which token-expert pairs
// are a cluster's; and its producer warp.
#pragma once

#include "base/arithmetic.h"
#include "cuda/device/ptx.cuh"
#include "cuda/gemm/gemm_grouped_decode_producer.cuh"
#include "cuda/gemm/tiled_layout.h"
#include "cuda/moe/experts_thin.h"

namespace koho::cuda {
namespace {

constexpr int kGroups = 2;  // consumer warpgroups
constexpr int kConsumers = kGroups * kWarpgroup;
constexpr int kThreads = kConsumers + 32;
constexpr int kConsumerBarrier = 1;
constexpr int kSlotBytes = kTileRows * kStageWidth + 4 * kTileRows;  // weights, then row scales
constexpr int kSlotsMax = 12;
constexpr int kClusterMax = 16;
constexpr int kClusterPortable = 8;
constexpr int kPrologueSlots = 4;  // the shared expert's, filled before the wait
constexpr int kTileInner = kTileRows / 2;
constexpr int kOperandPad = 128;  // the last core matrix reaches 112 bytes beyond an operand

/// The ring's slot that a role is at, and the parity of its barriers.
struct RingState {
  int slot = 0;
  std::uint32_t parity = 0;
  __device__ __forceinline__ void advance(int by, int slots) {
    slot += by;
    if (slot < slots) return;
    slot -= slots;
    parity ^= 1U;
  }
};

struct WeightRing {
  std::uint32_t data;
  std::uint32_t full;
  std::uint32_t empty;
  int slots;

  __device__ __forceinline__ std::uint32_t at(const RingState& state) const {
    return data + static_cast<std::uint32_t>(state.slot * kSlotBytes);
  }
  __device__ __forceinline__ static std::uint32_t scales_of(std::uint32_t slot) {
    return slot + kTileRows * kStageWidth;
  }
  __device__ __forceinline__ static std::uint32_t barrier(std::uint32_t barriers,
                                                          const RingState& state) {
    return barriers + 8U * static_cast<std::uint32_t>(state.slot);
  }
};

/// The tiles of the down projection that are this CTA's.
struct DownTiles {
  int begin;
  int end;
  __device__ __forceinline__ DownTiles(const Gemm& down, int rank, int ctas)
      : begin(down.tiles * rank / ctas), end(down.tiles * (rank + 1) / ctas) {}
};

/// The MMA's columns of a cluster: token-expert pairs of one expert, as each warp finds them.
struct Columns {
  int expert = -1;          // none: the cluster has nothing to do
  int count = 0;            // at most T
  bool shared = false;      // column i is token i and the shared expert
  std::uint64_t pairs = 0;  // else those of the expert from this cluster's on; column i is the i-th

  /// The columns of cluster `cluster`. Whole warps. Requires that the router is complete, unless
  /// is_shared().
  __device__ __forceinline__ Columns(const ExpertsThin& p, int cluster) {
    if (is_shared(p, cluster)) {
      expert = p.count;
      count = p.tokens;
      shared = true;
      return;
    }
    const int pair = cluster - (p.shared ? 1 : 0);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int all = p.tokens * p.top_k;
    const int low = lane < all ? p.ids[lane] : -1;
    const int high = lane + 32 < all ? p.ids[lane + 32] : -1;
    const int chosen = __shfl_sync(0xFFFFFFFFU, pair < 32 ? low : high, pair % 32);
    const std::uint64_t same =
        __ballot_sync(0xFFFFFFFFU, low == chosen) |
        static_cast<std::uint64_t>(__ballot_sync(0xFFFFFFFFU, high == chosen)) << 32U;
    const int before = __popcll(same & ((1ULL << static_cast<unsigned>(pair)) - 1));
    // A token that chose an expert twice makes more pairs than columns: the next cluster's.
    if (chosen < p.first || chosen - p.first >= p.count || before % p.tokens != 0) return;
    expert = chosen - p.first;
    pairs = same >> static_cast<unsigned>(pair) << static_cast<unsigned>(pair);
    count = min(__popcll(pairs), p.tokens);
  }
  static __device__ __forceinline__ bool is_shared(const ExpertsThin& p, int cluster) {
    return p.shared && cluster == 0;
  }
  /// The pair of column `i`, t A + a; of the shared expert: the token.
  __device__ __forceinline__ int pair_of(int i) const {
    if (shared) return i;
    std::uint64_t left = pairs;
    for (; i > 0; --i) left &= left - 1;
    return __ffsll(static_cast<long long>(left)) - 1;
  }
  /// The row of x, and that of the output.
  __device__ __forceinline__ int token_of(const ExpertsThin& p, int i) const {
    return shared ? i : pair_of(i) / p.top_k;
  }
  __device__ __forceinline__ int row_of(const ExpertsThin& p, int i) const {
    return pair_of(i) + (p.shared && !shared ? p.tokens : 0);
  }
};

/// The producer warp: the gate and up tile stage by stage, then the tiles of the down projection, a
/// tile's stages one after the other, the last with its row scales.
__device__ void load_weights(
    const ExpertsThin& p, const WeightRing& ring, int cluster, int rank, int ctas) {
  const std::uint64_t policy = evict_first_policy();
  const int stages = ceil_div(p.gate_up.width_bytes, kStageWidth);
  RingState state;
  int stage = 0;
  const auto load_gate_up = [&](int expert) {
    mbarrier_wait(WeightRing::barrier(ring.empty, state), state.parity ^ 1U);
    if (elect_one()) {
      const int begin = stage * kStageWidth;
      const auto bytes =
          static_cast<std::uint32_t>(kTileRows * min(kStageWidth, p.gate_up.width_bytes - begin));
      const std::uint32_t barrier = WeightRing::barrier(ring.full, state);
      mbarrier_arrive_expect_tx(barrier, bytes);
      bulk_copy(ring.at(state),
                p.gate_up.weight +
                    (static_cast<std::int64_t>(expert) * p.gate_up.tiles + rank) * kTileRows *
                        p.gate_up.width_bytes +
                    static_cast<std::int64_t>(begin) * kTileRows,
                bytes, barrier, policy);
    }
    __syncwarp();
    state.advance(1, ring.slots);
    ++stage;
  };
  if (Columns::is_shared(p, cluster))
    for (const int end = min(min(kPrologueSlots, ring.slots), stages); stage < end;)
      load_gate_up(p.count);
  if (elect_one()) prefetch_paced(p.gate_up);
  __syncwarp();
  wait_on_dependent_grids();
  launch_dependent_grids();
  const int expert = Columns(p, cluster).expert;
  if (expert < 0) return;
  while (stage < stages) load_gate_up(expert);
  const Gemm& down = p.down;
  const DownTiles tiles(down, rank, ctas);
  for (int tile = tiles.begin; tile < tiles.end; ++tile) {
    const std::int64_t at = static_cast<std::int64_t>(expert) * down.tiles + tile;
    for (int begin = 0; begin < down.width_bytes; begin += kStageWidth) {
      mbarrier_wait(WeightRing::barrier(ring.empty, state), state.parity ^ 1U);
      if (elect_one()) {
        const bool last = begin + kStageWidth >= down.width_bytes;
        const auto bytes =
            static_cast<std::uint32_t>(kTileRows * min(kStageWidth, down.width_bytes - begin));
        const std::uint32_t barrier = WeightRing::barrier(ring.full, state);
        const std::uint32_t slot = ring.at(state);
        mbarrier_arrive_expect_tx(barrier, bytes + (last ? 4 * kTileRows : 0));
        bulk_copy(slot,
                  down.weight + at * kTileRows * down.width_bytes +
                      static_cast<std::int64_t>(begin) * kTileRows,
                  bytes, barrier, policy);
        if (last)
          bulk_copy(WeightRing::scales_of(slot), down.row_scales + at * kTileRows, 4 * kTileRows,
                    barrier, policy);
      }
      __syncwarp();
      state.advance(1, ring.slots);
    }
  }
}

}  // namespace
}  // namespace koho::cuda
