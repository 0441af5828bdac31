// SPDX-License-Identifier: Apache-2.0
// Prefill attention on Hopper's wgmma: heads of 128, pages of bf16 or of e4m3 codes, which are
// multiplied as f16. What attention_prefill.cu computes, which defines it.
//
//   tiles    of 128 packed rows of a sequence and kv head, late ones first; a packed row is
//            (token, query head of the kv head), so K and V of a kv head serve all its query heads
//            and stay in L2
//   grid     a CTA a multiprocessor, which draws tiles: the next one when it has asked for all of
//            the last one's K and V, so that it begins with both there
//   roles    warpgroup 0 draws, lets the copy engine bring 128 tokens of K and of V a step, brings
//            the next tile's queries and makes V safe at the causal edge; warpgroups 1 and 2 have
//            64 rows each: while one multiplies, the other does its softmax, where a token's k
//            scale multiplies its score and its v scale the weight of v
//   codes    are widened to f16 once by a kernel before, which a prompt's many tiles read. Of few
//            rows, and of sequences with one row each, warpgroup 0 widens them itself, from one
//            ring to the other: with the same bits
//   step     scores of the next 128 tokens are multiplied while the last 128 weights multiply v
//   shared   Q 32 KB, two stages of K and of V, 32 KB each; three slots of codes, 16 KB each
//   FLOPs    4 * rows * 128 * context, half of it under the causal edge: bound by the tensor cores
//
// A row's softmax takes the steps in order from token 0, and tokens beyond its position change
// nothing: its bits do not depend on the chunk it came in. Numbers: docs/kernels/README.md.
#include <algorithm>
#include <climits>

#include "cuda/launch.cuh"
#include "cuda/numeric.cuh"
#include "cuda/page_map.h"
#include "cuda/ptx.cuh"

namespace koho::cuda {
namespace {

constexpr int kWidth = 128;
constexpr int kRows = 128;       // of a tile
constexpr int kWarpgroup = 128;  // threads
constexpr int kMultipliers = 2;  // warpgroups
constexpr int kThreads = (1 + kMultipliers) * kWarpgroup;
constexpr int kStepPages = 2;
constexpr int kStepTokens = kStepPages * kPageRows;
constexpr int kStages = 2;
constexpr int kPanels = 2;                      // of 64 columns, 128 bytes
constexpr int kPanelBytes = kStepTokens * 128;  // of K, of V and of Q (128 rows each)
constexpr int kTileBytes = kPanels * kPanelBytes;
constexpr int kBoxBytes = kPageRows * 128;
constexpr int kSums = 64;  // of a thread: 64 rows x 128 columns over a warpgroup
constexpr int kTileSlots = 2;
constexpr int kFewTiles = 2;           // of a head, for which codes are not widened before
constexpr int kBlockBytes = 16 << 20;  // of K and V whose heads take turns, to stay in L2
constexpr int kCodeBytes = kStepTokens * kWidth;  // of K, and of V, as e4m3 codes
constexpr int kCodeSlots = 3;
constexpr int kScaleSlots = 4;
constexpr float kLog2E = 1.4426950408889634F;

// Named barriers: 0 is __syncthreads().
constexpr int kTurnBarrier = 1;   // and 2: a warpgroup's turn to multiply
constexpr int kCleanBarrier = 3;  // both warpgroups
constexpr int kQueryBarrier = 4;  // and 5: one warpgroup

/// Where K and V come from: pages of bf16, pages of codes, codes as widen_pages_kernel() left them.
enum class Source { bf16, codes, widened };

/// The scales of a step's tokens as the softmax takes them; of tokens beyond the context zero, and
/// of those whose v scale is no number, whose V is then NaN.
struct StepScales {
  float keys[kStepTokens];    // times what makes scores of base 2
  float values[kStepTokens];  // of v
  float largest[4];           // of v's, of 32 tokens each
};

/// The sequences and kv heads of one launch.
struct Part {
  int first_sequence;
  int sequences;
  int first_head;
  int heads;
  int head_block;  // heads whose tiles take turns
  // Widened: rows [sequence, head, tokens, 128] of K and of V, scales [sequence, head, steps].
  std::uint16_t* keys;
  std::uint16_t* values;
  StepScales* scales;
  int tokens;  // of a sequence and head: whole steps
};

/// What a CTA works on.
struct Tile {
  int steps;  // none: there are no more tiles
  int sequence;
  int kv_head;
  int group;       // query heads of the kv head
  int start;       // first token row of the sequence
  int first_row;   // packed
  int rows_total;  // packed, of the sequence
  int before;      // tokens of the context before the sequence's rows
  int visible;     // tokens that any row sees
  int least;       // tokens that every row sees
  int any_bad;     // see clean_values(); by the warp that cleans
};

template <Source kSource>
struct SharedPlan {
  static constexpr bool kCodes = kSource == Source::codes;
  static constexpr int kQuery = 0;
  static constexpr int kKeys = kTileBytes;
  static constexpr int kValues = kKeys + kStages * kTileBytes;
  static constexpr int kCodesRing = kValues + kStages * kTileBytes;  // K, V, K, V, …
  static constexpr int kRawScales = kCodesRing + (kCodes ? kCodeSlots * kCodeBytes : 0);
  static constexpr int kRawScaleBytes = 2 * kStepTokens * 4;  // of K, then of V; beside K's codes
  static constexpr int kScales = kRawScales + (kCodes ? kCodeSlots * kRawScaleBytes : 0);
  static constexpr int kBarriers =
      kScales + (kSource == Source::bf16 ? 0 : kScaleSlots * static_cast<int>(sizeof(StepScales)));
  static constexpr int kTiles = kBarriers + 256;
  static constexpr int kBad = kTiles + 128;  // of each slot and column, see clean_values()
  static constexpr int kBytes = kBad + kTileSlots * kWidth * 4 + 1024;  // 1024: the swizzle's
};
static_assert(SharedPlan<Source::codes>::kBytes <= 227 << 10);
static_assert(kTileSlots * sizeof(Tile) <= 128 && sizeof(StepScales) % 16 == 0);

/// Barriers of the rings; those of queries are a warpgroup's each.
struct Rings {
  std::uint32_t keys_full, keys_empty, values_full, values_empty;
  std::uint32_t values_raw;               // to be cleaned before they are full
  std::uint32_t codes_full, codes_empty;  // e4m3 pages
  std::uint32_t query_full, query_empty;
  std::uint32_t tile_full, tile_empty;
};

template <int kCount>
struct Turn {
  std::uint32_t stage = 0;
  std::uint32_t parity = 0;
  __device__ __forceinline__ void next() {
    if (++stage == kCount) {
      stage = 0;
      parity ^= 1;
    }
  }
};
using Step = Turn<kStages>;

/// Where 16-byte chunk `chunk` of row `row` of a tile of 128 rows lies.
__device__ __forceinline__ std::uint32_t place(int row, int chunk) {
  return static_cast<std::uint32_t>(chunk / 8 * kPanelBytes + row * 128 +
                                    ((chunk % 8 ^ (row & 7)) << 4));
}

// ---- wgmma

/// A shared operand in the 128-byte swizzle; 8 rows are 1024 bytes. `leading`: bytes between blocks
/// of 64 columns where columns are the outer extent (V), unused otherwise.
__device__ __forceinline__ std::uint64_t operand(std::uint32_t address, std::uint32_t leading) {
  constexpr std::uint64_t kRowGroup = 1024;
  constexpr std::uint64_t kSwizzle128 = 1;
  return static_cast<std::uint64_t>((address & 0x3FFFFU) >> 4U) |
         (static_cast<std::uint64_t>(leading >> 4U) << 16U) | ((kRowGroup >> 4U) << 32U) |
         (kSwizzle128 << 62U);
}

#define KOHO_SUMS4(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define KOHO_SUMS16(i) KOHO_SUMS4(i), KOHO_SUMS4((i) + 4), KOHO_SUMS4((i) + 8), KOHO_SUMS4((i) + 12)
#define KOHO_SUMS64 KOHO_SUMS16(0), KOHO_SUMS16(16), KOHO_SUMS16(32), KOHO_SUMS16(48)
#define KOHO_NAMES64                                                                         \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"  \
  "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45," \
  "%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}"

// clang-format off
/// d[64, 128] (+)= a[64, 16] * b[128, 16]^T, both in shared memory: bf16, or f16 if `kF16`.
template <bool kF16>
__device__ __forceinline__ void multiply_shared(float (&d)[kSums], std::uint64_t a, std::uint64_t b, int add) {
  if constexpr (kF16)
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %66, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 " KOHO_NAMES64 ", %64, %65, p, 1, 1, 0, 0;\n\t}"
      : KOHO_SUMS64 : "l"(a), "l"(b), "r"(add));
  else
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %66, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " KOHO_NAMES64 ", %64, %65, p, 1, 1, 0, 0;\n\t}"
      : KOHO_SUMS64 : "l"(a), "l"(b), "r"(add));
}
/// d[64, 128] += a[64, 16] * b[16, 128], a in registers.
template <bool kF16>
__device__ __forceinline__ void multiply_registers(float (&d)[kSums], const std::uint32_t (&a)[4], std::uint64_t b) {
  if constexpr (kF16)
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 " KOHO_NAMES64 ", {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"
      : KOHO_SUMS64 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  else
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " KOHO_NAMES64 ", {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"
      : KOHO_SUMS64 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
// clang-format on

#undef KOHO_NAMES64
#undef KOHO_SUMS64
#undef KOHO_SUMS16
#undef KOHO_SUMS4

__device__ __forceinline__ void multiply_begin() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void multiply_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void multiply_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// A warpgroup's registers a thread, down and up.
template <int kRegisters>
__device__ __forceinline__ void registers_give() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters) : "memory");
}
template <int kRegisters>
__device__ __forceinline__ void registers_take() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters) : "memory");
}

// ---- the tile

/// The first step of a tile with tokens that not every row sees.
__device__ __forceinline__ int edge_step(const Tile& tile) {
  return tile.least / kStepTokens;
}

/// How many tokens packed row `row` sees.
__device__ __forceinline__ int seen_by(const Tile& tile, int row) {
  return tile.before + row / tile.group + 1;
}

/// Draws tiles and tells them to the other warps. One warp.
class Drawer {
 public:
  __device__ __forceinline__ Drawer(const Attention& p, const Part& part) : p_(p), part_(part) {}

  /// Puts the next tile in its slot; one without steps if there is none.
  __device__ __forceinline__ Tile next(Tile* slots, const Rings& rings) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    unsigned number = blockIdx.x;  // of the first one
    if (drawn_) {
      if (lane == 0) number = gridDim.x + atomicAdd(p_.tickets, 1U);
      number = __shfl_sync(0xFFFFFFFFU, number, 0);
    }
    drawn_ = true;
    Tile tile{};
    if (find(static_cast<int>(number))) tile = describe(static_cast<int>(number));
    if (lane == 0) {
      mbarrier_wait(rings.tile_empty + 8 * at_.stage, at_.parity ^ 1);
      slots[at_.stage] = tile;
      mbarrier_arrive(rings.tile_full + 8 * at_.stage);
    }
    __syncwarp();
    at_.next();
    return tile;
  }

  /// The last CTA that has drawn leaves the tickets as it found them.
  __device__ __forceinline__ void leave() const {
    if (threadIdx.x % 32 != 0) return;
    __threadfence();
    if (atomicAdd(p_.tickets + 1, 1U) + 1 != gridDim.x) return;
    p_.tickets[0] = 0;
    p_.tickets[1] = 0;
  }

 private:
  /// Moves on to the 32 sequences that have tile `number`; false if none has.
  __device__ __forceinline__ bool find(int number) {
    for (;;) {
      const int here = __shfl_sync(0xFFFFFFFFU, upto_, 31);
      if (number - before_ < here) return true;
      before_ += here;
      first_ += 32;
      if (first_ >= part_.sequences) {
        first_ -= 32;
        before_ -= here;
        return false;
      }
      const int lane = static_cast<int>(threadIdx.x) % 32;
      count_ = 0;
      if (first_ + lane < part_.sequences) {
        const int sequence = part_.first_sequence + first_ + lane;
        const int rows = (p_.query_starts[sequence + 1] - p_.query_starts[sequence]) *
                         (p_.query_heads / p_.kv_heads);
        if (p_.context_lengths[sequence] > 0) count_ = (rows + kRows - 1) / kRows * part_.heads;
      }
      upto_ = count_;
#pragma unroll
      for (int offset = 1; offset < 32; offset *= 2) {
        const int other = __shfl_up_sync(0xFFFFFFFFU, upto_, offset);
        if (lane >= offset) upto_ += other;
      }
    }
  }
  __device__ __forceinline__ Tile describe(int number) const {
    const int here = number - before_;
    const int owner = __ffs(static_cast<int>(__ballot_sync(0xFFFFFFFFU, here < upto_))) - 1;
    const int tiles = __shfl_sync(0xFFFFFFFFU, count_, owner) / part_.heads;  // of a head
    int rest = here - __shfl_sync(0xFFFFFFFFU, upto_ - count_, owner);
    const int first_head = rest / (tiles * part_.head_block) * part_.head_block;
    const int heads = min(part_.head_block, part_.heads - first_head);
    rest -= first_head * tiles;
    Tile tile;
    tile.sequence = part_.first_sequence + first_ + owner;
    tile.kv_head = part_.first_head + first_head + rest % heads;
    tile.group = p_.query_heads / p_.kv_heads;
    tile.start = p_.query_starts[tile.sequence];
    tile.rows_total = (p_.query_starts[tile.sequence + 1] - tile.start) * tile.group;
    tile.first_row = (tiles - 1 - rest / heads) * kRows;
    // A sequence's rows are the last of its context.
    tile.before = p_.context_lengths[tile.sequence] - tile.rows_total / tile.group;
    tile.visible = seen_by(tile, min(tile.first_row + kRows, tile.rows_total) - 1);
    tile.least = seen_by(tile, tile.first_row);
    tile.steps = (tile.visible + kStepTokens - 1) / kStepTokens;
    tile.any_bad = 0;
    return tile;
  }

  const Attention& p_;
  const Part& part_;
  Turn<kTileSlots> at_;
  bool drawn_ = false;
  int first_ = -32;  // of the 32 sequences that the lanes know
  int before_ = 0;   // tiles of the sequences before them
  int count_ = 0;    // tiles of this lane's
  int upto_ = 0;     // and of the lanes before it
};

/// Keeps both rings full, from pages of bf16 or from what was widened. One warp.
template <Source kSource>
__device__ void produce(const Attention& p,
                        const Part& part,
                        const PageMaps& maps,
                        std::uint8_t* shared,
                        std::uint32_t base,
                        const Rings& rings) {
  using Plan = SharedPlan<kSource>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::uint64_t policy = evict_normal_policy();
  Drawer drawer(p, part);
  Step at;
  Turn<kScaleSlots> scales;
#pragma unroll 1
  for (;;) {
    const Tile tile = drawer.next(reinterpret_cast<Tile*>(shared + Plan::kTiles), rings);
    if (tile.steps == 0) break;
    const std::int32_t* table = p.page_tables + tile.sequence * p.page_tables_stride;
    const int pages = (tile.visible + kPageRows - 1) / kPageRows;
    const int unit =
        (tile.sequence - part.first_sequence) * part.heads + tile.kv_head - part.first_head;
    std::int32_t number = 0;
#pragma unroll 1
    for (int step = 0; step < tile.steps; ++step) {
      const std::uint32_t keys = base + Plan::kKeys + at.stage * kTileBytes;
      const std::uint32_t values = base + Plan::kValues + at.stage * kTileBytes;
      const std::uint32_t keys_full = rings.keys_full + 8 * at.stage;
      const std::uint32_t values_full =
          (step < edge_step(tile) ? rings.values_full : rings.values_raw) + 8 * at.stage;
      if constexpr (kSource == Source::widened) {
        const int row = unit * part.tokens + step * kStepTokens;
        const auto bring = [&](const CUtensorMap& map, std::uint32_t to, std::uint32_t barrier) {
#pragma unroll
          for (int panel = 0; panel < kPanels; ++panel)
            tensor_copy(to + static_cast<std::uint32_t>(panel * kPanelBytes), &map,
                        panel * (kWidth / kPanels), row, barrier, policy);
        };
        if (elect_one()) {
          mbarrier_wait(rings.keys_empty + 8 * at.stage, at.parity ^ 1);
          mbarrier_arrive_expect(keys_full, kTileBytes + sizeof(StepScales));
          bring(maps.k, keys, keys_full);
          bulk_copy(base + Plan::kScales + scales.stage * sizeof(StepScales),
                    part.scales + row / kStepTokens, sizeof(StepScales), keys_full, policy);
          mbarrier_wait(rings.values_empty + 8 * at.stage, at.parity ^ 1);
          mbarrier_arrive_expect(values_full, kTileBytes);
          bring(maps.v, values, values_full);
        }
      } else {
        const int first = step * kStepPages;
        if (first % 32 == 0 && first + lane < pages) number = table[first + lane];
        std::int32_t numbers[kStepPages];
#pragma unroll
        for (int i = 0; i < kStepPages; ++i)
          numbers[i] = __shfl_sync(0xFFFFFFFFU, number, (first + i) % 32);
        const int here = min(pages - first, kStepPages);
        const auto bring = [&](const CUtensorMap& map, std::uint32_t to, std::uint32_t barrier) {
          mbarrier_arrive_expect(barrier, static_cast<std::uint32_t>(here * kPanels * kBoxBytes));
          for (int i = 0; i < here; ++i) {
            const auto row = static_cast<int>(
                (static_cast<std::int64_t>(numbers[i]) * p.kv_heads + tile.kv_head) * kPageRows);
#pragma unroll
            for (int panel = 0; panel < kPanels; ++panel)
              tensor_copy(to + static_cast<std::uint32_t>(panel * kPanelBytes + i * kBoxBytes),
                          &map, panel * (kWidth / kPanels), row, barrier, policy);
          }
        };
        if (elect_one()) {
          mbarrier_wait(rings.keys_empty + 8 * at.stage, at.parity ^ 1);
          bring(maps.k, keys, keys_full);
          mbarrier_wait(rings.values_empty + 8 * at.stage, at.parity ^ 1);
          bring(maps.v, values, values_full);
        }
      }
      __syncwarp();
      at.next();
      scales.next();
    }
  }
  drawer.leave();
}

/// Where 16 bytes of packed row `packed` of a tile's queries are; null beyond its sequence.
__device__ __forceinline__ const Bf16* query_row(const Attention& p, const Tile& tile, int packed) {
  if (packed >= tile.rows_total) return nullptr;
  return p.q + (static_cast<std::int64_t>(tile.start + packed / tile.group) * p.query_heads +
                tile.kv_head * tile.group + packed % tile.group) *
                   kWidth;
}
__device__ __forceinline__ uint4 to_f16(const uint4& raw) {
  return make_uint4(bf16_to_f16(raw.x), bf16_to_f16(raw.y), bf16_to_f16(raw.z), bf16_to_f16(raw.w));
}

/// Puts each tile's 64 query rows of a warpgroup in shared memory, as f16 for codes, when the last
/// ones have been multiplied; absent rows become zero. A warp for each warpgroup.
template <bool kF16>
__device__ void produce_queries(
    const Attention& p, const Tile* tiles, std::uint8_t* query, const Rings& rings, int warpgroup) {
  constexpr int kHalf = kRows / kMultipliers;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int chunk = lane % 16;
  const std::uint32_t to = shared_address(query);
  const std::uint32_t full = rings.query_full + 8 * static_cast<std::uint32_t>(warpgroup);
  const std::uint32_t empty = rings.query_empty + 8 * static_cast<std::uint32_t>(warpgroup);
  std::uint32_t parity = 1;
  Turn<kTileSlots> at;
#pragma unroll 1
  for (;;) {
    mbarrier_wait(rings.tile_full + 8 * at.stage, at.parity);
    const Tile tile = tiles[at.stage];
    mbarrier_arrive(rings.tile_empty + 8 * at.stage);
    at.next();
    if (tile.steps == 0) break;
    const int first = tile.first_row + warpgroup * kHalf;
#pragma unroll
    for (int i = 0; i < kHalf / 32; ++i) {
      const Bf16* row = query_row(p, tile, first + i * 32 + lane);
      if (row != nullptr) prefetch_bulk(row, kWidth * 2);
    }
    // Rows two further on are found without dividing: the turn of a slot is short.
    int packed = first + lane / 16;
    int head = packed % tile.group;
    const Bf16* from =
        p.q +
        (static_cast<std::int64_t>(tile.start + packed / tile.group) * p.query_heads +
         tile.kv_head * tile.group + head) *
            kWidth +
        chunk * 8;
    const int heads = 2 % tile.group;
    const std::int64_t advance =
        (static_cast<std::int64_t>(2 / tile.group) * p.query_heads + heads) * kWidth;
    const std::int64_t wrap = static_cast<std::int64_t>(p.query_heads - tile.group) * kWidth;
    mbarrier_wait(empty, parity);
    parity ^= 1;
#pragma unroll 4
    for (int i = 0; i < kHalf / 2; ++i) {
      const bool present = packed < tile.rows_total;
      copy_16(to + place(warpgroup * kHalf + i * 2 + lane / 16, chunk), present ? from : p.q,
              present ? 16 : 0);
      packed += 2;
      head += heads;
      from += advance;
      if (head >= tile.group) {
        head -= tile.group;
        from += wrap;
      }
    }
    copy_commit();
    copy_wait<0>();
    if constexpr (kF16) {
#pragma unroll 4
      for (int row = warpgroup * kHalf + lane / 16; row < (warpgroup + 1) * kHalf; row += 2) {
        auto* own = reinterpret_cast<uint4*>(query + place(row, chunk));
        *own = to_f16(*own);
      }
    }
    proxy_fence();
    mbarrier_arrive(full);
  }
}

/// Puts a warpgroup's 64 query rows in shared memory as f16. The warpgroup, where warpgroup 0
/// widens codes.
__device__ void load_queries(
    const Attention& p, const Tile& tile, std::uint8_t* query, int warpgroup, int thread) {
  constexpr int kChunks = kWidth * 2 / 16;
  named_barrier(kQueryBarrier + warpgroup, kWarpgroup);  // the last ones have been multiplied
#pragma unroll 2
  for (int i = 0; i < kRows / kMultipliers * kChunks / kWarpgroup; ++i) {
    const int index = i * kWarpgroup + thread;
    const int row = warpgroup * (kRows / kMultipliers) + index / kChunks;
    const int chunk = index % kChunks;
    const Bf16* from = query_row(p, tile, tile.first_row + row);
    uint4 raw = make_uint4(0, 0, 0, 0);
    if (from != nullptr) raw = to_f16(*reinterpret_cast<const uint4*>(from + chunk * 8));
    *reinterpret_cast<uint4*>(query + place(row, chunk)) = raw;
  }
  proxy_fence();
  named_barrier(kQueryBarrier + warpgroup, kWarpgroup);
}

// NOTE: what may be contracted to one rounding is written so that it is not: the same row gets the
// same bits from each of the kernels below, from the first step's code and from the others'.

/// A thread's share of 64 rows: rows g and g + 8 of its warp's 16. Weights are 2^(score - base),
/// scores of base 2; it cancels in the last division.
struct Rows {
  float sum[kSums] = {};
  float base[2] = {-INFINITY, -INFINITY};
  float total[2] = {};  // of this thread's columns
};
/// What codes need beside, of the tokens that the row has seen: their base also keeps the weights'
/// products with v's scales within f16.
struct CodeRows {
  float largest[2] = {-INFINITY, -INFINITY};
  float largest_scale[2] = {0x1p-60F, 0x1p-60F};  // of v
};

__device__ __forceinline__ float quad_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFU, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xFFFFFFFFU, value, 2));
}

/// Tokens >= seen[half] of the step are masked.
__device__ __forceinline__ void mask(float (&score)[kSums], const int (&seen)[2]) {
  const int first = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int i = 0; i < kSums; ++i)
    if (i / 4 * 8 + first + i % 2 >= seen[i / 2 % 2]) score[i] = -INFINITY;
}

/// The largest of a row's scores.
__device__ __forceinline__ float row_largest(const float (&score)[kSums], int half) {
  float largest[2] = {-INFINITY, -INFINITY};
#pragma unroll
  for (int i = half * 2; i < kSums; i += 8) {
    largest[0] = fmaxf(largest[0], fmaxf(score[i], score[i + 1]));
    largest[1] = fmaxf(largest[1], fmaxf(score[i + 4], score[i + 5]));
  }
  return quad_max(fmaxf(largest[0], largest[1]));
}

/// Moves a row's base to `next` if that is more than `lag` above it: sums are scaled seldom so.
/// Returns what they are to be multiplied by: exactly 1 for a row whose base stays, for the bits of
/// a row must not depend on its neighbours'.
__device__ __forceinline__ float move_base(float& base, float next, float lag) {
  if (!(next > base + lag)) return 1.0F;
  const float keep = exp2_approximate(base - next);
  base = next;
  return keep;
}
/// Multiplies totals; true on the whole warp if any of its rows' sums are to be multiplied too.
__device__ __forceinline__ bool any_moved(Rows& rows, const float (&keep)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) rows.total[half] = __fmul_rn(rows.total[half], keep[half]);
  return __any_sync(0xFFFFFFFFU, keep[0] != 1.0F || keep[1] != 1.0F) != 0;
}

/// Moves bases to what a step's scores need. Tokens >= seen[half] of the step are masked if
/// `masked`.
__device__ __forceinline__ bool seek_bases(Rows& rows,
                                           float (&score)[kSums],
                                           float (&keep)[2],
                                           const int (&seen)[2],
                                           bool masked,
                                           float scale) {
  constexpr float kLag = 8.0F;  // weights up to 2^8
  if (masked) mask(score, seen);
#pragma unroll
  for (int half = 0; half < 2; ++half)
    keep[half] = move_base(rows.base[half], __fmul_rn(row_largest(score, half), scale), kLag);
  return any_moved(rows, keep);
}

/// The same for codes, whose scores take their token's scale here.
__device__ __forceinline__ bool seek_bases(Rows& rows,
                                           CodeRows& codes,
                                           float (&score)[kSums],
                                           float (&keep)[2],
                                           const int (&seen)[2],
                                           bool masked,
                                           const StepScales& scales) {
  // 2^exponent exceeds every scale, so that weights times scales stay below 2^kLargestWeight where
  // the base moved, and below f16's largest while it lags.
  constexpr int kLargestWeight = 14;
  constexpr float kLag = 1.5F;
  const int first = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int tile = 0; tile < kSums / 4; ++tile) {
    const float2 scale = *reinterpret_cast<const float2*>(scales.keys + tile * 8 + first);
    score[tile * 4] = __fmul_rn(score[tile * 4], scale.x);
    score[tile * 4 + 1] = __fmul_rn(score[tile * 4 + 1], scale.y);
    score[tile * 4 + 2] = __fmul_rn(score[tile * 4 + 2], scale.x);
    score[tile * 4 + 3] = __fmul_rn(score[tile * 4 + 3], scale.y);
  }
  const float4 four = *reinterpret_cast<const float4*>(scales.largest);
  float largest_scale[2];
  largest_scale[0] = largest_scale[1] = fmaxf(fmaxf(four.x, four.y), fmaxf(four.z, four.w));
  if (masked) {
    mask(score, seen);
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // of the tokens that the row sees
      float largest = 0.0F;
#pragma unroll 1
      for (int token = first / 2; token < seen[half] && token < kStepTokens; token += 4)
        largest = fmaxf(largest, scales.values[token]);
      largest_scale[half] = quad_max(largest);
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    codes.largest[half] = fmaxf(codes.largest[half], row_largest(score, half));
    codes.largest_scale[half] = fmaxf(codes.largest_scale[half], largest_scale[half]);
    const int exponent = static_cast<int>(__float_as_uint(codes.largest_scale[half]) >> 23) - 126;
    keep[half] = move_base(
        rows.base[half], codes.largest[half] + static_cast<float>(exponent - kLargestWeight), kLag);
  }
  return any_moved(rows, keep);
}

__device__ __forceinline__ void rescale(Rows& rows, const float (&keep)[2]) {
#pragma unroll
  for (int i = 0; i < kSums; ++i) rows.sum[i] *= keep[i / 2 % 2];
}

/// Scores become weights, the first operand of the product with v: in one stretch, as the product
/// before holds their registers until then.
template <bool kCodes>
__device__ __forceinline__ void weigh(Rows& rows,
                                      std::uint32_t (&weights)[kStepTokens / 16][4],
                                      const float (&score)[kSums],
                                      float scale,
                                      const StepScales* scales) {
  const int first = static_cast<int>(threadIdx.x) % 4 * 2;
  float base[2];  // finite: a row may see nothing
  float total[2][2] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half)
    base[half] = rows.base[half] == -INFINITY ? 0.0F : rows.base[half];
#pragma unroll
  for (int tile = 0; tile < kSums / 4; ++tile) {
    float2 of_values = make_float2(1.0F, 1.0F);
    if constexpr (kCodes)
      of_values = *reinterpret_cast<const float2*>(scales->values + tile * 8 + first);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float* s = score + tile * 4 + half * 2;
      const float low =
          exp2_approximate(kCodes ? __fsub_rn(s[0], base[half]) : fmaf(s[0], scale, -base[half]));
      const float high =
          exp2_approximate(kCodes ? __fsub_rn(s[1], base[half]) : fmaf(s[1], scale, -base[half]));
      total[half][0] += low;
      total[half][1] += high;
      weights[tile / 2][tile % 2 * 2 + half] =
          kCodes ? pack_f16(low * of_values.x, high * of_values.y) : pack_bf16(low, high);
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) rows.total[half] += total[half][0] + total[half][1];
}

/// Where an operand lies `bytes` further on.
__device__ __forceinline__ std::uint64_t further(std::uint64_t operand, std::uint32_t bytes) {
  return operand + (bytes >> 4U);
}

/// Starts score = q * keys^T.
template <bool kF16>
__device__ __forceinline__ void start_scores(float (&score)[kSums],
                                             std::uint64_t query,
                                             std::uint64_t keys) {
  multiply_begin();
#pragma unroll
  for (int k = 0; k < kWidth / 16; ++k) {
    const std::uint32_t at = static_cast<std::uint32_t>(k / 4 * kPanelBytes + k % 4 * 32);
    multiply_shared<kF16>(score, further(query, at), further(keys, at), k > 0 ? 1 : 0);
  }
  multiply_commit();
}
/// Starts sum += weights * values.
template <bool kF16>
__device__ __forceinline__ void start_sums(float (&sum)[kSums],
                                           const std::uint32_t (&weights)[kStepTokens / 16][4],
                                           std::uint64_t values) {
  multiply_begin();
#pragma unroll
  for (int k = 0; k < kStepTokens / 16; ++k)
    multiply_registers<kF16>(sum, weights[k],
                             further(values, static_cast<std::uint32_t>(k * 16 * 128)));
  multiply_commit();
}

/// Makes a step of V at the causal edge safe to multiply: what lies beyond what the tile sees
/// becomes zero, and so do NaNs and infinities of tokens that not every row sees, since no weight
/// of 0 undoes them for the others. bad[column] becomes the first such token, for those that do;
/// `found` is called before. `kThreads` threads.
template <bool kF16, int kThreads, typename Found>
__device__ __forceinline__ void clean_values(
    std::uint8_t* values, int* bad, int first_token, const Tile& tile, int thread, Found found) {
  constexpr std::uint32_t kExponent = kF16 ? 0x7C00U : 0x7F80U;
  const auto suspect = [](std::uint32_t word) {
    return (word & kExponent) == kExponent || (word & kExponent << 16U) == kExponent << 16U;
  };
  constexpr int kChunks = kWidth / 8;
  const int visible = min(tile.visible - first_token, kStepTokens);
  for (int panel = 0; panel < kPanels; ++panel)  // in whichever order its chunks are
#pragma unroll 4
    for (int at = visible * 128 + thread * 16; at < kPanelBytes; at += kThreads * 16)
      *reinterpret_cast<uint4*>(values + panel * kPanelBytes + at) = make_uint4(0, 0, 0, 0);
#pragma unroll 1
  for (int i = max(tile.least - first_token, 0) * kChunks + thread; i < visible * kChunks;
       i += kThreads) {
    const int token = i / kChunks;
    auto* chunk = reinterpret_cast<uint4*>(values + place(token, i % kChunks));
    const uint4 raw = *chunk;
    if (!suspect(raw.x) && !suspect(raw.y) && !suspect(raw.z) && !suspect(raw.w)) continue;
    auto* each = reinterpret_cast<std::uint16_t*>(chunk);
#pragma unroll 1
    for (int j = 0; j < 8; ++j) {
      if ((each[j] & kExponent) != kExponent) continue;
      each[j] = 0;
      found();
      atomicMin(&bad[i % kChunks * 8 + j], first_token + token);
    }
  }
  proxy_fence();
}

/// Cleans what needs it before it is multiplied. One warp.
template <Source kSource>
__device__ void clean(std::uint8_t* shared, const Rings& rings) {
  using Plan = SharedPlan<kSource>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  auto* tiles = reinterpret_cast<Tile*>(shared + Plan::kTiles);
  Turn<kTileSlots> at;
  std::uint32_t before = 0;    // steps of the tiles before
  std::uint32_t parities = 0;  // of what is to be cleaned, a bit a stage
#pragma unroll 1
  for (;;) {
    mbarrier_wait(rings.tile_full + 8 * at.stage, at.parity);
    Tile& tile = tiles[at.stage];
    const int steps = tile.steps;
    if (steps == 0) break;
    int* bad = reinterpret_cast<int*>(shared + Plan::kBad) + at.stage * kWidth;
#pragma unroll
    for (int i = 0; i < kWidth / 32; ++i) bad[i * 32 + lane] = INT_MAX;
    __syncwarp();
#pragma unroll 1
    for (int step = edge_step(tile); step < steps; ++step) {
      const std::uint32_t stage = (before + static_cast<std::uint32_t>(step)) % kStages;
      mbarrier_wait(rings.values_raw + 8 * stage, parities >> stage & 1U);
      parities ^= 1U << stage;
      clean_values<kSource == Source::widened, 32>(
          shared + Plan::kValues + stage * kTileBytes, bad, step * kStepTokens, tile, lane,
          [&] { *const_cast<volatile int*>(&tile.any_bad) = 1; });
      __syncwarp();
      if (lane == 0) mbarrier_arrive(rings.values_full + 8 * stage);
    }
    before += static_cast<std::uint32_t>(steps);
    mbarrier_arrive(rings.tile_empty + 8 * at.stage);
    at.next();
  }
}

/// The e4m3 codes that come in, and their pages' numbers. The first warp.
struct Codes {
  std::uint32_t ring, scales;  // shared
  std::int32_t number = 0;     // page numbers of this lane: 32 pages, and the next 32
  std::int32_t upcoming = 0;

  /// Brings K (kind 0) or V of a step to a slot of the ring.
  __device__ __forceinline__ void request(const Attention& p,
                                          const PageMaps& maps,
                                          const Tile& tile,
                                          const Rings& rings,
                                          Turn<kCodeSlots>& at,
                                          int step,
                                          int kind) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int pages = (tile.visible + kPageRows - 1) / kPageRows;
    const int first = step * kStepPages;
    if (kind == 0 && first % 32 == 0) {
      const std::int32_t* table = p.page_tables + tile.sequence * p.page_tables_stride + lane;
      if (first == 0 && lane < pages) upcoming = table[0];
      number = upcoming;
      if (first + 32 + lane < pages) upcoming = table[first + 32];
    }
    const std::uint32_t barrier = rings.codes_full + 8 * at.stage;
    if (lane == 0) mbarrier_wait(rings.codes_empty + 8 * at.stage, at.parity ^ 1);
    __syncwarp();
    const int here = min(pages - first, kStepPages);
    constexpr std::uint32_t kPageBytes = kPageRows * kWidth;
    constexpr std::uint32_t kPageScales = kPageRows * 4;
    if (lane == 0)
      mbarrier_arrive_expect(barrier, static_cast<std::uint32_t>(here) *
                                          (kPageBytes + (kind == 0 ? 2 * kPageScales : 0)));
    __syncwarp();
    const std::int64_t row =
        (static_cast<std::int64_t>(__shfl_sync(0xFFFFFFFFU, number, (first + lane) % 32)) *
             p.kv_heads +
         tile.kv_head) *
        kPageRows;
    if (lane < here) {
      const auto page = static_cast<std::uint32_t>(lane);
      const std::uint64_t policy = evict_normal_policy();
      tensor_copy(ring + at.stage * kCodeBytes + page * kPageBytes, kind == 0 ? &maps.k : &maps.v,
                  0, static_cast<int>(row), barrier, policy);
      if (kind == 0) {
        const std::uint32_t to = scales + at.stage * SharedPlan<Source::codes>::kRawScaleBytes;
        bulk_copy(to + page * kPageScales, p.k_scales + row, kPageScales, barrier, policy);
        bulk_copy(to + (kStepPages + page) * kPageScales, p.v_scales + row, kPageScales, barrier,
                  policy);
      }
    }
    __syncwarp();
    at.next();
  }
};

/// Sixteen codes as f16.
__device__ __forceinline__ void widen_chunk(std::uint32_t (&half)[8],
                                            const std::uint32_t (&code)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) e4m3_to_f16(code[i], half[2 * i], half[2 * i + 1]);
}

/// A token's codes become f16 in a tile of K or V.
__device__ __forceinline__ void widen_row(std::uint32_t from, std::uint32_t to) {
  const std::uint32_t swizzle = (threadIdx.x & 7U) << 4U;
#pragma unroll
  for (std::uint32_t chunk = 0; chunk < kWidth / 16; ++chunk) {
    std::uint32_t code[4];
    std::uint32_t half[8];
    load_shared(code, (from | swizzle) ^ (chunk << 4U));
    widen_chunk(half, code);
    const std::uint32_t panel = to + chunk / 4 * kPanelBytes;
    store_shared((panel | swizzle) ^ (chunk % 4 * 2 << 4U), half[0], half[1], half[2], half[3]);
    store_shared((panel | swizzle) ^ ((chunk % 4 * 2 + 1) << 4U), half[4], half[5], half[6],
                 half[7]);
  }
}

/// A token's scales as the softmax takes them. False if its v scale is no number: then its V is to
/// be NaN.
__device__ __forceinline__ bool put_scales(
    StepScales& scales, int token, bool beyond, float of_key, float of_value) {
  const bool finite = beyond || isfinite(of_value);
  if (beyond || !finite) of_value = 0.0F;
  scales.keys[token] = beyond ? 0.0F : of_key * (kLog2E / sqrtf(static_cast<float>(kWidth)));
  scales.values[token] = of_value;
  const float largest = warp_max(of_value);
  if (token % 32 == 0) scales.largest[token / 32] = largest;
  return finite;
}

/// Keeps both rings full from e4m3 pages: brings codes, and widens them, a token a thread. A
/// warpgroup.
__device__ void widen(const Attention& p,
                      const Part& part,
                      const PageMaps& maps,
                      std::uint8_t* shared,
                      std::uint32_t base,
                      const Rings& rings) {
  using Plan = SharedPlan<Source::codes>;
  const int thread = static_cast<int>(threadIdx.x);
  const bool loads = thread < 32;
  auto* tiles = reinterpret_cast<Tile*>(shared + Plan::kTiles);
  Drawer drawer(p, part);
  Turn<kTileSlots> tile_at;
  Codes codes{base + Plan::kCodesRing, base + Plan::kRawScales};
  Turn<kCodeSlots> requested;
  Turn<kCodeSlots> at;
  Step to;
  Turn<kScaleSlots> scale_at;
#pragma unroll 1
  for (;;) {
    if (loads) drawer.next(tiles, rings);
    mbarrier_wait(rings.tile_full + 8 * tile_at.stage, tile_at.parity);
    const Tile tile = tiles[tile_at.stage];
    mbarrier_arrive(rings.tile_empty + 8 * tile_at.stage);
    tile_at.next();
    if (tile.steps == 0) break;
    if (loads) {
      codes.request(p, maps, tile, rings, requested, 0, 0);
      codes.request(p, maps, tile, rings, requested, 0, 1);
    }
#pragma unroll 1
    for (int step = 0; step < tile.steps; ++step) {
      const std::uint32_t row = static_cast<std::uint32_t>(thread) * 128U;
      const bool more = step + 1 < tile.steps;

      if (loads && more) codes.request(p, maps, tile, rings, requested, step + 1, 0);
      mbarrier_wait(rings.codes_full + 8 * at.stage, at.parity);
      mbarrier_wait(rings.keys_empty + 8 * to.stage, to.parity ^ 1);
      const auto* raw = reinterpret_cast<const float*>(shared + Plan::kRawScales) +
                        at.stage * (2 * kStepTokens) + thread;
      auto& scales = reinterpret_cast<StepScales*>(shared + Plan::kScales)[scale_at.stage];
      const bool beyond = step * kStepTokens + thread >= tile.visible;
      const bool finite = put_scales(scales, thread, beyond, raw[0], raw[kStepTokens]);
      widen_row(codes.ring + at.stage * kCodeBytes + row,
                base + Plan::kKeys + to.stage * kTileBytes + row);
      proxy_fence();
      mbarrier_arrive(rings.codes_empty + 8 * at.stage);
      mbarrier_arrive(rings.keys_full + 8 * to.stage);
      at.next();

      if (loads && more) codes.request(p, maps, tile, rings, requested, step + 1, 1);
      mbarrier_wait(rings.codes_full + 8 * at.stage, at.parity);
      mbarrier_wait(rings.values_empty + 8 * to.stage, to.parity ^ 1);
      const std::uint32_t values = base + Plan::kValues + to.stage * kTileBytes + row;
      if (finite) {
        widen_row(codes.ring + at.stage * kCodeBytes + row, values);
      } else {
        constexpr std::uint32_t kNaNs = 0x7FFF7FFFU;
#pragma unroll 1
        for (std::uint32_t i = 0; i < kWidth / 8; ++i)
          store_shared(values + i / 8 * kPanelBytes + i % 8 * 16, kNaNs, kNaNs, kNaNs, kNaNs);
      }
      proxy_fence();
      mbarrier_arrive(rings.codes_empty + 8 * at.stage);
      mbarrier_arrive(rings.values_full + 8 * to.stage);
      at.next();
      to.next();
      scale_at.next();
    }
  }
  if (loads) drawer.leave();
}

/// Widens a page of one head of a sequence; what lies beyond the context becomes zero, up to a
/// whole step. Grid: pages, heads, sequences.
constexpr int kWidenThreads = 128;
__global__ void __launch_bounds__(kWidenThreads)
    widen_pages_kernel(const __grid_constant__ Attention p, const __grid_constant__ Part part) {
  grid_begin();
  const int thread = static_cast<int>(threadIdx.x);
  const int sequence = part.first_sequence + static_cast<int>(blockIdx.z);
  const int head = part.first_head + static_cast<int>(blockIdx.y);
  const int context = p.context_lengths[sequence];
  const int first = static_cast<int>(blockIdx.x) * kPageRows;  // token
  if (first >= (context + kStepTokens - 1) / kStepTokens * kStepTokens) return;
  const std::int64_t unit = static_cast<std::int64_t>(blockIdx.z) * part.heads + blockIdx.y;
  const std::int64_t to = unit * part.tokens + first;
  std::int64_t from = 0;
  if (first < context)
    from = (static_cast<std::int64_t>(p.page_tables[sequence * p.page_tables_stride + blockIdx.x]) *
                p.kv_heads +
            head) *
           kPageRows;
  __shared__ bool finite[kPageRows];
  if (thread < kPageRows) {
    const bool beyond = first + thread >= context;
    StepScales& scales = part.scales[to / kStepTokens];
    const float of_key = beyond ? 0.0F : p.k_scales[from + thread];
    const float of_value = beyond ? 0.0F : p.v_scales[from + thread];
    finite[thread] = put_scales(scales, first % kStepTokens + thread, beyond, of_key, of_value);
  }
  __syncthreads();
  constexpr int kChunks = kWidth / 16;
  constexpr int kEach = kPageRows * kChunks / kWidenThreads;
  uint4 raw[2][kEach];
#pragma unroll
  for (int kind = 0; kind < 2; ++kind)
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int index = i * kWidenThreads + thread;
      raw[kind][i] = make_uint4(0, 0, 0, 0);
      if (first + index / kChunks < context)
        raw[kind][i] = reinterpret_cast<const uint4*>(
            static_cast<const std::uint8_t*>(kind == 0 ? p.k : p.v) + from * kWidth)[index];
    }
#pragma unroll
  for (int kind = 0; kind < 2; ++kind)
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int index = i * kWidenThreads + thread;
      if (kind == 1 && !finite[index / kChunks])
        raw[kind][i] = make_uint4(0x7F7F7F7FU, 0x7F7F7F7FU, 0x7F7F7F7FU, 0x7F7F7F7FU);
      const std::uint32_t code[4] = {raw[kind][i].x, raw[kind][i].y, raw[kind][i].z,
                                     raw[kind][i].w};
      std::uint32_t half[8];
      widen_chunk(half, code);
      auto* out =
          reinterpret_cast<uint4*>((kind == 0 ? part.keys : part.values) + to * kWidth) + 2 * index;
      out[0] = make_uint4(half[0], half[1], half[2], half[3]);
      out[1] = make_uint4(half[4], half[5], half[6], half[7]);
    }
}

/// Multiplies what the producers bring. Two warpgroups.
template <Source kSource>
__device__ void multiply(const Attention& p,
                         std::uint8_t* shared,
                         std::uint32_t base,
                         const Rings& rings) {
  using Plan = SharedPlan<kSource>;
  constexpr bool kF16 = kSource != Source::bf16;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const int warpgroup =  // of the whole warp, so that descriptors are in uniform registers
      __shfl_sync(0xFFFFFFFFU, static_cast<int>(threadIdx.x) / kWarpgroup, 0) - 1;
  const int row = warpgroup * (kRows / kMultipliers) + thread / 32 * 16 + thread % 32 / 4;
  const std::uint64_t query = operand(
      base + Plan::kQuery + static_cast<std::uint32_t>(warpgroup * (kRows / kMultipliers) * 128),
      16);
  const std::uint64_t keys_operand = operand(base + Plan::kKeys, 16);
  const std::uint64_t values_operand = operand(base + Plan::kValues, kPanelBytes);
  const float scale = kLog2E / sqrtf(static_cast<float>(kWidth));
  const auto* tiles = reinterpret_cast<const Tile*>(shared + Plan::kTiles);
  const auto* scales = reinterpret_cast<const StepScales*>(shared + Plan::kScales);
  int* bad = reinterpret_cast<int*>(shared + Plan::kBad);
  const std::uint32_t query_full = rings.query_full + 8 * static_cast<std::uint32_t>(warpgroup);
  const std::uint32_t query_empty = rings.query_empty + 8 * static_cast<std::uint32_t>(warpgroup);
  const int my_turn = kTurnBarrier + warpgroup;
  const int other_turn = kTurnBarrier + 1 - warpgroup;
  if (warpgroup == 1) named_arrive(other_turn, kMultipliers * kWarpgroup);
  Turn<kTileSlots> tile_at;
  Turn<1> query_at;
  Step keys;
  Step values;
  Turn<kScaleSlots> scale_at;
  float score[kSums];
  float keep[2];
  std::uint32_t weights[kStepTokens / 16][4];

  const auto next_steps = [&] {
    mbarrier_wait(rings.tile_full + 8 * tile_at.stage, tile_at.parity);
    return tiles[tile_at.stage].steps;
  };
#pragma unroll 1
  for (int steps = next_steps(); steps > 0; steps = next_steps()) {
    const Tile& tile = tiles[tile_at.stage];
    const int least = tile.least;
    int seen[2];  // tokens that the row sees
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int packed = tile.first_row + row + half * 8;
      seen[half] = packed < tile.rows_total ? seen_by(tile, packed) : 0;
    }
    if constexpr (kSource == Source::codes)
      load_queries(p, tile, shared + Plan::kQuery, warpgroup, thread);
    else
      mbarrier_wait(query_full, query_at.parity);
    query_at.next();
    Rows rows;
    CodeRows codes;
    bool any_bad = false;
    const auto masked = [&](int step) { return (step + 1) * kStepTokens > least; };
    const auto values_ready = [&](int step) {
      mbarrier_wait(rings.values_full + 8 * values.stage, values.parity);
      if constexpr (kSource == Source::codes) {
        if (!masked(step)) return;
        bool found = false;
        clean_values<true, kMultipliers * kWarpgroup>(
            shared + Plan::kValues + values.stage * kTileBytes, bad, step * kStepTokens, tile,
            static_cast<int>(threadIdx.x) - kWarpgroup, [&] { found = true; });
        any_bad |= named_any(kCleanBarrier, kMultipliers * kWarpgroup, found);
      }
    };
    // True if sums are to be scaled by `keep`.
    const auto seek = [&](int step) {
      int here[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) here[half] = seen[half] - step * kStepTokens;
      if constexpr (kF16)
        return seek_bases(rows, codes, score, keep, here, masked(step), scales[scale_at.stage]);
      else
        return seek_bases(rows, score, keep, here, masked(step), scale);
    };
    const auto weigh_step = [&] {
      weigh<kF16>(rows, weights, score, scale, scales + scale_at.stage);
      scale_at.next();
    };
    const auto score_step = [&] {
      start_scores<kF16>(score, query, further(keys_operand, keys.stage * kTileBytes));
    };
    const auto sum_step = [&] {
      start_sums<kF16>(rows.sum, weights, further(values_operand, values.stage * kTileBytes));
    };
    const auto scored = [&](int step) {
      mbarrier_arrive(rings.keys_empty + 8 * keys.stage);
      keys.next();
      if (kSource != Source::codes && step + 1 == steps) mbarrier_arrive(query_empty);
    };

    mbarrier_wait(rings.keys_full + 8 * keys.stage, keys.parity);
    score_step();
    multiply_wait<0>();
    scored(0);
    seek(0);  // there are no sums yet
    weigh_step();
#pragma unroll 1
    for (int step = 1; step < steps; ++step) {
      values_ready(step - 1);
      mbarrier_wait(rings.keys_full + 8 * keys.stage, keys.parity);
      named_barrier(my_turn, kMultipliers * kWarpgroup);
      score_step();
      sum_step();
      named_arrive(other_turn, kMultipliers * kWarpgroup);
      multiply_wait<1>();
      scored(step);
      const bool moved = seek(step);
      multiply_wait<0>();
      mbarrier_arrive(rings.values_empty + 8 * values.stage);
      values.next();
      if (moved) rescale(rows, keep);
      weigh_step();
    }
    values_ready(steps - 1);
    sum_step();
    multiply_wait<0>();
    mbarrier_arrive(rings.values_empty + 8 * values.stage);
    values.next();

    if constexpr (kSource != Source::codes)
      any_bad = *const_cast<const volatile int*>(&tile.any_bad) != 0;
    if (any_bad) {
      const int* columns = kSource == Source::codes ? bad : bad + tile_at.stage * kWidth;
#pragma unroll
      for (int i = 0; i < kSums; ++i)
        if (columns[i / 4 * 8 + thread % 4 * 2 + i % 2] < seen[i / 2 % 2]) rows.sum[i] = NAN;
      if constexpr (kSource == Source::codes) {  // for the next tile
        named_barrier(kCleanBarrier, kMultipliers * kWarpgroup);
        if (warpgroup == 0) bad[thread] = INT_MAX;
        named_barrier(kCleanBarrier, kMultipliers * kWarpgroup);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int packed = tile.first_row + row + half * 8;
      float total = rows.total[half];
      total += __shfl_xor_sync(0xFFFFFFFFU, total, 1);
      total += __shfl_xor_sync(0xFFFFFFFFU, total, 2);
      const float factor = 1.0F / total;
      if (packed >= tile.rows_total) continue;
      Bf16* out =
          p.out + (static_cast<std::int64_t>(tile.start + packed / tile.group) * p.query_heads +
                   tile.kv_head * tile.group + packed % tile.group) *
                      kWidth;
#pragma unroll
      for (int i = 0; i < kSums / 4; ++i)
        *reinterpret_cast<std::uint32_t*>(out + i * 8 + thread % 4 * 2) =
            pack_bf16(rows.sum[i * 4 + half * 2] * factor, rows.sum[i * 4 + half * 2 + 1] * factor);
    }
    mbarrier_arrive(rings.tile_empty + 8 * tile_at.stage);
    tile_at.next();
  }
}

template <Source kSource>
__global__ void __launch_bounds__(kThreads, 1)
    attention_wgmma_kernel(const __grid_constant__ Attention p,
                           const __grid_constant__ Part part,
                           const __grid_constant__ PageMaps maps) {
  using Plan = SharedPlan<kSource>;
  constexpr bool kCodes = kSource == Source::codes;
  extern __shared__ std::uint8_t shared_bytes[];
  const std::uint32_t begin = shared_address(shared_bytes);
  const std::uint32_t base = (begin + 1023) / 1024 * 1024;
  std::uint8_t* shared = shared_bytes + (base - begin);
  Rings rings;
  rings.keys_full = base + Plan::kBarriers;
  rings.keys_empty = rings.keys_full + 8 * kStages;
  rings.values_full = rings.keys_empty + 8 * kStages;
  rings.values_empty = rings.values_full + 8 * kStages;
  rings.codes_full = rings.values_empty + 8 * kStages;
  rings.codes_empty = rings.codes_full + 8 * kCodeSlots;
  rings.query_full = rings.codes_empty + 8 * kCodeSlots;
  rings.query_empty = rings.query_full + 8 * kMultipliers;
  rings.tile_full = rings.query_empty + 8 * kMultipliers;
  rings.tile_empty = rings.tile_full + 8 * kTileSlots;
  rings.values_raw = rings.tile_empty + 8 * kTileSlots;
  if (threadIdx.x == 0) {
    tensor_map_prefetch(&maps.k);
    tensor_map_prefetch(&maps.v);
    for (std::uint32_t stage = 0; stage < kStages; ++stage) {
      mbarrier_init(rings.keys_full + 8 * stage, kCodes ? kWarpgroup : 1);
      mbarrier_init(rings.values_full + 8 * stage, kCodes ? kWarpgroup : 1);
      mbarrier_init(rings.keys_empty + 8 * stage, kMultipliers * kWarpgroup);
      mbarrier_init(rings.values_empty + 8 * stage, kMultipliers * kWarpgroup);
      mbarrier_init(rings.values_raw + 8 * stage, 1);
    }
    for (std::uint32_t slot = 0; kCodes && slot < kCodeSlots; ++slot) {
      mbarrier_init(rings.codes_full + 8 * slot, 1);
      mbarrier_init(rings.codes_empty + 8 * slot, kWarpgroup);
    }
    for (std::uint32_t half = 0; half < kMultipliers; ++half) {
      mbarrier_init(rings.query_full + 8 * half, 32);
      mbarrier_init(rings.query_empty + 8 * half, kWarpgroup);
    }
    for (std::uint32_t slot = 0; slot < kTileSlots; ++slot) {
      mbarrier_init(rings.tile_full + 8 * slot, 1);
      // Read by the multipliers, and by all that widen or all but the warp that drew.
      mbarrier_init(rings.tile_empty + 8 * slot,
                    kMultipliers * kWarpgroup + (kCodes ? kWarpgroup : kWarpgroup - 32));
    }
    mbarrier_init_fence();
  }
  if (threadIdx.x < kWidth) reinterpret_cast<int*>(shared + Plan::kBad)[threadIdx.x] = INT_MAX;
  __syncthreads();
  grid_begin();
  // NOTE: registers are exchanged before anything else is alive, and no role returns from within
  // its loop over tiles, or the compiler keeps to the registers of the entry and spills.
  if (threadIdx.x < kWarpgroup) {
    registers_give<kCodes ? 72 : 40>();
    if constexpr (kCodes) {
      widen(p, part, maps, shared, base, rings);
    } else {
      const int warp = __shfl_sync(0xFFFFFFFFU, static_cast<int>(threadIdx.x) / 32, 0);
      if (warp == 0)
        produce<kSource>(p, part, maps, shared, base, rings);
      else if (warp <= kMultipliers)
        produce_queries<kSource == Source::widened>(
            p, reinterpret_cast<const Tile*>(shared + Plan::kTiles), shared + Plan::kQuery, rings,
            warp - 1);
      else
        clean<kSource>(shared, rings);
    }
  } else {
    registers_take<kCodes ? 216 : 232>();
    multiply<kSource>(p, shared, base, rings);
  }
}

template <Source kSource>
cudaError_t launch_tiles(const Attention& p, Part part, int query_max, cudaStream_t stream) {
  constexpr int kShared = SharedPlan<kSource>::kBytes;
  const auto kernel = attention_wgmma_kernel<kSource>;
  static const cudaError_t ready =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  if (ready != cudaSuccess) return ready;
  PageMaps maps;
  const cudaError_t made =
      kSource == Source::widened
          ? make_row_maps(maps, part.keys, part.values,
                          static_cast<std::int64_t>(part.sequences) * part.heads * part.tokens,
                          kWidth, kStepTokens)
          : make_page_maps(maps, p);
  if (made != cudaSuccess) return made;
  const std::int64_t head_bytes =
      static_cast<std::int64_t>(std::max(p.context_max, 1)) * kWidth * 4;
  part.head_block =
      static_cast<int>(std::clamp<std::int64_t>(kBlockBytes / head_bytes, 1, part.heads));
  const int group = p.query_heads / p.kv_heads;
  const std::int64_t tiles = static_cast<std::int64_t>(part.sequences) * part.heads *
                             ((static_cast<std::int64_t>(query_max) * group + kRows - 1) / kRows);
  const auto grid = static_cast<unsigned>(std::clamp<std::int64_t>(tiles, 1, p.multiprocessors));
  return launch_kernel(kernel, {dim3(grid), dim3(kThreads), kShared}, stream, p, part, maps);
}

/// Bytes of one sequence and head, widened.
std::int64_t widened_unit_bytes(const Attention& p) {
  const std::int64_t steps = (std::max(p.context_max, 1) + kStepTokens - 1) / kStepTokens;
  return steps * (2 * kTileBytes + static_cast<std::int64_t>(sizeof(StepScales)));
}
bool widens_before(const Attention& p) {
  const std::int64_t rows = static_cast<std::int64_t>(p.query_max) * (p.query_heads / p.kv_heads);
  return p.k_scales != nullptr && rows > kFewTiles * kRows && p.sequences > p.decodes + p.singles;
}

/// What of the prompts, from sequence `first` on, is widened and attended to at a time.
struct WidenedLaunch {
  int sequences;
  int heads;
};
WidenedLaunch widened_launch(const Attention& p, int first) {
  const std::int64_t units = p.widened_bytes / widened_unit_bytes(p);
  return {static_cast<int>(std::clamp<std::int64_t>(units / p.kv_heads, 1, p.sequences - first)),
          static_cast<int>(std::min<std::int64_t>(units, p.kv_heads))};
}

/// Whether the prompts fit one launch, or each of several has work for all multiprocessors: one
/// long context makes the memory of all sequences large.
bool widening_pays(const Attention& p, int first) {
  const WidenedLaunch one = widened_launch(p, first);
  if (one.sequences == p.sequences - first && one.heads == p.kv_heads) return true;
  const std::int64_t rows = static_cast<std::int64_t>(p.query_max) * (p.query_heads / p.kv_heads);
  return one.sequences * one.heads * ((rows + kRows - 1) / kRows) >= p.multiprocessors;
}

/// Widens codes and attends to them, as many sequences and heads at a time as there is memory for.
cudaError_t launch_widened(const Attention& p, int first, cudaStream_t stream) {
  const WidenedLaunch most = widened_launch(p, first);
  for (int sequence = first; sequence < p.sequences; sequence += most.sequences) {
    for (int head = 0; head < p.kv_heads; head += most.heads) {
      Part part{};
      part.first_sequence = sequence;
      part.sequences = std::min(most.sequences, p.sequences - sequence);
      part.first_head = head;
      part.heads = std::min(most.heads, p.kv_heads - head);
      part.tokens = (std::max(p.context_max, 1) + kStepTokens - 1) / kStepTokens * kStepTokens;
      const std::int64_t elements =
          static_cast<std::int64_t>(part.sequences) * part.heads * part.tokens * kWidth;
      part.keys = reinterpret_cast<std::uint16_t*>(p.widened);
      part.values = part.keys + elements;
      part.scales = reinterpret_cast<StepScales*>(part.values + elements);
      const dim3 grid(static_cast<unsigned>(part.tokens / kPageRows),
                      static_cast<unsigned>(part.heads), static_cast<unsigned>(part.sequences));
      const cudaError_t widened =
          launch_kernel(widen_pages_kernel, {grid, dim3(kWidenThreads)}, stream, p, part);
      if (widened != cudaSuccess) return widened;
      const cudaError_t attended = launch_tiles<Source::widened>(p, part, p.query_max, stream);
      if (attended != cudaSuccess) return attended;
    }
  }
  return cudaSuccess;
}

}  // namespace

bool attention_has_wgmma_form(const Attention& p) {
  return p.width == kWidth && attention_has_fast_form(p);
}

std::int64_t attention_widened_bytes(const Attention& p, std::int64_t most) {
  if (!attention_has_wgmma_form(p) || !widens_before(p)) return 0;
  const std::int64_t unit = widened_unit_bytes(p);
  const std::int64_t all = (p.sequences - p.decodes - p.singles) * p.kv_heads * unit;
  return std::min(all, std::max(most, unit));
}

cudaError_t launch_attention_wgmma(const Attention& p, cudaStream_t stream) {
  Part part{};
  part.first_sequence = p.decodes;
  part.sequences = p.sequences - p.decodes;
  part.heads = p.kv_heads;
  if (p.k_scales == nullptr) return launch_tiles<Source::bf16>(p, part, p.query_max, stream);
  const int first = p.decodes + p.singles;
  if (!widens_before(p) || p.widened_bytes < widened_unit_bytes(p) || !widening_pays(p, first))
    return launch_tiles<Source::codes>(p, part, p.query_max, stream);
  if (p.singles > 0) {
    part.sequences = p.singles;
    const cudaError_t attended = launch_tiles<Source::codes>(p, part, 1, stream);
    if (attended != cudaSuccess) return attended;
  }
  return launch_widened(p, first, stream);
}

}  // namespace koho::cuda
