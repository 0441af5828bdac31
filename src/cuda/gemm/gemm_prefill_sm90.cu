// SPDX-License-Identifier: Apache-2.0
// Matrix products of many tokens on Hopper: one matrix, or the experts of a layer with their rows
// gathered one after the other.
//
//   grid     persistent clusters of two CTAs; a cluster takes 256 weight rows by up to kTileTokens
//            tokens at a time, a CTA half of the rows; an item's products have as many columns as
//            it has tokens, rounded up to the next form of the loop (num_prefill_widths); the tokens of
//            one matrix are cut so that clusters end together (prefill_token_blocks.h)
//   roles    warp 8 looks up items, one a lane, and copies: 8 KB bulk copies of tiled weights, and
//            its half of the token rows to both CTAs (boxes of 128 bytes of K, swizzled);
//            warpgroups 0 and 1 multiply 64 rows each and leave results by token in shared memory
//            while the next item's first products run; warps 9 to 11 write these, 128 bytes of a
//            token's row at a time, or have TMA store those of one matrix in boxes
//   sums     the order of the decode kernels: 256 bytes of K by themselves, added in f32, or of
//            bf16 in one chain of instructions; where the width is cut into parts (choose_split_k),
//            each part by itself, then in order. So a row has the bits that it has in decode.
//   shared   ring of (16 KB + 128 B * kTileTokens); an item's results; scales and biases of
//            two items; barriers
//   bytes    per product of 256 rows: weights once, tokens once, from L2
//
// Best: 3584x5120 at 8,192 tokens 202 us, 75 % of nominal (H200, 45ea55a, 2026-11-23). More:
// docs/kernels/README.md; what was tried: docs/kernels/linear.md.
#include <iterator>
#include <type_traits>

#include "cuda/device/launch.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/device/wgmma.cuh"
#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/gemm_sm90.h"
#include "cuda/gemm/prefill_token_blocks.h"

namespace koho::cuda {
namespace {

constexpr int kRowTiles = 2;
static_assert(kPrefillTiles == 2 * kRowTiles);
constexpr int kBlockRows = kRowTiles * kTileRows;
constexpr int kConsumers = 256;
constexpr int kThreads = 384;
constexpr int kWriters = 3;  // warps
constexpr int kWeightBytes = kBlockRows * kTmaBoxBytes;
constexpr int kBarrierBytes = 1024;  // and items
constexpr int kItems = 16;           // that are known at once, see WorkTileQueue
// One matrix' weights of at most so many bytes a row are brought to L2 a block ahead, where they
// pass once: wider ones lost up to 3 % by it (docs/kernels/linear.md).
constexpr int kL2PrefetchWidthMax = 1536;

template <int kTileTokens>
struct PrefillPlan {
  static constexpr int kTiles = kTileTokens / 8;
  // An item's products have kLeast, kLeast + kPrefillTokenStep, … kTileTokens columns.
  static constexpr int kLeast = prefill_width(kTileTokens, 0);
  static constexpr int kTokenBytes = kTileTokens * kTmaBoxBytes;
  static constexpr int kStage = kWeightBytes + kTokenBytes;
  static constexpr int kEpilogueBytes =
      kBlockRows * kTileTokens * 2;  // an item's results on their way out
  // Of two items in turn: tokens' scales, weight rows' scales, their biases.
  static constexpr int kScaleWords = kTileTokens + 2 * kBlockRows;
  static constexpr int kScales = 2 * kScaleWords * 4;
  static constexpr int kBefore =
      1024 + kBarrierBytes + kEpilogueBytes + kScales;  // alignment included
  static constexpr int kStages = (kSharedMax - kBefore) / kStage;
  static constexpr int kShared = kBefore + kStages * kStage;
};

struct PrefillWorkTile {
  int expert;
  int block;  // of 256 rows
  int first;
  int count;
};

struct PrefillTileScheduler {
  TokenBlocks slices;
  int token_blocks;  // or slices of the tokens of one matrix
  int blocks;
  int work_tiles;

  /// By whole warps, as warp_index().
  __device__ PrefillTileScheduler(const Gemm& p, const TokenBlocks& slices)
      : slices(slices),
        token_blocks(__shfl_sync(
            0xFFFFFFFFU, p.token_blocks != nullptr ? *p.token_block_count : slices.count, 0)),
        blocks((p.tiles + kPrefillTiles - 1) / kPrefillTiles),
        work_tiles(token_blocks * blocks) {}
  /// Of one matrix: whether its weights pass once, and its tokens again and again from L2, or the
  /// other way round: the larger operand once.
  static __device__ __forceinline__ bool blocks_first(const Gemm& p) { return p.rows > p.tokens; }
  /// Of any work: see kL2PrefetchWidthMax.
  static __device__ __forceinline__ bool prefetches_to_l2(const Gemm& p) {
    return p.token_blocks == nullptr && blocks_first(p) && p.width_bytes <= kL2PrefetchWidthMax;
  }
  /// Of one matrix.
  __device__ __forceinline__ PrefillWorkTile slice(const Gemm& p, int index) const {
    const int one = blocks_first(p) ? token_blocks : blocks;
    const int turn = index / one;
    const int rest = index - turn * one;
    const int at = blocks_first(p) ? rest : turn;
    const int first = token_block_begin(p.tokens, slices, at);
    return {0, blocks_first(p) ? turn : rest, first,
            token_block_begin(p.tokens, slices, at + 1) - first};
  }
  __device__ __forceinline__ PrefillWorkTile work_tile(const Gemm& p, int index) const {
    if (p.token_blocks == nullptr) return slice(p, index);
    // Entries of one expert pass over its weights together, so that these come from memory once.
    const int at = index / blocks;
    const ExpertTokenBlock any = p.token_blocks[at];
    const int first = at - any.block_of_expert;
    const int of_group = index - first * blocks;
    const ExpertTokenBlock e = p.token_blocks[first + of_group % any.blocks_of_expert];
    return {e.expert, of_group / any.blocks_of_expert, e.first, e.count};
  }
};

/// The form of an item's products.
template <int kTileTokens>
__device__ __forceinline__ int form_of(const PrefillWorkTile& work_tile) {
  return max(work_tile.count - PrefillPlan<kTileTokens>::kLeast + kPrefillTokenStep - 1, 0) /
         kPrefillTokenStep;
}

/// Slot and phase of the ring.
template <int kStages>
struct PipelineState {
  int slot = 0;
  std::uint32_t phase = 0;
  __device__ __forceinline__ void advance() {
    if (++slot == kStages) {
      slot = 0;
      phase ^= 1U;
    }
  }
};

/// Items on their way from the copying warp, which looks them up, to those that multiply and write:
/// neither waits for global memory between two items. NOTE: nobody says that an item was read. The
/// copying warp is at most a ring's slots and seven items ahead of those that multiply, and these
/// two items ahead of those that write.
struct WorkTileQueue {
  std::uint32_t work_tiles;  // kItems of 16 bytes
  std::uint32_t full;        // barriers

  __device__ __forceinline__ void put(int number, const PrefillWorkTile& work_tile) const {
    const auto at = static_cast<std::uint32_t>(number % kItems);
    store_shared(work_tiles + 16U * at, static_cast<std::uint32_t>(work_tile.expert),
                 static_cast<std::uint32_t>(work_tile.block),
                 static_cast<std::uint32_t>(work_tile.first),
                 static_cast<std::uint32_t>(work_tile.count));
    mbarrier_arrive(full + 8U * at);
  }
  __device__ __forceinline__ PrefillWorkTile get(int number) const {
    const auto at = static_cast<std::uint32_t>(number % kItems);
    mbarrier_wait(full + 8U * at, static_cast<std::uint32_t>(number / kItems % 2));
    std::uint32_t words[4];
    load_shared(words, work_tiles + 16U * at);
    return {static_cast<int>(words[0]), static_cast<int>(words[1]), static_cast<int>(words[2]),
            static_cast<int>(words[3])};
  }
};

/// The CTA's place in its cluster, from what ptxas knows to be the same in all lanes.
__device__ __forceinline__ int cta_rank() {
  return static_cast<int>(blockIdx.x) % 2;
}

/// One item's operands on their way into the ring; by a whole warp. NOTE: what is the same in all
/// lanes comes from shuffles, so that addresses stay in uniform registers: a step takes 45
/// instructions. As one lane's work it took 65, and as long as the step's products.
template <int kTileTokens>
struct OperandProducer {
  using Plan = PrefillPlan<kTileTokens>;

  const Gemm& p;
  const PrefillTensorMaps& maps;
  std::uint32_t full;
  std::uint32_t ring;
  PipelineState<Plan::kStages> at;
  const std::uint8_t* weight = nullptr;  // the next step's, of the first tile
  int second = 0;                        // bytes to the second one's
  int row = 0;                           // the first token's
  int form = 0;
  int columns = 0;

  /// The item that lane `place` has.
  __device__ __forceinline__ void begin(const PrefillWorkTile& mine, int place) {
    const auto uniform = [&](int value) { return __shfl_sync(0xFFFFFFFFU, value, place); };
    const int tile_bytes = kTileRows * p.width_bytes;
    const int tile = (uniform(mine.block) * 2 + cta_rank()) * kRowTiles;
    form = uniform(form_of<kTileTokens>(mine));
    columns = Plan::kLeast + form * kPrefillTokenStep;
    // Where a tile is missing, the one before is copied again: nobody writes its results.
    static_assert(kRowTiles == 2);
    weight = p.weight +
             (static_cast<std::int64_t>(uniform(mine.expert)) * p.tiles + min(tile, p.tiles - 1)) *
                 tile_bytes;
    second = tile + 1 < p.tiles ? tile_bytes : 0;
    row = uniform(mine.first) + cta_rank() * columns / 2;
  }
  /// Weights of a block to L2, from byte `column` of K on; by a whole warp.
  __device__ __forceinline__ void prefetch_to_l2(int block, int column) const {
    const int tile = (block * 2 + cta_rank()) * kRowTiles;
    if (column >= p.width_bytes || !elect_one()) return;
    const auto bytes = static_cast<std::uint32_t>((p.width_bytes - column) * kTileRows);
    for (int i = tile; i < min(tile + kRowTiles, p.tiles); ++i)
      prefetch_bulk(p.weight + (static_cast<std::int64_t>(i) * p.width_bytes + column) * kTileRows,
                    bytes);
  }
  /// The slot's bytes on its barrier, and `bytes` of each weight tile under way. By one lane.
  __device__ __forceinline__ void weights(std::uint32_t bytes, std::uint64_t policy) const {
    const std::uint32_t barrier = full + 8U * static_cast<std::uint32_t>(at.slot);
    const std::uint32_t to = ring + static_cast<std::uint32_t>(at.slot * Plan::kStage);
    mbarrier_arrive_expect_tx(
        barrier, kRowTiles * bytes + static_cast<std::uint32_t>(columns * kTmaBoxBytes));
    bulk_copy(to, weight, bytes, barrier, policy);
    bulk_copy(to + static_cast<std::uint32_t>(kTileRows * kTmaBoxBytes), weight + second, bytes,
              barrier, policy);
  }
  /// The CTA's half of the tokens, to both. By one lane.
  __device__ __forceinline__ void tokens(int column) const {
    const auto half =
        static_cast<std::uint32_t>(kWeightBytes + cta_rank() * columns / 2 * kTmaBoxBytes);
    tma_load_multicast(ring + static_cast<std::uint32_t>(at.slot * Plan::kStage) + half,
                       &maps.of[form], column, row, full + 8U * static_cast<std::uint32_t>(at.slot),
                       3);
  }
};

constexpr std::uint32_t kWholeStep = kTmaBoxBytes * kTileRows;  // bytes of a weight tile

/// Bytes of K of one matrix' first item that are under way before items are looked up.
template <int kTileTokens>
__device__ __forceinline__ int prologue_bytes(const Gemm& p, int work_tiles) {
  if (p.token_blocks != nullptr || static_cast<int>(blockIdx.x) / 2 >= work_tiles) return 0;
  return min(PrefillPlan<kTileTokens>::kStages, p.width_bytes / kTmaBoxBytes) * kTmaBoxBytes;
}

/// Begins them with the weights, which are no kernel's results, and with barriers of this CTA
/// alone.
template <int kTileTokens>
__device__ __forceinline__ int load_prologue_weights(OperandProducer<kTileTokens>& first,
                                                     const PrefillTileScheduler& work) {
  const int prologue = prologue_bytes<kTileTokens>(first.p, work.work_tiles);
  const PrefillWorkTile work_tile = work.slice(first.p, static_cast<int>(blockIdx.x) / 2);
  first.begin(work_tile, 0);
  const std::uint64_t policy = evict_normal_policy();
#pragma unroll 1
  for (int column = 0; column < prologue; column += kTmaBoxBytes, first.at.advance()) {
    if (elect_one()) first.weights(kWholeStep, policy);
    first.weight += kWholeStep;
  }
  if (PrefillTileScheduler::prefetches_to_l2(first.p) && prologue > 0 && work_tile.first == 0)
    first.prefetch_to_l2(work_tile.block, prologue);
  return prologue;
}
template <int kTileTokens>
__device__ __forceinline__ void load_prologue_tokens(OperandProducer<kTileTokens>& first,
                                                     int prologue) {
  first.at = {};
#pragma unroll 1
  for (int column = 0; column < prologue; column += kTmaBoxBytes, first.at.advance())
    if (elect_one()) first.tokens(column);
}

/// One warp looks items up and fills the ring; it leaves when nobody sends to its CTA any more.
template <int kTileTokens>
__device__ __forceinline__ void produce_operands(const Gemm& p,
                                                 const PrefillTensorMaps& maps,
                                                 const PrefillTileScheduler& work,
                                                 const WorkTileQueue& list,
                                                 std::uint32_t full,
                                                 std::uint32_t empty,
                                                 std::uint32_t ring) {
  using Plan = PrefillPlan<kTileTokens>;
  constexpr int kTogether = 8;  // items looked up at once: their time is hardly that of one
  static_assert(Plan::kStages + 3 <= kItems - kTogether,
                "an item would be overwritten before it is read");
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::uint64_t policy = evict_normal_policy();
  const int stride = static_cast<int>(gridDim.x) / 2;
  const int whole = p.width_bytes / kTmaBoxBytes * kTmaBoxBytes;
  const std::uint32_t rest = static_cast<std::uint32_t>(p.width_bytes - whole) * kTileRows;
  OperandProducer<kTileTokens> copies{p, maps, full, ring, {}};
  auto& at = copies.at;
  const auto slot_empty = [&] {
    mbarrier_wait(empty + 8U * static_cast<std::uint32_t>(at.slot), at.phase ^ 1U);
  };
  const bool brings = PrefillTileScheduler::prefetches_to_l2(p);
  int column = prologue_bytes<kTileTokens>(p, work.work_tiles);
  for (int passed = 0; passed < column; passed += kTmaBoxBytes) at.advance();
  PrefillWorkTile mine{};
  int number = 0;
  for (int index = static_cast<int>(blockIdx.x) / 2; index < work.work_tiles;
       index += stride, ++number) {
    const int place = number % kTogether;
    if (place == 0 && lane < kTogether && index + lane * stride < work.work_tiles) {
      mine = work.work_tile(p, index + lane * stride);
      list.put(number + lane, mine);
    }
    copies.begin(mine, place);
    copies.weight += column * kTileRows;
    // Whoever takes a block's first slice next: the clusters that take the others ask for the same
    // weights at the same time.
    if (brings && place + 1 < kTogether && index + stride < work.work_tiles &&
        __shfl_sync(0xFFFFFFFFU, mine.first, place + 1) == 0)
      copies.prefetch_to_l2(__shfl_sync(0xFFFFFFFFU, mine.block, place + 1), 0);
    for (; column < whole; column += kTmaBoxBytes, at.advance(), copies.weight += kWholeStep) {
      slot_empty();
      if (elect_one()) {
        copies.weights(kWholeStep, policy);
        copies.tokens(column);
      }
    }
    if (rest != 0) {
      slot_empty();
      if (elect_one()) {
        copies.weights(rest, policy);
        copies.tokens(column);
      }
      at.advance();
    }
    column = 0;
  }
  launch_dependent_grids();
  for (int slot = 0; slot < Plan::kStages; ++slot, at.advance()) slot_empty();
}

/// Where a multiplying warpgroup leaves an item's results, rounded to bf16, for those that write
/// them, and where these leave its scales and biases before: of each token 64 weight rows, 16 bytes
/// of them at place i ^ (token % 8), so that neither side meets bank conflicts.
template <int kTileTokens>
struct EpilogueBuffer {
  static constexpr int kRowBytes = kTileRows * 2;
  static constexpr int kPieces = kRowBytes / 16;
  static constexpr int kGroupBytes = kTileTokens * kRowBytes;

  std::uint32_t results;
  const float* scales;  // see PrefillPlan
  std::uint32_t full;   // barriers, of each warpgroup
  std::uint32_t empty;

  __device__ __forceinline__ std::uint32_t place(int group, int token, int piece) const {
    return results + static_cast<std::uint32_t>(group * kGroupBytes + token * kRowBytes +
                                                ((piece ^ (token % 8)) * 16));
  }
};

/// Scales a warp's 16 rows of sums and writes them in f32.
template <TileType kType, int kTileTokens>
__device__ __forceinline__ void write_sums(const Gemm& p,
                                           const PrefillWorkTile& work_tile,
                                           int first_row,
                                           const float (&sum)[kTileTokens / 8][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int rows_all = p.tiles * kTileRows;
  float row_scales[2] = {1.0F, 1.0F};
  float bias[2] = {0.0F, 0.0F};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int n = min(first_row + lane / 4 + i * 8, rows_all - 1);
    if (kType == TileType::fp8)
      row_scales[i] = p.row_scales[static_cast<std::int64_t>(work_tile.expert) * rows_all + n];
    if (p.bias != nullptr && n < p.rows) bias[i] = to_float(p.bias[n]);
  }
#pragma unroll
  for (int tile = 0; tile < kTileTokens / 8; ++tile) {
    if (tile * 8 >= work_tile.count) break;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = tile * 8 + lane % 4 * 2 + i % 2;
      const int n = first_row + lane / 4 + i / 2 * 8;
      if (token >= work_tile.count || n >= p.rows) continue;
      const float x_scale = kType == TileType::fp8 ? p.x_scales[work_tile.first + token] : 1.0F;
      static_cast<float*>(p.out)[(work_tile.first + token) * p.out_stride + n] =
          apply_scales<kType>(p, sum[tile][i], row_scales[i / 2], x_scale, bias[i / 2]);
    }
  }
}

/// Whether results may be f32. Where not, an item's end takes fewer instructions.
template <int kTileTokens>
constexpr bool kMayBeF32 = kTileTokens != kPrefillTokensMax;

/// Whether TMA may store results.
template <int kTileTokens>
constexpr bool kMayTmaStore = kTileTokens == kPrefillTokensMax;

/// An item whose products are summed and not handed on yet.
struct FinishedTile {
  PrefillWorkTile work_tile;
  int row;  // the warp's first
};

/// Scales a warp's 16 rows of sums and hands them on; results in f32 it writes itself. Calls
/// `halfway` there.
template <TileType kType, int kTileTokens, typename Halfway>
__device__ __forceinline__ void store_to_epilogue_buffer(const Gemm& p,
                                                         const FinishedTile& ended,
                                                         const float (&sum)[kTileTokens / 8][4],
                                                         const EpilogueBuffer<kTileTokens>& handed,
                                                         std::uint32_t phase,
                                                         const Halfway& halfway) {
  constexpr int kTogether = 4;  // tiles whose scales are loaded while the ones before are used
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (kMayBeF32<kTileTokens> && p.epilogue == Epilogue::f32) {
    halfway();
    write_sums<kType, kTileTokens>(p, ended.work_tile, ended.row, sum);
    return;
  }
  const auto group = static_cast<std::uint32_t>(warp / 4);
  mbarrier_wait(handed.empty + 8U * group, phase);
  const float* of_item = handed.scales + phase * PrefillPlan<kTileTokens>::kScaleWords;
  const float* x_scales = of_item + lane % 4 * 2;
  const float* of_rows = of_item + kTileTokens + warp * 16 + lane / 4;
  float row_scales[2] = {1.0F, 1.0F};
  float bias[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (kType == TileType::fp8) row_scales[i] = of_rows[i * 8];
    bias[i] = of_rows[kBlockRows + i * 8];
  }
  const std::uint32_t to =
      handed.place(warp / 4, lane / 16 * 8 + lane % 8, warp % 4 * 2 + lane / 8 % 2);
  float2 scales[2][kTogether];
  const auto load = [&](int tile) {
#pragma unroll
    for (int i = 0; i < kTogether; ++i)
      if (tile + i < kTileTokens / 8)
        scales[tile / kTogether % 2][i] =
            kType == TileType::fp8 ? *reinterpret_cast<const float2*>(x_scales + (tile + i) * 8)
                                   : make_float2(1.0F, 1.0F);
  };
  const auto scaled = [&](float value, int i, float x_scale) {
    return apply_scales<kType>(value, row_scales[i], x_scale, bias[i]);
  };
  load(0);
#pragma unroll
  for (int first = 0; first < kTileTokens / 8; first += kTogether) {
    if (first == kTileTokens / 16) halfway();
    load(first + kTogether);
#pragma unroll
    for (int tile = first; tile < first + kTogether && tile < kTileTokens / 8; tile += 2) {
      std::uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 scale = scales[first / kTogether % 2][tile - first + i / 2];
        const float* value = &sum[tile + i / 2][i % 2 * 2];
        pairs[i] = pack_bf16(scaled(value[0], i % 2, scale.x), scaled(value[1], i % 2, scale.y));
      }
      stmatrix_x4_trans(
          to + static_cast<std::uint32_t>(tile * 8 * EpilogueBuffer<kTileTokens>::kRowBytes),
          pairs);
    }
  }
  mbarrier_arrive(handed.full + 8U * group);
}

/// Two columns of gate times up.
__device__ __forceinline__ std::uint32_t joined(std::uint32_t gate, std::uint32_t up) {
  const auto low = [](std::uint32_t word) { return __uint_as_float(word << 16U); };
  const auto high = [](std::uint32_t word) { return __uint_as_float(word & 0xFFFF0000U); };
  return pack_bf16(silu_mul(low(gate), low(up)), silu_mul(high(gate), high(up)));
}

/// Writes eight neighbouring columns from `n` on of a writer's tokens; kLanes lanes of a warp take
/// one token, and `read(token)` returns its columns. kAhead tokens are under way at once.
template <int kLanes, int kAhead, typename Read>
__device__ __forceinline__ void write_columns(
    const Gemm& p, const PrefillWorkTile& work_tile, int writer, int n, const Read& read) {
  constexpr int kStep = kWriters * 32 / kLanes;
  int token = (writer * 32 + static_cast<int>(threadIdx.x) % 32) / kLanes;
  Bf16* to = static_cast<Bf16*>(p.out) + (work_tile.first + token) * p.out_stride + n;
  const std::int64_t stride = kStep * p.out_stride;
  const bool whole =
      n + 8 <= p.rows && p.out_stride % 8 == 0 && reinterpret_cast<std::uintptr_t>(p.out) % 16 == 0;
  if (whole) {
#pragma unroll 1
    for (; token + (kAhead - 1) * kStep < work_tile.count; token += kAhead * kStep) {
      uint4 eight[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) eight[i] = read(token + i * kStep);
#pragma unroll
      for (int i = 0; i < kAhead; ++i, to += stride) *reinterpret_cast<uint4*>(to) = eight[i];
    }
  }
#pragma unroll 1
  for (; token < work_tile.count; token += kStep, to += stride) {
    const uint4 eight = read(token);
    if (whole) {
      *reinterpret_cast<uint4*>(to) = eight;
    } else {
      const std::int64_t place = (work_tile.first + token) * p.out_stride;
      store_pair(p, place, n, eight.x);
      store_pair(p, place, n + 2, eight.y);
      store_pair(p, place, n + 4, eight.z);
      store_pair(p, place, n + 6, eight.w);
    }
  }
}

/// Writes what a warpgroup left of an item, 64 weight rows from `row` on.
template <int kTileTokens>
__device__ __forceinline__ void write_results(const Gemm& p,
                                              const PrefillWorkTile& work_tile,
                                              const EpilogueBuffer<kTileTokens>& handed,
                                              int group,
                                              int row,
                                              int writer) {
  constexpr int kPieces = EpilogueBuffer<kTileTokens>::kPieces;
  const auto piece_of = [&](int token, int piece) {
    std::uint32_t words[4];
    load_shared(words, handed.place(group, token, piece));
    return make_uint4(words[0], words[1], words[2], words[3]);
  };
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (p.epilogue == Epilogue::silu_mul) {  // pieces of gate and of up in turn
    const int pair = lane % (kPieces / 2);
    write_columns<kPieces / 2, 1>(p, work_tile, writer, row / 2 + pair * 8, [&](int token) {
      const uint4 gate = piece_of(token, pair * 2);
      const uint4 up = piece_of(token, pair * 2 + 1);
      return make_uint4(joined(gate.x, up.x), joined(gate.y, up.y), joined(gate.z, up.z),
                        joined(gate.w, up.w));
    });
  } else {
    const int piece = lane % kPieces;
    write_columns<kPieces, 4>(p, work_tile, writer, row + piece * 8,
                              [&](int token) { return piece_of(token, piece); });
  }
}

/// Has TMA store what a warpgroup left of an item, as one thread; returns when the
/// place is free again. NOTE: in boxes of kPrefillTokenStep tokens, since the next ones are another
/// item's, and one box after the other while the next item is copied: stored at once, they hold up
/// copies into the ring when it is at its emptiest.
template <int kTileTokens>
__device__ __forceinline__ void store_results(const PrefillTensorMaps& maps,
                                              const PrefillWorkTile& work_tile,
                                              const EpilogueBuffer<kTileTokens>& handed,
                                              int group,
                                              int row,
                                              bool last) {
  fence_proxy_async_shared();
#pragma unroll 1
  for (int token = 0; token < work_tile.count; token += kPrefillTokenStep) {
    tma_store(&maps.out, row * 2, work_tile.first + token, handed.place(group, token, 0));
    if (!last) tma_store_wait_read();
  }
  if (last) tma_store_wait_read();
}

/// Writes items' results while the next ones are multiplied. Before a place is given back, the
/// scales and biases of the item that it is for next are there.
template <TileType kType, int kTileTokens>
__device__ void epilogue_warps(const Gemm& p,
                               const PrefillTensorMaps& maps,
                               const PrefillTileScheduler& work,
                               const WorkTileQueue& list,
                               const EpilogueBuffer<kTileTokens>& handed,
                               float* scales) {
  if (p.epilogue == Epilogue::f32) return;
  using Plan = PrefillPlan<kTileTokens>;
  constexpr int kTurn = kWriters * 32;
  constexpr int kEach = (kTileTokens + kTurn - 1) / kTurn;  // scales of a lane
  constexpr int kEachRow = (kBlockRows + kTurn - 1) / kTurn;
  const int thread = static_cast<int>(threadIdx.x) - kConsumers - 32;
  const int writer = warp_index() - kConsumers / 32 - 1;
  const int first = static_cast<int>(blockIdx.x) / 2;
  const int stride = static_cast<int>(gridDim.x) / 2;
  const auto arrive = [&](int group) {
    __syncwarp();
    mbarrier_arrive(handed.empty + 8U * static_cast<std::uint32_t>(group));
  };
  const int rows_all = p.tiles * kTileRows;
  float next[kEach] = {};
  float next_rows[kEachRow] = {};
  const auto row_of = [&](const PrefillWorkTile& work_tile, int i) {
    return (work_tile.block * 2 + cta_rank()) * kBlockRows + thread + i * kTurn;
  };
  const auto load_scales = [&](const PrefillWorkTile& work_tile) {
    if constexpr (kType == TileType::fp8)
      for (int i = 0; i < kEach; ++i)
        next[i] = p.x_scales[work_tile.first + min(thread + i * kTurn, work_tile.count - 1)];
    if constexpr (kType == TileType::fp8)
      for (int i = 0; i < kEachRow; ++i)
        next_rows[i] = p.row_scales[static_cast<std::int64_t>(work_tile.expert) * rows_all +
                                    min(row_of(work_tile, i), rows_all - 1)];
  };
  const auto store_scales = [&](const PrefillWorkTile& work_tile, std::uint32_t phase) {
    float* to = scales + phase * Plan::kScaleWords + thread;
    for (int i = 0; i < kEach; ++i)
      if (thread + i * kTurn < kTileTokens) to[i * kTurn] = next[i];
    for (int i = 0; i < kEachRow; ++i) {
      if (thread + i * kTurn >= kBlockRows) continue;
      to[kTileTokens + i * kTurn] = next_rows[i];
      const int n = row_of(work_tile, i);
      to[kTileTokens + kBlockRows + i * kTurn] =
          p.bias != nullptr && n < p.rows ? to_float(p.bias[n]) : kNoBias;
    }
  };
  if (first >= work.work_tiles) return;
  PrefillWorkTile following = list.get(0);
  load_scales(following);
  store_scales(following, 0);
  arrive(0);
  arrive(1);
  std::uint32_t phase = 0;
  int number = 0;
  for (int index = first; index < work.work_tiles; index += stride, phase ^= 1U) {
    const PrefillWorkTile work_tile = following;
    const bool last = index + stride >= work.work_tiles;
    if (!last) following = list.get(++number);
    load_scales(following);
    const int tile = (work_tile.block * 2 + cta_rank()) * kRowTiles;
    for (int group = 0; group < 2; ++group) {
      mbarrier_wait(handed.full + 8U * static_cast<std::uint32_t>(group), phase);
      const int row = (tile + group) * kTileRows;
      if (tile + group < p.tiles) {
        if (!kMayTmaStore<kTileTokens> || !maps.stores)
          write_results<kTileTokens>(p, work_tile, handed, group, row, writer);
        else if (writer == (last ? group : 0) && elect_one())
          store_results<kTileTokens>(maps, work_tile, handed, group, row, last);
      }
      if (group == 0) store_scales(following, phase ^ 1U);
      arrive(group);
    }
  }
}

/// Calls `run` with the form's number of columns as a constant. The last forms, which prompts have,
/// are found first.
template <int kTileTokens, int kForm = num_prefill_widths(kTileTokens) - 1, typename Run>
__device__ __forceinline__ void with_columns(int form, const Run& run) {
  if (kForm == 0 || form == kForm)
    run(std::integral_constant<int, prefill_width(kTileTokens, kForm)>{});
  else if constexpr (kForm > 0)
    with_columns<kTileTokens, kForm - 1>(form, run);
}

template <TileType kType, int kTileTokens, bool kSplitK>
__device__ void mma_warpgroups(const Gemm& p,
                               const PrefillTileScheduler& work,
                               const WorkTileQueue& list,
                               std::uint32_t full,
                               std::uint32_t empty,
                               std::uint32_t ring,
                               const EpilogueBuffer<kTileTokens>& handed) {
  using Plan = PrefillPlan<kTileTokens>;
  const int warp = warp_index();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int rank = cta_rank();
  const int stages_all = (p.width_bytes + kStageWidth - 1) / kStageWidth;
  const auto release = [&](int slot) {
    const std::uint32_t barrier = empty + 8U * static_cast<std::uint32_t>(slot);
    if (lane < 2)
      mbarrier_arrive_remote(map_shared_rank(barrier, static_cast<std::uint32_t>(lane)));
  };
  const int group = warp / 4;
  std::uint32_t phase = 0;
  const std::uint64_t weights = core_matrix_descriptor(
      ring + static_cast<std::uint32_t>(group * kTileRows * kTmaBoxBytes), 1024U);
  const std::uint64_t tokens = swizzle128_descriptor(ring + kWeightBytes);
  PipelineState<Plan::kStages> at;
  int number = 0;
  const int stride = static_cast<int>(gridDim.x) / 2;
  float sum[Plan::kTiles][4] = {};
  // An item's results are handed on while the next one's first products run; so one turn more.
  // NOTE: in this loop, since code behind it makes ptxas keep to the registers at entry.
  FinishedTile ended{};
  bool pending = false;
  for (int index = static_cast<int>(blockIdx.x) / 2; index - stride < work.work_tiles;
       index += stride, ++number) {
    const bool more = index < work.work_tiles;
    const auto finish = [&](const auto& halfway) {
      store_to_epilogue_buffer<kType, kTileTokens>(p, ended, sum, handed, phase, halfway);
      pending = false;
      phase ^= 1U;
#pragma unroll
      for (int tile = 0; tile < Plan::kTiles; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[tile][i] = 0.0F;
    };
    const int whole = p.width_bytes / kStageWidth;
    const int left = p.width_bytes - whole * kStageWidth;
    // Only sums of a stage by itself leave the item before its place.
    if (pending && (kChained<kType> || !more || (whole == 0 && left != kTmaBoxBytes)))
      finish([] {});
    if (!more) continue;
    const PrefillWorkTile work_tile = list.get(number);
    __syncwarp();  // all lanes have it: two of them tell later that slots are free
    const int row = (work_tile.block * 2 + rank) * kBlockRows + warp * 16;
    float total[kSplitK ? Plan::kTiles : 1][4] = {};
    int split = 1;
    // A part's sums go to the total where the next part begins.
    const auto border = [&](int stage) {
      if (!kSplitK || stage != stages_all * split / p.split_k) return;
      ++split;
      if (stage == 0) return;  // the sums may still be those of the item before
#pragma unroll
      for (int tile = 0; tile < Plan::kTiles; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          total[kSplitK ? tile : 0][i] += sum[tile][i];
          sum[tile][i] = 0.0F;
        }
    };
    const auto add = [&](const auto& partial) {
#pragma unroll
      for (int tile = 0; tile < static_cast<int>(std::size(partial)); ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[tile][i] += partial[tile][i];
    };
    const auto slot_full = [&] {
      mbarrier_wait(full + 8U * static_cast<std::uint32_t>(at.slot), at.phase);
    };
    // 32 bytes of K from the slot.
    const auto step = [&]<int kTiles>(float(&partial)[kTiles][4], int i, bool accumulate) {
      const auto slot = static_cast<std::uint32_t>(at.slot * Plan::kStage);
      wgmma<kType, 8 * kTiles>(&partial[0][0],
                               advance_descriptor(advance_descriptor(weights, slot),
                                                  static_cast<std::uint32_t>(i) * 2048U),
                               advance_descriptor(advance_descriptor(tokens, slot),
                                                  static_cast<std::uint32_t>(i * kTileWidthStep)),
                               accumulate ? 1 : 0);
    };
    // A stage, or the half of one that a width may end with.
    const auto run = [&](auto columns, auto halves) {
      constexpr int kHalves = decltype(halves)::value;
      float partial[decltype(columns)::value / 8][4];
      const int first_slot = at.slot;
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        if (half > 0) at.advance();
        slot_full();
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < kTmaBoxBytes / kTileWidthStep; ++i) step(partial, i, half > 0 || i > 0);
        wgmma_commit_group();
      }
      // NOTE: not behind the results, which would hold up copies by as long as these take.
      const auto release_first = [&] {
        if constexpr (kHalves > 1) {
          wgmma_wait_group<1>();
          release(first_slot);
        }
      };
      if (pending)
        finish(release_first);
      else
        release_first();
      wgmma_wait_group<0>();
      release(at.slot);
      at.advance();
      add(partial);
    };
    // The same in the item's chain.
    const auto chain = [&](auto halves) {
      constexpr int kHalves = decltype(halves)::value;
      const int first_slot = at.slot;
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        if (half > 0) at.advance();
        slot_full();
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < kTmaBoxBytes / kTileWidthStep; ++i) step(sum, i, true);
        wgmma_commit_group();
      }
      if constexpr (kHalves > 1) {
        wgmma_wait_group<1>();
        release(first_slot);
      }
      wgmma_wait_group<0>();
      release(at.slot);
      at.advance();
    };
    with_columns<kTileTokens>(form_of<kTileTokens>(work_tile), [&](auto columns) {
      for (int stage = 0; stage < whole; ++stage) {
        border(stage);
        if constexpr (kChained<kType>)
          chain(std::integral_constant<int, 2>{});
        else
          run(columns, std::integral_constant<int, 2>{});
      }
      if (whole < stages_all) border(whole);
      if constexpr (kChained<kType>) {
        if (left == kTmaBoxBytes) chain(std::integral_constant<int, 1>{});
      } else {
        if (left == kTmaBoxBytes) run(columns, std::integral_constant<int, 1>{});
      }
    });
    if (left > 0 && left != kTmaBoxBytes) {  // an odd end, one product at a time, of all columns
      float partial[Plan::kTiles][4] = {};
      for (int begin = 0; begin < left; begin += kTmaBoxBytes) {
        slot_full();
        const int steps = min(kTmaBoxBytes, left - begin) / kTileWidthStep;
#pragma unroll 1
        for (int i = 0; i < steps; ++i) {
          wgmma_fence();
          if constexpr (kChained<kType>)
            step(sum, i, true);
          else
            step(partial, i, begin > 0 || i > 0);
          wgmma_commit_group();
          wgmma_wait_group<0>();
        }
        release(at.slot);
        at.advance();
      }
      if constexpr (!kChained<kType>) add(partial);
    }
    if constexpr (kSplitK) {
#pragma unroll
      for (int tile = 0; tile < Plan::kTiles; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[tile][i] = total[tile][i] + sum[tile][i];
    }
    ended = {work_tile, row};
    pending = true;
  }
}

template <TileType kType, int kTileTokens, bool kSplitK>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)
    gemm_prefill_kernel(const __grid_constant__ Gemm p,
                        const __grid_constant__ PrefillTensorMaps maps,
                        const __grid_constant__ TokenBlocks slices) {
  using Plan = PrefillPlan<kTileTokens>;
  extern __shared__ std::uint8_t unaligned[];
  const std::uint32_t base = (shared_address(unaligned) + 1023U) / 1024U * 1024U;
  const std::uint32_t full = base;
  const std::uint32_t empty = base + 8U * Plan::kStages;
  const std::uint32_t handed_full = empty + 8U * Plan::kStages;
  const WorkTileQueue list{base + kBarrierBytes / 2, handed_full + 32U};
  const std::uint32_t ring = base + kBarrierBytes;
  const std::uint32_t results = ring + Plan::kStages * Plan::kStage;
  auto* scales = reinterpret_cast<float*>(unaligned + (results - shared_address(unaligned)) +
                                          Plan::kEpilogueBytes);
  const EpilogueBuffer<kTileTokens> handed{results, scales, handed_full, handed_full + 16U};
  const int warp = warp_index();
  OperandProducer<kTileTokens> first{p, maps, full, ring, {}};
  int prologue = 0;  // not of other warps
  if (warp == kConsumers / 32) {
    if (elect_one()) {
      for (int slot = 0; slot < Plan::kStages; ++slot)
        mbarrier_init(full + 8U * static_cast<std::uint32_t>(slot), 1);
      fence_mbarrier_init();
    }
    __syncwarp();
    if (p.token_blocks == nullptr)
      prologue = load_prologue_weights(first, PrefillTileScheduler(p, slices));
  } else if (threadIdx.x == 0) {
    for (int slot = 0; slot < Plan::kStages; ++slot)
      mbarrier_init(empty + 8U * static_cast<std::uint32_t>(slot), 2 * kConsumers / 32);
    for (std::uint32_t group = 0; group < 2; ++group) {
      mbarrier_init(handed.full + 8U * group, kConsumers / 2);
      mbarrier_init(handed.empty + 8U * group, kWriters * 32);
    }
    for (std::uint32_t work_tile = 0; work_tile < kItems; ++work_tile)
      mbarrier_init(list.full + 8U * work_tile, 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  cluster_arrive();
  cluster_wait();             // both CTAs' barriers are ready
  wait_on_dependent_grids();  // the next kernel is released when all has been copied
  load_prologue_tokens(first, prologue);
  const PrefillTileScheduler work(p, slices);
  if (warp >= kConsumers / 32) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
    if (warp > kConsumers / 32)
      epilogue_warps<kType, kTileTokens>(p, maps, work, list, handed, scales);
    else
      produce_operands<kTileTokens>(p, maps, work, list, full, empty, ring);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
    mma_warpgroups<kType, kTileTokens, kSplitK>(p, work, list, full, empty, ring, handed);
  }
}

template <TileType kType, int kTileTokens, bool kSplitK>
cudaError_t launch_form(const Gemm& p,
                        const PrefillTensorMaps& maps,
                        int multiprocessors,
                        cudaStream_t stream) {
  using Plan = PrefillPlan<kTileTokens>;
  const auto kernel = gemm_prefill_kernel<kType, kTileTokens, kSplitK>;
  static PerDevice prepared;
  const cudaError_t ready = prepared.once([&] {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Plan::kShared);
  });
  if (ready != cudaSuccess) return ready;
  const int clusters = multiprocessors / 2;
  const TokenBlocks slices =
      p.token_blocks != nullptr
          ? TokenBlocks{}
          : prefill_token_blocks(prefill_tiling(p, kTileTokens, multiprocessors));
  return launch_kernel(kernel,
                       {dim3(static_cast<unsigned>(clusters * 2)), dim3(kThreads),
                        static_cast<std::size_t>(Plan::kShared)},
                       stream, p, maps, slices);
}

}  // namespace

cudaError_t launch_gemm_prefill_sm90(const Gemm& p,
                                     const PrefillTensorMaps& maps,
                                     int columns,
                                     int multiprocessors,
                                     cudaStream_t stream) {
  if (p.type == TileType::fp8_block || p.x_rows != nullptr || multiprocessors < 2)
    return cudaErrorInvalidValue;
  if (columns == kPrefillTokensMax && p.split_k == 1 && p.type == TileType::fp8 &&
      p.epilogue != Epilogue::f32) {
    return launch_form<TileType::fp8, kPrefillTokensMax, false>(p, maps, multiprocessors, stream);
  }
  if (columns != 128) return cudaErrorInvalidValue;
  if (p.type == TileType::bf16)
    return p.split_k > 1
               ? launch_form<TileType::bf16, 128, true>(p, maps, multiprocessors, stream)
               : launch_form<TileType::bf16, 128, false>(p, maps, multiprocessors, stream);
  return p.split_k > 1 ? launch_form<TileType::fp8, 128, true>(p, maps, multiprocessors, stream)
                       : launch_form<TileType::fp8, 128, false>(p, maps, multiprocessors, stream);
}

const void* kernel_of::gemm_prefill_sm90() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
