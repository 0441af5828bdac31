// SPDX-License-Identifier: Apache-2.0
// Joins what decode attention found for each row (attention_parts.cuh) and writes the row in the
// forms its readers need.
//
//   grid     a cluster of CTAs a row, a CTA some columns; they meet for the row's quantisation.
//            Of few rows 16, where the GPU has such clusters: each multiprocessor brings what it
//            joins at no more than 64 bytes a cycle
//   block    a thread has 4 neighbouring columns; threads of the same columns share the lanes
//   shared   24 bytes a lane and thread, and of few rows as much a group whose items are units
//   bytes    the partial sums once, from L2
//
// Numbers: docs/kernels/README.md, where attention_decode is both kernels.
#include <algorithm>

#include "cuda/attention_parts.cuh"
#include "cuda/launch.cuh"
#include "cuda/row.cuh"

namespace koho::cuda {
namespace {

constexpr int kCluster = 8;
constexpr int kClusterMax = 16;  // of few rows
constexpr int kVector = 4;
constexpr int kThreadsMax = 768;

/// Columns of one CTA: whole quantisation blocks.
constexpr int columns_of_cta(int width, int cluster) {
  return ((width + cluster - 1) / cluster + kQuantColumns - 1) / kQuantColumns * kQuantColumns;
}

/// Threads that share the spans of the same columns: as many as there are lanes, a block can have
/// and all `ctas` can keep resident, an eighth of the multiprocessors left out: a cluster is of
/// neighbours.
int sharers_of(const Attention& p, int column_threads, std::int64_t ctas, int lanes) {
  constexpr int kRegisters = 65536 / kThreadsMax / 8 * 8;  // that a thread may have
  const auto resident = [&](int threads) {
    return 65536 / (kRegisters * threads) * (p.multiprocessors - p.multiprocessors / 8);
  };
  int sharers = kMergeLanes;
  while (sharers > 1 && (sharers >= 2 * lanes || column_threads * sharers > kThreadsMax ||
                         ctas > resident(column_threads * sharers)))
    sharers /= 2;
  return sharers;
}
static_assert(columns_of_cta(kMergeWidthMax, kCluster) / kVector <= kThreadsMax);
/// Warps that write a row.
constexpr int kRowWarpsMax = kMergeWidthMax / kVector / 32 + kClusterMax;
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
  std::uint32_t item;  // floats from one of the row's items to the next
  int sums;
  int state;
};

struct Part {
  float4 sums;
  float2 state;
};

__device__ __forceinline__ Part load_item(const Place& place, int index) {
  const float* item = place.first + static_cast<std::uint32_t>(index) * place.item;
  return {__ldcg(reinterpret_cast<const float4*>(item + place.sums)),
          __ldcg(reinterpret_cast<const float2*>(item + place.state))};
}

/// A thread's share of the spans, and the lanes of its columns in shared memory.
struct Lanes {
  float* at;
  int threads;  // of all columns
  int sharer;   // its spans are sharer, sharer + sharers, …
  int sharers;

  __device__ __forceinline__ void put(int lane, const Sums& sums) const {
    float* to = at + lane * (kVector + 2) * threads;
    to[0] = sums.v.x;
    to[threads] = sums.v.y;
    to[2 * threads] = sums.v.z;
    to[3 * threads] = sums.v.w;
    to[4 * threads] = sums.state.largest;
    to[5 * threads] = sums.state.total;
  }
  __device__ __forceinline__ Sums get(int lane) const {
    const float* from = at + lane * (kVector + 2) * threads;
    Sums sums;
    sums.v = make_float4(from[0], from[threads], from[2 * threads], from[3 * threads]);
    sums.state = {from[4 * threads], from[5 * threads]};
    return sums;
  }
  /// Joins the row's span `span` to its lane.
  __device__ __forceinline__ void add(int span, const float4& v, const Softened& state) const {
    Sums sums;
    if (span >= kMergeLanes) sums = get(span % kMergeLanes);
    sums.add(v, state);
    put(span % kMergeLanes, sums);
  }
};

/// Some of a row's items, `first` to `first + count`: kEach to a span, but fewer to the last.
struct Run {
  int first;
  int count;
  int span;  // of the first
};

/// Joins those of this thread's spans to their lanes. kAhead are under way at a time.
template <int kEach, int kAhead>
__device__ __forceinline__ void add_items(const Lanes& lanes, const Place& place, const Run& run) {
  constexpr int kSpansAhead = kAhead / kEach;
  static_assert(kAhead % kEach == 0);
  const int sharers = lanes.sharers;
  int span = run.span + ((lanes.sharer - run.span) & (sharers - 1));
  int at = (span - run.span) * kEach;
#pragma unroll 1
  for (; at < run.count; span += kSpansAhead * sharers, at += kAhead * sharers) {
    Part parts[kSpansAhead][kEach];
#pragma unroll
    for (int i = 0; i < kSpansAhead; ++i)
#pragma unroll
      for (int j = 0; j < kEach; ++j)
        if (const int index = at + i * kEach * sharers + j; index < run.count)
          parts[i][j] = load_item(place, run.first + index);
#pragma unroll
    for (int i = 0; i < kSpansAhead; ++i) {
      const int index = at + i * kEach * sharers;
      if (index >= run.count) break;
      const auto state = [&](int j) { return Softened{parts[i][j].state.x, parts[i][j].state.y}; };
      if constexpr (kEach == 1) {
        lanes.add(span + i * sharers, parts[i][0].sums, state(0));
      } else {
        Sums sums;
#pragma unroll
        for (int j = 0; j < kEach; ++j)
          if (index + j < run.count) sums.add(parts[i][j].sums, state(j));
        lanes.add(span + i * sharers, sums.v, sums.state);
      }
    }
  }
}

/// The sums of group `group` of a row of `units` items, which are units, `each` a group.
__device__ __forceinline__ Sums join_units(const Place& place, int group, int each, int units) {
  constexpr int kUnitsAhead = 4;
  const int end = min(units, (group + 1) * each);
  Sums sums;
#pragma unroll 1
  for (int at = group * each; at < end; at += kUnitsAhead) {
    Part parts[kUnitsAhead];
#pragma unroll
    for (int i = 0; i < kUnitsAhead; ++i)
      if (at + i < end) parts[i] = load_item(place, at + i);
#pragma unroll
    for (int i = 0; i < kUnitsAhead; ++i)
      if (at + i < end) sums.add(parts[i].sums, {parts[i].state.x, parts[i].state.y});
  }
  return sums;
}

/// A row whose items are units, and how they make groups and spans.
struct Units {
  int count;
  int each;  // a group
  int groups;
  int spans;
};

/// Joins a row's units to its lanes. Where spans are wide and each group has one of the `slots`,
/// all threads make groups first. The whole CTA; columns beyond the row's are not `used`.
__device__ __forceinline__ void add_units(
    const Lanes& lanes, const Place& place, const Units& row, int slots, bool used) {
  const bool wide = row.spans < row.groups;
  const bool by_slots = wide && row.groups <= slots;
  const bool whole_spans = wide && !by_slots;
  Lanes groups = lanes;
  groups.at += kMergeLanes * (kVector + 2) * lanes.threads;
  const int jump = whole_spans ? (lanes.sharers - 1) * kSpanGroups : lanes.sharers - 1;
  Sums span;
#pragma unroll 1
  for (int i = whole_spans ? lanes.sharer * kSpanGroups : lanes.sharer; i < row.groups && used;
       ++i) {
    const Sums group = join_units(place, i, row.each, row.count);
    if (by_slots) {
      groups.put(i, group);
    } else if (!wide) {
      lanes.add(i, group.v, group.state);
    } else {
      span.add(group.v, group.state);
      if ((i + 1) % kSpanGroups != 0 && i + 1 < row.groups) continue;
      lanes.add(i / kSpanGroups, span.v, span.state);
      span = Sums();
    }
    i += jump;
  }
  if (!by_slots) return;
  __syncthreads();
#pragma unroll 1
  for (int i = lanes.sharer; i < row.spans && used; i += lanes.sharers) {
    const int end = min(row.groups, (i + 1) * kSpanGroups);
    for (int j = i * kSpanGroups; j < end; ++j) {
      const Sums group = groups.get(j);
      span.add(group.v, group.state);
    }
    lanes.add(i, span.v, span.state);
    span = Sums();
  }
}

/// What a row's threads must know: how the step's contexts are cut, and how many items come before
/// the row's.
struct RowItems {
  bool units;
  int spans;  // of the row that are items
  int before;
};

/// All threads; `sums` holds five zeros.
__device__ RowItems count_items(const Attention& p, int row, int* sums) {
  int groups = 0;
  int groups_before = 0;
  int units_before = 0;
  int spans = 0;
  int spans_before = 0;
  for (int sequence = static_cast<int>(threadIdx.x); sequence < p.decodes;
       sequence += static_cast<int>(blockDim.x)) {
    const int context = p.context_lengths[sequence];
    groups += groups_of(p, context);
    spans += wide_spans_of(p, context);
    if (sequence >= row) continue;
    groups_before += groups_of(p, context);
    units_before += units_of(context);
    spans_before += wide_spans_of(p, context);
  }
  if (groups != 0) atomicAdd(&sums[0], groups);
  if (groups_before != 0) atomicAdd(&sums[1], groups_before);
  if (units_before != 0) atomicAdd(&sums[2], units_before);
  if (spans != 0) atomicAdd(&sums[3], spans);
  if (spans_before != 0) atomicAdd(&sums[4], spans_before);
  __syncthreads();
  if (items_are_units(p, sums[0])) return {true, 0, sums[2]};
  const int items = span_items(p, sums[3]);
  const int before = min(sums[4], items);
  const int own = row < p.decodes ? wide_spans_of(p, p.context_lengths[row]) : 0;
  return {false, min(own, items - before), sums[1] - (kSpanGroups - 1) * before};
}

__device__ __forceinline__ void store_four_codes(std::uint8_t* to,
                                                 const float (&v)[kVector],
                                                 float scale) {
  *reinterpret_cast<std::uint32_t*>(to) =
      pack_e4m3(v[0] / scale, v[1] / scale, v[2] / scale, v[3] / scale);
}

__global__ void __launch_bounds__(kThreadsMax, 1) attention_merge_kernel(
    const RowForms out, const __grid_constant__ Attention p, int columns, int slots) {
  // [lane][sums, largest, total][thread of the columns]
  extern __shared__ __align__(16) float shared_lanes[];
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
  if (threadIdx.x == 0 && out.codes != nullptr) {
    mbarrier_init(shared_address(&told), 1);
    mbarrier_init_fence();
    mbarrier_arrive_expect(shared_address(&told), static_cast<std::uint32_t>(cluster * warps) * 4);
  }
  __syncthreads();
  if (out.codes != nullptr) cluster_arrive();
  const RowItems items = count_items(p, row, counts);
  const int groups = groups_of(p, context);
  const int head = column / p.width;
  const int group = p.query_heads / p.kv_heads;
  Place place;
  place.item = static_cast<std::uint32_t>(p.kv_heads * item_floats(group, p.width));
  place.first = p.partial + static_cast<std::int64_t>(items.before) * place.item +
                static_cast<std::int64_t>(head / group) * item_floats(group, p.width);
  place.sums = head % group * p.width + column % p.width;
  place.state = group * p.width + 2 * (head % group);
  const Lanes lanes{shared_lanes + thread, threads, sharer, sharers};
  grid_begin();

  const bool wide = groups > kMergeLanes;
  const int spans = wide ? (groups + kSpanGroups - 1) / kSpanGroups : groups;
  if (items.units) {
    add_units(lanes, place, {units_of(context), p.group_tokens / kUnitTokens, groups, spans}, slots,
              column < width);
  } else if (column < width) {
    const int own = items.spans;
    add_items<1, 6>(lanes, place, {0, wide ? own : groups, 0});
    if (wide) add_items<kSpanGroups, 8>(lanes, place, {own, groups - kSpanGroups * own, own});
  }
  const int lanes_used = min(spans, kMergeLanes);
  __syncthreads();
  const bool writes = sharer == 0 && column < width;
  float v[kVector] = {};
  float largest = 0.0F;
  if (writes) {
    Sums sums;
    for (int lane = 0; lane < lanes_used; ++lane) {
      const Sums more = lanes.get(lane);
      sums.add(more.v, more.state);
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
    const float scale = quant_scale(warp_largest(largest));
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
  largest = warp_largest(largest);
  if (static_cast<int>(lane) < cluster) {
    const auto place =
        static_cast<int>(cluster_rank()) * warps + static_cast<int>(threadIdx.x) / 32;
    cluster_send(cluster_address(shared_address(&maxima[place]), lane), largest,
                 cluster_address(shared_address(&told), lane));
  }
  mbarrier_wait_cluster(shared_address(&told), 0);
  for (int i = static_cast<int>(lane); i < cluster * warps; i += 32)
    largest = fmaxf(largest, maxima[i]);
  largest = warp_largest(largest);
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

/// Whether clusters of kClusterMax fit the GPU: more than 8 CTAs need not.
bool has_wide_clusters(std::size_t shared_bytes) {
  const cudaError_t allowed = cudaFuncSetAttribute(
      attention_merge_kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = kClusterMax;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(kClusterMax);
  config.blockDim = dim3(kThreadsMax);
  config.dynamicSmemBytes = shared_bytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  const cudaError_t found =
      allowed != cudaSuccess
          ? allowed
          : cudaOccupancyMaxActiveClusters(&clusters, attention_merge_kernel, &config);
  if (found != cudaSuccess) cudaGetLastError();  // not the next launch's
  return found == cudaSuccess && clusters > 0;
}

}  // namespace

bool attention_merge_takes(const RowForms& out, std::int64_t width) {
  return row_vectors(out, nullptr, 0, width);
}

cudaError_t launch_attention_merge(const RowForms& out,
                                   const Attention& p,
                                   std::int64_t rows,
                                   cudaStream_t stream) {
  constexpr int kSlotBytes = (kVector + 2) * static_cast<int>(sizeof(float));
  // kv_heads * kGroupThreads are enough for a CTA's columns.
  constexpr int kGroupThreads = 16 * 128 / kCluster / kVector;
  constexpr int kSharedMax = (columns_of_cta(kMergeWidthMax, kCluster) / kVector * kMergeLanes +
                              kGroupThreads * kUnitGroupsMax) *
                             kSlotBytes;
  static PerDevice prepared;
  const cudaError_t ready =
      prepared.once([] { return use_shared_memory(attention_merge_kernel, kSharedMax); });
  if (ready != cudaSuccess) return ready;
  static PerDevice clusters;
  const int widest =
      clusters.number([] { return has_wide_clusters(kSharedMax) ? kClusterMax : kCluster; });
  const int cluster = 4 * rows * widest <= p.multiprocessors ? widest : kCluster;
  const int columns = columns_of_cta(p.query_heads * p.width, cluster);
  const int threads = columns / kVector;
  const int groups = (p.context_max + p.group_tokens - 1) / p.group_tokens;
  const int sharers = sharers_of(p, threads, rows * cluster, std::min(groups, kMergeLanes));
  // Room for groups of units where it keeps few kernels from a multiprocessor.
  const bool few = 4 * rows * kCluster <= p.multiprocessors;
  const int slots = few ? std::min(groups, kUnitGroupsMax / p.kv_heads) : 0;
  return launch_kernel(
      attention_merge_kernel,
      {dim3(static_cast<unsigned>(rows * cluster)), dim3(static_cast<unsigned>(threads * sharers)),
       static_cast<std::size_t>(threads * (kMergeLanes + slots) * kSlotBytes), cluster},
      stream, out, p, columns, slots);
}

cudaError_t launch_attention_padding(const Attention& p, cudaStream_t stream) {
  constexpr int kBlocks = 8;
  return launch_kernel(attention_padding_kernel, {dim3(kBlocks), dim3(256)}, stream, p);
}

const void* kernel_of::attention_merge() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
