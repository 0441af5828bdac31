// SPDX-License-Identifier: Apache-2.0
// Decode attention: one query row a sequence, its context cut into items (attention_parts.cuh).
//
//   grid     persistent, two CTAs an SM; items are listed on the device from the context lengths,
//            so a captured graph serves every length
//   roles    warp 4 lets the copy engine bring pages; warps 0-3 take each page together: the query
//            heads of the kv head are the 16 rows of the matrix instruction, a warp scores 16
//            tokens, the softmax is the page's, and a warp sums a quarter of the columns
//   shared   a ring of pages, some 100 KB; 14 KB for an item's query rows, scores and the list
//   bytes    every K and V byte once: bound by memory
//
// Numbers: docs/kernels/README.md.
#include <type_traits>

#include "cuda/attention.cuh"
#include "cuda/attention_parts.cuh"
#include "cuda/launch.cuh"

namespace koho::cuda {
namespace {

constexpr int kConsumers = 128;
constexpr int kWarps = kConsumers / 32;
constexpr int kThreads = kConsumers + 32;
constexpr int kGroupMax = 16;
constexpr int kSequencesMax = 1024;
constexpr int kRingBytes = 100 << 10;  // of one CTA: two fit an SM
constexpr int kRowBarrier = 1;         // named barrier of the consumers

template <int kWidth, bool kFp8>
struct DecodePlan {
  using Page = PageShape<kWidth, kFp8>;
  static constexpr std::uint32_t kStages = kRingBytes / Page::kStage;
  static constexpr int kShared = static_cast<int>(kStages) * Page::kStage + 1024;
  static constexpr int kColumns = kWidth / kWarps;  // of a warp
  static constexpr int kTiles = kColumns / 8;
  static constexpr int kTogether = kFp8 ? 2 : 1;  // pages in work at once: the ring must hold more
};

/// What the consumers tell each other about a page.
struct Exchange {
  float largest[kGroupMax][kWarps];
  float largest_v[kGroupMax][kWarps];
  float total[kGroupMax][kWarps];
  std::uint32_t weights[kGroupMax * kPage / 2];  // [row][token], 16 bits, swizzled
};

/// The first item of each sequence, per kv head; first_item[decodes] is their number.
struct Items {
  bool pages;  // an item is a page, else a group
  int first[kSequencesMax + 1];
  unsigned long long warp_sums[kThreads / 32];
};

/// All threads. Counts of groups (low) and pages (high) are summed together.
__device__ void list_items(const Attention& p, Items& items) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int each = p.decodes / kThreads + 1;  // at least one entry more than sequences
  const auto count = [&](int i) {
    const int sequence = thread * each + i;
    if (sequence >= p.decodes) return 0ULL;
    const int context = p.context_lengths[sequence];
    return static_cast<unsigned long long>(groups_of(p, context)) |
           static_cast<unsigned long long>(pages_of(context)) << 32U;
  };
  unsigned long long sum = 0;
  for (int i = 0; i < each; ++i) sum += count(i);
  unsigned long long before = sum;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const unsigned long long other = __shfl_up_sync(0xFFFFFFFFU, before, offset);
    if (lane >= offset) before += other;
  }
  if (lane == 31) items.warp_sums[thread / 32] = before;
  __syncthreads();
  before -= sum;
  unsigned long long all = 0;
#pragma unroll
  for (int warp = 0; warp < kThreads / 32; ++warp) {
    if (warp == thread / 32) before += all;
    all += items.warp_sums[warp];
  }
  const bool pages = items_are_pages(p, static_cast<int>(all & 0xFFFFFFFFU));
  if (thread == 0) items.pages = pages;
  for (int i = 0; i < each; ++i) {
    const int sequence = thread * each + i;
    if (sequence <= p.decodes)
      items.first[sequence] = static_cast<int>(pages ? before >> 32U : before & 0xFFFFFFFFU);
    before += count(i);
  }
  __syncthreads();
}

/// One work item: pages `first_page` .. of a sequence's context.
struct Item {
  int sequence;
  int kv_head;
  int first_page;
  int pages;
  int tokens;
};

__device__ __forceinline__ Item find_item(const Attention& p, const Items& items, int index) {
  const int part = index / p.kv_heads;
  int low = 0;
  for (int high = p.decodes; low + 1 < high;) {
    const int middle = (low + high) / 2;
    if (items.first[middle] <= part)
      low = middle;
    else
      high = middle;
  }
  while (items.first[low + 1] <= part) ++low;  // sequences of no items
  const int tokens = items.pages ? kPage : p.group_tokens;
  const int begin = (part - items.first[low]) * tokens;
  Item item;
  item.sequence = low;
  item.kv_head = index % p.kv_heads;
  item.first_page = begin / kPage;
  item.tokens = min(tokens, p.context_lengths[low] - begin);
  item.pages = pages_of(item.tokens);
  return item;
}

/// The query rows of the next item, and the item.
template <int kWidth>
struct Query {
  Bf16 rows[kGroupMax][kWidth + 8];  // NOTE: 16 bytes more, so that 8 rows meet different banks
  Item item;
};

struct Ring {
  std::uint32_t stages;
  std::uint32_t full;
  std::uint32_t empty;
  std::uint32_t query_full;
  std::uint32_t query_empty;
};

/// Keeps the ring full. Pages that no kernel of this step writes come before the wait for the
/// kernel before. One warp.
template <int kWidth, bool kFp8>
__device__ void produce(const Attention& p,
                        const PageMaps& maps,
                        const Items& items,
                        Query<kWidth>& query,
                        const Ring& ring) {
  using Plan = DecodePlan<kWidth, kFp8>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int group = p.query_heads / p.kv_heads;
  const std::uint64_t policy = evict_first_policy();
  const std::uint64_t policy_query = evict_normal_policy();
  const int count = items.first[p.decodes] * p.kv_heads;
  std::uint32_t stage = 0;
  std::uint32_t parity = 1;
  std::uint32_t query_parity = 1;
  std::uint32_t ahead = 0;  // pages under way before the wait
  bool waited = false;
  for (int index = static_cast<int>(blockIdx.x); index < count;
       index += static_cast<int>(gridDim.x)) {
    const Item item = find_item(p, items, index);
    const auto send_query = [&] {
      mbarrier_wait(ring.query_empty, query_parity);
      query_parity ^= 1;
      if (lane == 0) {
        query.item = item;
        mbarrier_arrive_expect(ring.query_full, static_cast<std::uint32_t>(group * kWidth * 2));
      }
      __syncwarp();
      const std::int64_t row =
          static_cast<std::int64_t>(item.sequence) * p.query_heads + item.kv_head * group + lane;
      if (lane < group)
        bulk_copy(shared_address(query.rows[lane]), p.q + row * kWidth, kWidth * 2, ring.query_full,
                  policy_query);
    };
    const auto begin = [&] {
      grid_begin();
      waited = true;
      send_query();
    };
    if (waited) send_query();
    const std::int32_t* table =
        p.page_tables + item.sequence * p.page_tables_stride + item.first_page;
    const int last_page = (p.context_lengths[item.sequence] - 1) / kPage - item.first_page;
    int number = 0;
    for (int page = 0; page < item.pages; ++page) {
      if (page % 32 == 0 && page + lane < item.pages) number = table[page + lane];
      const int wanted = __shfl_sync(0xFFFFFFFFU, number, page % 32);
      if (!waited && (page == last_page || ahead == Plan::kStages)) begin();
      ++ahead;
      if (lane == 0) {
        mbarrier_wait(ring.empty + 8 * stage, parity);
        copy_page<kWidth, kFp8>(p, maps, wanted, item.kv_head,
                                ring.stages + stage * Plan::Page::kStage, ring.full + 8 * stage,
                                policy);
      }
      __syncwarp();
      if (++stage == Plan::kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
    if (!waited) begin();
  }
  if (!waited) grid_begin();
}

/// One warp's share of an item's rows: its columns' sums, and the softmax that all warps know.
template <int kWidth, bool kFp8>
struct Rows {
  using Plan = DecodePlan<kWidth, kFp8>;
  float sum[Plan::kTiles][4] = {};
  Softened state[2];  // rows g and g + 8
};

/// This warp's 16 tokens: scores of base 2, -infinity beyond `left`.
template <int kWidth, bool kFp8>
__device__ __forceinline__ void score_tokens(float (&score)[2][4],
                                             float (&log_v)[2][2],
                                             const std::uint32_t (&q)[kWidth / 16][4],
                                             std::uint32_t stage,
                                             const std::uint8_t* stage_bytes,
                                             int left) {
  using Page = PageShape<kWidth, kFp8>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first = static_cast<int>(threadIdx.x) / 32 * 16;
  multiply_keys<kWidth, kFp8>(score, q, stage, first);
  const float scale = kLog2E / sqrtf(static_cast<float>(kWidth));
#pragma unroll
  for (int tile = 0; tile < 2; ++tile)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = first + tile * 8 + lane % 4 * 2 + i;
      float factor = scale;
      if constexpr (kFp8) {
        const auto* scales = reinterpret_cast<const float*>(stage_bytes + 2 * Page::kBytes);
        factor *= scales[at];
        log_v[tile][i] = __log2f(scales[kPage + at]);
      }
      score[tile][i] = at < left ? score[tile][i] * factor : -INFINITY;
      score[tile][i + 2] = at < left ? score[tile][i + 2] * factor : -INFINITY;
    }
}

/// The largest of a row's four warps.
__device__ __forceinline__ float four_max(const float (&values)[kWarps]) {
  const float4 four = *reinterpret_cast<const float4*>(values);
  return fmaxf(fmaxf(four.x, four.y), fmaxf(four.z, four.w));
}

/// Scores a page, tells the other warps this one's largest, clears what lies beyond the context.
template <int kWidth, bool kFp8>
__device__ __forceinline__ void score_page(float (&score)[2][4],
                                           float (&log_v)[2][2],
                                           const std::uint32_t (&q)[kWidth / 16][4],
                                           Exchange& exchange,
                                           std::uint8_t* stage_bytes,
                                           int left) {
  using Page = PageShape<kWidth, kFp8>;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = lane / 4;
  score_tokens<kWidth, kFp8>(score, log_v, q, shared_address(stage_bytes), stage_bytes, left);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float(&low)[4] = score[0];
    const float(&high)[4] = score[1];
    const int i = half * 2;
    const float largest = quad_max(fmaxf(fmaxf(low[i], low[i + 1]), fmaxf(high[i], high[i + 1])));
    if (lane % 4 == 0) exchange.largest[row + half * 8][warp] = largest;
    if constexpr (kFp8) {
      const float largest_v =
          quad_max(fmaxf(fmaxf(low[i] + log_v[0][0], low[i + 1] + log_v[0][1]),
                         fmaxf(high[i] + log_v[1][0], high[i + 1] + log_v[1][1])));
      if (lane % 4 == 0) exchange.largest_v[row + half * 8][warp] = largest_v;
    }
  }
  if (left < kPage) {  // what lies beyond the context may be NaN, which no weight of 0 undoes
    for (int i = lane; i < 16 * Page::kChunks; i += 32) {
      const int token = warp * 16 + i / Page::kChunks;
      if (token >= left)
        *reinterpret_cast<uint4*>(stage_bytes + Page::kBytes +
                                  Page::place(token, i % Page::kChunks)) = make_uint4(0, 0, 0, 0);
    }
  }
}

/// The softmax of a page: its weights go to shared memory. scale_v multiplies the page's sums.
template <int kWidth, bool kFp8>
__device__ __forceinline__ void weigh_page(Softened (&page)[2],
                                           float (&scale_v)[2],
                                           const float (&score)[2][4],
                                           const float (&log_v)[2][2],
                                           Exchange& exchange) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int at = lane / 4 + half * 8;
    page[half].largest = four_max(exchange.largest[at]);
    const float base = page[half].largest == -INFINITY ? 0.0F : page[half].largest;
    float base_v = base;
    if constexpr (kFp8) {
      const float largest_v = four_max(exchange.largest_v[at]);
      base_v = largest_v == -INFINITY ? 0.0F : largest_v;
      scale_v[half] = exp2_approximate(base_v - base);
    }
    float total = 0.0F;
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      float weight[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float s = score[tile][half * 2 + i];
        const float share = exp2_approximate(s - base);
        // The sum takes the weights as rounded for the product: their errors cancel in part.
        weight[i] = kFp8 ? share : round_bf16(share);
        total += weight[i];
        if constexpr (kFp8)
          weight[i] = s == -INFINITY ? 0.0F : exp2_approximate(s + log_v[tile][i] - base_v);
      }
      std::uint32_t packed;
      if constexpr (kFp8) {
        const __half2 two = __floats2half2_rn(weight[0], weight[1]);
        packed = *reinterpret_cast<const std::uint32_t*>(&two);
      } else {
        packed = pack_bf16(weight[0], weight[1]);
      }
      exchange.weights[at * (kPage / 2) + ((warp * 2 + tile) ^ (at & 7)) * 4 + lane % 4] = packed;
    }
    total = quad_sum(total);
    if (lane % 4 == 0) exchange.total[at][warp] = total;
  }
}

/// This warp's columns of a page's weights times v.
template <int kWidth, bool kFp8>
__device__ __forceinline__ void sum_page(float (&part)[DecodePlan<kWidth, kFp8>::kTiles][4],
                                         const Exchange& exchange,
                                         std::uint32_t values) {
  using Page = PageShape<kWidth, kFp8>;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  std::uint32_t weights[kPage / 16][4];
  const std::uint32_t weights_at = shared_address(exchange.weights);
#pragma unroll
  for (int step = 0; step < kPage / 16; ++step)
    load_matrices(weights[step],
                  weights_at + static_cast<std::uint32_t>(
                                   lane % 16 * 128 + ((step * 2 + lane / 16) ^ (lane & 7)) * 16));
  constexpr int kChunks = Page::kChunks / kWarps;  // of this warp's columns
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      std::uint32_t v[4];  // tokens 8 * i .. of 32, this chunk
      load_matrices_transposed(v, values + Page::place(half * 32 + lane, warp * kChunks + chunk));
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const std::uint32_t(&w)[4] = weights[half * 2 + j];
        if constexpr (kFp8) {
          std::uint32_t even[2];
          std::uint32_t odd[2];
#pragma unroll
          for (int i = 0; i < 2; ++i)
            e4m3_to_f16(__byte_perm(v[2 * j + i], 0, 0x3120), even[i], odd[i]);
          mma_f16(part[2 * chunk], w[0], w[1], w[2], w[3], even[0], even[1]);
          mma_f16(part[2 * chunk + 1], w[0], w[1], w[2], w[3], odd[0], odd[1]);
        } else {
          mma_bf16(part[chunk], w[0], w[1], w[2], w[3], v[2 * j], v[2 * j + 1]);
        }
      }
    }
}

/// Joins kPages pages to the rows, in order; they are in work together, which hides latency. All
/// consumers.
template <int kWidth, bool kFp8, int kPages>
__device__ __forceinline__ void take_pages(Rows<kWidth, kFp8>& rows,
                                           const std::uint32_t (&q)[kWidth / 16][4],
                                           Exchange* exchange,
                                           std::uint8_t* const (&stage_bytes)[kPages],
                                           int left) {
  using Plan = DecodePlan<kWidth, kFp8>;
  const int row = static_cast<int>(threadIdx.x) % 32 / 4;
  float score[kPages][2][4];
  float log_v[kPages][2][2] = {};
#pragma unroll
  for (int i = 0; i < kPages; ++i)
    score_page<kWidth, kFp8>(score[i], log_v[i], q, exchange[i], stage_bytes[i], left - i * kPage);
  named_barrier(kRowBarrier, kConsumers);
  Softened page[kPages][2];
  float scale_v[kPages][2];
#pragma unroll
  for (int i = 0; i < kPages; ++i)
    weigh_page<kWidth, kFp8>(page[i], scale_v[i], score[i], log_v[i], exchange[i]);
  named_barrier(kRowBarrier, kConsumers);
  float part[kPages][Plan::kTiles][4] = {};
#pragma unroll
  for (int i = 0; i < kPages; ++i)
    sum_page<kWidth, kFp8>(part[i], exchange[i],
                           shared_address(stage_bytes[i]) + Plan::Page::kBytes);
#pragma unroll
  for (int i = 0; i < kPages; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float4 totals = *reinterpret_cast<const float4*>(exchange[i].total[row + half * 8]);
      page[i][half].total = ((totals.x + totals.y) + totals.z) + totals.w;
      const float2 factor = join(rows.state[half], page[i][half]);
#pragma unroll
      for (int tile = 0; tile < Plan::kTiles; ++tile)
#pragma unroll
        for (int j = half * 2; j < half * 2 + 2; ++j) {
          float more = part[i][tile][j];
          if constexpr (kFp8) more = __fmul_rn(more, scale_v[i][half]);
          rows.sum[tile][j] = join_sum(rows.sum[tile][j], more, factor);
        }
    }
}

/// Multiplies what the producer brings. Four warps.
template <int kWidth, bool kFp8>
__device__ void consume(const Attention& p,
                        const Items& items,
                        const Query<kWidth>& query,
                        Exchange* exchange,
                        std::uint8_t* shared,
                        const Ring& ring) {
  using Plan = DecodePlan<kWidth, kFp8>;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int group = p.query_heads / p.kv_heads;
  const int row = lane / 4;
  const int count = items.first[p.decodes] * p.kv_heads;
  std::uint32_t stage = 0;
  std::uint32_t parity = 0;
  std::uint32_t query_parity = 0;
  grid_begin();
  for (int index = static_cast<int>(blockIdx.x); index < count;
       index += static_cast<int>(gridDim.x)) {
    mbarrier_wait(ring.query_full, query_parity);
    query_parity ^= 1;
    const int tokens = query.item.tokens;
    const int pages = query.item.pages;
    std::uint32_t q[kWidth / 16][4];
    load_query<kWidth, kFp8>(q, row < group ? query.rows[row] : nullptr,
                             row + 8 < group ? query.rows[row + 8] : nullptr);
    mbarrier_arrive(ring.query_empty);
    Rows<kWidth, kFp8> rows;
    // Takes the next kPages pages, which begin at `page` of the item.
    const auto take = [&]<int kPages>(std::integral_constant<int, kPages>, int page) {
      std::uint8_t* stage_bytes[kPages];
      std::uint32_t free[kPages];
#pragma unroll
      for (int i = 0; i < kPages; ++i) {
        mbarrier_wait(ring.full + 8 * stage, parity);
        stage_bytes[i] = shared + stage * Plan::Page::kStage;
        free[i] = ring.empty + 8 * stage;
        if (++stage == Plan::kStages) {
          stage = 0;
          parity ^= 1;
        }
      }
      const int left = tokens - page * kPage;
      take_pages<kWidth, kFp8, kPages>(rows, q, exchange, stage_bytes, left);
      if (left < kPages * kPage) proxy_fence();  // tokens were cleared by ordinary writes
#pragma unroll
      for (int i = 0; i < kPages; ++i) mbarrier_arrive(free[i]);
    };
    int page = 0;
    if constexpr (Plan::kTogether > 1)
      for (; page + Plan::kTogether <= pages; page += Plan::kTogether)
        take(std::integral_constant<int, Plan::kTogether>{}, page);
    for (; page < pages; ++page) take(std::integral_constant<int, 1>{}, page);
    float* out = p.partial + static_cast<std::int64_t>(index) * item_floats(group, kWidth);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = row + half * 8;
      if (at >= group) continue;
      float* sums = out + at * kWidth + warp * Plan::kColumns;
#pragma unroll
      for (int tile = 0; tile < Plan::kTiles; ++tile) {
        sums[sum_column<kFp8>(tile, half * 2)] = rows.sum[tile][half * 2];
        sums[sum_column<kFp8>(tile, half * 2 + 1)] = rows.sum[tile][half * 2 + 1];
      }
      if (warp == 0 && lane % 4 == 0)
        *reinterpret_cast<float2*>(out + group * kWidth + 2 * at) =
            make_float2(rows.state[half].largest, rows.state[half].total);
    }
  }
}

template <int kWidth, bool kFp8>
__global__ void __launch_bounds__(kThreads, 2)
    attention_decode_kernel(const __grid_constant__ Attention p,
                            const __grid_constant__ PageMaps maps) {
  using Plan = DecodePlan<kWidth, kFp8>;
  extern __shared__ std::uint8_t shared_bytes[];
  __shared__ __align__(8) std::uint64_t barriers[2 * Plan::kStages + 2];
  __shared__ Items items;
  __shared__ __align__(128) Exchange exchange[Plan::kTogether];
  __shared__ __align__(128) Query<kWidth> query;
  const std::uint32_t base = shared_address(shared_bytes);
  Ring ring;
  ring.stages = (base + 1023) / 1024 * 1024;
  ring.full = shared_address(barriers);
  ring.empty = ring.full + 8 * Plan::kStages;
  ring.query_full = ring.empty + 8 * Plan::kStages;
  ring.query_empty = ring.query_full + 8;
  if (threadIdx.x == 0) {
    tensor_map_prefetch(&maps.k);
    tensor_map_prefetch(&maps.v);
    for (std::uint32_t stage = 0; stage < Plan::kStages; ++stage) {
      mbarrier_init(ring.full + 8 * stage, 1);
      mbarrier_init(ring.empty + 8 * stage, kConsumers);
    }
    mbarrier_init(ring.query_full, 1);
    mbarrier_init(ring.query_empty, kConsumers);
    mbarrier_init_fence();
  }
  list_items(p, items);
  if (threadIdx.x >= kConsumers)
    produce<kWidth, kFp8>(p, maps, items, query, ring);
  else
    consume<kWidth, kFp8>(p, items, query, exchange, shared_bytes + (ring.stages - base), ring);
}

template <int kWidth, bool kFp8>
cudaError_t launch_items(const Attention& p, cudaStream_t stream) {
  constexpr int kShared = DecodePlan<kWidth, kFp8>::kShared;
  const auto kernel = attention_decode_kernel<kWidth, kFp8>;
  static const cudaError_t ready = [&] {
    const cudaError_t status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
    return status != cudaSuccess
               ? status
               : cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                      cudaSharedmemCarveoutMaxShared);
  }();
  if (ready != cudaSuccess) return ready;
  PageMaps maps;
  const cudaError_t made = make_page_maps(maps, p);
  if (made != cudaSuccess) return made;
  return launch_kernel(
      kernel, {dim3(static_cast<unsigned>(2 * p.multiprocessors)), dim3(kThreads), kShared}, stream,
      p, maps);
}

}  // namespace

bool attention_has_fast_form(const Attention& p) {
  const std::int64_t rows = p.pages * p.kv_heads * kPage;
  return (p.width == 64 || p.width == 128) && p.query_heads / p.kv_heads <= kGroupMax &&
         p.decodes <= kSequencesMax && rows < INT32_MAX &&
         p.query_heads * p.width <= kMergeWidthMax;
}

std::int64_t attention_partial_floats(std::int64_t decodes,
                                      std::int64_t context_max,
                                      std::int64_t group_tokens,
                                      std::int64_t query_heads,
                                      std::int64_t kv_heads,
                                      std::int64_t width) {
  const std::int64_t groups =
      decodes * ((context_max + group_tokens - 1) / group_tokens) * kv_heads;
  const std::int64_t pages = kPagedGroupsMax * (group_tokens / kPage);
  const std::int64_t items = groups > kPagedGroupsMax ? (groups > pages ? groups : pages)
                                                      : groups * (group_tokens / kPage);
  return items * item_floats(static_cast<int>(query_heads / kv_heads), static_cast<int>(width));
}

cudaError_t launch_attention_decode(const Attention& p, cudaStream_t stream) {
  const bool fp8 = p.k_scales != nullptr;
  if (p.width == 128)
    return fp8 ? launch_items<128, true>(p, stream) : launch_items<128, false>(p, stream);
  return fp8 ? launch_items<64, true>(p, stream) : launch_items<64, false>(p, stream);
}

}  // namespace koho::cuda
