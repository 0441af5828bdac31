// SPDX-License-Identifier: Apache-2.0
// Decode attention: one query row a sequence, its context cut into work tiles (attention_split_kv.cuh).
//
//   grid     persistent, two CTAs an SM; work tiles are listed on the device from the context lengths,
//            so a captured graph serves every length. Segments go round the CTAs first, then whole
//            chunks, then what is left of each context: in the order of contexts, CTAs met only
//            long work tiles or only short ones when their number divided what a context has
//   roles    warp 4 issues TMA loads of pages; warps 0-3 take two pages together: the query
//            heads of the kv head are the 16 rows of the matrix instruction, a warp scores 32
//            tokens, the softmax is that of all 128, and a warp sums a quarter of the columns
//   shared   a ring of KV tiles' K and V, some 90 KB; 16 to 20 KB for a work tile's query rows, weights
//            and the list of work tiles
//   bytes    every K and V byte once: bound by memory
//
// Numbers: docs/kernels/README.md.
#include <algorithm>

#include "cuda/attention/attention_mma.cuh"
#include "cuda/attention/attention_split_kv.cuh"
#include "cuda/device/launch.cuh"

namespace koho::cuda {
namespace {

constexpr int kConsumers = 128;
constexpr int kWarps = kConsumers / 32;
constexpr int kThreads = kConsumers + 32;
constexpr int kGroupMax = 16;
constexpr int kSequencesMax = 1024;
constexpr int kRingBytes = 96 << 10;     // of one CTA
constexpr int kCtaBytesMax = 113 << 10;  // of shared memory, so that two CTAs fit an SM
constexpr int kRowBarrier = 1;           // of the consumers; 0 is __syncthreads()

constexpr int kKvTilePages = kKvTileTokens / kPage;
constexpr int kWarpTokens = kKvTileTokens / kWarps;  // that a warp scores
constexpr int kScoreTiles = kWarpTokens / 8;

template <int kWidth, bool kFp8>
struct DecodePlan {
  using Page = KvPageLayout<kWidth, kFp8>;
  // K of a KV tile with the scales of K and of V, or V of a KV tile.
  static constexpr int kSlotScales = kKvTilePages * Page::kBytes;
  static constexpr int kSlot =
      (kSlotScales + 2 * kKvTilePages * Page::kScaleBytes + 1023) / 1024 * 1024;
  static constexpr std::uint32_t kSlots = kRingBytes / kSlot;
  static constexpr int kShared = static_cast<int>(kSlots) * kSlot + 1024;
  static constexpr int kColumns = kWidth / kWarps;  // of a warp
  static constexpr int kTiles = kColumns / 8;
};

/// What the consumers tell each other about a KV tile.
struct Exchange {
  float largest[kGroupMax][kWarps];
  float total[kGroupMax][kWarps];
  float largest_scale[kWarps];  // of v
  // [row][token], 16 bits, swizzled
  alignas(128) std::uint32_t weights[kGroupMax * kKvTileTokens / 2];
};

/// How many work tiles a context has: whole ones, and 1 if a shorter one is left.
struct TileCount {
  static constexpr unsigned kWholeBits = 20;  // tokens of 2^20 chunks exceed every memory
  std::uint32_t packed;                       // whole ones low, rests high

  __device__ __forceinline__ int whole() const {
    return static_cast<int>(packed & ((1U << kWholeBits) - 1));
  }
  __device__ __forceinline__ int rests() const { return static_cast<int>(packed >> kWholeBits); }
  __device__ __forceinline__ int all() const { return whole() + rests(); }
};
static_assert(kSequencesMax < 1 << (32 - TileCount::kWholeBits));

/// The work tiles of all sequences: segments, whole chunks beyond them, shorter chunks; or KV tiles, whole and
/// shorter. Of a sequence and a kv head they lie in this order.
struct WorkTiles {
  int tokens;    // of a whole one that is no segment: a KV tile or a chunk
  int segments;  // that are work tiles, of all sequences in order, per kv head
  TileCount before[kSequencesMax + 1];               // chunks or KV tiles before a sequence
  std::uint16_t segments_before[kSequencesMax + 1];  // no more than `segments`
  unsigned long long warp_sums[kThreads / 32];
  unsigned warp_segments[kThreads / 32];

  /// Whole work tiles before a sequence that are no segments.
  __device__ __forceinline__ int whole_before(int sequence) const {
    return before[sequence].whole() - kSegmentChunks * segments_before[sequence];
  }
  /// Work tiles before a sequence, per kv head.
  __device__ __forceinline__ int all_before(int sequence) const {
    return before[sequence].all() - (kSegmentChunks - 1) * segments_before[sequence];
  }
  __device__ __forceinline__ int count(const Attention& p) const {
    return all_before(p.decodes) * p.kv_heads;
  }
};

__device__ __forceinline__ std::uint32_t count_work_tiles(int context, int tokens) {
  return static_cast<std::uint32_t>(context / tokens) |
         static_cast<std::uint32_t>(context % tokens != 0) << TileCount::kWholeBits;
}

/// All threads. Counts by chunks (low) and by KV tiles (high) are summed together.
__device__ void list_work_tiles(const Attention& p, WorkTiles& work_tiles) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int each = p.decodes / kThreads + 1;  // at least one entry more than sequences
  struct Counts {
    unsigned long long chunks_kv_tiles;
    unsigned segments;
  };
  const auto count = [&](int i) {
    const int sequence = thread * each + i;
    if (sequence >= p.decodes) return Counts{0, 0};
    const int context = p.context_lengths[sequence];
    return Counts{static_cast<unsigned long long>(count_work_tiles(context, p.chunk_tokens)) |
                      static_cast<unsigned long long>(count_work_tiles(context, kKvTileTokens))
                          << 32U,
                  static_cast<unsigned>(wide_segments_of(p, context))};
  };
  Counts sum{0, 0};
  const auto add = [](Counts& to, const Counts& more) {
    to.chunks_kv_tiles += more.chunks_kv_tiles;
    to.segments += more.segments;
  };
  for (int i = 0; i < each; ++i) add(sum, count(i));
  Counts before = sum;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const Counts other{__shfl_up_sync(0xFFFFFFFFU, before.chunks_kv_tiles, offset),
                       __shfl_up_sync(0xFFFFFFFFU, before.segments, offset)};
    if (lane >= offset) add(before, other);
  }
  if (lane == 31) {
    work_tiles.warp_sums[thread / 32] = before.chunks_kv_tiles;
    work_tiles.warp_segments[thread / 32] = before.segments;
  }
  __syncthreads();
  before.chunks_kv_tiles -= sum.chunks_kv_tiles;
  before.segments -= sum.segments;
  Counts all{0, 0};
#pragma unroll
  for (int warp = 0; warp < kThreads / 32; ++warp) {
    if (warp == thread / 32) add(before, all);
    add(all, {work_tiles.warp_sums[warp], work_tiles.warp_segments[warp]});
  }
  const bool kv_tiles =
      splits_into_kv_tiles(p, TileCount{static_cast<std::uint32_t>(all.chunks_kv_tiles)}.all());
  const int segments = kv_tiles ? 0 : segment_work_tiles(p, static_cast<int>(all.segments));
  if (thread == 0) {
    work_tiles.tokens = kv_tiles ? kKvTileTokens : p.chunk_tokens;
    work_tiles.segments = segments;
  }
  for (int i = 0; i < each; ++i) {
    const int sequence = thread * each + i;
    if (sequence <= p.decodes) {
      work_tiles.before[sequence].packed = static_cast<std::uint32_t>(
          kv_tiles ? before.chunks_kv_tiles >> 32U : before.chunks_kv_tiles);
      work_tiles.segments_before[sequence] =
          static_cast<std::uint16_t>(min(before.segments, static_cast<unsigned>(segments)));
    }
    add(before, count(i));
  }
  __syncthreads();
}

/// One work tile: `tokens` of a sequence's context from page `first_page` on.
struct WorkTile {
  int sequence;
  int kv_head;
  int first_page;
  int tokens;
  int place;  // among the work tiles in the order of sequences, contexts and heads, as they are combined
};

/// The last sequence with no more than `part` before it, of `before(sequence)`.
template <typename Before>
__device__ __forceinline__ int find_sequence(const Attention& p, int part, const Before& before) {
  int low = 0;
  for (int high = p.decodes; low + 1 < high;) {
    const int middle = (low + high) / 2;
    if (before(middle) <= part)
      low = middle;
    else
      high = middle;
  }
  return low;
}

/// Work tile `index` in the order of work: segments of all sequences, then whole ones, then the rests.
__device__ __forceinline__ WorkTile find_work_tile(const Attention& p,
                                                   const WorkTiles& work_tiles,
                                                   int index) {
  const int segments = work_tiles.segments;
  const int whole = work_tiles.whole_before(p.decodes);
  int part = index / p.kv_heads;
  WorkTile work_tile;
  work_tile.kv_head = index % p.kv_heads;
  int begin = 0;
  int of_sequence = 0;
  if (part < segments) {
    work_tile.sequence = find_sequence(
        p, part, [&](int sequence) { return int{work_tiles.segments_before[sequence]}; });
    of_sequence = part - work_tiles.segments_before[work_tile.sequence];
    work_tile.tokens = kSegmentChunks * work_tiles.tokens;
    begin = of_sequence * work_tile.tokens;
  } else {
    part -= segments;
    const bool rest = part >= whole;
    if (rest) part -= whole;
    work_tile.sequence = find_sequence(p, part, [&](int sequence) {
      return rest ? work_tiles.before[sequence].rests() : work_tiles.whole_before(sequence);
    });
    const int context = p.context_lengths[work_tile.sequence];
    const int own_segments = work_tiles.segments_before[work_tile.sequence + 1] -
                             work_tiles.segments_before[work_tile.sequence];
    const int first = kSegmentChunks * own_segments;  // behind the sequence's segments
    const int at = rest ? context / work_tiles.tokens
                        : first + part - work_tiles.whole_before(work_tile.sequence);
    begin = at * work_tiles.tokens;
    work_tile.tokens = min(work_tiles.tokens, context - begin);
    of_sequence = own_segments + at - first;
  }
  work_tile.first_page = begin / kPage;
  work_tile.place =
      (work_tiles.all_before(work_tile.sequence) + of_sequence) * p.kv_heads + work_tile.kv_head;
  return work_tile;
}

/// The query rows of the next work tile, and the work tile.
template <int kWidth>
struct Query {
  Bf16 rows[kGroupMax][kWidth + 8];  // NOTE: 16 bytes more, so that 8 rows meet different banks
  WorkTile work_tile;
};

/// The rows of a work tile's query heads.
__device__ __forceinline__ const Bf16* query_rows(const Attention& p, const WorkTile& work_tile) {
  const int group = p.query_heads / p.kv_heads;
  return p.q + (static_cast<std::int64_t>(work_tile.sequence) * p.query_heads +
                work_tile.kv_head * group) *
                   p.width;
}

struct PipelineRing {
  std::uint32_t slots;
  std::uint32_t full;
  std::uint32_t empty;
  std::uint32_t query_full;
  std::uint32_t query_empty;
};

/// Where one side is in the ring.
struct PipelineState {
  std::uint32_t slot;
  std::uint32_t parity;
  __device__ __forceinline__ void next(std::uint32_t slots) {
    if (++slot == slots) {
      slot = 0;
      parity ^= 1;
    }
  }
};

/// Copies K of one head with the scales of K and V, or its V, of a KV tile's `count` pages by the copy
/// engine. One thread.
template <int kWidth, bool kFp8>
__device__ __forceinline__ void load_kv_tile(const Attention& p,
                                             const KvTensorMaps& maps,
                                             const int (&pages)[kKvTilePages],
                                             int count,
                                             int kv_head,
                                             bool values,
                                             std::uint32_t to,
                                             std::uint32_t barrier,
                                             std::uint64_t policy) {
  using Plan = DecodePlan<kWidth, kFp8>;
  using Page = KvPageLayout<kWidth, kFp8>;
  const CUtensorMap& map = values ? maps.v : maps.k;
  mbarrier_arrive_expect_tx(
      barrier,
      static_cast<std::uint32_t>(count * (Page::kBytes + (values ? 0 : 2 * Page::kScaleBytes))));
#pragma unroll
  for (int i = 0; i < kKvTilePages; ++i) {
    if (i >= count) break;
    const std::int64_t place = (static_cast<std::int64_t>(pages[i]) * p.kv_heads + kv_head) * kPage;
#pragma unroll
    for (int panel = 0; panel < Page::kPanels; ++panel) {
      constexpr int kColumns = kWidth / Page::kPanels;
      constexpr int kPanel = kPage * Page::kPanelBytes;
      tma_load(to + static_cast<std::uint32_t>(i * Page::kBytes + panel * kPanel), &map,
               panel * kColumns, static_cast<int>(place), barrier, policy);
    }
    if constexpr (kFp8) {
      if (values) continue;
      const std::uint32_t scales =
          to + static_cast<std::uint32_t>(Plan::kSlotScales + i * Page::kScaleBytes);
      bulk_copy(scales, p.k_scales + place, Page::kScaleBytes, barrier, policy);
      bulk_copy(scales + kKvTilePages * Page::kScaleBytes, p.v_scales + place, Page::kScaleBytes,
                barrier, policy);
    }
  }
}

/// Keeps the ring full. Pages that no kernel of this step writes come before the wait for the
/// kernel before, and the CTA's first KV tile does whatever it holds (see NewestTokenLoader). One warp.
template <int kWidth, bool kFp8>
__device__ void produce(const Attention& p,
                        const KvTensorMaps& maps,
                        const WorkTiles& work_tiles,
                        Query<kWidth>& query,
                        const PipelineRing& ring) {
  using Plan = DecodePlan<kWidth, kFp8>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int group = p.query_heads / p.kv_heads;
  const std::uint64_t policy = evict_first_policy();
  const std::uint64_t policy_query = evict_normal_policy();
  const int count = work_tiles.count(p);
  PipelineState kv_state{0, 1};
  std::uint32_t query_parity = 0;
  std::uint32_t prefetched = 0;  // slots under way before the wait
  bool waited = false;
  const auto wait = [&] {
    if (!waited) pdl_begin();
    waited = true;
  };
  for (int index = static_cast<int>(blockIdx.x); index < count;
       index += static_cast<int>(gridDim.x)) {
    const WorkTile work_tile = find_work_tile(p, work_tiles, index);
    const bool is_first_work_tile = index == static_cast<int>(blockIdx.x);
    if (is_first_work_tile) {  // whose query the consumers load
      if (lane == 0) {
        query.work_tile = work_tile;
        mbarrier_arrive(ring.query_full);
      }
    } else {
      wait();
      mbarrier_wait(ring.query_empty, query_parity);
      query_parity ^= 1;
      if (lane == 0) {
        query.work_tile = work_tile;
        mbarrier_arrive_expect_tx(ring.query_full, static_cast<std::uint32_t>(group * kWidth * 2));
      }
      __syncwarp();
      if (lane < group)
        bulk_copy(shared_address(query.rows[lane]), query_rows(p, work_tile) + lane * kWidth,
                  kWidth * 2, ring.query_full, policy_query);
    }
    const std::int32_t* table =
        p.page_tables + work_tile.sequence * p.page_tables_stride + work_tile.first_page;
    const int last_page =
        (p.context_lengths[work_tile.sequence] - 1) / kPage - work_tile.first_page;
    const int pages = (work_tile.tokens + kPage - 1) / kPage;
    int numbers = 0;
    for (int page = 0; page < pages; page += kKvTilePages) {
      if (page % 32 == 0 && page + lane < pages) numbers = table[page + lane];
      int of_kv_tile[kKvTilePages];
#pragma unroll
      for (int i = 0; i < kKvTilePages; ++i)
        of_kv_tile[i] = __shfl_sync(0xFFFFFFFFU, numbers, (page + i) % 32);
      const int here = min(pages - page, kKvTilePages);
      for (int kind = 0; kind < 2; ++kind) {  // K, then V
        const bool fresh = page + here > last_page && !(is_first_work_tile && page == 0);
        if (fresh || prefetched == Plan::kSlots) wait();
        if (!waited) ++prefetched;
        if (elect_one()) {
          mbarrier_wait(ring.empty + 8 * kv_state.slot, kv_state.parity);
          load_kv_tile<kWidth, kFp8>(p, maps, of_kv_tile, here, work_tile.kv_head, kind == 1,
                                     ring.slots + kv_state.slot * Plan::kSlot,
                                     ring.full + 8 * kv_state.slot, policy);
        }
        __syncwarp();
        kv_state.next(Plan::kSlots);
      }
    }
  }
  wait();
}

/// One warp's share of a work tile's rows: its columns' sums, and the softmax that all warps know.
template <int kWidth, bool kFp8>
struct Rows {
  using Plan = DecodePlan<kWidth, kFp8>;
  float sum[Plan::kTiles][4] = {};
  SoftmaxState state[2];  // rows g and g + 8
};

/// This warp's 32 tokens of a KV tile.
struct Scored {
  float scores[kScoreTiles][4];   // raw; those of e4m3 pages times the token's k scale
  float scale_v[kScoreTiles][2];  // e4m3 pages
};

/// Where this lane reads and writes, in bytes.
struct LaneOffsets {
  std::uint32_t keys;         // in a slot
  std::uint32_t values;       // in a slot
  std::uint32_t weights_out;  // in Exchange::weights
  std::uint32_t weights_in;
};

template <int kWidth, bool kFp8>
__device__ __forceinline__ LaneOffsets lane_offsets() {
  using Page = KvPageLayout<kWidth, kFp8>;
  static_assert(kWarps == 2 * kKvTilePages);  // a warp scores half a page
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto weights = [](int row, int chunk) {
    return static_cast<std::uint32_t>(row * (kKvTileTokens * 2) + (chunk ^ (row & 7)) * 16);
  };
  LaneOffsets at;
  at.keys = static_cast<std::uint32_t>(warp / 2 * Page::kBytes) +
            key_offset<kWidth, kFp8>(warp % 2 * kWarpTokens);
  at.values = Page::swizzled_offset(lane, warp * (Page::kChunks / kWarps));
  at.weights_out = weights(lane / 4, warp * kScoreTiles) + static_cast<std::uint32_t>(lane % 4 * 4);
  at.weights_in = weights(lane % 16, lane / 16);
  return at;
}

/// The largest of four warps.
__device__ __forceinline__ float four_max(const float (&values)[kWarps]) {
  const float4 four = *reinterpret_cast<const float4*>(values);
  return fmaxf(fmaxf(four.x, four.y), fmaxf(four.z, four.w));
}

/// Scores this warp's tokens of the KV tile in `slot`, of whose work tile `left` tokens are left: -infinity
/// beyond. Tells the other warps the largest.
template <int kWidth, bool kFp8>
__device__ __forceinline__ void score_tokens(Scored& scored,
                                             const std::uint32_t (&q)[kWidth / 16][4],
                                             Exchange& exchange,
                                             const LaneOffsets& at,
                                             const std::uint8_t* slot,
                                             int left) {
  using Plan = DecodePlan<kWidth, kFp8>;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::uint32_t keys = shared_address(slot) + at.keys;
#pragma unroll
  for (int half = 0; half < kScoreTiles / 2; ++half) {
    float two[2][4];
    mma_qk<kWidth, kFp8>(two, q, keys, half * 16);
#pragma unroll
    for (int tile = 0; tile < 2; ++tile)
#pragma unroll
      for (int i = 0; i < 4; ++i) scored.scores[half * 2 + tile][i] = two[tile][i];
  }
  if constexpr (kFp8) {
    const auto* scales = reinterpret_cast<const float*>(slot + Plan::kSlotScales) +
                         warp * kWarpTokens + lane % 4 * 2;
#pragma unroll
    for (int tile = 0; tile < kScoreTiles; ++tile) {
      const float2 k = *reinterpret_cast<const float2*>(scales + tile * 8);
      const float2 v = *reinterpret_cast<const float2*>(scales + kKvTileTokens + tile * 8);
      scored.scores[tile][0] *= k.x;
      scored.scores[tile][1] *= k.y;
      scored.scores[tile][2] *= k.x;
      scored.scores[tile][3] *= k.y;
      scored.scale_v[tile][0] = v.x;
      scored.scale_v[tile][1] = v.y;
    }
  }
  // NOTE: what a page that was not brought holds in the slot is old, and dropped here.
  const int my_left = left - warp * kWarpTokens;
  if (my_left < kWarpTokens) {
#pragma unroll
    for (int tile = 0; tile < kScoreTiles; ++tile)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (tile * 8 + lane % 4 * 2 + i % 2 >= my_left) {
          scored.scores[tile][i] = -INFINITY;
          if constexpr (kFp8) scored.scale_v[tile][i % 2] = 0.0F;
        }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float largest[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int tile = 0; tile < kScoreTiles; ++tile)
#pragma unroll
      for (int i = 0; i < 2; ++i) largest[i] = fmaxf(largest[i], scored.scores[tile][half * 2 + i]);
    const float of_warp = quad_max(fmaxf(largest[0], largest[1]));
    if (lane % 4 == 0) exchange.largest[lane / 4 + half * 8][warp] = of_warp;
  }
  if constexpr (kFp8) {
    float largest[2] = {};
#pragma unroll
    for (int tile = 0; tile < kScoreTiles; ++tile)
#pragma unroll
      for (int i = 0; i < 2; ++i) largest[i] = fmaxf(largest[i], scored.scale_v[tile][i]);
    const float of_warp = quad_max(fmaxf(largest[0], largest[1]));
    if (lane == 0) exchange.largest_scale[warp] = of_warp;
  }
}

/// The softmax of the KV tile: its weights go to shared memory. Returns what its sums of V are to be
/// multiplied by, a power of two.
template <int kWidth, bool kFp8>
__device__ __forceinline__ float softmax_weights(SoftmaxState (&state)[2],
                                                 Scored& scored,
                                                 Exchange& exchange,
                                                 const LaneOffsets& at) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float scale = kLog2E / sqrtf(static_cast<float>(kWidth));
  float sums_scale = 1.0F;
  if constexpr (kFp8) {
    // Weights are multiplied by their tokens' v scales, in parts of a power of two that leaves
    // their largest between 2^14 and 2^15.
    constexpr std::uint32_t kLargest = 14;
    const std::uint32_t exponent =
        max(__float_as_uint(four_max(exchange.largest_scale)) >> 23, kLargest + 1);
    const float parts = __uint_as_float((2 * 127 + kLargest - exponent) << 23);
    sums_scale = __uint_as_float((exponent - kLargest) << 23);
#pragma unroll
    for (int tile = 0; tile < kScoreTiles; ++tile)
#pragma unroll
      for (int i = 0; i < 2; ++i) scored.scale_v[tile][i] *= parts;
  }
  auto* weights = reinterpret_cast<std::uint8_t*>(exchange.weights);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = lane / 4 + half * 8;
    state[half].largest = four_max(exchange.largest[row]) * scale;
    const float base = state[half].largest == -INFINITY ? 0.0F : state[half].largest;
    float total = 0.0F;
#pragma unroll
    for (int tile = 0; tile < kScoreTiles; ++tile) {
      float weight[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        // Scores are scaled here, in the exponent's own addition.
        const float share = exp2_approximate(fmaf(scored.scores[tile][half * 2 + i], scale, -base));
        // The sum takes the weights as rounded for the product: their errors cancel in part.
        weight[i] = kFp8 ? share : round_bf16(share);
        total += weight[i];
        if constexpr (kFp8) weight[i] *= scored.scale_v[tile][i];
      }
      *reinterpret_cast<std::uint32_t*>(weights +
                                        (at.weights_out ^ static_cast<std::uint32_t>(tile << 4)) +
                                        half * 8 * (kKvTileTokens * 2)) =
          kFp8 ? pack_f16(weight[0], weight[1]) : pack_bf16(weight[0], weight[1]);
    }
    total = quad_sum(total);
    if (lane % 4 == 0) exchange.total[row][warp] = total;
  }
  return sums_scale;
}

/// part += this warp's columns of the weights of page `page` of the KV tile times v.
template <int kWidth, bool kFp8>
__device__ __forceinline__ void sum_values(float (&part)[DecodePlan<kWidth, kFp8>::kTiles][4],
                                           std::uint32_t weights_at,
                                           std::uint32_t values,
                                           int page) {
  using Page = KvPageLayout<kWidth, kFp8>;
  constexpr int kSteps = kPage / 16;
  static_assert(kSteps == 4);  // so a page's weights are 128 bytes of a row
  std::uint32_t weights[kSteps][4];
#pragma unroll
  for (int step = 0; step < kSteps; ++step)
    ldmatrix_x4(weights[step], (weights_at ^ static_cast<std::uint32_t>(step << 5)) +
                                   static_cast<std::uint32_t>(page * 128));
  constexpr int kChunks = Page::kChunks / kWarps;  // of this warp's columns
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      std::uint32_t v[4];  // tokens 8 * i .. of 32, this chunk
      ldmatrix_x4_trans(
          v, Page::advance(values, chunk) +
                 static_cast<std::uint32_t>(page * Page::kBytes + half * 32 * Page::kPanelBytes));
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

/// Makes this warp's 32 tokens of a KV tile's V zero from `left` on: what lies beyond the context may
/// be NaN, which no weight of 0 undoes.
template <int kWidth, bool kFp8>
__device__ __forceinline__ void clear_beyond(std::uint8_t* slot, int left) {
  using Page = KvPageLayout<kWidth, kFp8>;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  std::uint8_t* page = slot + warp / 2 * Page::kBytes;
  for (int i = static_cast<int>(threadIdx.x) % 32; i < kWarpTokens * Page::kChunks; i += 32) {
    const int token = i / Page::kChunks;
    if (token >= left)
      *reinterpret_cast<uint4*>(
          page + Page::swizzled_offset(warp % 2 * kWarpTokens + token, i % Page::kChunks)) =
          make_uint4(0, 0, 0, 0);
  }
}

/// The query of the CTA's first work tile, and the newest token's K and V if its first KV tile holds that
/// token. Both are written by the kernel before, and the KV tile is asked for before the wait for it,
/// so that what comes for that token may be old. Loaded to registers, then put where they belong.
/// The consumers.
template <int kWidth, bool kFp8>
class NewestTokenLoader {
  using Plan = DecodePlan<kWidth, kFp8>;
  using Page = KvPageLayout<kWidth, kFp8>;
  static constexpr int kQueryChunks = kWidth * 2 / 16;
  static constexpr int kQueryLoads = kGroupMax * kQueryChunks / kConsumers;
  static constexpr int kColumnChunks = Page::kChunks / kWarps;  // of V, of a warp

 public:
  /// Before the wait for the kernel before: which token it is.
  __device__ __forceinline__ NewestTokenLoader(const Attention& p, const WorkTile& work_tile) {
    const int last = p.context_lengths[work_tile.sequence] - 1;
    const int page = p.page_tables[work_tile.sequence * p.page_tables_stride +
                                   static_cast<std::int64_t>(last) / kPage];
    token_ = last - work_tile.first_page * kPage;
    row_ =
        (static_cast<std::int64_t>(page) * p.kv_heads + work_tile.kv_head) * kPage + last % kPage;
  }
  /// After it.
  __device__ __forceinline__ void load(const Attention& p, const WorkTile& work_tile) {
    const int group = p.query_heads / p.kv_heads;
    const auto* from = reinterpret_cast<const uint4*>(query_rows(p, work_tile));
#pragma unroll
    for (int i = 0; i < kQueryLoads; ++i) {
      const int index = i * kConsumers + thread();
      if (index < group * kQueryChunks) query_[i] = __ldcg(from + index);
    }
    if (token_ >= kKvTileTokens) return;
    const auto chunk = [&](const void* pages, int at) {
      return __ldcg(reinterpret_cast<const uint4*>(static_cast<const std::uint8_t*>(pages) +
                                                   row_ * Page::kRowBytes) +
                    at);
    };
    if (of_my_keys()) {
      if (lane() < Page::kChunks) keys_ = chunk(p.k, lane());
      if (kFp8 && lane() < 2) scale_ = __ldcg((lane() == 0 ? p.k_scales : p.v_scales) + row_);
    }
    if (lane() < kColumnChunks) values_ = chunk(p.v, warp() * kColumnChunks + lane());
  }
  __device__ __forceinline__ void put_query(const Attention& p, Query<kWidth>& query) const {
    const int group = p.query_heads / p.kv_heads;
#pragma unroll
    for (int i = 0; i < kQueryLoads; ++i) {
      const int index = i * kConsumers + thread();
      if (index < group * kQueryChunks)
        *reinterpret_cast<uint4*>(&query.rows[index / kQueryChunks][index % kQueryChunks * 8]) =
            query_[i];
    }
    fence_proxy_async_shared();  // the next work tile's rows are brought there
    named_barrier_sync(kRowBarrier, kConsumers);
  }
  /// Of this warp's tokens, when the first slot, at `slot`, is full.
  __device__ __forceinline__ void put_keys(std::uint8_t* slot, std::uint32_t full) const {
    if (!of_my_keys()) return;
    mbarrier_wait(full, 0);
    if (lane() < Page::kChunks) *at(slot, lane()) = keys_;
    if (kFp8 && lane() < 2)
      reinterpret_cast<float*>(slot + Plan::kSlotScales)[lane() * kKvTileTokens + token_] = scale_;
    fence_proxy_async_shared();
    __syncwarp();
  }
  /// Of this warp's columns, when the second is.
  __device__ __forceinline__ void put_values(std::uint8_t* slot, std::uint32_t full) const {
    if (token_ >= kKvTileTokens) return;
    mbarrier_wait(full, 0);
    if (lane() < kColumnChunks) *at(slot, warp() * kColumnChunks + lane()) = values_;
    fence_proxy_async_shared();
    __syncwarp();
  }

 private:
  static __device__ __forceinline__ int thread() {
    return static_cast<int>(threadIdx.x);
  }
  static __device__ __forceinline__ int warp() {
    return thread() / 32;
  }
  static __device__ __forceinline__ int lane() {
    return thread() % 32;
  }
  __device__ __forceinline__ bool of_my_keys() const {
    return token_ / kWarpTokens == warp();
  }
  __device__ __forceinline__ uint4* at(std::uint8_t* slot, int chunk) const {
    return reinterpret_cast<uint4*>(slot + token_ / kPage * Page::kBytes +
                                    Page::swizzled_offset(token_ % kPage, chunk));
  }

  int token_;         // of the KV tile; beyond it in a later one
  std::int64_t row_;  // of all pages' tokens and heads
  uint4 query_[kQueryLoads];
  uint4 keys_;
  uint4 values_;
  float scale_;  // of K and of V, by two lanes
};

/// Multiplies what the producer brings. Four warps, which meet twice a KV tile: when all know their
/// largest scores, and when all have written their weights.
template <int kWidth, bool kFp8>
__device__ void consume(const Attention& p,
                        const WorkTiles& work_tiles,
                        Query<kWidth>& query,
                        Exchange& exchange,
                        std::uint8_t* shared,
                        const PipelineRing& ring) {
  using Plan = DecodePlan<kWidth, kFp8>;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int group = p.query_heads / p.kv_heads;
  const int row = lane / 4;
  const int count = work_tiles.count(p);
  const LaneOffsets at = lane_offsets<kWidth, kFp8>();
  PipelineState kv_state{0, 0};
  std::uint32_t query_parity = 0;
  bool of_segment = false;  // the work tile that is scored
  std::uint32_t q[kWidth / 16][4];
  Scored scored;
  int index = static_cast<int>(blockIdx.x);
  int left = 0;  // tokens of the work tile from this KV tile on
  std::int64_t place = 0;
  const auto take_work_tile = [&] {
    left = query.work_tile.tokens;
    of_segment = left > p.chunk_tokens;
    place = query.work_tile.place;
    load_query<kWidth, kFp8>(q, row < group ? query.rows[row] : nullptr,
                             row + 8 < group ? query.rows[row + 8] : nullptr);
    mbarrier_arrive(ring.query_empty);
  };
  const auto begin_work_tile = [&] {
    mbarrier_wait(ring.query_full, query_parity);
    query_parity ^= 1;
    take_work_tile();
  };
  const auto score = [&] {
    mbarrier_wait(ring.full + 8 * kv_state.slot, kv_state.parity);
    score_tokens<kWidth, kFp8>(scored, q, exchange, at, shared + kv_state.slot * Plan::kSlot, left);
    mbarrier_arrive(ring.empty + 8 * kv_state.slot);
    kv_state.next(Plan::kSlots);
  };
  if (index >= count) {
    pdl_begin();
    return;
  }
  mbarrier_wait(ring.query_full, query_parity);
  query_parity ^= 1;
  {
    NewestTokenLoader<kWidth, kFp8> fresh(p, query.work_tile);
    pdl_begin();
    fresh.load(p, query.work_tile);
    fresh.put_query(p, query);
    fresh.put_keys(shared, ring.full);
    fresh.put_values(shared + Plan::kSlot, ring.full + 8);
  }
  take_work_tile();
  score();
  Rows<kWidth, kFp8> rows;
  Rows<kWidth, kFp8> segment;
#pragma unroll 1
  for (;;) {
    const PipelineState values = kv_state;
    kv_state.next(Plan::kSlots);
    const int here = left;
    const std::int64_t place_here = place;
    const bool of_segment_here = of_segment;
    SoftmaxState more[2];
    named_barrier_sync(kRowBarrier, kConsumers);  // the largest scores
    const float sums_scale = softmax_weights<kWidth, kFp8>(more, scored, exchange, at);
    if (here < kKvTileTokens) {
      mbarrier_wait(ring.full + 8 * values.slot, values.parity);
      clear_beyond<kWidth, kFp8>(shared + values.slot * Plan::kSlot, here - warp * kWarpTokens);
    }

    // The next KV tile, of this work tile or of the CTA's next one.
    const bool ends = here <= kKvTileTokens;
    if (ends) index += static_cast<int>(gridDim.x);
    const bool goes_on = index < count;

    named_barrier_sync(kRowBarrier, kConsumers);  // the weights
    mbarrier_wait(ring.full + 8 * values.slot, values.parity);
    float part[Plan::kTiles][4] = {};
#pragma unroll
    for (int page = 0; page < kKvTilePages; ++page)
      if (page == 0 || here > page * kPage)
        sum_values<kWidth, kFp8>(
            part, shared_address(exchange.weights) + at.weights_in,
            ring.slots + values.slot * static_cast<std::uint32_t>(Plan::kSlot) + at.values, page);
    if (here < kKvTileTokens) fence_proxy_async_shared();  // tokens were cleared by ordinary writes
    mbarrier_arrive(ring.empty + 8 * values.slot);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float4 totals = *reinterpret_cast<const float4*>(exchange.total[row + half * 8]);
      more[half].total = ((totals.x + totals.y) + totals.z) + totals.w;
      const float2 factor = combine(rows.state[half], more[half]);
#pragma unroll
      for (int tile = 0; tile < Plan::kTiles; ++tile)
#pragma unroll
        for (int i = half * 2; i < half * 2 + 2; ++i) {
          float of_kv_tile = part[tile][i];
          if constexpr (kFp8) of_kv_tile = __fmul_rn(of_kv_tile, sums_scale);
          rows.sum[tile][i] = combine_sum(rows.sum[tile][i], of_kv_tile, factor);
        }
    }
    // Group sizes are powers of two, and a segment's last KV tile ends a chunk.
    if (of_segment_here && ((here - kKvTileTokens) & (p.chunk_tokens - 1)) == 0) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 factor = combine(segment.state[half], rows.state[half]);
#pragma unroll
        for (int tile = 0; tile < Plan::kTiles; ++tile)
#pragma unroll
          for (int i = half * 2; i < half * 2 + 2; ++i)
            segment.sum[tile][i] = combine_sum(segment.sum[tile][i], rows.sum[tile][i], factor);
      }
      rows = Rows<kWidth, kFp8>{};
      if (ends) {
        rows = segment;
        segment = Rows<kWidth, kFp8>{};
      }
    }
    if (ends) {
      float* out = p.partial + place_here * work_tile_floats(group, kWidth);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int of_group = row + half * 8;
        if (of_group >= group) continue;
        float* sums = out + of_group * kWidth + warp * Plan::kColumns;
        if constexpr (kFp8) {
#pragma unroll
          for (int tile = 0; tile < Plan::kTiles; tile += 2)  // of four neighbouring columns
            *reinterpret_cast<float4*>(sums + sum_column<kFp8>(tile, 0)) =
                make_float4(rows.sum[tile][half * 2], rows.sum[tile + 1][half * 2],
                            rows.sum[tile][half * 2 + 1], rows.sum[tile + 1][half * 2 + 1]);
        } else {
#pragma unroll
          for (int tile = 0; tile < Plan::kTiles; ++tile)
            *reinterpret_cast<float2*>(sums + sum_column<kFp8>(tile, 0)) =
                make_float2(rows.sum[tile][half * 2], rows.sum[tile][half * 2 + 1]);
        }
        if (warp == 0 && lane % 4 == 0)
          *reinterpret_cast<float2*>(out + group * kWidth + 2 * of_group) =
              make_float2(rows.state[half].largest, rows.state[half].total);
      }
      rows = Rows<kWidth, kFp8>{};
    }
    if (!goes_on) break;
    if (ends)
      begin_work_tile();
    else
      left -= kKvTileTokens;
    score();
  }
}

template <int kWidth, bool kFp8>
__global__ void __launch_bounds__(kThreads, kDecodeCtasPerSm)
    attention_decode_kernel(const __grid_constant__ Attention p,
                            const __grid_constant__ KvTensorMaps maps) {
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
    prefetch_tensor_map(&maps.k);
    prefetch_tensor_map(&maps.v);
    for (std::uint32_t slot = 0; slot < Plan::kSlots; ++slot) {
      mbarrier_init(ring.full + 8 * slot, 1);
      mbarrier_init(ring.empty + 8 * slot, kConsumers);
    }
    mbarrier_init(ring.query_full, 1);
    mbarrier_init(ring.query_empty, kConsumers);
    fence_mbarrier_init();
  }
  list_work_tiles(p, work_tiles);
  if (threadIdx.x >= kConsumers)
    produce<kWidth, kFp8>(p, maps, work_tiles, query, ring);
  else
    consume<kWidth, kFp8>(p, work_tiles, query, exchange, shared_bytes + (ring.slots - base), ring);
}

template <int kWidth, bool kFp8>
cudaError_t launch_decode(const Attention& p, cudaStream_t stream) {
  constexpr int kShared = DecodePlan<kWidth, kFp8>::kShared;
  const auto kernel = attention_decode_kernel<kWidth, kFp8>;
  static PerDevice prepared;
  const cudaError_t ready =
      prepared.once([&] { return allow_dynamic_shared_memory(kernel, kShared); });
  if (ready != cudaSuccess) return ready;
  KvTensorMaps maps;
  const cudaError_t made = make_kv_tensor_maps(maps, p);
  if (made != cudaSuccess) return made;
  return launch_kernel(
      kernel,
      {dim3(static_cast<unsigned>(kDecodeCtasPerSm * p.multiprocessors)), dim3(kThreads), kShared},
      stream, p, maps);
}

}  // namespace

bool attention_supports_mma(const Attention& p) {
  const std::int64_t rows = p.pages * p.kv_heads * kPage;
  return (p.width == 64 || p.width == 128) && p.query_heads / p.kv_heads <= kGroupMax &&
         p.decodes <= kSequencesMax && rows < INT32_MAX &&
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
  return work_tiles * work_tile_floats(static_cast<int>(sums.query_heads / sums.kv_heads),
                                       static_cast<int>(sums.width));
}

cudaError_t launch_attention_decode(const Attention& p, cudaStream_t stream) {
  const bool fp8 = p.k_scales != nullptr;
  if (p.width == 128)
    return fp8 ? launch_decode<128, true>(p, stream) : launch_decode<128, false>(p, stream);
  return fp8 ? launch_decode<64, true>(p, stream) : launch_decode<64, false>(p, stream);
}

const void* kernel_of::attention_decode() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
