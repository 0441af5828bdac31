// SPDX-License-Identifier: Apache-2.0
// What the roles of attention_decode.cu share: the sizes of a CTA, its shared memory, and the
// ring of slots through which the producer warp hands KV tiles to the four consumer warps.
#pragma once

#include <cstdint>

#include "cuda/attention/attention_mma.cuh"
#include "cuda/attention/attention_split_kv.cuh"

namespace koho::cuda::decode {

constexpr int kConsumers = 128;  // threads: warps 0-3
constexpr int kWarps = kConsumers / 32;
static_assert(kWarps == kDecodeWarps);
constexpr int kThreads = kConsumers + 32;  // and the producer, warp 4
constexpr int kGroupMax = 16;              // query heads of a kv head: the rows of one mma
constexpr int kSequencesMax = 1024;        // decodes
constexpr int kRingBytes = 96 << 10;       // of one CTA
constexpr int kCtaBytesMax = 113 << 10;    // of shared memory, so that two CTAs fit an SM
constexpr int kRowBarrier = 1;             // named barrier of the consumers; 0 is __syncthreads()

constexpr int kKvTilePages = kKvTileTokens / kPage;
constexpr int kWarpTokens = kKvTileTokens / kWarps;  // tokens of a KV tile that one warp scores
constexpr int kScoreTiles = kWarpTokens / 8;

constexpr int kTailRows = 16;  // of a TMA box of a context's last page

/// Of pages; in the kernel of many contexts also of a last page's rows.
template <bool kMany>
struct DecodeTensorMaps {
  KvTensorMaps pages;
};
template <>
struct DecodeTensorMaps<true> {
  KvTensorMaps pages;
  KvTensorMaps tails;
};

/// The ring in dynamic shared memory. A KV tile takes two slots: one for K with the scales of K and
/// of V, the next for V.
template <int kWidth, bool kFp8>
struct DecodePlan {
  using Page = KvPageLayout<kWidth, kFp8>;
  static constexpr int kSlotScales = kKvTilePages * Page::kBytes;  // where a slot's scales begin
  static constexpr int kSlot =
      (kSlotScales + 2 * kKvTilePages * Page::kScaleBytes + 1023) / 1024 * 1024;
  static constexpr std::uint32_t kSlots = kRingBytes / kSlot;
  static constexpr int kShared = static_cast<int>(kSlots) * kSlot + 1024;
  static constexpr int kColumns = kWidth / kWarps;  // output columns that one warp sums
  static constexpr int kTiles = kColumns / 8;
};

/// What the consumer warps exchange about the KV tile in hand.
struct Exchange {
  float largest[kGroupMax][kWarps];  // score of each row among a warp's tokens
  float total[kGroupMax][kWarps];    // of a warp's softmax weights
  float largest_scale[kWarps];       // of v
  // Softmax weights [row][token], 16 bits each, swizzled.
  alignas(128) std::uint32_t weights[kGroupMax * kKvTileTokens / 2];
};

/// One work tile: `tokens` of a sequence's context from page `first_page` on, for one kv head.
struct WorkTile {
  int sequence;
  int kv_head;
  int first_page;
  int tokens;
  // Where its partial sums go: by sequence, then context, then kv head. kMany, of a whole context:
  // ~(sequence * K + kv_head), where its row goes.
  int place;
};

/// The query rows of the next work tile, and that work tile.
template <int kWidth>
struct Query {
  Bf16 rows[kGroupMax][kWidth + 8];  // NOTE: 16 bytes more, so that 8 rows meet different banks
  WorkTile work_tile;
};

/// The rows of a work tile's query heads in global memory.
__device__ __forceinline__ const Bf16* query_rows(const Attention& p, const WorkTile& work_tile) {
  const int group = p.query_heads / p.kv_heads;
  return p.q + (static_cast<std::int64_t>(work_tile.sequence) * p.query_heads +
                work_tile.kv_head * group) *
                   p.width;
}

/// Shared-memory addresses of the ring's slots and of its barriers.
struct PipelineRing {
  std::uint32_t slots;
  std::uint32_t full;
  std::uint32_t empty;
  std::uint32_t query_full;
  std::uint32_t query_empty;
};

/// The ring's slot that one role is at, and the parity of its barriers.
struct PipelineState {
  std::uint32_t slot;
  std::uint32_t parity;
  __device__ __forceinline__ void next(std::uint32_t slots) {
    if (++slot == slots) {
      slot = 0;
      parity ^= 1;
    }
  }
};

}  // namespace koho::cuda::decode
