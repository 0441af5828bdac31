// SPDX-License-Identifier: Apache-2.0
// attention_combine.cu for has_many_contexts(): decode attention has listed the work tiles of every
// context, so no CTA counts them.
//
//   grid     as many clusters of 8, 4 or 2 CTAs as are resident at once: each has 2 to 8 rows that
//            are one work tile, all in flight at once, then takes the other rows in turn
//   block    a thread has 4 adjacent columns of a row of several work tiles, 2 to 8 times as many
//            of one that is one
//   shared   24 bytes an accumulator and thread
//   bytes    the partial sums once, from L2
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

/// How the CTAs that share a row tell each other its largest value: each warp sends its own to
/// every one of them (st.async, 4 bytes) and waits for those of the others.
struct RowExchange {
  float* maxima;       // [CTAs, warps], of all
  std::uint32_t told;  // mbarrier
  int first;           // rank of the first of the CTAs in their cluster
  int ctas;
  int warps;  // of a CTA

  /// One thread, before each exchange.
  __device__ __forceinline__ void arm() const {
    mbarrier_arrive_expect_tx(told, static_cast<std::uint32_t>(ctas * warps) * 4);
  }
  /// The row's largest magnitude. All threads. `parity`: of how often it was called before.
  __device__ __forceinline__ float largest(float of_thread, std::uint32_t parity) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float found = warp_largest(of_thread);
    if (lane < ctas) {
      const auto to = static_cast<std::uint32_t>(first + lane);
      const int place =
          (static_cast<int>(cluster_rank()) - first) * warps + static_cast<int>(threadIdx.x) / 32;
      st_async(map_shared_rank(shared_address(maxima + place), to), found,
               map_shared_rank(told, to));
    }
    mbarrier_wait_cluster(told, parity);
    for (int i = lane; i < ctas * warps; i += 32) found = fmaxf(found, maxima[i]);
    return warp_largest(found);
  }
};

/// The exchanges of rows that all CTAs of a cluster share one after another. Two take turns: before
/// a CTA sends for the next row but one, every warp of the others has sent for the next, so it is
/// done with this one.
struct SplitRowExchanges {
  alignas(16) float maxima[2][kRowWarpsMax];
  std::uint64_t told[2];

  /// Of the row that comes as number `turn`.
  [[nodiscard]] __device__ __forceinline__ RowExchange exchange(int turn) {
    return {maxima[turn % 2], shared_address(&told[turn % 2]), 0, static_cast<int>(cluster_size()),
            static_cast<int>(blockDim.x) / 32};
  }
  /// One thread each: before the barriers' fence, and behind it.
  __device__ __forceinline__ void init() {
    for (std::uint64_t& barrier : told) mbarrier_init(shared_address(&barrier), 1);
  }
  __device__ __forceinline__ void arm() {
    for (int i = 0; i < 2; ++i) exchange(i).arm();
  }
  __device__ __forceinline__ float largest(float of_thread, int turn) {
    const RowExchange of_row = exchange(turn);
    const float found = of_row.largest(of_thread, static_cast<std::uint32_t>(turn / 2 % 2));
    if (threadIdx.x == 0) of_row.arm();
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
      v[i] = round_bf16(sum[i] / sums.state.total);
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

/// Combines a row that is one work tile, or has no context. `first`: of the columns of a thread's
/// vectors, which are `step` apart. The whole CTA.
template <int kVectors, typename Largest>
__device__ __forceinline__ void combine_whole_row(const RowOutputs& out,
                                                  const Attention& p,
                                                  const int& row,
                                                  const ContextWorkTiles& work_tiles,
                                                  const int& first,
                                                  const int& step,
                                                  const Largest& row_largest) {
  const int width = p.query_heads * p.width;
  Partial only[kVectors]{};
  if (work_tiles.context > 0) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i)
      if (first + i * step < width)
        only[i] = load_partial(layout_of(p, work_tiles.before, first + i * step), 0);
  }
  RowColumns found[kVectors];
  float largest = 0.0F;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int column = first + i * step;
    const bool writes = column < width;
    if (writes && work_tiles.context > 0) {
      Sums sums;
      sums.add(only[i].sums, {only[i].state.x, only[i].state.y});
      found[i].set(sums);
    }
    found[i].store(out, row, column, writes);
    largest = fmaxf(largest, found[i].largest);
  }
  if (out.quantized == nullptr) return;
  largest = row_largest(largest);
#pragma unroll
  for (int i = 0; i < kVectors; ++i)
    if (first + i * step < width) found[i].store_quantized(out, row, first + i * step, largest);
}

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
  __shared__ __align__(16) float maxima[kRowWarpsMax];
  __shared__ __align__(8) std::uint64_t told;
  __shared__ SplitRowExchanges split_exchanges;
  __shared__ ContextWorkTiles listed[kManyThreadsMax];   // each warp's own
  const int cluster = static_cast<int>(cluster_size());  // as kVectors, a power of two
  const int rank = static_cast<int>(cluster_rank());
  const int clusters = static_cast<int>(gridDim.x) / cluster;
  const int own = static_cast<int>(blockIdx.x) / cluster;
  const int ctas = cluster / kVectors;  // of a row that is one work tile
  const int threads = static_cast<int>(blockDim.x);
  const int thread = static_cast<int>(threadIdx.x);
  const int step = threads * kVector;
  const int column = thread * kVector;
  const int first_rank = rank / ctas * ctas;
  const RowExchange exchange{maxima, shared_address(&told), first_rank, ctas, threads / 32};
  if (out.quantized != nullptr) {
    if (thread == 0) {
      mbarrier_init(exchange.told, 1);
      split_exchanges.init();
      fence_mbarrier_init();
      exchange.arm();
      split_exchanges.arm();
    }
    __syncthreads();
    cluster_arrive();
  }
  pdl_begin();

  const int row = own * kVectors + rank / ctas;
  const ContextWorkTiles of_row = load_context_work_tiles(p, row);
  listed[thread] = load_context_work_tiles(p, own + thread % 32 * clusters);
  if (out.quantized != nullptr) cluster_wait();  // every CTA has begun
  if (row < rows && of_row.context <= of_row.tokens)
    combine_whole_row<kVectors>(out, p, row, of_row, (rank - first_rank) * kVectors * step + column,
                                step, [&](float largest) { return exchange.largest(largest, 0); });
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
                        [&](float largest) { return split_exchanges.largest(largest, turn); });
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

/// As many clusters as are resident at once, or more if they cannot hold all rows that are one work
/// tile, at the fewest columns a thread with which they can.
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
