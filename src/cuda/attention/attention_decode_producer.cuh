// SPDX-License-Identifier: Apache-2.0
// The producer warp of attention_decode.cu: it loads K, V and queries of the CTA's work tiles into
// shared memory by TMA.
#pragma once

#include "cuda/attention/attention_decode.cuh"
#include "cuda/attention/attention_decode_work_tiles.cuh"

namespace koho::cuda::decode {

/// Loads K of one head with the scales of K and V, or (`values`) its V, of a KV tile's `count`
/// pages by TMA; kMany: only the rows needed for its `tokens`. One thread.
template <int kWidth, bool kFp8, bool kMany>
__device__ __forceinline__ void load_kv_tile(const Attention& p,
                                             const DecodeTensorMaps<kMany>& maps,
                                             const int (&pages)[kKvTilePages],
                                             int count,
                                             int tokens,
                                             int kv_head,
                                             bool values,
                                             std::uint32_t to,
                                             std::uint32_t barrier,
                                             std::uint64_t policy) {
  using Plan = DecodePlan<kWidth, kFp8>;
  using Page = KvPageLayout<kWidth, kFp8>;
  const CUtensorMap& map = values ? maps.pages.v : maps.pages.k;
  const int rows =
      kMany ? min((tokens + kTailRows - 1) / kTailRows * kTailRows, count * kPage) : count * kPage;
  mbarrier_arrive_expect_tx(
      barrier, static_cast<std::uint32_t>(rows * Page::kRowBytes +
                                          count * (values ? 0 : 2 * Page::kScaleBytes)));
#pragma unroll
  for (int i = 0; i < kKvTilePages; ++i) {
    if (i >= count) break;
    const std::int64_t place = (static_cast<std::int64_t>(pages[i]) * p.kv_heads + kv_head) * kPage;
#pragma unroll
    for (int panel = 0; panel < Page::kPanels; ++panel) {
      constexpr int kColumns = kWidth / Page::kPanels;
      constexpr int kPanel = kPage * Page::kPanelBytes;
      const std::uint32_t panel_at =
          to + static_cast<std::uint32_t>(i * Page::kBytes + panel * kPanel);
      if constexpr (kMany) {
        if (const int rows_here = rows - i * kPage; rows_here < kPage) {
#pragma unroll 1
          for (int row = 0; row < rows_here; row += kTailRows)
            tma_load(panel_at + static_cast<std::uint32_t>(row * Page::kPanelBytes),
                     values ? &maps.tails.v : &maps.tails.k, panel * kColumns,
                     static_cast<int>(place) + row, barrier, policy);
          continue;
        }
      }
      tma_load(panel_at, &map, panel * kColumns, static_cast<int>(place), barrier, policy);
    }
    if constexpr (kFp8) {
      if (values) continue;
      const std::uint32_t scales =
          to + static_cast<std::uint32_t>(Plan::kSlotScales + i * Page::kScaleBytes);
      bulk_copy(scales, p.k_scales + place, Page::kScaleBytes, barrier, policy);
      bulk_copy(scales + kKvTilePages * Page::kScaleBytes, p.v_scales + place, Page::kScaleBytes,
                barrier, policy);
    }
  }
}

/// Whether the row before is of the same sequence, which decodes output again: then this step
/// writes more of the context than its newest token.
__device__ __forceinline__ bool follows_itself(const Attention& p, int sequence) {
  if (sequence == 0) return false;
  const int before = p.context_lengths[sequence - 1];
  if (before == 0 || p.context_lengths[sequence] != before + 1) return false;
  const std::int32_t* page =  // where the token of the row before lies: a page of one owner
      p.page_tables + sequence * p.page_tables_stride + (before - 1) / kPage;
  return page[0] == page[-p.page_tables_stride];
}

/// Keeps the ring full. One warp. It loads pages that the previous kernel does not write before it
/// waits for that kernel. The CTA's first KV tile is loaded before the wait whatever it holds, if
/// one token of it at most may be stale: NewestTokenLoader then replaces that.
template <int kWidth, bool kFp8, bool kMany>
__device__ void produce(const Attention& p,
                        const DecodeTensorMaps<kMany>& maps,
                        const WorkTiles& work_tiles,
                        Query<kWidth>& query,
                        const PipelineRing& ring) {
  using Plan = DecodePlan<kWidth, kFp8>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int group = p.query_heads / p.kv_heads;
  const std::uint64_t policy = evict_first_policy();
  const std::uint64_t policy_query = evict_normal_policy();
  const int count = work_tiles.count(p);
  PipelineState kv_state{0, 1};
  std::uint32_t query_parity = 0;
  std::uint32_t prefetched = 0;  // slots in flight before the wait
  bool waited = false;
  const auto wait = [&] {
    if (!waited) pdl_begin();
    waited = true;
  };
  for (int index = static_cast<int>(blockIdx.x); index < count;
       index += static_cast<int>(gridDim.x)) {
    const WorkTile work_tile = find_work_tile<kMany>(p, work_tiles, index);
    const bool is_first_work_tile = index == static_cast<int>(blockIdx.x);
    if (is_first_work_tile) {  // whose query the consumers load
      if (follows_itself(p, work_tile.sequence)) wait();
      if (lane == 0) {
        query.work_tile = work_tile;
        mbarrier_arrive(ring.query_full);
      }
    } else {
      wait();
      mbarrier_wait(ring.query_empty, query_parity);
      query_parity ^= 1;
      if (lane == 0) {
        query.work_tile = work_tile;
        mbarrier_arrive_expect_tx(ring.query_full, static_cast<std::uint32_t>(group * kWidth * 2));
      }
      __syncwarp();
      if (lane < group)
        bulk_copy(shared_address(query.rows[lane]), query_rows(p, work_tile) + lane * kWidth,
                  kWidth * 2, ring.query_full, policy_query);
    }
    const std::int32_t* table =
        p.page_tables + work_tile.sequence * p.page_tables_stride + work_tile.first_page;
    const int last_page =
        (p.context_lengths[work_tile.sequence] - 1) / kPage - work_tile.first_page;
    const int pages = (work_tile.tokens + kPage - 1) / kPage;
    int numbers = 0;
    for (int page = 0; page < pages; page += kKvTilePages) {
      if (page % 32 == 0 && page + lane < pages) numbers = table[page + lane];
      int of_kv_tile[kKvTilePages];
#pragma unroll
      for (int i = 0; i < kKvTilePages; ++i)
        of_kv_tile[i] = __shfl_sync(0xFFFFFFFFU, numbers, (page + i) % 32);
      const int here = min(pages - page, kKvTilePages);
      for (int kind = 0; kind < 2; ++kind) {  // K, then V
        const bool fresh = page + here > last_page && !(is_first_work_tile && page == 0);
        if (fresh || prefetched == Plan::kSlots) wait();
        if (!waited) ++prefetched;
        if (elect_one()) {
          mbarrier_wait(ring.empty + 8 * kv_state.slot, kv_state.parity);
          load_kv_tile<kWidth, kFp8, kMany>(p, maps, of_kv_tile, here,
                                            work_tile.tokens - page * kPage, work_tile.kv_head,
                                            kind == 1, ring.slots + kv_state.slot * Plan::kSlot,
                                            ring.full + 8 * kv_state.slot, policy);
        }
        __syncwarp();
        kv_state.next(Plan::kSlots);
      }
    }
  }
  wait();
  if constexpr (kMany)  // NOTE: behind the wait, the last step's list has been read
    store_context_work_tiles(p, work_tiles,
                             static_cast<int>(blockIdx.x) + lane * static_cast<int>(gridDim.x),
                             32 * static_cast<int>(gridDim.x));
}

}  // namespace koho::cuda::decode
