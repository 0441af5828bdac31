// SPDX-License-Identifier: Apache-2.0
// attention_combine.cu for has_many_contexts(): decode attention has listed the work tiles of every
// context, so no CTA counts them, and has written the rows of contexts that are one work tile in
// bf16. What they lack are their FP8 forms.
//
//   grid     as many clusters of 8, 4 or 2 CTAs as are resident at once: each has 2 to 8 rows that
//            are written, all in flight at once, then takes the others in turn
//   block    a thread has 4 adjacent columns of a row of several work tiles, 8 to 32 of one that is
//            written
//   shared   24 bytes an accumulator and thread
//   bytes    the written rows or the partial sums once, from L2
//
// Measured together with attention_decode.cu: docs/kernels/attention.md.
#include <algorithm>

#include "cuda/attention/attention_combine.cuh"
#include "cuda/device/launch.cuh"
#include "cuda/device/resident_clusters.cuh"
#include "cuda/rows/row_epilogue.cuh"

namespace koho::cuda {
namespace {

constexpr int kManyThreadsMax = 384;
constexpr int kManySharedMax = kManyThreadsMax * kCombineAccumulators * kSlotBytes;

/// How the CTAs of a cluster tell each other the largest value of a row that they share: each warp
/// sends its own to every one of them (st.async, 4 bytes) and waits for those of the others. Two
/// exchanges take turns: before a CTA sends for the next row but one, every warp of the others has
/// sent for the next, so it is done with this one.
struct RowExchanges {
  alignas(16) float maxima[2][kRowWarpsMax];  // [CTAs, warps], of all
  std::uint64_t told[2];                      // mbarriers

  /// One thread: before the barriers' fence.
  __device__ __forceinline__ void init() {
    for (std::uint64_t& barrier : told) mbarrier_init(shared_address(&barrier), 1);
  }
  /// One thread: behind it, and after each exchange.
  __device__ __forceinline__ void arm(int turn) {
    mbarrier_arrive_expect_tx(shared_address(&told[turn % 2]),
                              cluster_size() * (blockDim.x / 32) * 4);
  }
  /// The largest magnitude of the row that comes as number `turn`. All threads.
  __device__ __forceinline__ float largest(float of_thread, int turn) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int ctas = static_cast<int>(cluster_size());
    const int warps = static_cast<int>(blockDim.x) / 32;
    float* of_row = maxima[turn % 2];
    const std::uint32_t barrier = shared_address(&told[turn % 2]);
    float found = warp_largest(of_thread);
    if (lane < ctas) {
      const auto to = static_cast<std::uint32_t>(lane);
      const int place =
          static_cast<int>(cluster_rank()) * warps + static_cast<int>(threadIdx.x) / 32;
      st_async(map_shared_rank(shared_address(of_row + place), to), found,
               map_shared_rank(barrier, to));
    }
    mbarrier_wait_cluster(barrier, static_cast<std::uint32_t>(turn / 2 % 2));
    for (int i = lane; i < ctas * warps; i += 32) found = fmaxf(found, of_row[i]);
    found = warp_largest(found);
    if (threadIdx.x == 0) arm(turn);
    return found;
  }
};

/// Four columns of a row, rounded to bf16, and their largest magnitude.
struct RowColumns {
  float v[kVector] = {};
  float largest = 0.0F;

  __device__ __forceinline__ void set(const Sums& sums) {
    const float sum[kVector] = {sums.v.x, sums.v.y, sums.v.z, sums.v.w};
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      v[i] = round_bf16(normalize(sum[i], sums.state));
      largest = fmaxf(largest, fabsf(v[i]));
    }
  }
  /// Stores what needs nothing of other columns but a warp's. `writes`: this thread has columns.
  __device__ __forceinline__ void store(const RowOutputs& out,
                                        const int& row,
                                        const int& column,
                                        const bool& writes) const {
    if (writes && out.values != nullptr)
      *reinterpret_cast<uint2*>(out.values + row * out.values_stride + column) =
          make_uint2(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]));
    if (out.block_quantized != nullptr) {  // a warp has a block
      const float scale = quant_scale(warp_largest(largest));
      if (writes) store_block_quantized(out, row, column, v, scale);
    }
  }
  /// Stores FP8 with a scale a row.
  __device__ __forceinline__ void store_quantized(const RowOutputs& out,
                                                  const int& row,
                                                  const int& column,
                                                  const float& row_largest) const {
    const float scale = quant_scale(row_largest);
    if (column == 0) out.scales[row] = scale;
    store_four_quantized(out.quantized + row * out.quantized_stride + column, v, scale);
  }
};

__device__ __forceinline__ PartialLayout layout_of(const Attention& p, int before, int column) {
  return partial_layout(p, before, column / p.width, p.query_heads / p.kv_heads, column);
}

/// A thread's columns of a row that attention_decode.cu has written in bf16, eight adjacent ones
/// and eight of every `step` behind them.
template <int kVectors>
struct WrittenRow {
  static constexpr int kColumns = 8;
  Pairs<kColumns> v[kVectors]{};
  float largest = 0.0F;  // of the row

  /// The whole warp.
  __device__ __forceinline__ void load(const Attention& p,
                                       const int& row,
                                       const int& first,
                                       const int& step) {
    const int width = p.query_heads * p.width;
    const Bf16* from = p.out + static_cast<std::int64_t>(row) * width;
#pragma unroll
    for (int i = 0; i < kVectors; ++i)
      if (first + i * step < width) {
        const uint4 words = __ldcg(reinterpret_cast<const uint4*>(from + first + i * step));
        v[i] = {{words.x, words.y, words.z, words.w}};
      }
    const int maxima = kDecodeWarps * p.kv_heads;
    for (int i = static_cast<int>(threadIdx.x) % 32; i < maxima; i += 32)
      largest = fmaxf(largest, __ldcg(head_maxima(p) + row * maxima + i));
  }
  [[nodiscard]] __device__ __forceinline__ float element(int vector, int i) const {
    const std::uint32_t pair = v[vector].words[i / 2];
    return __uint_as_float(i % 2 == 0 ? pair << 16 : pair & 0xFFFF0000U);
  }
  __device__ __forceinline__ void store_quantized(std::uint8_t* row,
                                                  int column,
                                                  int vector,
                                                  float scale) const {
    float values[kColumns];
#pragma unroll
    for (int i = 0; i < kColumns; ++i) values[i] = element(vector, i);
    koho::cuda::store_quantized(row, column, values, scale);
  }
  /// Writes the forms wanted; bf16 if `stores_values`. The whole CTA.
  __device__ __forceinline__ void store(const RowOutputs& out,
                                        const Attention& p,
                                        const int& row,
                                        const int& first,
                                        const int& step,
                                        const bool& stores_values) const {
    const int width = p.query_heads * p.width;
    const float row_scale = quant_scale(warp_largest(largest));
    if (out.quantized != nullptr && first == 0) out.scales[row] = row_scale;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int column = first + i * step;
      const bool writes = column < width;
      if (writes && stores_values) v[i].store(out.values + row * out.values_stride + column);
      if (writes && out.quantized != nullptr)
        store_quantized(out.quantized + row * out.quantized_stride, column, i, row_scale);
      if (out.block_quantized == nullptr) continue;
      float of_block = 0.0F;
#pragma unroll
      for (int j = 0; j < kColumns; ++j) of_block = fmaxf(of_block, fabsf(element(i, j)));
#pragma unroll
      for (int offset = kQuantColumns / kColumns / 2; offset > 0; offset /= 2)
        of_block = fmaxf(of_block, __shfl_xor_sync(0xFFFFFFFFU, of_block, offset));
      const float scale = quant_scale(of_block);
      if (writes && column % kQuantColumns == 0)
        out.block_scales[row * out.block_scales_stride + column / kQuantColumns] = scale;
      if (writes)
        store_quantized(out.block_quantized + row * out.block_quantized_stride, column, i, scale);
    }
  }
};

/// Combines a row of several work tiles, as attention_combine_kernel() does. A thread has the four
/// columns from `column` on. The whole CTA.
template <typename Largest>
__device__ __forceinline__ void combine_split_row(const RowOutputs& out,
                                                  const Attention& p,
                                                  const int& row,
                                                  const ContextWorkTiles& work_tiles,
                                                  const int& column,
                                                  const Accumulators& accumulators,
                                                  const Largest& row_largest) {
  const bool writes = column < p.query_heads * p.width;
  const PartialLayout place = layout_of(p, work_tiles.before, column);
  const int chunks = chunks_of(p, work_tiles.context);
  const bool wide = chunks > kCombineAccumulators;
  const int segments = wide ? (chunks + kSegmentChunks - 1) / kSegmentChunks : chunks;
  if (work_tiles.tokens == kKvTileTokens) {
    add_kv_tiles(
        accumulators, place,
        {kv_tiles_of(work_tiles.context), p.chunk_tokens / kKvTileTokens, chunks, segments}, 0,
        writes);
  } else if (writes) {
    const int own = work_tiles.segments;
    add_work_tiles<1, 6>(accumulators, place, {0, wide ? own : chunks, 0});
    if (wide)
      add_work_tiles<kSegmentChunks, 8>(accumulators, place,
                                        {own, chunks - kSegmentChunks * own, own});
  }
  RowColumns found;
  if (writes) {
    Sums sums;
    add_accumulators(sums, accumulators, min(segments, kCombineAccumulators));
    found.set(sums);
  }
  found.store(out, row, column, writes);
  if (out.quantized == nullptr) return;
  const float largest = row_largest(found.largest);
  if (writes) found.store_quantized(out, row, column, largest);
}

__device__ __forceinline__ ContextWorkTiles load_context_work_tiles(const Attention& p, int row) {
  if (row >= p.decodes) return {0, 0, kKvTileTokens, 0};
  const int4 listed = __ldcg(reinterpret_cast<const int4*>(p.context_work_tiles + row));
  return {listed.x, listed.y, listed.z, listed.w};
}

template <int kVectors>
__global__ void __launch_bounds__(kManyThreadsMax, 2)
    attention_combine_many_kernel(const RowOutputs out,
                                  const __grid_constant__ Attention p,
                                  int rows) {
  extern __shared__ __align__(16) float shared_accumulators[];
  __shared__ RowExchanges exchanges;
  __shared__ ContextWorkTiles listed[kManyThreadsMax];   // each warp's own
  const int cluster = static_cast<int>(cluster_size());  // as kVectors, a power of two
  const int rank = static_cast<int>(cluster_rank());
  const int clusters = static_cast<int>(gridDim.x) / cluster;
  const int own = static_cast<int>(blockIdx.x) / cluster;
  const int ctas = cluster / kVectors;  // of a row that is written
  const int threads = static_cast<int>(blockDim.x);
  const int thread = static_cast<int>(threadIdx.x);
  const int step = threads * kVector;
  const int column = thread * kVector;
  if (out.quantized != nullptr) {
    if (thread == 0) {
      exchanges.init();
      fence_mbarrier_init();
      exchanges.arm(0);
      exchanges.arm(1);
    }
    __syncthreads();
    cluster_arrive();
  }
  pdl_begin();

  const int row = own * kVectors + rank / ctas;
  const ContextWorkTiles of_row = load_context_work_tiles(p, row);
  listed[thread] = load_context_work_tiles(p, own + thread % 32 * clusters);
  const bool copies_values = out.values != nullptr && out.values != p.out;
  {
    // NOTE: loads the row before it knows whether it is written, for the three to be in flight at
    // once.
    using Written = WrittenRow<kVectors * kVector / 8>;
    constexpr int kColumns = Written::kColumns;
    const int first = rank % ctas * kVectors * step + thread * kColumns;
    Written written;
    if (row < p.decodes &&
        (copies_values || out.quantized != nullptr || out.block_quantized != nullptr))
      written.load(p, row, first, threads * kColumns);
    if (row < rows && of_row.context <= of_row.tokens) {
      const bool empty = of_row.context == 0;
      if (empty) written = Written();
      written.store(out, p, row, first, threads * kColumns,
                    copies_values || (empty && out.values != nullptr));
    }
  }
  if (out.quantized != nullptr) cluster_wait();  // every CTA has begun
  const Accumulators accumulators{shared_accumulators + thread, threads, 0, 1};
  int turn = 0;
#pragma unroll 1
  for (int first = own; first < p.decodes; first += 32 * clusters) {
    if (first != own) {
      __syncwarp();
      listed[thread] = load_context_work_tiles(p, first + thread % 32 * clusters);
    }
    unsigned split = __ballot_sync(0xFFFFFFFFU, listed[thread].context > listed[thread].tokens);
#pragma unroll 1
    for (; split != 0; split &= split - 1, ++turn) {
      const int lane = __ffs(static_cast<int>(split)) - 1;
      combine_split_row(out, p, first + lane * clusters, listed[thread / 32 * 32 + lane],
                        rank * step + column, accumulators,
                        [&](float largest) { return exchanges.largest(largest, turn); });
    }
  }
}

template <int kVectors>
cudaError_t launch(const RowOutputs& out,
                   const Attention& p,
                   std::int64_t rows,
                   const LaunchShape& shape,
                   cudaStream_t stream) {
  static PerDevice prepared;
  const cudaError_t ready = prepared.once([] {
    return allow_dynamic_shared_memory(attention_combine_many_kernel<kVectors>, kManySharedMax);
  });
  if (ready != cudaSuccess) return ready;
  return launch_kernel(attention_combine_many_kernel<kVectors>, shape, stream, out,
                       with_context_work_tiles(p), static_cast<int>(rows));
}

}  // namespace

/// As many clusters as are resident at once, or more if they cannot hold all rows that may be
/// written, at the fewest columns a thread with which they can.
cudaError_t launch_attention_combine_many(const RowOutputs& out,
                                          const Attention& p,
                                          std::int64_t rows,
                                          cudaStream_t stream) {
  static PerDevice resident;
  const int widest = resident.number([] {
    return resident_clusters(attention_combine_many_kernel<kCluster>, kCluster, kManyThreadsMax,
                             kManySharedMax);
  });
  const int width = p.query_heads * p.width;
  const int cluster = cluster_of_many(p, rows, width);
  const int threads = columns_of_cta(width, cluster) / kVector;
  const std::int64_t fit =
      std::max(widest, 1) * (kCluster / cluster) * std::max(kManyThreadsMax / threads, 1);
  const int vectors = std::min(fit * 2 >= rows ? 2 : fit * 4 >= rows ? 4 : 8, cluster);
  const std::int64_t clusters = std::max(std::min(fit, rows), (rows + vectors - 1) / vectors);
  const LaunchShape shape{
      dim3(static_cast<unsigned>(clusters * cluster)), dim3(static_cast<unsigned>(threads)),
      static_cast<std::size_t>(threads * kCombineAccumulators * kSlotBytes), cluster};
  switch (vectors) {
    case 2:
      return launch<2>(out, p, rows, shape, stream);
    case 4:
      return launch<4>(out, p, rows, shape, stream);
    default:
      return launch<8>(out, p, rows, shape, stream);
  }
}

}  // namespace koho::cuda
