// SPDX-License-Identifier: Apache-2.0
// Combines the partial sums that decode attention left of each row (attention_split_kv.cuh) and
// writes the row in the forms wanted: bf16, FP8 with a scale a row, FP8 with a scale for every 128
// columns. Also zeroes rows that no sequence owns.
//
//   grid     a cluster of 8 CTAs a row, each some columns; they exchange the row's largest value
//            for its FP8 scale. Of one or two rows 16 CTAs, where the GPU has such clusters: an SM
//            reads at most 64 bytes a cycle from L2. Of many narrow rows 4 or 2
//   block    a thread has 4 adjacent columns; threads of the same columns share the accumulators
//   shared   24 bytes an accumulator and thread; of few rows as much again for each chunk whose
//            work tiles are KV tiles
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

/// Threads that share the segments of the same columns: at most one an accumulator, as many as a
/// block can have, and so few that all `ctas` are resident at once.
int sharers_of(const Attention& p, int column_threads, std::int64_t ctas, int accumulators) {
  int sharers = kCombineAccumulators;
  while (sharers > 1 && (sharers >= 2 * accumulators || column_threads * sharers > kThreadsMax ||
                         !are_resident(p, ctas, column_threads * sharers)))
    sharers /= 2;
  return sharers;
}

/// How the step's contexts are split, and how many work tiles come before the row's.
struct RowWorkTiles {
  bool kv_tiles;
  int segments;  // of the row that are work tiles
  int before;
};

/// All threads; `sums` holds five zeros at first.
__device__ RowWorkTiles count_work_tiles(const Attention& p, int row, int* sums) {
  int chunks = 0;
  int chunks_before = 0;
  int kv_tiles_before = 0;
  int segments = 0;
  int segments_before = 0;
  for (int sequence = static_cast<int>(threadIdx.x); sequence < p.decodes;
       sequence += static_cast<int>(blockDim.x)) {
    const int context = p.context_lengths[sequence];
    chunks += chunks_of(p, context);
    segments += wide_segments_of(p, context);
    if (sequence >= row) continue;
    chunks_before += chunks_of(p, context);
    kv_tiles_before += kv_tiles_of(context);
    segments_before += wide_segments_of(p, context);
  }
  if (chunks != 0) atomicAdd(&sums[0], chunks);
  if (chunks_before != 0) atomicAdd(&sums[1], chunks_before);
  if (kv_tiles_before != 0) atomicAdd(&sums[2], kv_tiles_before);
  if (segments != 0) atomicAdd(&sums[3], segments);
  if (segments_before != 0) atomicAdd(&sums[4], segments_before);
  __syncthreads();
  if (splits_into_kv_tiles(p, sums[0])) return {true, 0, sums[2]};
  const int work_tiles = segment_work_tiles(p, sums[3]);
  const int before = min(sums[4], work_tiles);
  const int own = row < p.decodes ? wide_segments_of(p, p.context_lengths[row]) : 0;
  return {false, min(own, work_tiles - before), sums[1] - (kSegmentChunks - 1) * before};
}

/// The row's largest magnitude over all CTAs of the cluster: each warp sends its own to every CTA
/// (st.async, 4 bytes) and waits for those of the others. `warps` of each CTA write the row, and
/// call this.
__device__ __forceinline__ float row_largest(float largest,
                                             float (&maxima)[kRowWarpsMax],
                                             std::uint64_t& told,
                                             const int& cluster,
                                             const int& warps) {
  const auto lane = threadIdx.x % 32;
  largest = warp_largest(largest);
  if (static_cast<int>(lane) < cluster) {
    const auto place =
        static_cast<int>(cluster_rank()) * warps + static_cast<int>(threadIdx.x) / 32;
    st_async(map_shared_rank(shared_address(&maxima[place]), lane), largest,
             map_shared_rank(shared_address(&told), lane));
  }
  mbarrier_wait_cluster(shared_address(&told), 0);
  for (int i = static_cast<int>(lane); i < cluster * warps; i += 32)
    largest = fmaxf(largest, maxima[i]);
  return warp_largest(largest);
}

__global__ void __launch_bounds__(kThreadsMax, 1) attention_combine_kernel(
    const RowOutputs out, const __grid_constant__ Attention p, int columns, int slots) {
  // [accumulator][sums, largest, total][thread of the columns]
  extern __shared__ __align__(16) float shared_accumulators[];
  __shared__ __align__(16) float maxima[kRowWarpsMax];  // of all warps that write the row
  __shared__ __align__(8) std::uint64_t told;
  __shared__ int counts[5];
  const int cluster = static_cast<int>(cluster_size());  // a power of two
  const int row = static_cast<int>(blockIdx.x) >> (31 - __clz(cluster));
  const int width = p.query_heads * p.width;
  const int threads = columns / kVector;  // of all columns
  const int sharers = static_cast<int>(blockDim.x) / threads;
  const int sharer = static_cast<int>(threadIdx.x) / threads;
  const int thread = static_cast<int>(threadIdx.x) % threads;
  const int column = static_cast<int>(cluster_rank()) * columns + thread * kVector;
  const int warps = threads / 32;
  const int context = row < p.decodes ? p.context_lengths[row] : 0;
  if (threadIdx.x < 5) counts[threadIdx.x] = 0;
  if (threadIdx.x == 0 && out.quantized != nullptr) {
    mbarrier_init(shared_address(&told), 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(shared_address(&told),
                              static_cast<std::uint32_t>(cluster * warps) * 4);
  }
  __syncthreads();
  if (out.quantized != nullptr) cluster_arrive();
  const RowWorkTiles work_tiles = count_work_tiles(p, row, counts);
  const int chunks = chunks_of(p, context);
  const int head = column / p.width;
  const int group = p.query_heads / p.kv_heads;
  const PartialLayout place = partial_layout(p, work_tiles.before, head, group, column);
  const Accumulators accumulators{shared_accumulators + thread, threads, sharer, sharers};
  pdl_begin();

  const bool wide = chunks > kCombineAccumulators;
  const int segments = wide ? (chunks + kSegmentChunks - 1) / kSegmentChunks : chunks;
  if (work_tiles.kv_tiles) {
    add_kv_tiles(accumulators, place,
                 {kv_tiles_of(context), p.chunk_tokens / kKvTileTokens, chunks, segments}, slots,
                 column < width);
  } else if (column < width) {
    const int own = work_tiles.segments;
    add_work_tiles<1, 6>(accumulators, place, {0, wide ? own : chunks, 0});
    if (wide)
      add_work_tiles<kSegmentChunks, 8>(accumulators, place,
                                        {own, chunks - kSegmentChunks * own, own});
  }
  const int accumulators_used = min(segments, kCombineAccumulators);
  __syncthreads();
  const bool writes = sharer == 0 && column < width;
  float v[kVector] = {};
  float largest = 0.0F;
  if (writes) {
    Sums sums;
    add_accumulators(sums, accumulators, accumulators_used);
    const float sum[kVector] = {sums.v.x, sums.v.y, sums.v.z, sums.v.w};
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      v[i] = context > 0 ? round_bf16(normalize(sum[i], sums.state)) : 0.0F;
      largest = fmaxf(largest, fabsf(v[i]));
    }
    if (out.values != nullptr)
      *reinterpret_cast<uint2*>(out.values + row * out.values_stride + column) =
          make_uint2(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]));
  }
  if (out.block_quantized != nullptr) {  // a warp has a block
    const float scale = quant_scale(warp_largest(largest));
    if (writes) store_block_quantized(out, row, column, v, scale);
  }
  if (out.quantized == nullptr) return;
  cluster_wait();  // every CTA has begun
  if (sharer != 0) return;
  largest = row_largest(largest, maxima, told, cluster, warps);
  if (writes) {
    const float scale = quant_scale(largest);
    if (column == 0) out.scales[row] = scale;
    store_four_quantized(out.quantized + row * out.quantized_stride + column, v, scale);
  }
}

/// Zeroes rows that attend to nothing: those after all sequences, and those of empty sequences.
__global__ void attention_padding_kernel(const __grid_constant__ Attention p) {
  pdl_begin();
  const int width = p.query_heads * p.width;
  const auto clear = [&](std::int64_t row, int first, int step) {
    for (int column = first; column < width; column += step) p.out[row * width + column] = 0;
  };
  for (std::int64_t row = p.query_starts[p.sequences] + static_cast<std::int64_t>(blockIdx.x);
       row < p.tokens; row += gridDim.x)
    clear(row, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
  const int warp = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) / 32;
  const int warps = static_cast<int>(gridDim.x * blockDim.x) / 32;
  for (int sequence = p.decodes + warp; sequence < p.sequences; sequence += warps) {
    if (p.context_lengths[sequence] != 0) continue;
    for (int row = p.query_starts[sequence]; row < p.query_starts[sequence + 1]; ++row)
      clear(row, static_cast<int>(threadIdx.x) % 32, 32);
  }
}

}  // namespace

bool attention_combine_supports(const RowOutputs& out, std::int64_t width) {
  return row_vectors(out, nullptr, 0, width);
}

cudaError_t launch_attention_combine(const RowOutputs& out,
                                     const Attention& p,
                                     std::int64_t rows,
                                     cudaStream_t stream) {
  if (has_many_contexts(p)) return launch_attention_combine_many(out, p, rows, stream);
  // kv_heads * kChunkThreads are enough for a CTA's columns, kChunkSlots / kv_heads chunks a row.
  constexpr int kChunkSlots = 96;
  constexpr int kChunkThreads = 16 * 128 / kCluster / kVector;
  constexpr int kSharedMax =
      (columns_of_cta(kCombineWidthMax, kCluster) / kVector * kCombineAccumulators +
       kChunkThreads * kChunkSlots) *
      kSlotBytes;
  static PerDevice prepared;
  const cudaError_t ready = prepared.once(
      [] { return allow_dynamic_shared_memory(attention_combine_kernel, kSharedMax); });
  if (ready != cudaSuccess) return ready;
  static PerDevice clusters;
  // A GPU need not hold clusters of more than 8 CTAs.
  const int widest = clusters.number([] {
    return resident_clusters(attention_combine_kernel, kClusterMax, kThreadsMax, kSharedMax) > 0
               ? kClusterMax
               : kCluster;
  });
  // Room for the sums of chunks where the rows are few, so that it costs no residency.
  const bool few = 4 * rows * kCluster <= p.multiprocessors;
  const int cluster = 4 * rows * widest <= p.multiprocessors ? widest
                      : few                                  ? kCluster
                            : cluster_of_many(p, rows, p.query_heads * p.width);
  const int columns = columns_of_cta(p.query_heads * p.width, cluster);
  const int threads = columns / kVector;
  const int chunks = (p.context_max + p.chunk_tokens - 1) / p.chunk_tokens;
  const int sharers =
      sharers_of(p, threads, rows * cluster, std::min(chunks, kCombineAccumulators));
  const int slots = few ? std::min(chunks, kChunkSlots / p.kv_heads) : 0;
  return launch_kernel(
      attention_combine_kernel,
      {dim3(static_cast<unsigned>(rows * cluster)), dim3(static_cast<unsigned>(threads * sharers)),
       static_cast<std::size_t>(threads * (kCombineAccumulators + slots) * kSlotBytes), cluster},
      stream, out, p, columns, slots);
}

cudaError_t launch_attention_padding(const Attention& p, cudaStream_t stream) {
  constexpr int kBlocks = 8;
  return launch_kernel(attention_padding_kernel, {dim3(kBlocks), dim3(256)}, stream, p);
}

const void* kernel_of::attention_combine() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
