// SPDX-License-Identifier: Apache-2.0
// The prefill GEMM's producer warp: it looks work tiles up and fills the ring of stages, weights by
// bulk copies and token rows by TMA multicast.
#pragma once

#include "cuda/device/ptx.cuh"
#include "cuda/gemm/gemm_prefill_sm90_tiles.cuh"

namespace koho::cuda::prefill {

/// Copies one work tile's operands into the ring; called by a whole warp. NOTE: warp-uniform values
/// come from shuffles, so that ptxas keeps addresses in uniform registers: a stage takes 45
/// instructions. Written for one lane it took 65, as long as the stage's MMAs.
template <int kTileTokens>
struct OperandProducer {
  using Plan = PrefillPlan<kTileTokens>;

  const Gemm& p;
  const PrefillTensorMaps& maps;
  std::uint32_t full;
  std::uint32_t ring;
  PipelineState<Plan::kStages> at;
  const std::uint8_t* weight = nullptr;  // of the first tile, from the next stage on
  int second = 0;                        // bytes from the first tile to the second
  int row = 0;                           // of the first token
  int width_index = 0;
  int columns = 0;

  /// Begins the work tile that lane `place` looked up.
  __device__ __forceinline__ void begin(const PrefillWorkTile& mine, int place) {
    const auto uniform = [&](int value) { return __shfl_sync(0xFFFFFFFFU, value, place); };
    const int tile_bytes = kTileRows * p.width_bytes;
    const int tile = (uniform(mine.block) * 2 + cta_rank()) * kRowTiles;
    width_index = uniform(width_index_of<kTileTokens>(mine));
    columns = Plan::kLeast + width_index * kPrefillTokenStep;
    // A missing second tile is replaced by the first one; nobody stores its output.
    static_assert(kRowTiles == 2);
    weight = p.weight +
             (static_cast<std::int64_t>(uniform(mine.expert)) * p.tiles + min(tile, p.tiles - 1)) *
                 tile_bytes;
    second = tile + 1 < p.tiles ? tile_bytes : 0;
    row = uniform(mine.first) + cta_rank() * columns / 2;
  }
  /// Prefetches the weights of a block into L2, from byte `column` of K on; called by a whole warp.
  __device__ __forceinline__ void prefetch_to_l2(int block, int column) const {
    const int tile = (block * 2 + cta_rank()) * kRowTiles;
    if (column >= p.width_bytes || !elect_one()) return;
    const auto bytes = static_cast<std::uint32_t>((p.width_bytes - column) * kTileRows);
    for (int i = tile; i < min(tile + kRowTiles, p.tiles); ++i)
      prefetch_bulk(p.weight + (static_cast<std::int64_t>(i) * p.width_bytes + column) * kTileRows,
                    bytes);
  }
  /// Announces the slot's bytes to its full barrier and copies `bytes` of each weight tile; one
  /// lane.
  __device__ __forceinline__ void weights(std::uint32_t bytes, std::uint64_t policy) const {
    const std::uint32_t barrier = full + 8U * static_cast<std::uint32_t>(at.slot);
    const std::uint32_t to = ring + static_cast<std::uint32_t>(at.slot * Plan::kStage);
    mbarrier_arrive_expect_tx(
        barrier, kRowTiles * bytes + static_cast<std::uint32_t>(columns * kTmaBoxBytes));
    bulk_copy(to, weight, bytes, barrier, policy);
    bulk_copy(to + static_cast<std::uint32_t>(kTileRows * kTmaBoxBytes), weight + second, bytes,
              barrier, policy);
  }
  /// Multicasts this CTA's half of the tokens to both CTAs; one lane.
  __device__ __forceinline__ void tokens(int column) const {
    const auto half =
        static_cast<std::uint32_t>(kWeightBytes + cta_rank() * columns / 2 * kTmaBoxBytes);
    tma_load_multicast(ring + static_cast<std::uint32_t>(at.slot * Plan::kStage) + half,
                       &maps.of[width_index], column, row,
                       full + 8U * static_cast<std::uint32_t>(at.slot), 3);
  }
};

constexpr std::uint32_t kWholeStep = kTmaBoxBytes * kTileRows;  // bytes of a weight tile

/// Bytes of K of a linear layer's first work tile that are copied before work tiles are looked up.
template <int kTileTokens>
__device__ __forceinline__ int prologue_bytes(const Gemm& p, int work_tiles) {
  if (p.token_blocks != nullptr || static_cast<int>(blockIdx.x) / 2 >= work_tiles) return 0;
  return min(PrefillPlan<kTileTokens>::kStages, p.width_bytes / kTmaBoxBytes) * kTmaBoxBytes;
}

/// Copies their weights, which no kernel writes, before the previous kernel has ended. Needs the
/// full barriers of this CTA alone.
template <int kTileTokens>
__device__ __forceinline__ int load_prologue_weights(OperandProducer<kTileTokens>& first,
                                                     const PrefillTileScheduler& work) {
  const int prologue = prologue_bytes<kTileTokens>(first.p, work.work_tiles);
  const PrefillWorkTile work_tile = work.slice(first.p, static_cast<int>(blockIdx.x) / 2);
  first.begin(work_tile, 0);
  const std::uint64_t policy = evict_normal_policy();
#pragma unroll 1
  for (int column = 0; column < prologue; column += kTmaBoxBytes, first.at.advance()) {
    if (elect_one()) first.weights(kWholeStep, policy);
    first.weight += kWholeStep;
  }
  if (PrefillTileScheduler::prefetches_to_l2(first.p) && prologue > 0 && work_tile.first == 0)
    first.prefetch_to_l2(work_tile.block, prologue);
  return prologue;
}
template <int kTileTokens>
__device__ __forceinline__ void load_prologue_tokens(OperandProducer<kTileTokens>& first,
                                                     int prologue) {
  first.at = {};
#pragma unroll 1
  for (int column = 0; column < prologue; column += kTmaBoxBytes, first.at.advance())
    if (elect_one()) first.tokens(column);
}

/// The producer warp. It returns when all slots are free, as the other CTA sends nothing to this
/// one then.
template <int kTileTokens>
__device__ __forceinline__ void produce_operands(const Gemm& p,
                                                 const PrefillTensorMaps& maps,
                                                 const PrefillTileScheduler& work,
                                                 const WorkTileQueue& list,
                                                 std::uint32_t full,
                                                 std::uint32_t empty,
                                                 std::uint32_t ring) {
  using Plan = PrefillPlan<kTileTokens>;
  constexpr int kTogether = 8;  // work tiles looked up at once, in hardly more time than one
  static_assert(Plan::kStages + 3 <= kQueueTiles - kTogether,
                "an item would be overwritten before it is read");
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::uint64_t policy = evict_normal_policy();
  const int stride = static_cast<int>(gridDim.x) / 2;
  const int whole = p.width_bytes / kTmaBoxBytes * kTmaBoxBytes;
  const std::uint32_t rest = static_cast<std::uint32_t>(p.width_bytes - whole) * kTileRows;
  OperandProducer<kTileTokens> copies{p, maps, full, ring, {}};
  auto& at = copies.at;
  const auto slot_empty = [&] {
    mbarrier_wait(empty + 8U * static_cast<std::uint32_t>(at.slot), at.phase ^ 1U);
  };
  const bool brings = PrefillTileScheduler::prefetches_to_l2(p);
  int column = prologue_bytes<kTileTokens>(p, work.work_tiles);
  for (int passed = 0; passed < column; passed += kTmaBoxBytes) at.advance();
  PrefillWorkTile mine{};
  int number = 0;
  for (int index = static_cast<int>(blockIdx.x) / 2; index < work.work_tiles;
       index += stride, ++number) {
    const int place = number % kTogether;
    if (place == 0 && lane < kTogether && index + lane * stride < work.work_tiles) {
      mine = work.work_tile(p, index + lane * stride);
      list.put(number + lane, mine);
    }
    copies.begin(mine, place);
    copies.weight += column * kTileRows;
    // Only the cluster that takes the first token block of the next block of weights prefetches
    // these: those with the other token blocks need the same weights at the same time.
    if (brings && place + 1 < kTogether && index + stride < work.work_tiles &&
        __shfl_sync(0xFFFFFFFFU, mine.first, place + 1) == 0)
      copies.prefetch_to_l2(__shfl_sync(0xFFFFFFFFU, mine.block, place + 1), 0);
    for (; column < whole; column += kTmaBoxBytes, at.advance(), copies.weight += kWholeStep) {
      slot_empty();
      if (elect_one()) {
        copies.weights(kWholeStep, policy);
        copies.tokens(column);
      }
    }
    if (rest != 0) {
      slot_empty();
      if (elect_one()) {
        copies.weights(rest, policy);
        copies.tokens(column);
      }
      at.advance();
    }
    column = 0;
  }
  launch_dependent_grids();
  for (int slot = 0; slot < Plan::kStages; ++slot, at.advance()) slot_empty();
}

}  // namespace koho::cuda::prefill
