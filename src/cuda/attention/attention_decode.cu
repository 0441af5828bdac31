// SPDX-License-Identifier: Apache-2.0
// Decode attention: rows of one query token over its paged context, split-KV. Every GPU; head
// widths of 64 and 128, pages of bf16 or e4m3. attention_combine.cu combines the partial sums.
//
//   grid     persistent, two CTAs an SM; each takes work tiles (attention_decode_work_tiles.cuh)
//   roles    warp 4 loads pages by TMA (attention_decode_producer.cuh); warps 0-3 take a KV tile of
//            128 tokens together (attention_decode_consumer.cuh). The query heads of the kv head
//            are the 16 rows of mma.sync; a warp scores 32 tokens and sums a quarter of the columns
//   shared   a ring of KV tiles' K and V, some 90 KB; 16 to 20 KB for a work tile's query rows, the
//            softmax weights and the list of work tiles
//   bytes    every K and V byte once: bound by memory
//   FLOPs    4 * Q * D * context a sequence
//
// Measured times and what was tried: docs/kernels/attention.md.
#include <algorithm>

#include "cuda/attention/attention_decode.cuh"
#include "cuda/attention/attention_decode_consumer.cuh"
#include "cuda/attention/attention_decode_producer.cuh"
#include "cuda/attention/attention_decode_work_tiles.cuh"
#include "cuda/device/launch.cuh"

namespace koho::cuda::decode {
namespace {

/// `kMany`: has_many_contexts().
template <int kWidth, bool kFp8, bool kMany>
__global__ void __launch_bounds__(kThreads, kDecodeCtasPerSm)
    attention_decode_kernel(const __grid_constant__ Attention p,
                            const __grid_constant__ DecodeTensorMaps<kMany> maps) {
  using Plan = DecodePlan<kWidth, kFp8>;
  static_assert(Plan::kShared + sizeof(WorkTiles) + sizeof(Exchange) + sizeof(Query<kWidth>) +
                    8 * (2 * Plan::kSlots + 2) + 256 <=
                kCtaBytesMax);
  extern __shared__ std::uint8_t shared_bytes[];
  __shared__ __align__(8) std::uint64_t barriers[2 * Plan::kSlots + 2];
  __shared__ WorkTiles work_tiles;
  __shared__ __align__(128) Exchange exchange;
  __shared__ __align__(128) Query<kWidth> query;
  const std::uint32_t base = shared_address(shared_bytes);
  PipelineRing ring;
  ring.slots = (base + 1023) / 1024 * 1024;
  ring.full = shared_address(barriers);
  ring.empty = ring.full + 8 * Plan::kSlots;
  ring.query_full = ring.empty + 8 * Plan::kSlots;
  ring.query_empty = ring.query_full + 8;
  if (threadIdx.x == 0) {
    prefetch_tensor_map(&maps.pages.k);
    prefetch_tensor_map(&maps.pages.v);
    for (std::uint32_t slot = 0; slot < Plan::kSlots; ++slot) {
      mbarrier_init(ring.full + 8 * slot, 1);
      mbarrier_init(ring.empty + 8 * slot, kConsumers);
    }
    mbarrier_init(ring.query_full, 1);
    mbarrier_init(ring.query_empty, kConsumers);
    fence_mbarrier_init();
  }
  list_work_tiles<kMany>(p, work_tiles);
  if (threadIdx.x >= kConsumers)
    produce<kWidth, kFp8, kMany>(p, maps, work_tiles, query, ring);
  else
    consume<kWidth, kFp8, kMany>(p, work_tiles, query, exchange, shared_bytes + (ring.slots - base),
                                 ring);
}

template <int kWidth, bool kFp8, bool kMany>
cudaError_t launch_decode(const Attention& p, cudaStream_t stream) {
  constexpr int kShared = DecodePlan<kWidth, kFp8>::kShared;
  const auto kernel = attention_decode_kernel<kWidth, kFp8, kMany>;
  static PerDevice prepared;
  const cudaError_t ready =
      prepared.once([&] { return allow_dynamic_shared_memory(kernel, kShared); });
  if (ready != cudaSuccess) return ready;
  DecodeTensorMaps<kMany> maps;
  cudaError_t made = make_kv_tensor_maps(maps.pages, p, kPage);
  if constexpr (kMany)
    if (made == cudaSuccess) made = make_kv_tensor_maps(maps.tails, p, kTailRows);
  if (made != cudaSuccess) return made;
  return launch_kernel(
      kernel,
      {dim3(static_cast<unsigned>(kDecodeCtasPerSm * p.multiprocessors)), dim3(kThreads), kShared},
      stream, p, maps);
}

template <int kWidth, bool kFp8>
cudaError_t launch_decode(const Attention& p, cudaStream_t stream) {
  return has_many_contexts(p)
             ? launch_decode<kWidth, kFp8, true>(with_context_work_tiles(p), stream)
             : launch_decode<kWidth, kFp8, false>(p, stream);
}

}  // namespace
}  // namespace koho::cuda::decode

namespace koho::cuda {

bool attention_supports_mma(const Attention& p) {
  const std::int64_t rows = p.pages * p.kv_heads * kPage;
  return (p.width == 64 || p.width == 128) && p.query_heads / p.kv_heads <= decode::kGroupMax &&
         p.decodes <= decode::kSequencesMax && rows < INT32_MAX &&
         p.query_heads * p.width <= kCombineWidthMax;
}

std::int64_t attention_partial_floats(const SplitKvShape& sums) {
  const std::int64_t chunks = sums.decodes *
                              ((sums.context_max + sums.chunk_tokens - 1) / sums.chunk_tokens) *
                              sums.kv_heads;
  const std::int64_t kv_tiles_each = sums.chunk_tokens / kKvTileTokens;
  const std::int64_t work_tiles = chunks > kTileSplitChunksMax
                                      ? std::max(chunks, kTileSplitChunksMax * kv_tiles_each)
                                      : chunks * kv_tiles_each;
  return context_floats(sums.decodes, sums.kv_heads) +
         work_tiles * work_tile_floats(static_cast<int>(sums.query_heads / sums.kv_heads),
                                       static_cast<int>(sums.width));
}

cudaError_t launch_attention_decode(const Attention& p, cudaStream_t stream) {
  const bool fp8 = p.k_scales != nullptr;
  if (p.width == 128)
    return fp8 ? decode::launch_decode<128, true>(p, stream)
               : decode::launch_decode<128, false>(p, stream);
  return fp8 ? decode::launch_decode<64, true>(p, stream)
             : decode::launch_decode<64, false>(p, stream);
}

const void* kernel_of::attention_decode() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
