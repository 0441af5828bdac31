// SPDX-License-Identifier: Apache-2.0
// One matrix for 33 to 128 tokens on Hopper, turned: tokens are the matrix instruction's 64 rows
// and weight rows its columns, so that a CTA may have any multiple of 8 of these and all CTAs are
// there at once, each nearly as busy as the others.
//
//   grid     a CTA a block of kRows weight rows, which may begin within a tile, and a slice of the
//            tokens, 64 a warpgroup, for the whole width; where kShared is 2, the two slices of a
//            block are a cluster and take turns to bring its weights to both. Or one of kParts
//            parts of the width for all tokens: a block's parts are a cluster
//   roles    a warp copies weights, in boxes that become core matrices (started before the kernel
//            before has ended), another one token rows (128 bytes of K, swizzled; as many as there
//            are: what lies beyond is multiplied and dropped); each warpgroup multiplies its 64
//            tokens (wgmma m64nXk32)
//   sums     the bits of matmul_dense.cu: each stage of 256 bytes of K by itself (with one
//            warpgroup while the next one is multiplied), added in f32; parts in their order, in a
//            cluster by the CTA that owns the rows, to which the others send theirs from registers
//   shared   barriers and scales · ring of slots of kSlotWidth * (kRows + tokens) B · sums received
//   bytes    weights once, from L2 once a slice; tokens once a block of rows, from L2. Two parts of
//            80 rows and 128 tokens bring a CTA 72 % of what 80 rows and 64 tokens of a whole width
//            do
//
// Numbers: docs/kernels/README.md.
#include <algorithm>
#include <type_traits>

#include "base/arithmetic.h"
#include "cuda/launch.cuh"
#include "cuda/matmul_end.cuh"
#include "cuda/matmul_hopper.h"
#include "cuda/ptx.cuh"
#include "cuda/wgmma.cuh"

namespace koho::cuda {
namespace {

constexpr int kRingSlotsMax = 16;  // barriers there are
constexpr int kBarrierBytes = 384;
constexpr int kTileSums = 512;  // bytes of a warp's sums of 8 weight rows and 16 tokens

template <int kRows, int kWarpgroups, int kSlotWidth, int kParts>
struct TurnedPlan {
  static constexpr int kTokens = 64 * kWarpgroups;
  static constexpr int kWarps = 4 * kWarpgroups;  // that multiply
  static constexpr int kThreads = 32 * kWarps + 64;
  static constexpr int kTiles = kRows / 8;
  // Pieces of tiles that a CTA's rows may be.
  static constexpr int kPieces = (kRows + 2 * kTileRows - 1 - turned_row_step(kRows)) / kTileRows;
  static constexpr int kWeightBytes = kRows * kSlotWidth;
  static constexpr int kSlot = kWeightBytes + kTokens * kSlotWidth;
  static constexpr int kRingBegin = (kBarrierBytes + 2 * kRows * 4 + 1023) / 1024 * 1024;
  // Sums received where parts are a cluster: of each other part, warp and owned tile.
  static constexpr int owned_first(int part) { return kTiles * part / kParts; }
  static constexpr int kOwnedMax = (kTiles + kParts - 1) / kParts;
  static constexpr int kSumsBytes = (kParts - 1) * kWarps * kOwnedMax * kTileSums;
  static constexpr int kBesideRing = 1024 + kRingBegin + kSumsBytes;
  static_assert(kWeightBytes % 1024 == 0 && kSlot % 1024 == 0);  // boxes of tokens are swizzled
  static_assert((2 * kRingSlotsMax + 1) * 8 <= kBarrierBytes);
};

/// How a launch is cut, beside what the kernel's template says.
struct TurnedCut {
  int slots;   // of the ring
  int slices;  // of the tokens
  int each;    // tokens of a slice
};

/// What a CTA has of the matrix.
struct TurnedPiece {
  int row;    // the first of the weights'
  int slice;  // of the tokens
  int token;  // the first one
  int part;   // of the width
  int begin;  // stages
  int end;

  /// `ctas` of a block of `rows`, as slices or as `parts`. The last tokens are in two slices where
  /// these have room for more: no box has rows beyond.
  __device__ __forceinline__
  TurnedPiece(const Matmul& p, const TurnedCut& cut, unsigned ctas, int rows, int parts) {
    const int stages = (p.width_bytes + kStageWidth - 1) / kStageWidth;
    part = parts > 1 ? static_cast<int>(blockIdx.x % ctas) : 0;
    begin = stages * part / parts;
    end = stages * (part + 1) / parts;
    slice = parts > 1 ? 0 : static_cast<int>(blockIdx.x % ctas);
    row = static_cast<int>(blockIdx.x / ctas) * rows;
    token = min(slice * cut.each, p.tokens - cut.each);
  }
};

/// A ring of slots and one of its users' place in it.
struct TurnedRing {
  std::uint32_t full;  // barriers
  std::uint32_t empty;
  std::uint32_t slots;  // the first byte
  int count;
  int slot = 0;
  std::uint32_t phase = 0;

  __device__ __forceinline__ std::uint32_t full_barrier() const {
    return full + 8U * static_cast<std::uint32_t>(slot);
  }
  __device__ __forceinline__ std::uint32_t empty_barrier() const {
    return empty + 8U * static_cast<std::uint32_t>(slot);
  }
  __device__ __forceinline__ void advance() {
    if (++slot == count) {
      slot = 0;
      phase ^= 1U;
    }
  }
};

/// Copies weights into the ring; one lane. They do not depend on the kernel before. CTAs of a
/// cluster take turns to bring all of them theirs.
template <typename Plan, int kRows, int kSlotWidth, int kShared>
__device__ __forceinline__ void copy_weights(
    const Matmul& p, const WeightMaps& maps, const TurnedPiece& piece, int units, TurnedRing ring) {
  const CUtensorMap* map[Plan::kPieces];
  int offset[Plan::kPieces];  // bytes in a slot
  int group[Plan::kPieces];
  int tile[Plan::kPieces];
  int done = 0;
#pragma unroll
  for (int i = 0; i < Plan::kPieces; ++i) {
    const int row = piece.row + done;
    const int rows = min(kTileRows - row % kTileRows, kRows - done);
    map[i] = rows > 0 ? &maps.of[rows / 8 - 1] : nullptr;
    offset[i] = done * kSlotWidth;
    group[i] = row % kTileRows / 8;
    tile[i] = min(row / kTileRows, p.tiles - 1);  // beyond the last one its rows once more
    done += rows;
    if (rows > 0) tensor_map_prefetch(map[i]);
  }
  const std::uint64_t policy = evict_first_policy();
  const int first = piece.begin * (kStageWidth / kSlotWidth);
  int unit = 0;
  if constexpr (kShared > 1) {
    unit = piece.slice;
    ring.slot = piece.slice;
  }
#pragma unroll 1
  for (; unit < units; unit += kShared) {
    mbarrier_wait(ring.empty_barrier(), ring.phase ^ 1U);
#pragma unroll
    for (int i = 0; i < Plan::kPieces; ++i) {
      const std::uint32_t to =
          ring.slots + static_cast<std::uint32_t>(ring.slot * Plan::kSlot + offset[i]);
      if (map[i] == nullptr) continue;
      if constexpr (kShared > 1)
        tensor_copy_to_cluster(to, map[i], (first + unit) * (kSlotWidth / kTileChunk), group[i],
                               tile[i], ring.full_barrier(), (1 << kShared) - 1, policy);
      else
        tensor_copy(to, map[i], (first + unit) * (kSlotWidth / kTileChunk), group[i], tile[i],
                    ring.full_barrier(), policy);
    }
#pragma unroll
    for (int i = 0; i < kShared; ++i) ring.advance();
  }
}

/// Copies token rows into the ring, and tells of their bytes and the weights'; one lane.
template <typename Plan, int kSlotWidth>
__device__ __forceinline__ void copy_tokens(
    const CUtensorMap& map, const TurnedPiece& piece, int each, int units, TurnedRing ring) {
  const auto bytes = static_cast<std::uint32_t>(Plan::kWeightBytes + each * kSlotWidth);
  const int first = piece.begin * (kStageWidth / kSlotWidth);
  tensor_map_prefetch(&map);
  grid_wait();
#pragma unroll 1
  for (int unit = 0; unit < units; ++unit) {
    mbarrier_wait(ring.empty_barrier(), ring.phase ^ 1U);
    mbarrier_arrive_expect(ring.full_barrier(), bytes);
#pragma unroll
    for (int box = 0; box < kSlotWidth / kBox; ++box)
      tensor_copy(
          ring.slots + static_cast<std::uint32_t>(ring.slot * Plan::kSlot + Plan::kWeightBytes +
                                                  box * kBox * Plan::kTokens),
          &map, (first + unit) * kSlotWidth + box * kBox, piece.token, ring.full_barrier());
    ring.advance();
  }
}

/// A multiplying thread's sums: of tile i of 8 weight rows, tokens lane / 4 (+ 8 for j >= 2) of its
/// warp's 16 and weight rows 8 * i + lane % 4 * 2 + j % 2.
template <int kTiles>
using Sums = float[kTiles][4];

template <TileType kType, int kRows, int kWarpgroups, int kSlotWidth, int kShared, int kParts>
__global__ void __launch_bounds__(TurnedPlan<kRows, kWarpgroups, kSlotWidth, kParts>::kThreads)
    turned_kernel(const __grid_constant__ Matmul p,
                  const __grid_constant__ WeightMaps weight_maps,
                  const __grid_constant__ CUtensorMap x_map,
                  const TurnedCut cut) {
  using Plan = TurnedPlan<kRows, kWarpgroups, kSlotWidth, kParts>;
  constexpr bool kWhole = kWarpgroups == 1 && kParts == 1;  // parts, one after the other
  constexpr int kTiles = Plan::kTiles;
  constexpr int kHalves = kStageWidth / kSlotWidth;
  extern __shared__ std::uint8_t unaligned[];
  std::uint8_t* shared = unaligned + (1024U - shared_address(unaligned) % 1024U) % 1024U;
  const std::uint32_t full = shared_address(shared);
  TurnedRing ring{full, full + 8U * kRingSlotsMax, shared_address(shared) + Plan::kRingBegin,
                  cut.slots};
  const std::uint32_t received = ring.empty + 8U * kRingSlotsMax;
  const std::uint32_t sums =  // beside the ring
      ring.slots + static_cast<std::uint32_t>(cut.slots * Plan::kSlot);
  auto* row_scales = reinterpret_cast<float*>(shared + kBarrierBytes);
  float* bias = row_scales + kRows;

  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = warp_index();
  const TurnedPiece piece(p, cut,
                          kParts > 1    ? kParts
                          : kShared > 1 ? kShared
                                        : static_cast<unsigned>(cut.slices),
                          kRows, kParts);
  const int stages = piece.end - piece.begin;
  if (thread == 0) {
    for (int slot = 0; slot < cut.slots; ++slot) {
      mbarrier_init(ring.full + 8U * static_cast<std::uint32_t>(slot), 1);
      mbarrier_init(ring.empty + 8U * static_cast<std::uint32_t>(slot),
                    static_cast<std::uint32_t>(Plan::kWarps * kShared));
    }
    if constexpr (kParts > 1) mbarrier_init(received, 1);
    mbarrier_init_fence();
    if constexpr (kParts > 1)
      mbarrier_arrive_expect(
          received, static_cast<std::uint32_t>(
                        (kParts - 1) * Plan::kWarps * kTileSums *
                        (Plan::owned_first(piece.part + 1) - Plan::owned_first(piece.part))));
  }
  __syncthreads();
  if constexpr (kShared > 1) {
    cluster_arrive();
    cluster_wait();
  }
  // NOTE: by all warps: under compute-sanitizer the others wait here for those that arrive later.
  if constexpr (kParts > 1) cluster_arrive();

  if (warp >= Plan::kWarps) {  // ---- the copying warps
    const int units = stages * kHalves;
    if (elect_one()) {
      if (warp == Plan::kWarps)
        copy_weights<Plan, kRows, kSlotWidth, kShared>(p, weight_maps, piece, units, ring);
      else
        copy_tokens<Plan, kSlotWidth>(x_map, piece, cut.each, units, ring);
    }
    return;  // NOTE: at once, or ptxas takes what is copied lane by lane; no barrier needs them
  }

  // ---- the multiplying warps
  for (int i = thread; i < kRows; i += 32 * Plan::kWarps) {
    const int n = piece.row + i;
    row_scales[i] = kType == TileType::fp8 && n < p.rows ? p.row_scales[n] : 1.0F;
    bias[i] = p.bias != nullptr && n < p.rows ? to_float(p.bias[n]) : 0.0F;
  }
  grid_wait();
  grid_release();
  const int token = piece.token + warp * 16 + lane / 4;  // and the eighth behind it
  const int tokens = piece.token + cut.each;             // where this CTA's end
  float x_scales[2];
#pragma unroll
  for (int i = 0; i < 2; ++i)
    x_scales[i] =
        kType == TileType::fp8 && token + 8 * i < tokens ? p.x_scales[token + 8 * i] : 1.0F;

  Sums<kTiles> sum = {};
  Sums<kWhole ? kTiles : 1> total = {};  // of the parts before
  {
    const std::uint64_t weights = core_operand(ring.slots, kTileChunk * 8, kSlotWidth * 8);
    const std::uint64_t rows =
        swizzled_operand(ring.slots + static_cast<std::uint32_t>(Plan::kWeightBytes) +
                         static_cast<std::uint32_t>(warp / 4 * 64 * kBox));
    int oldest = 0;  // slot of those that products read
    // In a cluster lane i tells CTA i.
    const std::uint32_t theirs =
        kShared > 1 ? cluster_address(ring.empty, static_cast<std::uint32_t>(lane % kShared))
                    : ring.empty;
    const auto release = [&] {
      const std::uint32_t barrier = theirs + 8U * static_cast<std::uint32_t>(oldest);
      if (lane < kShared) {
        if constexpr (kShared > 1)
          mbarrier_arrive_remote(barrier);
        else
          mbarrier_arrive(barrier);
      }
      if (++oldest == cut.slots) oldest = 0;
    };
    // Issues the products of a slot.
    const auto issue = [&](Sums<kTiles>& partial, int half) {
      mbarrier_wait(ring.full_barrier(), ring.phase);
      const auto at = static_cast<std::uint32_t>(ring.slot * Plan::kSlot);
      wgmma_begin();
#pragma unroll
      for (int i = 0; i < kSlotWidth / kTileWidthStep; ++i)
        wgmma<kType, kRows>(
            &partial[0][0],
            operand_at(
                operand_at(rows, at),
                static_cast<std::uint32_t>(i / 4 * kBox * Plan::kTokens + i % 4 * kTileWidthStep)),
            operand_at(operand_at(weights, at), static_cast<std::uint32_t>(i) * 256U),
            half > 0 || i > 0 ? 1 : 0);
      wgmma_commit();
      ring.advance();
    };
    const auto issue_stage = [&](Sums<kTiles>& partial) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) issue(partial, half);
    };
    int part = 1;
    int border = kWhole ? stages / p.parts : 0;  // stage where the next part begins
    // Adds a stage's sums; a part's go to the total where the next one begins.
    const auto add = [&](int stage, const Sums<kTiles>& partial) {
      if (kWhole && stage == border) {
        ++part;
        border = stages * part / p.parts;
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            total[kWhole ? tile : 0][i] += sum[tile][i];
            sum[tile][i] = 0.0F;
          }
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sum[tile][i] += partial[tile][i];
          // Here, and not behind the products that are issued next.
          if (kWhole) asm volatile("" : "+f"(sum[tile][i]));
        }
    };
    int stage = 0;
    if constexpr (kWhole) {  // a stage's products are issued before those before are waited for
      Sums<kTiles> partials[2] = {};
      // Two stages, the first of which is issued; where more follow, the next one's is too.
      const auto run_two = [&](auto more) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (more || i == 0) {
            issue_stage(partials[1 - i]);
            wgmma_wait<kHalves>();
          } else {
            wgmma_wait<0>();
          }
#pragma unroll
          for (int half = 0; half < kHalves; ++half) release();
          add(stage++, partials[i]);
        }
      };
      if (stage < stages) {
        issue_stage(partials[0]);
#pragma unroll 1
        while (stage + 2 < stages) run_two(std::true_type{});  // NOTE: no condition on an issue
        if (stage + 1 < stages) {
          run_two(std::false_type{});
        } else {
          wgmma_wait<0>();
          add(stage, partials[0]);
        }
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[tile][i] = total[tile][i] + sum[tile][i];
    } else {  // two warpgroups: one multiplies while the other one adds
#pragma unroll 1
      for (; stage < stages; ++stage) {
        Sums<kTiles> partial;
        issue_stage(partial);
        if constexpr (kHalves > 1) {
          wgmma_wait<1>();
          release();
        }
        wgmma_wait<0>();
        release();
        add(stage, partial);
      }
    }
  }

  named_barrier(1, 32 * Plan::kWarps);  // scales are there
  const bool aligned = p.end == MatmulEnd::bf16 && p.rows % 8 == 0 && p.out_stride % 8 == 0 &&
                       reinterpret_cast<std::uintptr_t>(p.out) % 16 == 0;
  const bool pairs = p.end == MatmulEnd::f32 && p.out_stride % 2 == 0 &&
                     reinterpret_cast<std::uintptr_t>(p.out) % 8 == 0;
  const auto store_two = [&](std::int64_t of, int n, float first, float second) {
    if (of >= tokens) return;
    if (pairs && n + 1 < p.rows) {
      *reinterpret_cast<float2*>(static_cast<float*>(p.out) + of * p.out_stride + n) =
          make_float2(first, second);
      return;
    }
    if (n < p.rows) store_sum(p, of, n, first);
    if (n + 1 < p.rows) store_sum(p, of, n + 1, second);
  };
  // Stores up to four tiles: 16 bytes of a token's row a lane, where they are aligned.
  const auto finish = [&](int tile, int count, const float(&of)[4][4]) {
    std::uint32_t words[2][4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i >= count) break;
      const int row = (tile + i) * 8 + lane % 4 * 2;
      float value[4];
#pragma unroll
      for (int j = 0; j < 4; ++j)
        value[j] = scale_sum<kType>(p, of[i][j], row_scales[row + j % 2], x_scales[j / 2],
                                    bias[row + j % 2]);
      words[0][i] = pack_bf16(value[0], value[1]);
      words[1][i] = pack_bf16(value[2], value[3]);
      if (aligned) continue;
      store_two(token, piece.row + row, value[0], value[1]);
      store_two(token + 8, piece.row + row, value[2], value[3]);
    }
    if (!aligned) return;
    const int n = piece.row + (tile + lane % 4) * 8;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 eight = gather_quad(words[i]);
      if (lane % 4 < count && n < p.rows && token + 8 * i < tokens)
        *reinterpret_cast<uint4*>(static_cast<Bf16*>(p.out) +
                                  static_cast<std::int64_t>(token + 8 * i) * p.out_stride + n) =
            eight;
    }
  };
  if constexpr (kParts > 1) {
    cluster_wait();  // every CTA has begun
    // Sums travel in the order of fragments.
    const auto place = [&](int from, int owner, int tile) {
      const int other = from < owner ? from : from - 1;
      return sums +
             static_cast<std::uint32_t>(
                 ((other * Plan::kWarps + warp) * Plan::kOwnedMax + tile) * kTileSums + lane * 16);
    };
#pragma unroll
    for (int owner = 0; owner < kParts; ++owner) {
      if (owner == piece.part) continue;
      const auto rank = static_cast<std::uint32_t>(owner);
      const std::uint32_t to = cluster_address(place(piece.part, owner, 0), rank);
      const std::uint32_t barrier = cluster_address(received, rank);
#pragma unroll
      for (int tile = Plan::owned_first(owner); tile < Plan::owned_first(owner + 1); ++tile)
        cluster_send(to + static_cast<std::uint32_t>((tile - Plan::owned_first(owner)) * kTileSums),
                     make_float4(sum[tile][0], sum[tile][1], sum[tile][2], sum[tile][3]), barrier);
    }
    mbarrier_wait_cluster(received, 0);
#pragma unroll
    for (int owner = 0; owner < kParts; ++owner) {
      if (owner != piece.part) continue;
      constexpr int kFour = 4;
      const int first = Plan::owned_first(owner);
      const int end = Plan::owned_first(owner + 1);
#pragma unroll
      for (int tile = 0; tile < Plan::kOwnedMax; tile += kFour) {
        float of[kFour][4] = {};
#pragma unroll
        for (int from = 0; from < kParts; ++from)
#pragma unroll
          for (int i = 0; i < kFour; ++i) {
            if (first + tile + i >= end) continue;
            std::uint32_t words[4];
            if (from != owner) load_shared(words, place(from, owner, tile + i));
#pragma unroll
            for (int j = 0; j < 4; ++j)
              of[i][j] += from == owner ? sum[std::min(first + tile + i, kTiles - 1)][j]
                                        : __uint_as_float(words[j]);
          }
        if (first + tile < end) finish(first + tile, std::min(kFour, end - first - tile), of);
      }
    }
  } else {
#pragma unroll
    for (int tile = 0; tile < kTiles; tile += 4) {
      float of[4][4] = {};
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (tile + i < kTiles) of[i][j] = sum[tile + i < kTiles ? tile + i : 0][j];
      finish(tile, std::min(4, kTiles - tile), of);
    }
  }
  __syncwarp();
  if constexpr (kShared > 1)
    cluster_barrier();  // NOTE: others copy to this CTA and tell it of free slots
}

template <TileType kType, int kRows, int kWarpgroups, int kSlotWidth, int kShared, int kParts = 1>
cudaError_t launch_form(const Matmul& p,
                        const WeightMaps& weight_maps,
                        const CUtensorMap& x_map,
                        const DenseForm& form,
                        cudaStream_t stream) {
  using Plan = TurnedPlan<kRows, kWarpgroups, kSlotWidth, kParts>;
  const auto kernel = turned_kernel<kType, kRows, kWarpgroups, kSlotWidth, kShared, kParts>;
  static const cudaError_t prepared = use_shared_memory(kernel, kSharedMax);
  if (prepared != cudaSuccess) return prepared;
  if (kWarpgroups > 1 && p.parts != kParts) return cudaErrorInvalidValue;
  const int each = dense_slice(form, p.tokens);
  const TurnedCut cut{
      .slots = std::min(kRingSlotsMax, (kSharedMax - Plan::kBesideRing) / Plan::kSlot),
      .slices = ceil_div(p.tokens, each),
      .each = each};
  if (form.shared != kShared || (kShared > 1 && cut.slices != kShared) ||
      (kParts > 1 && cut.slices != 1))
    return cudaErrorInvalidValue;
  const int ctas = ceil_div(p.rows, kRows) * cut.slices * kParts;
  return launch_kernel(kernel,
                       {dim3(static_cast<unsigned>(ctas)), dim3(Plan::kThreads),
                        static_cast<std::size_t>(Plan::kBesideRing + cut.slots * Plan::kSlot),
                        kParts > 1 ? kParts : kShared},
                       stream, p, weight_maps, x_map, cut);
}

}  // namespace

DenseForm turned_form(const Matmul& p, int multiprocessors) {
  constexpr int kTokensMin = 33;
  constexpr int kTilesOfWaves = 200;  // from here on CTAs may follow each other
  constexpr int kSharedRows = 56;
  constexpr int kSharedStages = 12;
  constexpr int kPartsStages = 20;  // longer ones are not measured
  constexpr int kTokensOfWideParts = 97;
  DenseForm form;
  // NOTE: products of what lies beyond a width are zeros, but cut the sums that they are added to.
  if (p.tokens < kTokensMin || p.width_bytes % kStageWidth != 0) return form;
  const int slices = ceil_div(p.tokens, 64);
  const auto fits = [&](int rows, int of) {  // all CTAs at once, on most multiprocessors
    const int ctas = ceil_div(p.rows, rows) * of;
    return ctas <= multiprocessors && ctas * 2 > multiprocessors;
  };
  if (p.type == TileType::fp8 && slices == 2 && p.parts == 2 &&
      p.width_bytes <= kPartsStages * kStageWidth) {
    for (const int rows : {80, 96})
      if (fits(rows, p.parts) && (rows == 80 || p.tokens >= kTokensOfWideParts))
        return {.columns = 128, .slot_width = 128, .rows = rows};
  }
  if (p.type == TileType::fp8) {
    for (const int rows : {40, 48, 56, 80, 96}) {
      if (!fits(rows, slices)) continue;
      const bool shared =
          slices > 1 && rows >= kSharedRows && p.width_bytes >= kSharedStages * kStageWidth;
      return {.columns = 64, .rows = rows, .shared = shared ? 2 : 1};
    }
  }
  const bool one = slices == 1;  // then only bf16 gains
  if (p.parts > 1 || p.tiles < kTilesOfWaves || (one && p.type == TileType::fp8)) return form;
  form.columns = one ? 64 : 128;
  form.slot_width = 128;
  form.rows = p.type == TileType::fp8 && fits(112, 1) ? 112 : 96;
  return form;
}

cudaError_t launch_matmul_turned(const Matmul& p,
                                 const WeightMaps& weight_maps,
                                 const CUtensorMap& x_map,
                                 const DenseForm& form,
                                 cudaStream_t stream) {
  constexpr TileType kFp8 = TileType::fp8;
  constexpr TileType kBf16 = TileType::bf16;
  const bool two = form.columns > 64;  // warpgroups
  if (form.slot_width != (two || p.type == kBf16 ? 128 : 256)) return cudaErrorInvalidValue;
  const auto launch = [&](auto launcher) { return launcher(p, weight_maps, x_map, form, stream); };
  if (p.type == kBf16 && form.rows == 96)
    return launch(two ? launch_form<kBf16, 96, 2, 128, 1> : launch_form<kBf16, 96, 1, 128, 1>);
  if (p.type != kFp8) return cudaErrorInvalidValue;
  const bool shared = form.shared == 2;
  if (two && p.parts == 2 && form.rows == 80) return launch(launch_form<kFp8, 80, 2, 128, 1, 2>);
  if (two && p.parts == 2 && form.rows == 96) return launch(launch_form<kFp8, 96, 2, 128, 1, 2>);
  if (two && form.rows == 96) return launch(launch_form<kFp8, 96, 2, 128, 1>);
  if (two && form.rows == 112) return launch(launch_form<kFp8, 112, 2, 128, 1>);
  switch (two ? 0 : form.rows) {
    case 40:
      return launch(launch_form<kFp8, 40, 1, 256, 1>);
    case 48:
      return launch(launch_form<kFp8, 48, 1, 256, 1>);
    case 56:
      return launch(shared ? launch_form<kFp8, 56, 1, 256, 2> : launch_form<kFp8, 56, 1, 256, 1>);
    case 80:
      return launch(shared ? launch_form<kFp8, 80, 1, 256, 2> : launch_form<kFp8, 80, 1, 256, 1>);
    case 96:
      return launch(shared ? launch_form<kFp8, 96, 1, 256, 2> : launch_form<kFp8, 96, 1, 256, 1>);
    default:
      return cudaErrorInvalidValue;
  }
}

const void* kernel_of::matmul_turned() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
