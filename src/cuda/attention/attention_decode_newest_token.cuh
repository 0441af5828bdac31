// SPDX-License-Identifier: Apache-2.0
// The part of decode attention that overlaps the previous kernel's tail. That kernel writes the
// query and the K and V of each row's newest token, so only these wait for its end. Where rows are
// of one sequence it writes more: the producer then loads nothing before (follows_itself()).
#pragma once

#include "cuda/attention/attention_decode.cuh"
#include "cuda/device/ptx.cuh"

namespace koho::cuda::decode {

/// The query of the CTA's first work tile, and K and V of the newest token if that tile's first KV
/// tile holds it. The producer warp loads this KV tile before it waits for the previous kernel,
/// which writes all three; so the consumers load them again after the wait, to registers, and put
/// them in place.
template <int kWidth, bool kFp8>
class NewestTokenLoader {
  using Plan = DecodePlan<kWidth, kFp8>;
  using Page = KvPageLayout<kWidth, kFp8>;
  static constexpr int kQueryChunks = kWidth * 2 / 16;
  static constexpr int kQueryLoads = kGroupMax * kQueryChunks / kConsumers;
  static constexpr int kColumnChunks = Page::kChunks / kWarps;  // 16-byte chunks of V of a warp

 public:
  /// Finds the token. Called before the wait for the previous kernel.
  __device__ __forceinline__ NewestTokenLoader(const Attention& p, const WorkTile& work_tile) {
    const int last = p.context_lengths[work_tile.sequence] - 1;
    const int page = p.page_tables[work_tile.sequence * p.page_tables_stride +
                                   static_cast<std::int64_t>(last) / kPage];
    token_ = last - work_tile.first_page * kPage;
    row_ =
        (static_cast<std::int64_t>(page) * p.kv_heads + work_tile.kv_head) * kPage + last % kPage;
  }
  /// Loads to registers. Called after that wait.
  __device__ __forceinline__ void load(const Attention& p, const WorkTile& work_tile) {
    const int group = p.query_heads / p.kv_heads;
    const auto* from = reinterpret_cast<const uint4*>(query_rows(p, work_tile));
#pragma unroll
    for (int i = 0; i < kQueryLoads; ++i) {
      const int index = i * kConsumers + thread();
      if (index < group * kQueryChunks) query_[i] = __ldcg(from + index);
    }
    if (token_ >= kKvTileTokens) return;
    const auto chunk = [&](const void* pages, int at) {
      return __ldcg(reinterpret_cast<const uint4*>(static_cast<const std::uint8_t*>(pages) +
                                                   row_ * Page::kRowBytes) +
                    at);
    };
    if (of_my_keys()) {
      if (lane() < Page::kChunks) keys_ = chunk(p.k, lane());
      if (kFp8 && lane() < 2) scale_ = __ldcg((lane() == 0 ? p.k_scales : p.v_scales) + row_);
    }
    if (lane() < kColumnChunks) values_ = chunk(p.v, warp() * kColumnChunks + lane());
  }
  __device__ __forceinline__ void put_query(const Attention& p, Query<kWidth>& query) const {
    const int group = p.query_heads / p.kv_heads;
#pragma unroll
    for (int i = 0; i < kQueryLoads; ++i) {
      const int index = i * kConsumers + thread();
      if (index < group * kQueryChunks)
        *reinterpret_cast<uint4*>(&query.rows[index / kQueryChunks][index % kQueryChunks * 8]) =
            query_[i];
    }
    fence_proxy_async_shared();  // TMA writes the next work tile's rows there
    named_barrier_sync(kRowBarrier, kConsumers);
  }
  /// Puts K where it belongs if the token is one of this warp's, once the first slot is full.
  __device__ __forceinline__ void put_keys(std::uint8_t* slot, std::uint32_t full) const {
    if (!of_my_keys()) return;
    mbarrier_wait(full, 0);
    if (lane() < Page::kChunks) *at(slot, lane()) = keys_;
    if (kFp8 && lane() < 2)
      reinterpret_cast<float*>(slot + Plan::kSlotScales)[lane() * kKvTileTokens + token_] = scale_;
    fence_proxy_async_shared();
    __syncwarp();
  }
  /// Puts this warp's columns of V, once the second slot is full.
  __device__ __forceinline__ void put_values(std::uint8_t* slot, std::uint32_t full) const {
    if (token_ >= kKvTileTokens) return;
    mbarrier_wait(full, 0);
    if (lane() < kColumnChunks) *at(slot, warp() * kColumnChunks + lane()) = values_;
    fence_proxy_async_shared();
    __syncwarp();
  }

 private:
  static __device__ __forceinline__ int thread() {
    return static_cast<int>(threadIdx.x);
  }
  static __device__ __forceinline__ int warp() {
    return thread() / 32;
  }
  static __device__ __forceinline__ int lane() {
    return thread() % 32;
  }
  __device__ __forceinline__ bool of_my_keys() const {
    return token_ / kWarpTokens == warp();
  }
  __device__ __forceinline__ uint4* at(std::uint8_t* slot, int chunk) const {
    return reinterpret_cast<uint4*>(slot + token_ / kPage * Page::kBytes +
                                    Page::swizzled_offset(token_ % kPage, chunk));
  }

  int token_;         // in the CTA's first KV tile; beyond it if a later tile holds the token
  std::int64_t row_;  // among all pages' tokens and heads
  uint4 query_[kQueryLoads];
  uint4 keys_;
  uint4 values_;
  float scale_;  // of K and of V, by two lanes
};

/// Waits for the previous kernel and puts what it wrote into the CTA's first query and KV tile.
template <int kWidth, bool kFp8>
__device__ __forceinline__ void load_newest_token(const Attention& p,
                                                  Query<kWidth>& query,
                                                  std::uint8_t* shared,
                                                  const PipelineRing& ring) {
  NewestTokenLoader<kWidth, kFp8> newest(p, query.work_tile);
  pdl_begin();
  newest.load(p, query.work_tile);
  newest.put_query(p, query);
  newest.put_keys(shared, ring.full);
  newest.put_values(shared + DecodePlan<kWidth, kFp8>::kSlot, ring.full + 8);
}

}  // namespace koho::cuda::decode
