// SPDX-License-Identifier: Apache-2.0
// Joins what decode attention found for each row (attention_parts.cuh) and writes the row in the
// forms its readers need.
//
//   grid     a cluster of 8 CTAs a row, a CTA some columns; they tell each other their largest for
//            the row's quantisation. All of them fit the GPU at once beside few rows' larger blocks
//   block    a thread has 4 neighbouring columns; of few rows, threads of the same columns share
//            the lanes, of many rows a thread has as many again
//   shared   24 bytes a lane and thread where lanes are shared
//   bytes    the partial sums once, from L2
#include "cuda/attention_parts.cuh"
#include "cuda/launch.cuh"
#include "cuda/row.cuh"

namespace koho::cuda {
namespace {

constexpr int kCluster = 8;
constexpr int kVector = 4;
constexpr int kThreadsMax = 768;
constexpr int kManyThreads = 192;      // of a block of many rows, five a multiprocessor
constexpr int kManyColumns = 250'000;  // of all rows, from which they are many

/// Columns of one CTA: whole quantisation blocks.
__host__ __device__ constexpr int columns_of_cta(int width) {
  return ((width + kCluster - 1) / kCluster + kQuantColumns - 1) / kQuantColumns * kQuantColumns;
}

/// Threads that share the lanes of the same columns: as many as a block can have and all rows'
/// blocks together can keep resident with room to spare, since clusters find room only together.
int sharers_of(int column_threads, std::int64_t rows) {
  constexpr std::int64_t kResident = 132 * 512;  // threads, roughly
  int sharers = kMergeLanes;
  while (sharers > 1 && (column_threads * sharers > kThreadsMax ||
                         rows * kCluster * column_threads * sharers > kResident))
    sharers /= 2;
  return sharers;
}
static_assert(columns_of_cta(kMergeWidthMax) / kVector <= kThreadsMax);
static_assert(columns_of_cta(kMergeWidthMax) / kVector / 2 <= kManyThreads);

struct Sums {
  float v[kVector] = {};
  Softened state;

  __device__ __forceinline__ void add(const float (&more)[kVector], const Softened& more_state) {
    const float2 factor = join(state, more_state);
#pragma unroll
    for (int i = 0; i < kVector; ++i) v[i] = join_sum(v[i], more[i], factor);
  }
};

/// Where a thread's columns and their row's state lie in an item.
struct Place {
  const float* first;
  std::int64_t item;  // floats from one of the row's items to the next
  int sums;
  int state;
};

/// Joins `count` items, `step` apart, in order; kAhead of them are in flight.
template <int kAhead>
__device__ __forceinline__ void add_items(
    Sums& sums, const Place& place, int first, int step, int count) {
#pragma unroll 1
  for (int done = 0; done < count; done += kAhead) {
    float4 more[kAhead];
    float2 state[kAhead];
    const float* item = place.first + (first + done * step) * place.item;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (done + i < count) {
        state[i] = __ldcg(reinterpret_cast<const float2*>(item + place.state));
        more[i] = __ldcg(reinterpret_cast<const float4*>(item + place.sums));
      }
      item += step * place.item;
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (done + i < count)
        sums.add({more[i].x, more[i].y, more[i].z, more[i].w}, {state[i].x, state[i].y});
  }
}

/// What a row's threads must know: items are units or groups, and how many come before the row's.
struct RowItems {
  bool units;
  int before;
};

/// All threads; `sums` holds three zeros.
__device__ RowItems count_items(const Attention& p, int row, int* sums) {
  int groups = 0;
  int groups_before = 0;
  int units_before = 0;
  for (int sequence = static_cast<int>(threadIdx.x); sequence < p.decodes;
       sequence += static_cast<int>(blockDim.x)) {
    const int context = p.context_lengths[sequence];
    groups += groups_of(p, context);
    if (sequence >= row) continue;
    groups_before += groups_of(p, context);
    units_before += units_of(context);
  }
  if (groups != 0) atomicAdd(&sums[0], groups);
  if (groups_before != 0) atomicAdd(&sums[1], groups_before);
  if (units_before != 0) atomicAdd(&sums[2], units_before);
  __syncthreads();
  const bool units = items_are_units(p, sums[0]);
  return {units, units ? sums[2] : sums[1]};
}

/// What lane `lane` joins of the row: groups lane, lane + 8, …
template <int kAhead>
__device__ __forceinline__ Sums
lane_sums(const Attention& p, const Place& place, const RowItems& items, int context, int lane) {
  const int groups = groups_of(p, context);
  Sums sums;
  if (!items.units) {
    add_items<kAhead>(sums, place, lane, kMergeLanes,
                      (groups - lane + kMergeLanes - 1) / kMergeLanes);
    return sums;
  }
  const int units = units_of(context);
  const int each = p.group_tokens / kUnitTokens;
  for (int at = lane; at < groups; at += kMergeLanes) {
    Sums one;
    add_items<kAhead>(one, place, at * each, 1, min(each, units - at * each));
    sums.add(one.v, one.state);
  }
  return sums;
}

/// The whole row's, by one thread.
template <int kAhead>
__device__ __forceinline__ Sums
row_sums(const Attention& p, const Place& place, const RowItems& items, int context) {
  const int groups = groups_of(p, context);
  Sums sums;
  if (!items.units && groups <= kMergeLanes) {  // the same bits: lanes of one item each
    add_items<kAhead>(sums, place, 0, 1, groups);
    return sums;
  }
#pragma unroll 1
  for (int lane = 0; lane < min(groups, kMergeLanes); ++lane) {
    const Sums one = lane_sums<kAhead>(p, place, items, context, lane);
    sums.add(one.v, one.state);
  }
  return sums;
}

__device__ __forceinline__ void store_four_codes(std::uint8_t* to,
                                                 const float (&v)[kVector],
                                                 float scale) {
  std::uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < kVector; ++i)
    word |= static_cast<std::uint32_t>(to_e4m3(v[i] / scale)) << (8 * i);
  *reinterpret_cast<std::uint32_t*>(to) = word;
}

/// `kPasses` times four columns a thread; 2: no lanes are shared.
template <int kPasses>
__global__ void __launch_bounds__(kPasses == 1 ? kThreadsMax : kManyThreads, kPasses == 1 ? 1 : 5)
    attention_merge_kernel(const RowForms out, const __grid_constant__ Attention p) {
  constexpr int kAhead = kPasses == 1 ? 5 : 2;
  // [lane][sums, largest, total][thread of the columns]
  extern __shared__ __align__(16) float lanes[];
  __shared__ float reduce[32];
  __shared__ __align__(16) float4 largest_of[kCluster];
  __shared__ __align__(8) std::uint64_t told_barrier;
  __shared__ int counts[3];
  const int row = static_cast<int>(blockIdx.x) / kCluster;
  const int width = p.query_heads * p.width;
  const int columns = columns_of_cta(width);
  const int threads = columns / kVector / kPasses;  // of all columns
  const int sharers = kPasses == 1 ? static_cast<int>(blockDim.x) / threads : 1;
  const int sharer = static_cast<int>(threadIdx.x) / threads;
  const int thread = static_cast<int>(threadIdx.x) % threads;
  const std::uint32_t told = shared_address(&told_barrier);
  if (threadIdx.x == 0) {
    mbarrier_init(told, 1);
    mbarrier_init_fence();
    mbarrier_arrive_expect(told, sizeof(largest_of));
  }
  cluster_arrive();
  if (threadIdx.x < 3) counts[threadIdx.x] = 0;
  __syncthreads();
  const RowItems items = count_items(p, row, counts);
  const int context = row < p.decodes ? p.context_lengths[row] : 0;
  const int group = p.query_heads / p.kv_heads;
  cluster_wait();  // the others' barriers are ready
  grid_begin();

  float v[kPasses][kVector] = {};
  float largest = 0.0F;
  const auto column_of = [&](int pass) {
    return static_cast<int>(blockIdx.x) % kCluster * columns + (pass * threads + thread) * kVector;
  };
  const auto writes = [&](int pass) { return sharer == 0 && column_of(pass) < width; };
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    const int column = column_of(pass);
    const bool present = column < width;
    const int head = column / p.width;
    Place place;
    place.item = static_cast<std::int64_t>(p.kv_heads) * item_floats(group, p.width);
    place.first = p.partial + items.before * place.item +
                  static_cast<std::int64_t>(head / group) * item_floats(group, p.width);
    place.sums = head % group * p.width + column % p.width;
    place.state = group * p.width + 2 * (head % group);
    Sums sums;
    if (sharers == 1) {
      if (present) sums = row_sums<kAhead>(p, place, items, context);
    } else {
      const int lanes_used = min(groups_of(p, context), kMergeLanes);
      const auto lane_at = [&](int lane) {
        return lanes + lane * (kVector + 2) * threads + thread;
      };
      for (int lane = sharer; lane < lanes_used && present; lane += sharers) {
        const Sums one = lane_sums<kAhead>(p, place, items, context, lane);
        float* to = lane_at(lane);
#pragma unroll
        for (int i = 0; i < kVector; ++i) to[i * threads] = one.v[i];
        to[kVector * threads] = one.state.largest;
        to[(kVector + 1) * threads] = one.state.total;
      }
      __syncthreads();
      for (int lane = 0; lane < lanes_used && writes(pass); ++lane) {
        const float* from = lane_at(lane);
        float more[kVector];
#pragma unroll
        for (int i = 0; i < kVector; ++i) more[i] = from[i * threads];
        sums.add(more, {from[kVector * threads], from[(kVector + 1) * threads]});
      }
    }
    float largest_here = 0.0F;
    if (writes(pass)) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        v[pass][i] = context > 0 ? round_bf16(sums.v[i] / sums.state.total) : 0.0F;
        largest_here = fmaxf(largest_here, fabsf(v[pass][i]));
      }
      if (out.values != nullptr)
        *reinterpret_cast<uint2*>(out.values + row * out.values_stride + column) =
            make_uint2(pack_bf16(v[pass][0], v[pass][1]), pack_bf16(v[pass][2], v[pass][3]));
    }
    if (out.block_codes != nullptr) {  // a warp has a block
      const float scale = quant_scale(warp_max(largest_here));
      if (writes(pass)) {
        if (column % kQuantColumns == 0)
          out.block_scales[row * out.block_scales_stride + column / kQuantColumns] = scale;
        store_four_codes(out.block_codes + row * out.block_codes_stride + column, v[pass], scale);
      }
    }
    largest = fmaxf(largest, largest_here);
  }
  if (out.codes == nullptr) return;
  largest = block_reduce<true>(largest, reduce);
  if (threadIdx.x < kCluster)
    cluster_send(cluster_address(shared_address(&largest_of[cluster_rank()]), threadIdx.x),
                 make_float4(largest, 0.0F, 0.0F, 0.0F), cluster_address(told, threadIdx.x));
  mbarrier_wait_cluster(told, 0);
#pragma unroll
  for (const float4& other : largest_of) largest = fmaxf(largest, other.x);
  const float scale = quant_scale(largest);
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    const int column = column_of(pass);
    if (!writes(pass)) continue;
    if (column == 0) out.scales[row] = scale;
    store_four_codes(out.codes + row * out.codes_stride + column, v[pass], scale);
  }
}

/// Rows that see nothing: those after all sequences, and those of empty ones that are not decoded.
__global__ void attention_padding_kernel(const __grid_constant__ Attention p) {
  grid_begin();
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

bool attention_merge_takes(const RowForms& out, std::int64_t width) {
  return row_vectors(out, nullptr, 0, width);
}

cudaError_t launch_attention_merge(const RowForms& out,
                                   const Attention& p,
                                   std::int64_t rows,
                                   cudaStream_t stream) {
  constexpr int kLaneBytes = kMergeLanes * (kVector + 2) * static_cast<int>(sizeof(float));
  static const cudaError_t ready =
      cudaFuncSetAttribute(attention_merge_kernel<1>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           columns_of_cta(kMergeWidthMax) / kVector * kLaneBytes);
  if (ready != cudaSuccess) return ready;
  const std::int64_t width = static_cast<std::int64_t>(p.query_heads) * p.width;
  const int columns = columns_of_cta(static_cast<int>(width));
  const dim3 grid(static_cast<unsigned>(rows * kCluster));
  if (rows * width > kManyColumns)
    return launch_kernel(attention_merge_kernel<2>,
                         {grid, dim3(static_cast<unsigned>(columns / kVector / 2)), 0, kCluster},
                         stream, out, p);
  const int threads = columns / kVector;
  const int sharers = sharers_of(threads, rows);
  return launch_kernel(attention_merge_kernel<1>,
                       {grid, dim3(static_cast<unsigned>(threads * sharers)),
                        static_cast<std::size_t>(sharers > 1 ? threads * kLaneBytes : 0), kCluster},
                       stream, out, p);
}

cudaError_t launch_attention_padding(const Attention& p, cudaStream_t stream) {
  constexpr int kBlocks = 8;
  return launch_kernel(attention_padding_kernel, {dim3(kBlocks), dim3(256)}, stream, p);
}

}  // namespace koho::cuda
