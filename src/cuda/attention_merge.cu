// SPDX-License-Identifier: Apache-2.0
// Joins what decode attention found for each row (attention_parts.cuh) and writes the row in the
// forms its readers need.
//
//   grid     a cluster of 8 CTAs a row, a CTA some columns; they meet for the row's quantisation
//   block    a thread has 4 neighbouring columns; threads of the same columns share the lanes
//   shared   24 bytes a lane and thread
//   bytes    the partial sums once, from L2
#include "cuda/attention_parts.cuh"
#include "cuda/launch.cuh"
#include "cuda/row.cuh"

namespace koho::cuda {
namespace {

constexpr int kCluster = 8;
constexpr int kVector = 4;
constexpr int kThreadsMax = 768;
constexpr int kAhead = 6;  // items in flight a thread

/// Columns of one CTA: whole quantisation blocks.
__host__ __device__ constexpr int columns_of_cta(int width) {
  return ((width + kCluster - 1) / kCluster + kQuantColumns - 1) / kQuantColumns * kQuantColumns;
}

/// Threads that share the lanes of the same columns: as many as a block can have and all rows'
/// blocks together can keep resident.
int sharers_of(int column_threads, std::int64_t rows) {
  constexpr std::int64_t kResident = 132 * 1024;  // threads, roughly
  int sharers = kMergeLanes;
  while (sharers > 1 && (column_threads * sharers > kThreadsMax ||
                         rows * kCluster * column_threads * sharers > kResident))
    sharers /= 2;
  return sharers;
}
static_assert(columns_of_cta(kMergeWidthMax) / kVector <= kThreadsMax);
constexpr int kWarpsMax = columns_of_cta(kMergeWidthMax) / kVector / 32;
static_assert(kQuantColumns == 32 * kVector);  // a warp has whole blocks

struct Sums {
  float4 v = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
  Softened state;

  __device__ __forceinline__ void add(const float4& more, const Softened& more_state) {
    const float2 factor = join(state, more_state);
    v.x = join_sum(v.x, more.x, factor);
    v.y = join_sum(v.y, more.y, factor);
    v.z = join_sum(v.z, more.z, factor);
    v.w = join_sum(v.w, more.w, factor);
  }
};

/// Where a thread's columns and their row's state lie in an item.
struct Place {
  const float* first;
  std::int64_t item;  // floats from one of the row's items to the next
  int sums;
  int state;
};

/// Joins `count` items, `step` apart, in order.
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
      if (done + i < count) sums.add(more[i], {state[i].x, state[i].y});
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

__device__ __forceinline__ void store_four_codes(std::uint8_t* to,
                                                 const float (&v)[kVector],
                                                 float scale) {
  *reinterpret_cast<std::uint32_t*>(to) =
      pack_e4m3(v[0] / scale, v[1] / scale, v[2] / scale, v[3] / scale);
}

__global__ void __launch_bounds__(kThreadsMax, 1)
    attention_merge_kernel(const RowForms out, const __grid_constant__ Attention p) {
  // [lane][sums, largest, total][thread of the columns]
  extern __shared__ __align__(16) float lanes[];
  __shared__ __align__(16) float maxima[kCluster * kWarpsMax];  // of all warps that write the row
  __shared__ __align__(8) std::uint64_t told;
  __shared__ int counts[3];
  const int row = static_cast<int>(blockIdx.x) / kCluster;
  const int width = p.query_heads * p.width;
  const int columns = columns_of_cta(width);
  const int threads = columns / kVector;  // of all columns
  const int sharers = static_cast<int>(blockDim.x) / threads;
  const int sharer = static_cast<int>(threadIdx.x) / threads;
  const int thread = static_cast<int>(threadIdx.x) % threads;
  const int column = static_cast<int>(blockIdx.x) % kCluster * columns + thread * kVector;
  const int warps = threads / 32;
  if (threadIdx.x < 3) counts[threadIdx.x] = 0;
  if (threadIdx.x == 0 && out.codes != nullptr) {
    mbarrier_init(shared_address(&told), 1);
    mbarrier_init_fence();
    mbarrier_arrive_expect(shared_address(&told), static_cast<std::uint32_t>(kCluster * warps) * 4);
  }
  __syncthreads();
  if (out.codes != nullptr) cluster_arrive();
  const RowItems items = count_items(p, row, counts);
  const int context = row < p.decodes ? p.context_lengths[row] : 0;
  const int groups = groups_of(p, context);
  const int head = column / p.width;
  const int group = p.query_heads / p.kv_heads;
  Place place;
  place.item = static_cast<std::int64_t>(p.kv_heads) * item_floats(group, p.width);
  place.first = p.partial + items.before * place.item +
                static_cast<std::int64_t>(head / group) * item_floats(group, p.width);
  place.sums = head % group * p.width + column % p.width;
  place.state = group * p.width + 2 * (head % group);
  grid_begin();

  const int lanes_used = min(groups, kMergeLanes);
  const auto lane_at = [&](int lane) { return lanes + lane * (kVector + 2) * threads + thread; };
  for (int lane = sharer; lane < lanes_used && column < width; lane += sharers) {
    Sums sums;
    if (items.units) {
      const int units = units_of(context);
      const int each = p.group_tokens / kUnitTokens;
      for (int at = lane; at < groups; at += kMergeLanes) {
        Sums one;
        add_items(one, place, at * each, 1, min(each, units - at * each));
        sums.add(one.v, one.state);
      }
    } else {
      add_items(sums, place, lane, kMergeLanes, (groups - lane + kMergeLanes - 1) / kMergeLanes);
    }
    float* to = lane_at(lane);
    to[0] = sums.v.x;
    to[threads] = sums.v.y;
    to[2 * threads] = sums.v.z;
    to[3 * threads] = sums.v.w;
    to[4 * threads] = sums.state.largest;
    to[5 * threads] = sums.state.total;
  }
  __syncthreads();
  const bool writes = sharer == 0 && column < width;
  float v[kVector] = {};
  float largest = 0.0F;
  if (writes) {
    Sums sums;
    for (int lane = 0; lane < lanes_used; ++lane) {
      const float* from = lane_at(lane);
      sums.add(make_float4(from[0], from[threads], from[2 * threads], from[3 * threads]),
               {from[4 * threads], from[5 * threads]});
    }
    const float sum[kVector] = {sums.v.x, sums.v.y, sums.v.z, sums.v.w};
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      v[i] = context > 0 ? round_bf16(sum[i] / sums.state.total) : 0.0F;
      largest = fmaxf(largest, fabsf(v[i]));
    }
    if (out.values != nullptr)
      *reinterpret_cast<uint2*>(out.values + row * out.values_stride + column) =
          make_uint2(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]));
  }
  if (out.block_codes != nullptr) {  // a warp has a block
    const float scale = quant_scale(warp_max(largest));
    if (writes) {
      if (column % kQuantColumns == 0)
        out.block_scales[row * out.block_scales_stride + column / kQuantColumns] = scale;
      store_four_codes(out.block_codes + row * out.block_codes_stride + column, v, scale);
    }
  }
  if (out.codes == nullptr) return;
  cluster_wait();  // every CTA has begun
  if (sharer != 0) return;
  // A warp tells all CTAs its largest value: 4 bytes to each.
  const auto lane = threadIdx.x % 32;
  largest = warp_max(largest);
  if (lane < kCluster) {
    const auto place =
        static_cast<int>(cluster_rank()) * warps + static_cast<int>(threadIdx.x) / 32;
    cluster_send(cluster_address(shared_address(&maxima[place]), lane), largest,
                 cluster_address(shared_address(&told), lane));
  }
  mbarrier_wait_cluster(shared_address(&told), 0);
  for (int i = static_cast<int>(lane); i < kCluster * warps; i += 32)
    largest = fmaxf(largest, maxima[i]);
  largest = warp_max(largest);
  if (writes) {
    const float scale = quant_scale(largest);
    if (column == 0) out.scales[row] = scale;
    store_four_codes(out.codes + row * out.codes_stride + column, v, scale);
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
      cudaFuncSetAttribute(attention_merge_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           columns_of_cta(kMergeWidthMax) / kVector * kLaneBytes);
  if (ready != cudaSuccess) return ready;
  const int threads = columns_of_cta(p.query_heads * p.width) / kVector;
  return launch_kernel(attention_merge_kernel,
                       {dim3(static_cast<unsigned>(rows * kCluster)),
                        dim3(static_cast<unsigned>(threads * sharers_of(threads, rows))),
                        static_cast<std::size_t>(threads * kLaneBytes), kCluster},
                       stream, out, p);
}

cudaError_t launch_attention_padding(const Attention& p, cudaStream_t stream) {
  constexpr int kBlocks = 8;
  return launch_kernel(attention_padding_kernel, {dim3(kBlocks), dim3(256)}, stream, p);
}

const void* kernel_of::attention_merge() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
