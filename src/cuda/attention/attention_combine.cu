// SPDX-License-Identifier: Apache-2.0
// Combines the partial sums that decode attention left of each row (attention_split_kv.cuh) and
// writes the row in the forms wanted: bf16, FP8 with a scale a row, FP8 with a scale for every 128
// columns. Also zeroes rows that no sequence owns.
//
//   grid     a cluster of 8 CTAs a row, each some columns; they exchange the row's largest value
//            for its FP8 scale. Of one or two rows 16 CTAs, where the GPU has such clusters: an SM
//            reads at most 64 bytes a cycle from L2. Of many narrow rows 4 or 2. Of many contexts
//            (has_many_contexts()) such clusters as are resident at once: each has 2 to 8 rows that
//            are one work tile, then takes others in turn
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

constexpr int kSlotBytes = (kVector + 2) * static_cast<int>(sizeof(float));
constexpr int kManySharedMax = kManyThreadsMax * kCombineAccumulators * kSlotBytes;

/// Whether all `ctas` of `threads` are resident at once. An eighth of the SMs is left out, since
/// the CTAs of a cluster must lie on SMs of one GPC.
bool are_resident(const Attention& p, std::int64_t ctas, int threads) {
  constexpr int kRegisters = 65536 / kThreadsMax / 8 * 8;  // that a thread may have
  return ctas <= 65536 / (kRegisters * threads) * (p.multiprocessors - p.multiprocessors / 8);
}

/// Threads that share the segments of the same columns: at most one an accumulator, as many as a
/// block can have, and so few that all `ctas` are resident at once.
int sharers_of(const Attention& p, int column_threads, std::int64_t ctas, int accumulators) {
  int sharers = kCombineAccumulators;
  while (sharers > 1 && (sharers >= 2 * accumulators || column_threads * sharers > kThreadsMax ||
                         !are_resident(p, ctas, column_threads * sharers)))
    sharers /= 2;
  return sharers;
}

/// CTAs of a row where rows are many: fewer than kCluster if some of these would have no columns,
/// or not all be resident at once.
int cluster_of_many(const Attention& p, std::int64_t rows, int width) {
  constexpr int kLeast = 2;
  int cluster = kCluster;
  while (cluster > kLeast) {
    const int columns = columns_of_cta(width, cluster);
    const bool suits =
        columns * cluster < width + columns && are_resident(p, rows * cluster, columns / kVector);
    if (suits || columns_of_cta(width, cluster / 2) / kVector > kThreadsMax / 2) break;
    cluster /= 2;
  }
  return cluster;
}

__global__ void __launch_bounds__(kThreadsMax, 1) attention_combine_kernel(
    const RowOutputs out, const __grid_constant__ Attention p, int columns, int slots) {
  // [accumulator][sums, largest, total][thread of the columns]
  extern __shared__ __align__(16) float shared_accumulators[];
  __shared__ __align__(16) float maxima[kRowWarpsMax];  // of all warps that write the row
  __shared__ __align__(8) std::uint64_t told;
  __shared__ ContextCounts<false> counts;
  const int cluster = static_cast<int>(cluster_size());  // a power of two
  const int row = static_cast<int>(blockIdx.x) >> (31 - __clz(cluster));
  const int width = p.query_heads * p.width;
  const int threads = columns / kVector;  // of all columns
  const int sharers = static_cast<int>(blockDim.x) / threads;
  const int sharer = static_cast<int>(threadIdx.x) / threads;
  const int thread = static_cast<int>(threadIdx.x) % threads;
  const int column = static_cast<int>(cluster_rank()) * columns + thread * kVector;
  const RowExchange exchange{maxima, shared_address(&told), 0, cluster, threads / 32};
  const int context = row < p.decodes ? p.context_lengths[row] : 0;
  if (threadIdx.x == 0) {
    counts = {};
    if (out.quantized != nullptr) {
      mbarrier_init(exchange.told, 1);
      fence_mbarrier_init();
      exchange.arm();
    }
  }
  __syncthreads();
  if (out.quantized != nullptr) cluster_arrive();
  count_contexts(p, row, counts);
  __syncthreads();
  const RowWorkTiles work_tiles = row_work_tiles(p, row, counts);
  const PartialLayout place = partial_layout(p, work_tiles.before, column);
  const Accumulators accumulators{shared_accumulators + thread, threads, sharer, sharers};
  pdl_begin();

  const int used = add_row(p, work_tiles, context, accumulators, place, slots, column < width);
  __syncthreads();
  const bool writes = sharer == 0 && column < width;
  RowColumns found;
  if (writes) {
    Sums sums;
    add_accumulators(sums, accumulators, used);
    found.set(sums, context > 0);
  }
  found.store(out, row, column, writes);
  if (out.quantized == nullptr) return;
  cluster_wait();  // every CTA has begun
  if (sharer != 0) return;
  const float largest = exchange.largest(found.largest, 0);
  if (writes) found.store_quantized(out, row, column, largest);
}

/// Combines a row that is one work tile, or has no context. `first`: of the columns of a thread's
/// vectors, which are `step` apart. The whole CTA.
template <int kVectors, typename Largest>
__device__ __forceinline__ void combine_whole_row(const RowOutputs& out,
                                                  const Attention& p,
                                                  const int& row,
                                                  const int& context,
                                                  const int& before,
                                                  const int& first,
                                                  const int& step,
                                                  const Largest& row_largest) {
  const int width = p.query_heads * p.width;
  Partial only[kVectors]{};
  if (context > 0) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i)
      if (first + i * step < width)
        only[i] = load_partial(partial_layout(p, before, first + i * step), 0);
  }
  RowColumns found[kVectors];
  float largest = 0.0F;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int column = first + i * step;
    const bool writes = column < width;
    if (writes && context > 0) {
      Sums sums;
      sums.add(only[i].sums, {only[i].state.x, only[i].state.y});
      found[i].set(sums, true);
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
                                                  const RowWorkTiles& work_tiles,
                                                  const int& column,
                                                  float* shared_accumulators,
                                                  const Largest& row_largest) {
  const Accumulators accumulators{shared_accumulators + threadIdx.x, static_cast<int>(blockDim.x),
                                  0, 1};
  const bool writes = column < p.query_heads * p.width;
  const PartialLayout place = partial_layout(p, work_tiles.before, column);
  const int used = add_row(p, work_tiles, p.context_lengths[row], accumulators, place, 0, writes);
  RowColumns found;
  if (writes) {
    Sums sums;
    add_accumulators(sums, accumulators, used);
    found.set(sums, true);
  }
  found.store(out, row, column, writes);
  if (out.quantized == nullptr) return;
  const float largest = row_largest(found.largest);
  if (writes) found.store_quantized(out, row, column, largest);
}

/// The same for has_many_contexts(). A cluster has kVectors rows that are one work tile: a thread
/// has kVectors times 4 columns of one, so that all such rows are in flight at once. Then the
/// clusters take the other rows in turn.
template <int kVectors>
__global__ void __launch_bounds__(kManyThreadsMax, 2)
    attention_combine_many_kernel(const RowOutputs out,
                                  const __grid_constant__ Attention p,
                                  int rows) {
  extern __shared__ __align__(16) float shared_accumulators[];
  __shared__ __align__(16) float maxima[kRowWarpsMax];
  __shared__ __align__(8) std::uint64_t told;
  __shared__ SplitRowExchanges split_exchanges;
  __shared__ ContextCounts<true> counts;        // of the row that is one work tile
  __shared__ ContextCounts<true> split_counts;  // of the row that is several
  __shared__ SplitRows split_rows;
  const int cluster = static_cast<int>(cluster_size());  // as kVectors, a power of two
  const int rank = static_cast<int>(cluster_rank());
  const int clusters = static_cast<int>(gridDim.x) / cluster;
  const int own = static_cast<int>(blockIdx.x) / cluster;
  const int ctas = cluster / kVectors;  // of a row that is one work tile
  const int step = static_cast<int>(blockDim.x) * kVector;
  const int column = static_cast<int>(threadIdx.x) * kVector;
  const int first_rank = rank / ctas * ctas;
  const RowExchange exchange{maxima, shared_address(&told), first_rank, ctas,
                             static_cast<int>(blockDim.x) / 32};
  if (threadIdx.x == 0) {
    counts = {};
    split_counts = {};
    if (out.quantized != nullptr) {
      mbarrier_init(exchange.told, 1);
      split_exchanges.init();
      fence_mbarrier_init();
      exchange.arm();
      split_exchanges.arm();
    }
  }
  __syncthreads();
  if (out.quantized != nullptr) cluster_arrive();
  const int row = own * kVectors + rank / ctas;
  count_contexts(p, row, counts);
  __syncthreads();
  const RowWorkTiles work_tiles = row_work_tiles(p, row, counts);
  split_rows.list(p, work_tiles.whole_tokens);
  __syncthreads();
  int split_row = split_rows.find(p, own);
  if (split_row >= 0) {
    count_contexts(p, split_row, split_counts);
    __syncthreads();
  }
  pdl_begin();
  if (out.quantized != nullptr) cluster_wait();  // every CTA has begun

  const int context = row < p.decodes ? p.context_lengths[row] : 0;
  if (row < rows && context <= work_tiles.whole_tokens)
    combine_whole_row<kVectors>(out, p, row, context, work_tiles.before,
                                (rank - first_rank) * kVectors * step + column, step,
                                [&](float largest) { return exchange.largest(largest, 0); });
  for (int turn = 0; split_row >= 0; ++turn) {
    combine_split_row(out, p, split_row, row_work_tiles(p, split_row, split_counts),
                      rank * step + column, shared_accumulators,
                      [&](float largest) { return split_exchanges.largest(largest, turn); });
    split_row = split_rows.find(p, own + (turn + 1) * clusters);
    if (split_row < 0) break;
    __syncthreads();
    if (threadIdx.x == 0) split_counts = {};
    __syncthreads();
    count_contexts(p, split_row, split_counts);
    __syncthreads();
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

template <int kVectors>
cudaError_t launch_combine_many(const RowOutputs& out,
                                const Attention& p,
                                std::int64_t rows,
                                const LaunchShape& shape,
                                cudaStream_t stream) {
  static PerDevice prepared;
  const cudaError_t ready = prepared.once([] {
    return allow_dynamic_shared_memory(attention_combine_many_kernel<kVectors>, kManySharedMax);
  });
  if (ready != cudaSuccess) return ready;
  return launch_kernel(attention_combine_many_kernel<kVectors>, shape, stream, out, p,
                       static_cast<int>(rows));
}

/// As many clusters as are resident at once, or more if they cannot hold all rows, at the fewest
/// columns a thread with which they can.
cudaError_t launch_combine_many(const RowOutputs& out,
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
      return launch_combine_many<2>(out, p, rows, shape, stream);
    case 4:
      return launch_combine_many<4>(out, p, rows, shape, stream);
    default:
      return launch_combine_many<8>(out, p, rows, shape, stream);
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
  if (has_many_contexts(p)) return launch_combine_many(out, p, rows, stream);
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
