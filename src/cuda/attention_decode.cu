// SPDX-License-Identifier: Apache-2.0
// Decode attention: one query row a sequence, its context cut into items (attention_parts.cuh).
//
//   grid     persistent, two CTAs an SM; items are listed on the device from the context lengths,
//            so a captured graph serves every length. Whole groups go round the CTAs first, then
//            what is left of each context: in the order of contexts, CTAs met only whole groups or
//            only rests when their number divided what a context has
//   roles    warp 4 lets the copy engine bring pages; warps 0-3 take two pages together: the query
//            heads of the kv head are the 16 rows of the matrix instruction, a warp scores 32
//            tokens, the softmax is that of all 128, and a warp sums a quarter of the columns
//   shared   a ring of pages of K and of V, some 100 KB; 14 KB for an item's query rows, weights
//            and the list of items
//   bytes    every K and V byte once: bound by memory
//
// Numbers: docs/kernels/README.md.
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
constexpr int kRingBytes = 96 << 10;     // of one CTA
constexpr int kCtaBytesMax = 113 << 10;  // of shared memory, so that two CTAs fit an SM
constexpr int kRowBarrier = 1;           // named barrier of the consumers

constexpr int kUnitPages = kUnitTokens / kPage;
constexpr int kWarpTokens = kUnitTokens / kWarps;  // that a warp scores
constexpr int kScoreTiles = kWarpTokens / 8;

template <int kWidth, bool kFp8>
struct DecodePlan {
  using Page = PageShape<kWidth, kFp8>;
  // A page of K with the scales of K and of V, or a page of V.
  static constexpr int kSlot = (Page::kBytes + 2 * Page::kScaleBytes + 1023) / 1024 * 1024;
  static constexpr std::uint32_t kSlots = kRingBytes / kSlot;
  static constexpr int kShared = static_cast<int>(kSlots) * kSlot + 1024;
  static constexpr int kColumns = kWidth / kWarps;  // of a warp
  static constexpr int kTiles = kColumns / 8;
};

/// What the consumers tell each other about a unit.
struct Exchange {
  float largest[kGroupMax][kWarps];
  float largest_v[kGroupMax][kWarps];
  float total[kGroupMax][kWarps];
  std::uint32_t weights[kGroupMax * kUnitTokens / 2];  // [row][token], 16 bits, swizzled
};

/// How many items a context has: whole ones, and 1 if a shorter one is left.
struct Count {
  static constexpr unsigned kWholeBits = 20;  // tokens of 2^20 groups exceed every memory
  std::uint32_t packed;                       // whole ones low, rests high

  __device__ __forceinline__ int whole() const {
    return static_cast<int>(packed & ((1U << kWholeBits) - 1));
  }
  __device__ __forceinline__ int rests() const { return static_cast<int>(packed >> kWholeBits); }
  __device__ __forceinline__ int all() const { return whole() + rests(); }
};
static_assert(kSequencesMax < 1 << (32 - Count::kWholeBits));

/// The items of all sequences before each one, per kv head; before[decodes] is their number.
struct Items {
  int tokens;  // of a whole one: a unit or a group
  Count before[kSequencesMax + 1];
  unsigned long long warp_sums[kThreads / 32];
};

__device__ __forceinline__ std::uint32_t count_items(int context, int tokens) {
  return static_cast<std::uint32_t>(context / tokens) |
         static_cast<std::uint32_t>(context % tokens != 0) << Count::kWholeBits;
}

/// All threads. Counts by groups (low) and by units (high) are summed together.
__device__ void list_items(const Attention& p, Items& items) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int each = p.decodes / kThreads + 1;  // at least one entry more than sequences
  const auto count = [&](int i) {
    const int sequence = thread * each + i;
    if (sequence >= p.decodes) return 0ULL;
    const int context = p.context_lengths[sequence];
    return static_cast<unsigned long long>(count_items(context, p.group_tokens)) |
           static_cast<unsigned long long>(count_items(context, kUnitTokens)) << 32U;
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
  const bool units = items_are_units(p, Count{static_cast<std::uint32_t>(all)}.all());
  if (thread == 0) items.tokens = units ? kUnitTokens : p.group_tokens;
  for (int i = 0; i < each; ++i) {
    const int sequence = thread * each + i;
    if (sequence <= p.decodes)
      items.before[sequence].packed = static_cast<std::uint32_t>(units ? before >> 32U : before);
    before += count(i);
  }
  __syncthreads();
}

/// One work item: `tokens` of a sequence's context from page `first_page` on.
struct Item {
  int sequence;
  int kv_head;
  int first_page;
  int tokens;
  int place;  // among the items in the order of sequences, contexts and heads, as they are joined
};

/// Item `index` in the order of work: whole ones of all sequences, then the rests.
__device__ __forceinline__ Item find_item(const Attention& p, const Items& items, int index) {
  const int whole = items.before[p.decodes].whole();
  const bool rest = index / p.kv_heads >= whole;
  const int part = index / p.kv_heads - (rest ? whole : 0);
  const auto before = [&](int sequence) {
    return rest ? items.before[sequence].rests() : items.before[sequence].whole();
  };
  int low = 0;
  for (int high = p.decodes; low + 1 < high;) {
    const int middle = (low + high) / 2;
    if (before(middle) <= part)
      low = middle;
    else
      high = middle;
  }
  const int context = p.context_lengths[low];
  const int of_sequence = rest ? context / items.tokens : part - before(low);
  const int begin = of_sequence * items.tokens;
  Item item;
  item.sequence = low;
  item.kv_head = index % p.kv_heads;
  item.first_page = begin / kPage;
  item.tokens = min(items.tokens, context - begin);
  item.place = (items.before[low].all() + of_sequence) * p.kv_heads + item.kv_head;
  return item;
}

/// The query rows of the next item, and the item.
template <int kWidth>
struct Query {
  Bf16 rows[kGroupMax][kWidth + 8];  // NOTE: 16 bytes more, so that 8 rows meet different banks
  Item item;
};

struct Ring {
  std::uint32_t slots;
  std::uint32_t full;
  std::uint32_t empty;
  std::uint32_t query_full;
  std::uint32_t query_empty;
};

/// Where one side is in the ring.
struct Turn {
  std::uint32_t slot;
  std::uint32_t parity;
  __device__ __forceinline__ void next(std::uint32_t slots) {
    if (++slot == slots) {
      slot = 0;
      parity ^= 1;
    }
  }
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
  const int count = items.before[p.decodes].all() * p.kv_heads;
  Turn turn{0, 1};
  std::uint32_t query_parity = 1;
  std::uint32_t ahead = 0;  // slots under way before the wait
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
    const int pages = (item.tokens + kPage - 1) / kPage;
    const auto bring = [&](int page, int number, bool values) {
      if (!waited && (page == last_page || ahead == Plan::kSlots)) begin();
      ++ahead;
      if (elect_one()) {
        mbarrier_wait(ring.empty + 8 * turn.slot, turn.parity);
        copy_page<kWidth, kFp8>(p, maps, number, item.kv_head, values,
                                ring.slots + turn.slot * Plan::kSlot, ring.full + 8 * turn.slot,
                                policy);
      }
      __syncwarp();
      turn.next(Plan::kSlots);
    };
    int numbers = 0;
    for (int page = 0; page < pages; page += kUnitPages) {
      if (page % 32 == 0 && page + lane < pages) numbers = table[page + lane];
      const int here = min(pages - page, kUnitPages);
      for (int kind = 0; kind < 2; ++kind)  // K, then V
        for (int i = 0; i < here; ++i)
          bring(page + i, __shfl_sync(0xFFFFFFFFU, numbers, (page + i) % 32), kind == 1);
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

/// This warp's scores of 32 tokens, and for e4m3 pages log2 of their v scales.
struct Scores {
  float of[kScoreTiles][4];
  float log_v[kScoreTiles][2];
};

/// The largest of a row's four warps.
__device__ __forceinline__ float four_max(const float (&values)[kWarps]) {
  const float4 four = *reinterpret_cast<const float4*>(values);
  return fmaxf(fmaxf(four.x, four.y), fmaxf(four.z, four.w));
}

/// Scores `left` tokens of the page in `slot`, from row `first` on: of base 2 for e4m3 pages, raw
/// for bf16; -infinity beyond.
template <int kWidth, bool kFp8>
__device__ __forceinline__ void score_tokens(Scores& scores,
                                             const std::uint32_t (&q)[kWidth / 16][4],
                                             const std::uint8_t* slot,
                                             int first,
                                             int left) {
  using Page = PageShape<kWidth, kFp8>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int half = 0; half < kScoreTiles / 2; ++half) {
    float two[2][4];
    multiply_keys<kWidth, kFp8>(two, q, shared_address(slot), first + half * 16);
#pragma unroll
    for (int tile = 0; tile < 2; ++tile)
#pragma unroll
      for (int i = 0; i < 4; ++i) scores.of[half * 2 + tile][i] = two[tile][i];
  }
  if constexpr (kFp8) {
    const float scale = kLog2E / sqrtf(static_cast<float>(kWidth));
    const auto* scales = reinterpret_cast<const float*>(slot + Page::kBytes);
#pragma unroll
    for (int tile = 0; tile < kScoreTiles; ++tile) {
      const int at = first + tile * 8 + lane % 4 * 2;
      const float2 k = *reinterpret_cast<const float2*>(scales + at);
      const float2 v = *reinterpret_cast<const float2*>(scales + kPage + at);
      scores.of[tile][0] *= scale * k.x;
      scores.of[tile][1] *= scale * k.y;
      scores.of[tile][2] *= scale * k.x;
      scores.of[tile][3] *= scale * k.y;
      scores.log_v[tile][0] = __log2f(v.x);
      scores.log_v[tile][1] = __log2f(v.y);
    }
  }
  if (left < kWarpTokens) {
#pragma unroll
    for (int tile = 0; tile < kScoreTiles; ++tile)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (tile * 8 + lane % 4 * 2 + i % 2 >= left) scores.of[tile][i] = -INFINITY;
  }
}

/// Tells the other warps this one's largest scores.
template <bool kFp8>
__device__ __forceinline__ void tell_largest(const Scores& scores, Exchange& exchange) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float largest = -INFINITY;
    float largest_v = -INFINITY;
#pragma unroll
    for (int tile = 0; tile < kScoreTiles; ++tile)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float s = scores.of[tile][half * 2 + i];
        largest = fmaxf(largest, s);
        if constexpr (kFp8) largest_v = fmaxf(largest_v, s + scores.log_v[tile][i]);
      }
    largest = quad_max(largest);
    if constexpr (kFp8) largest_v = quad_max(largest_v);
    if (lane % 4 != 0) continue;
    exchange.largest[lane / 4 + half * 8][warp] = largest;
    if constexpr (kFp8) exchange.largest_v[lane / 4 + half * 8][warp] = largest_v;
  }
}

/// The softmax of the unit: its weights go to shared memory. scale_v multiplies the unit's sums.
template <int kWidth, bool kFp8>
__device__ __forceinline__ void weigh(Softened (&unit)[2],
                                      float (&scale_v)[2],
                                      const Scores& scores,
                                      Exchange& exchange) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // Scores of bf16 pages are scaled here, in the exponent's own addition.
  const float scale = kFp8 ? 1.0F : kLog2E / sqrtf(static_cast<float>(kWidth));
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int at = lane / 4 + half * 8;
    unit[half].largest = four_max(exchange.largest[at]) * scale;
    const float base = unit[half].largest == -INFINITY ? 0.0F : unit[half].largest;
    float base_v = base;
    if constexpr (kFp8) {
      const float largest_v = four_max(exchange.largest_v[at]);
      base_v = (largest_v == -INFINITY ? 0.0F : largest_v) - kWeightExponent;
      scale_v[half] = exp2_approximate(base_v - base);
    }
    float total = 0.0F;
#pragma unroll
    for (int tile = 0; tile < kScoreTiles; ++tile) {
      float weight[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float s = scores.of[tile][half * 2 + i];
        const float share = exp2_approximate(fmaf(s, scale, -base));
        // The sum takes the weights as rounded for the product: their errors cancel in part.
        weight[i] = kFp8 ? share : round_bf16(share);
        total += weight[i];
        if constexpr (kFp8)
          weight[i] = s == -INFINITY ? 0.0F : exp2_approximate(s + scores.log_v[tile][i] - base_v);
      }
      const std::uint32_t packed =
          kFp8 ? pack_f16(weight[0], weight[1]) : pack_bf16(weight[0], weight[1]);
      const int chunk = warp * kScoreTiles + tile;
      exchange.weights[at * (kUnitTokens / 2) + (chunk ^ (at & 7)) * 4 + lane % 4] = packed;
    }
    total = quad_sum(total);
    if (lane % 4 == 0) exchange.total[at][warp] = total;
  }
}

/// part += this warp's columns of the weights of page `page` of the unit times v.
template <int kWidth, bool kFp8>
__device__ __forceinline__ void sum_values(float (&part)[DecodePlan<kWidth, kFp8>::kTiles][4],
                                           const Exchange& exchange,
                                           int page,
                                           std::uint32_t values) {
  using Page = PageShape<kWidth, kFp8>;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  constexpr int kSteps = kPage / 16;
  std::uint32_t weights[kSteps][4];
  const std::uint32_t weights_at = shared_address(exchange.weights);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int chunk = (page * kSteps + step) * 2 + lane / 16;
    load_matrices(weights[step],
                  weights_at + static_cast<std::uint32_t>(lane % 16 * (kUnitTokens * 2) +
                                                          (chunk ^ (lane & 7)) * 16));
  }
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

/// Makes the tokens of this warp in a page of V zero from `left` on: what lies beyond the context
/// may be NaN, which no weight of 0 undoes.
template <int kWidth, bool kFp8>
__device__ __forceinline__ void clear_beyond(std::uint8_t* slot, int first, int left) {
  using Page = PageShape<kWidth, kFp8>;
  for (int i = static_cast<int>(threadIdx.x) % 32; i < kWarpTokens * Page::kChunks; i += 32) {
    const int token = i / Page::kChunks;
    if (token >= left)
      *reinterpret_cast<uint4*>(slot + Page::place(first + token, i % Page::kChunks)) =
          make_uint4(0, 0, 0, 0);
  }
}

/// Joins the next unit of `left` tokens to the rows. All consumers.
template <int kWidth, bool kFp8>
__device__ __forceinline__ void take_unit(Rows<kWidth, kFp8>& rows,
                                          const std::uint32_t (&q)[kWidth / 16][4],
                                          Exchange& exchange,
                                          std::uint8_t* shared,
                                          const Ring& ring,
                                          Turn& turn,
                                          int left) {
  using Plan = DecodePlan<kWidth, kFp8>;
  static_assert(kWarps == 2 * kUnitPages);  // a warp scores half a page
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int row = static_cast<int>(threadIdx.x) % 32 / 4;
  const int pages = left > kPage ? kUnitPages : 1;
  const int my_page = warp / 2;
  const int first = warp % 2 * kWarpTokens;  // of the page
  const int my_left = left - warp * kWarpTokens;
  const auto slots = [&](Turn(&at)[kUnitPages]) {
#pragma unroll
    for (int i = 0; i < kUnitPages; ++i) {
      at[i] = turn;
      if (i < pages) turn.next(Plan::kSlots);
    }
  };
  Turn keys[kUnitPages];
  Turn values[kUnitPages];
  slots(keys);
  slots(values);
  Scores scores;
  const Turn mine = my_page == 0 ? keys[0] : keys[1];
  if (my_left > 0) {
    mbarrier_wait(ring.full + 8 * mine.slot, mine.parity);
    score_tokens<kWidth, kFp8>(scores, q, shared + mine.slot * Plan::kSlot, first, my_left);
  } else {
#pragma unroll
    for (int tile = 0; tile < kScoreTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores.of[tile][i] = -INFINITY;
      scores.log_v[tile][0] = scores.log_v[tile][1] = 0.0F;
    }
  }
#pragma unroll
  for (int i = 0; i < kUnitPages; ++i)
    if (i < pages) mbarrier_arrive(ring.empty + 8 * keys[i].slot);
  tell_largest<kFp8>(scores, exchange);
  named_barrier(kRowBarrier, kConsumers);

  Softened unit[2];
  float scale_v[2];
  weigh<kWidth, kFp8>(unit, scale_v, scores, exchange);
#pragma unroll
  for (int i = 0; i < kUnitPages; ++i)
    if (i < pages) mbarrier_wait(ring.full + 8 * values[i].slot, values[i].parity);
  if (left < kUnitTokens && my_page < pages) {
    const Turn at = my_page == 0 ? values[0] : values[1];
    clear_beyond<kWidth, kFp8>(shared + at.slot * Plan::kSlot, first, my_left);
  }
  named_barrier(kRowBarrier, kConsumers);

  float part[Plan::kTiles][4] = {};
#pragma unroll
  for (int i = 0; i < kUnitPages; ++i) {
    if (i >= pages) continue;
    sum_values<kWidth, kFp8>(part, exchange, i,
                             ring.slots + values[i].slot * static_cast<std::uint32_t>(Plan::kSlot));
    if (left < kUnitTokens) proxy_fence();  // tokens were cleared by ordinary writes
    mbarrier_arrive(ring.empty + 8 * values[i].slot);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float4 totals = *reinterpret_cast<const float4*>(exchange.total[row + half * 8]);
    unit[half].total = ((totals.x + totals.y) + totals.z) + totals.w;
    const float2 factor = join(rows.state[half], unit[half]);
#pragma unroll
    for (int tile = 0; tile < Plan::kTiles; ++tile)
#pragma unroll
      for (int i = half * 2; i < half * 2 + 2; ++i) {
        float more = part[tile][i];
        if constexpr (kFp8) more = __fmul_rn(more, scale_v[half]);
        rows.sum[tile][i] = join_sum(rows.sum[tile][i], more, factor);
      }
  }
}

/// Multiplies what the producer brings. Four warps.
template <int kWidth, bool kFp8>
__device__ void consume(const Attention& p,
                        const Items& items,
                        const Query<kWidth>& query,
                        Exchange& exchange,
                        std::uint8_t* shared,
                        const Ring& ring) {
  using Plan = DecodePlan<kWidth, kFp8>;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int group = p.query_heads / p.kv_heads;
  const int row = lane / 4;
  const int count = items.before[p.decodes].all() * p.kv_heads;
  Turn turn{0, 0};
  std::uint32_t query_parity = 0;
  grid_begin();
  for (int index = static_cast<int>(blockIdx.x); index < count;
       index += static_cast<int>(gridDim.x)) {
    mbarrier_wait(ring.query_full, query_parity);
    query_parity ^= 1;
    const int tokens = query.item.tokens;
    const std::int64_t place = query.item.place;
    std::uint32_t q[kWidth / 16][4];
    load_query<kWidth, kFp8>(q, row < group ? query.rows[row] : nullptr,
                             row + 8 < group ? query.rows[row + 8] : nullptr);
    mbarrier_arrive(ring.query_empty);
    Rows<kWidth, kFp8> rows;
    for (int left = tokens; left > 0; left -= kUnitTokens)
      take_unit<kWidth, kFp8>(rows, q, exchange, shared, ring, turn, left);
    float* out = p.partial + place * item_floats(group, kWidth);
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
  static_assert(Plan::kShared + sizeof(Items) + sizeof(Exchange) + sizeof(Query<kWidth>) +
                    8 * (2 * Plan::kSlots + 2) + 256 <=
                kCtaBytesMax);
  extern __shared__ std::uint8_t shared_bytes[];
  __shared__ __align__(8) std::uint64_t barriers[2 * Plan::kSlots + 2];
  __shared__ Items items;
  __shared__ __align__(128) Exchange exchange;
  __shared__ __align__(128) Query<kWidth> query;
  const std::uint32_t base = shared_address(shared_bytes);
  Ring ring;
  ring.slots = (base + 1023) / 1024 * 1024;
  ring.full = shared_address(barriers);
  ring.empty = ring.full + 8 * Plan::kSlots;
  ring.query_full = ring.empty + 8 * Plan::kSlots;
  ring.query_empty = ring.query_full + 8;
  if (threadIdx.x == 0) {
    tensor_map_prefetch(&maps.k);
    tensor_map_prefetch(&maps.v);
    for (std::uint32_t slot = 0; slot < Plan::kSlots; ++slot) {
      mbarrier_init(ring.full + 8 * slot, 1);
      mbarrier_init(ring.empty + 8 * slot, kConsumers);
    }
    mbarrier_init(ring.query_full, 1);
    mbarrier_init(ring.query_empty, kConsumers);
    mbarrier_init_fence();
  }
  list_items(p, items);
  if (threadIdx.x >= kConsumers)
    produce<kWidth, kFp8>(p, maps, items, query, ring);
  else
    consume<kWidth, kFp8>(p, items, query, exchange, shared_bytes + (ring.slots - base), ring);
}

template <int kWidth, bool kFp8>
cudaError_t launch_items(const Attention& p, cudaStream_t stream) {
  constexpr int kShared = DecodePlan<kWidth, kFp8>::kShared;
  const auto kernel = attention_decode_kernel<kWidth, kFp8>;
  static const cudaError_t ready = use_shared_memory(kernel, kShared);
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
  const std::int64_t units = kUnitGroupsMax * (group_tokens / kUnitTokens);
  const std::int64_t items = groups > kUnitGroupsMax ? (groups > units ? groups : units)
                                                     : groups * (group_tokens / kUnitTokens);
  return items * item_floats(static_cast<int>(query_heads / kv_heads), static_cast<int>(width));
}

cudaError_t launch_attention_decode(const Attention& p, cudaStream_t stream) {
  const bool fp8 = p.k_scales != nullptr;
  if (p.width == 128)
    return fp8 ? launch_items<128, true>(p, stream) : launch_items<128, false>(p, stream);
  return fp8 ? launch_items<64, true>(p, stream) : launch_items<64, false>(p, stream);
}

const void* kernel_of::attention_decode() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
