// SPDX-License-Identifier: Apache-2.0
// One matrix for 17 to 128 tokens on Hopper, turned: tokens are the matrix instruction's 64 rows
// and weight rows its columns, so that a CTA may have any multiple of 8 of these and all CTAs are
// there at once, each nearly as busy as the others.
//
//   grid     a CTA a block of kRows weight rows, which may begin within a tile, and a slice of the
//            tokens, 64 a warpgroup, for the whole width. A block's two slices are neighbours, so
//            that the second one finds its weights in L2; where kWeightMulticast is 2 they are a cluster and
//            take turns to bring them to both. With kCtasPerSm of 2 a CTA leaves room for one of the
//            next call, which fills its ring meanwhile. Where blocks are more than fit at once,
//            fewer CTAs take one after the other (kPersistent), and the ring runs on. Of bf16 two
//            blocks' CTAs are a cluster and take turns to bring the tokens to both (kTokenMulticast)
//   roles    a warp copies weights, in boxes that become core matrices (started before the kernel
//            before has ended), another one token rows (128 bytes of K, swizzled; as many as there
//            are: what lies beyond is multiplied and dropped); each warpgroup multiplies its 64
//            tokens (wgmma m64nXk32), or two of them 64 tokens by half of the rows each (bf16)
//   sums     the bits of gemm_decode_swap_ab_sm90.cu. fp8: each stage of 256 bytes of K by itself (with one
//            warpgroup while the next one is multiplied), added in f32; parts in their order. bf16:
//            one chain of instructions
//   results  fp8: from registers, or through the ring. bf16, which are a vocabulary's logits: by a
//            place beside the ring, from where TMA takes them while the next block is
//            multiplied
//   shared   barriers and scales · ring of slots of kSlotWidth * (kRows + tokens) B · results of
//            bf16 (36 KB)
//   bytes    weights once, from L2 once a slice; tokens once a block of rows, from L2
//
// Numbers: docs/kernels/README.md.
#include <algorithm>
#include <type_traits>
#include <vector>

#include "base/arithmetic.h"
#include "cuda/device/launch.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/device/wgmma.cuh"
#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/gemm_sm90.h"

namespace koho::cuda {
namespace {

constexpr int kRingSlotsMax = 16;  // barriers there are
constexpr int kBarrierBytes = 256;
constexpr int kSharedOfTwo = 113 * 1024;  // where two CTAs are on a multiprocessor
constexpr int kTileSums = 512;            // bytes of a warp's sums of 8 weight rows and 16 tokens
constexpr int kWarpTokens = 16;
// Results of bf16 products that are more than half of L2 are the first to leave it: what cannot
// stay is better written at once.
constexpr std::int64_t kLeavingBytes = 25LL << 20;

template <TileType kType, int kRows, int kTileTokens, int kSlotWidth, int kCtasPerSm>
struct UnswappedPlan {
  static constexpr int kTokens = kTileTokens;
  // Where two warpgroups have the same 64 tokens, each has half of the rows.
  static constexpr int kWarpgroups = kType == TileType::bf16 ? 2 : kTileTokens / 64;
  static constexpr int kRowGroups = 64 * kWarpgroups / kTileTokens;
  static constexpr int kGroupRows = kRows / kRowGroups;
  static constexpr int kWarps = 4 * kWarpgroups;  // that multiply
  static constexpr int kThreads = 32 * kWarps + 64;
  static constexpr int kTiles = kGroupRows / 8;  // of a warpgroup
  // A CTA takes one block of rows after the other where there may be more than are there at once.
  static constexpr bool kPersistent =
      is_persistent({.slot_width = kSlotWidth, .ctas_per_sm = kCtasPerSm});
  static constexpr int kBlocks = kPersistent ? 2 : 1;
  // Pieces of tiles that a CTA's rows may be.
  static constexpr int kPieces =
      (kRows + 2 * kTileRows - 1 - unswapped_row_step(kRows)) / kTileRows;
  static constexpr int kWeightBytes = kRows * kSlotWidth;
  static constexpr int kSlot = kWeightBytes + kTokens * kSlotWidth;
  // Scales and biases of two blocks: a warp may be at the next one's while others read.
  static constexpr int kScales = 2 * kRows;
  static constexpr int kRingBegin = (kBarrierBytes + kBlocks * kScales * 4 + 1023) / 1024 * 1024;
  // CTAs of a cluster, of other rows, that bring each other's tokens.
  static constexpr int kTokenMulticast = kType == TileType::bf16 ? 2 : 1;
  // Of bf16 a warp's results of half of the rows; 16 lanes write 128 bytes without bank conflicts.
  static constexpr bool kStaged = kType == TileType::bf16;
  static constexpr int kStagedRows = kRows / 2;
  static_assert(!kStaged || kStagedRows % 16 == 8);
  static constexpr int kStagedBytes = kStaged ? kWarps * kWarpTokens * kStagedRows * 4 : 0;
  static constexpr int kBesideRing = 1024 + kRingBegin + kStagedBytes;
  static constexpr int kSharedBytes = kCtasPerSm == 1 ? kSharedMax : kSharedOfTwo;
  static constexpr int kSlots = std::min(kRingSlotsMax, (kSharedBytes - kBesideRing) / kSlot);
  static constexpr int kLaunchBytes = kBesideRing + kSlots * kSlot;
  // What is not stored straight away passes through the ring.
  static_assert(kWarps * kTiles * kTileSums <= kSlots * kSlot);
  static_assert(kWeightBytes % 1024 == 0 && kSlot % 1024 == 0);  // boxes of tokens are swizzled
  static_assert(2 * kRingSlotsMax * 8 <= kBarrierBytes);
};

/// Of the tokens.
int slices_of(const DecodeGemmConfig& form, int tokens) {
  return ceil_div(tokens, tokens_per_cta(form, tokens));
}

/// How a launch is cut, beside what the kernel's template says.
struct UnswappedLaunch {
  int slices;          // of the tokens: 1 or 2
  int each;            // tokens of a slice
  bool straight;       // results go 16 bytes at a time: bf16 of fp8 products, f32 of bf16 ones
  bool leaves;         // results of bf16 products are the first ones to leave L2
  int released_after;  // unit whose copies precede the next call's CTAs; -1: at once
};

/// The next call's CTAs wait until this one's tokens are asked for, and its weights for the most
/// part: on multiprocessors that are left over they would bring their own while this one's are
/// wanted, and stay there while others have room. Not where they are to be beside this one, which
/// has little left to ask for, and not where CTAs are many.
template <typename Plan>
int released_after(int resident, int slices) {
  if (Plan::kPersistent || (resident > 1 && slices == 1)) return -1;
  return resident > 1 ? Plan::kSlots - 1 : Plan::kSlots;
}

/// What a CTA has of the matrix.
struct UnswappedCtaTile {
  int row;    // the first of the weights'
  int slice;  // of the tokens
  int token;  // the first one

  /// The last tokens are in two slices where these have room for more: no box has rows beyond.
  template <int kRows, int kWeightMulticast>
  __device__ __forceinline__ static UnswappedCtaTile of(const Gemm& p, const UnswappedLaunch& cut) {
    const int block = static_cast<int>(blockIdx.x);
    UnswappedCtaTile piece;
    // The rank in the cluster, as ptxas knows it to be one for all lanes.
    piece.slice = kWeightMulticast > 1 ? block % kWeightMulticast : block & (cut.slices - 1);
    piece.row =
        (kWeightMulticast > 1 ? block / kWeightMulticast : block >> (cut.slices - 1)) * kRows;
    piece.token = min(piece.slice * cut.each, p.tokens - cut.each);
    return piece;
  }
};

/// The CTA's place among those that bring each other's tokens.
template <typename Plan>
__device__ __forceinline__ int multicast_rank() {
  return static_cast<int>(blockIdx.x) % Plan::kTokenMulticast;
}

/// A ring of slots and one of its users' place in it.
template <int kCount>
struct UnswappedRing {
  std::uint32_t full;  // barriers
  std::uint32_t empty;
  std::uint32_t slots;  // the first byte
  int slot = 0;
  std::uint32_t phase = 0;

  __device__ __forceinline__ std::uint32_t full_barrier() const {
    return full + 8U * static_cast<std::uint32_t>(slot);
  }
  __device__ __forceinline__ std::uint32_t empty_barrier() const {
    return empty + 8U * static_cast<std::uint32_t>(slot);
  }
  __device__ __forceinline__ void advance() {
    if (++slot == kCount) {
      slot = 0;
      phase ^= 1U;
    }
  }
};

/// Copies weights into the ring; one lane. They do not depend on the kernel before. CTAs of a
/// cluster take turns to bring all of them theirs.
template <typename Plan, int kRows, int kSlotWidth, int kWeightMulticast>
__device__ __forceinline__ void copy_weights(const Gemm& p,
                                             const WeightTensorMaps& maps,
                                             const UnswappedCtaTile& piece,
                                             int units,
                                             UnswappedRing<Plan::kSlots>& ring) {
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
    if (rows > 0) prefetch_tensor_map(map[i]);
  }
  const std::uint64_t policy = evict_first_policy();
  int unit = 0;
  if constexpr (kWeightMulticast > 1) {
    unit = piece.slice;
    ring.slot = piece.slice;
  }
#pragma unroll 1
  for (; unit < units; unit += kWeightMulticast) {
    mbarrier_wait(ring.empty_barrier(), ring.phase ^ 1U);
#pragma unroll
    for (int i = 0; i < Plan::kPieces; ++i) {
      const std::uint32_t to =
          ring.slots + static_cast<std::uint32_t>(ring.slot * Plan::kSlot + offset[i]);
      if (map[i] == nullptr) continue;
      if constexpr (kWeightMulticast > 1)
        tma_load_multicast(to, map[i], unit * (kSlotWidth / kTileChunk), group[i], tile[i],
                           ring.full_barrier(), (1 << kWeightMulticast) - 1, policy);
      else
        tma_load(to, map[i], unit * (kSlotWidth / kTileChunk), group[i], tile[i],
                 ring.full_barrier(), policy);
    }
#pragma unroll
    for (int i = 0; i < kWeightMulticast; ++i) ring.advance();
  }
}

/// Copies token rows into the ring, and tells of their bytes and the weights'; one lane. Releases
/// the next kernel, if that is to be late.
template <typename Plan, int kSlotWidth>
__device__ __forceinline__ void copy_tokens(const CUtensorMap& map,
                                            const UnswappedCtaTile& piece,
                                            const UnswappedLaunch& cut,
                                            int units,
                                            UnswappedRing<Plan::kSlots>& ring) {
  const auto bytes = static_cast<std::uint32_t>(Plan::kWeightBytes + cut.each * kSlotWidth);
  const int released_after = min(cut.released_after, units - 1);
#pragma unroll 1
  for (int unit = 0; unit < units; ++unit) {
    mbarrier_wait(ring.empty_barrier(), ring.phase ^ 1U);
    mbarrier_arrive_expect_tx(ring.full_barrier(), bytes);
#pragma unroll
    for (int box = 0; box < kSlotWidth / kTmaBoxBytes; ++box) {
      const std::uint32_t to =
          ring.slots + static_cast<std::uint32_t>(ring.slot * Plan::kSlot + Plan::kWeightBytes +
                                                  box * kTmaBoxBytes * Plan::kTokens);
      const int column = unit * kSlotWidth + box * kTmaBoxBytes;
      if constexpr (Plan::kTokenMulticast == 1)
        tma_load(to, &map, column, piece.token, ring.full_barrier());
      else if (unit % Plan::kTokenMulticast == multicast_rank<Plan>())
        tma_load_multicast(to, &map, column, piece.token, ring.full_barrier(),
                           (1 << Plan::kTokenMulticast) - 1);
    }
    ring.advance();
    if (unit == released_after) launch_dependent_grids();
  }
}

/// A multiplying thread's sums: of tile i of 8 weight rows, tokens lane / 4 (+ 8 for j >= 2) of its
/// warp's 16 and weight rows 8 * i + lane % 4 * 2 + j % 2.
template <int kTiles>
using Sums = float[kTiles][4];

template <TileType kType,
          int kRows,
          int kTileTokens,
          int kSlotWidth,
          int kWeightMulticast,
          int kCtasPerSm>
__global__ void __launch_bounds__(
    UnswappedPlan<kType, kRows, kTileTokens, kSlotWidth, kCtasPerSm>::kThreads, kCtasPerSm)
    gemm_decode_unswapped_kernel(const __grid_constant__ Gemm p,
                                 const __grid_constant__ WeightTensorMaps weight_maps,
                                 const __grid_constant__ CUtensorMap x_map,
                                 const UnswappedLaunch cut) {
  using Plan = UnswappedPlan<kType, kRows, kTileTokens, kSlotWidth, kCtasPerSm>;
  constexpr bool kWhole = Plan::kWarpgroups == 1;  // parts of the width, one after the other
  static_assert(!(kChained<kType> && kWhole));
  // A stage's products are issued before those before are waited for, if registers have room.
  constexpr bool kOverlapsMma = kTileTokens == 64 && kSlotWidth == kStageWidth;
  constexpr int kCluster = kWeightMulticast * Plan::kTokenMulticast;
  constexpr int kTiles = Plan::kTiles;
  constexpr int kHalves = kStageWidth / kSlotWidth;
  extern __shared__ std::uint8_t unaligned[];
  std::uint8_t* shared = unaligned + (1024U - shared_address(unaligned) % 1024U) % 1024U;
  const std::uint32_t full = shared_address(shared);
  UnswappedRing<Plan::kSlots> ring{full, full + 8U * kRingSlotsMax,
                                   shared_address(shared) + Plan::kRingBegin};
  auto* first_scales = reinterpret_cast<float*>(shared + kBarrierBytes);
  float* row_scales = first_scales;
  float* bias = row_scales + kRows;

  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = warp_index();
  UnswappedCtaTile piece = UnswappedCtaTile::of<kRows, kWeightMulticast>(p, cut);
  const int stages = (p.width_bytes + kStageWidth - 1) / kStageWidth;
  if (warp == Plan::kWarps) {  // makes the barriers and waits for none of this CTA's warps
    if (elect_one()) {
#pragma unroll
      for (int slot = 0; slot < Plan::kSlots; ++slot) {
        mbarrier_init(ring.full + 8U * static_cast<std::uint32_t>(slot), 1);
        mbarrier_init(ring.empty + 8U * static_cast<std::uint32_t>(slot),
                      static_cast<std::uint32_t>(Plan::kWarps * kCluster));
      }
      fence_mbarrier_init();
    }
    __syncwarp();
    named_barrier_arrive(2, Plan::kThreads);
  } else {
    named_barrier_sync(2, Plan::kThreads);
  }
  // NOTE: by all warps, as the wait: under compute-sanitizer some would wait for the others.
  if constexpr (kCluster > 1) cluster_arrive();
  const int next_block = static_cast<int>(gridDim.x) * kRows;  // rows
  // NOTE: a pair's CTAs have as many blocks each, the last of which may lie beyond the matrix: then
  // rows are some of the last ones once more, whose results nobody stores.
  const int rows_end = p.rows + multicast_rank<Plan>() * kRows;

  if (warp >= Plan::kWarps) {  // ---- the copying warps
    const int units = stages * kHalves;
    if constexpr (kCluster > 1) cluster_wait();  // for the others' barriers
    if (elect_one()) {
      if (warp == Plan::kWarps) {
        do {
          copy_weights<Plan, kRows, kSlotWidth, kWeightMulticast>(p, weight_maps, piece, units,
                                                                  ring);
          piece.row += next_block;
        } while (Plan::kPersistent && piece.row < rows_end);
      } else {
        prefetch_tensor_map(&x_map);
        wait_on_dependent_grids();
        do {
          copy_tokens<Plan, kSlotWidth>(x_map, piece, cut, units, ring);
          piece.row += next_block;
        } while (Plan::kPersistent && piece.row < rows_end);
      }
    }
    return;  // NOTE: at once, or ptxas takes what is copied lane by lane; no barrier needs them
  }

  // ---- the multiplying warps
  static_assert(kRows <= 32 * Plan::kWarps);
  const auto row_scale = [&](int n) {
    return kType == TileType::fp8 && n < p.rows ? p.row_scales[n] : 1.0F;
  };
  const auto row_bias = [&](int n) {
    return p.bias != nullptr && n < p.rows ? to_float(p.bias[n]) : kNoBias;
  };
  if (thread < kRows) {
    row_scales[thread] = row_scale(piece.row + thread);
    bias[thread] = row_bias(piece.row + thread);
  }
  wait_on_dependent_grids();
  if (cut.released_after < 0) launch_dependent_grids();
  if constexpr (kCluster > 1) cluster_wait();
  const int group = warp / 4 / Plan::kRowGroups * 64 + warp % 4 * kWarpTokens;  // of tokens
  const int group_row = warp / 4 % Plan::kRowGroups * Plan::kGroupRows;
  const int token = piece.token + group + lane / 4;  // and the eighth behind it
  const int tokens = piece.token + cut.each;         // where this CTA's end
  float x_scales[2];
#pragma unroll
  for (int i = 0; i < 2; ++i)
    x_scales[i] =
        kType == TileType::fp8 && token + 8 * i < tokens ? p.x_scales[token + 8 * i] : 1.0F;

  [[maybe_unused]] const std::uint64_t policy =
      cut.leaves ? evict_first_policy() : evict_normal_policy();
  // NOTE: only slots that are filled again are told of: then each CTA of a cluster waits for
  // whatever another one tells it, and may leave when it is done.
  const int blocks = Plan::kPersistent ? (rows_end - piece.row + next_block - 1) / next_block : 1;
  int wanted = blocks * stages * kHalves - Plan::kSlots;
  int oldest = 0;  // slot of those that products read
  do {
    float next_scale = 1.0F;  // of the next block's rows
    float next_bias = 0.0F;
    if (Plan::kPersistent && thread < kRows) {
      next_scale = row_scale(piece.row + next_block + thread);
      next_bias = row_bias(piece.row + next_block + thread);
    }
    Sums<kTiles> sum = {};
    Sums<kWhole ? kTiles : 1> total = {};  // of the parts before
    {
      const std::uint64_t weights =
          core_matrix_descriptor(ring.slots + static_cast<std::uint32_t>(group_row * kSlotWidth),
                                 kTileChunk * 8, kSlotWidth * 8);
      const std::uint64_t rows = swizzle128_descriptor(
          ring.slots + static_cast<std::uint32_t>(Plan::kWeightBytes) +
          static_cast<std::uint32_t>(warp / 4 / Plan::kRowGroups * 64 * kTmaBoxBytes));
      // In a cluster lane i tells CTA i.
      const std::uint32_t theirs =
          kCluster > 1 ? map_shared_rank(ring.empty, static_cast<std::uint32_t>(lane % kCluster))
                       : ring.empty;
      const auto release = [&] {
        const std::uint32_t barrier = theirs + 8U * static_cast<std::uint32_t>(oldest);
        if constexpr (kCluster > 1) {
          if (lane < kCluster && wanted > 0) mbarrier_arrive_remote(barrier);
          --wanted;
        } else if (lane == 0) {
          mbarrier_arrive(barrier);
        }
        if (++oldest == Plan::kSlots) oldest = 0;
      };
      // Issues the products of a slot.
      const auto issue = [&](Sums<kTiles>& partial, bool accumulate) {
        mbarrier_wait(ring.full_barrier(), ring.phase);
        const auto at = static_cast<std::uint32_t>(ring.slot * Plan::kSlot);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < kSlotWidth / kTileWidthStep; ++i)
          wgmma<kType, Plan::kGroupRows>(
              &partial[0][0],
              advance_descriptor(advance_descriptor(rows, at),
                                 static_cast<std::uint32_t>(i / 4 * kTmaBoxBytes * Plan::kTokens +
                                                            i % 4 * kTileWidthStep)),
              advance_descriptor(advance_descriptor(weights, at),
                                 static_cast<std::uint32_t>(i) * 256U),
              accumulate || i > 0 ? 1 : 0);
        wgmma_commit_group();
        ring.advance();
      };
      const auto issue_stage = [&](Sums<kTiles>& partial) {
#pragma unroll
        for (int half = 0; half < kHalves; ++half) issue(partial, half > 0);
      };
      int split = 1;
      int border = kWhole ? stages / p.split_k : 0;  // stage where the next part begins
      // Adds a stage's sums; a part's go to the total where the next one begins.
      const auto add = [&](int stage, const Sums<kTiles>& partial) {
        if (kWhole && stage == border) {
          ++split;
          border = stages * split / p.split_k;
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
            if (kOverlapsMma) asm volatile("" : "+f"(sum[tile][i]));
          }
      };
      int stage = 0;
      if constexpr (kChained<kType>) {
#pragma unroll 1
        for (int unit = 0; unit < stages * kHalves; ++unit) {
          issue(sum, true);
          wgmma_wait_group<0>();
          release();
        }
      } else if constexpr (kOverlapsMma) {
        Sums<kTiles> partials[2] = {};
        // Two stages, the first of which is issued; where more follow, the next one's is too.
        const auto run_two = [&](auto more) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            if (more || i == 0) {
              issue_stage(partials[1 - i]);
              wgmma_wait_group<kHalves>();
            } else {
              wgmma_wait_group<0>();
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
            wgmma_wait_group<0>();
#pragma unroll
            for (int half = 0; Plan::kPersistent && half < kHalves; ++half) release();
            add(stage, partials[0]);
          }
        }
      } else {  // another warpgroup or CTA multiplies while this one adds
#pragma unroll 1
        for (; stage < stages; ++stage) {
          Sums<kTiles> partial;
          issue_stage(partial);
          if constexpr (kHalves > 1) {
            wgmma_wait_group<1>();
            release();
          }
          wgmma_wait_group<0>();
          release();
          add(stage, partial);
        }
      }
      if constexpr (kWhole) {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
          for (int i = 0; i < 4; ++i) sum[tile][i] = total[tile][i] + sum[tile][i];
      }
    }

    named_barrier_sync(1, 32 * Plan::kWarps);  // scales are there
    const auto scaled = [&](int tile, const float(&of)[4], float(&value)[4]) {
      const int row = group_row + tile * 8 + lane % 4 * 2;
      const float2 scales = *reinterpret_cast<const float2*>(row_scales + row);
      const float2 biases = *reinterpret_cast<const float2*>(bias + row);
#pragma unroll
      for (int j = 0; j < 4; ++j)
        value[j] = apply_scales<kType>(of[j], j % 2 == 0 ? scales.x : scales.y, x_scales[j / 2],
                                       j % 2 == 0 ? biases.x : biases.y);
    };
    // Stores up to four tiles in bf16, 16 bytes of a token's row a lane.
    const auto finish_straight = [&](int tile, int count, const float(&of)[4][4]) {
      std::uint32_t words[2][4] = {};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i >= count) break;
        float value[4];
        scaled(tile + i, of[i], value);
        words[0][i] = pack_bf16(value[0], value[1]);
        words[1][i] = pack_bf16(value[2], value[3]);
      }
      const int n = piece.row + (tile + lane % 4) * 8;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const uint4 eight = quad_transpose(words[j]);
        if (lane % 4 < count && n < p.rows && token + 8 * j < tokens)
          *reinterpret_cast<uint4*>(static_cast<Bf16*>(p.out) +
                                    static_cast<std::int64_t>(token + 8 * j) * p.out_stride + n) =
              eight;
      }
    };
    // Else through the ring, which all are done with, so that this code is there once: where it
    // stood beside the other at every tile, results took a microsecond.
    auto* left = reinterpret_cast<float4*>(shared + Plan::kRingBegin + warp * kTiles * kTileSums);
    const auto leave = [&](int tile, int count, const float(&of)[4][4]) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (i < count)
          left[(tile + i) * 32 + lane] = make_float4(of[i][0], of[i][1], of[i][2], of[i][3]);
    };
    const auto finish_left = [&](int first, int end) {
#pragma unroll 1
      for (int tile = first; tile < end; ++tile) {
        const float4 four = left[tile * 32 + lane];
        float value[4];
        scaled(tile, {four.x, four.y, four.z, four.w}, value);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int n = piece.row + tile * 8 + lane % 4 * 2 + j % 2;
          if (n < p.rows && token + j / 2 * 8 < tokens)
            store_output(p, token + j / 2 * 8, n, value[j]);
        }
      }
    };
    const auto finish_all = [&](const auto& end_of) {
#pragma unroll
      for (int tile = 0; tile < kTiles; tile += 4) {
        float of[4][4] = {};
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j)
            if (tile + i < kTiles) of[i][j] = sum[tile + i < kTiles ? tile + i : 0][j];
        end_of(tile, std::min(4, kTiles - tile), of);
      }
    };
    if constexpr (Plan::kStaged) {
      // Through a place of its own, half of the rows at a time, so that no warp waits for stores.
      float* staged =
          reinterpret_cast<float*>(shared + Plan::kRingBegin + Plan::kSlots * Plan::kSlot) +
          warp * kWarpTokens * Plan::kStagedRows;
#pragma unroll
      for (int first = 0; first < Plan::kGroupRows; first += Plan::kStagedRows) {
        bulk_store_wait_read();
        __syncwarp();
#pragma unroll
        for (int i = 0; i < Plan::kStagedRows / 8; ++i) {
          float value[4];
          scaled(first / 8 + i, sum[first / 8 + i], value);
#pragma unroll
          for (int j = 0; j < 2; ++j)
            *reinterpret_cast<float2*>(staged + (lane / 4 + 8 * j) * Plan::kStagedRows + i * 8 +
                                       lane % 4 * 2) = make_float2(value[2 * j], value[2 * j + 1]);
        }
        const int row = piece.row + group_row + first;
        const int rows = min(p.rows - row, Plan::kStagedRows);
        const int first_token = piece.token + group;
        if (cut.straight) {
          fence_proxy_async_shared();
          __syncwarp();
          if (lane < kWarpTokens && first_token + lane < tokens && rows > 0)
            bulk_store(static_cast<float*>(p.out) + (first_token + lane) * p.out_stride + row,
                       shared_address(staged + lane * Plan::kStagedRows),
                       static_cast<std::uint32_t>(rows * 4), policy);
          bulk_store_commit();
        } else {
          __syncwarp();
          for (int i = 0; i < min(kWarpTokens, tokens - first_token); ++i)
            for (int n = lane; n < rows; n += 32)
              store_output(p, first_token + i, row + n, staged[i * Plan::kStagedRows + n]);
        }
      }
    } else if (cut.straight) {
      finish_all(finish_straight);
    } else {
      finish_all(leave);
      finish_left(0, kTiles);
    }
    if constexpr (Plan::kPersistent) {
      piece.row += next_block;
      row_scales = first_scales + (row_scales == first_scales ? Plan::kScales : 0);
      bias = row_scales + kRows;
      if (thread < kRows) {
        row_scales[thread] = next_scale;
        bias[thread] = next_bias;
      }
    }
  } while (Plan::kPersistent && piece.row < rows_end);
  if constexpr (Plan::kStaged) bulk_store_wait_read();  // before shared memory is another CTA's
}

template <TileType kType,
          int kRows,
          int kTileTokens,
          int kSlotWidth,
          int kWeightMulticast,
          int kCtasPerSm>
cudaError_t launch_form(const Gemm& p,
                        const WeightTensorMaps& weight_maps,
                        const CUtensorMap& x_map,
                        const DecodeGemmConfig& form,
                        cudaStream_t stream) {
  using Plan = UnswappedPlan<kType, kRows, kTileTokens, kSlotWidth, kCtasPerSm>;
  const auto kernel = gemm_decode_unswapped_kernel<kType, kRows, kTileTokens, kSlotWidth,
                                                   kWeightMulticast, kCtasPerSm>;
  static PerDevice prepared;
  const cudaError_t ready =
      prepared.once([&] { return allow_dynamic_shared_memory(kernel, kSharedMax); });
  if (ready != cudaSuccess) return ready;
  const auto out_bits = reinterpret_cast<std::uintptr_t>(p.out);
  const int slices = slices_of(form, p.tokens);
  constexpr bool bf16 = kType == TileType::bf16;
  constexpr int together = bf16 ? 4 : 8;  // results in 16 bytes
  const UnswappedLaunch cut{.slices = slices,
                            .each = tokens_per_cta(form, p.tokens),
                            .straight = p.epilogue == (bf16 ? Epilogue::f32 : Epilogue::bf16) &&
                                        p.rows % together == 0 && p.out_stride % together == 0 &&
                                        out_bits % 16 == 0,
                            .leaves = std::int64_t{4} * p.tokens * p.rows > kLeavingBytes,
                            .released_after = released_after<Plan>(kCtasPerSm, slices)};
  int blocks = ceil_div(p.rows, kRows);
  // NOTE: what is not stored straight away passes through the ring, which must be done with then.
  if ((Plan::kStaged || cut.straight) && form.ctas > 0) blocks = std::min(blocks, form.ctas);
  blocks = round_up(blocks, Plan::kTokenMulticast);
  return launch_kernel(
      kernel,
      {dim3(static_cast<unsigned>(blocks * cut.slices)), dim3(Plan::kThreads),
       static_cast<std::size_t>(Plan::kLaunchBytes), kWeightMulticast * Plan::kTokenMulticast},
      stream, p, weight_maps, x_map, cut);
}

/// A form and what launches it.
struct UnswappedConfig {
  TileType type;
  DecodeGemmConfig form;
  decltype(&launch_gemm_decode_unswapped_sm90) launch;
};

template <TileType kType,
          int kRows,
          int kTileTokens,
          int kSlotWidth,
          int kWeightMulticast,
          int kCtasPerSm>
constexpr UnswappedConfig make_form() {
  return {kType,
          {.columns = kTileTokens,
           .slot_width = kSlotWidth,
           .rows = kRows,
           .ctas_per_sm = kCtasPerSm,
           .weight_multicast = kWeightMulticast},
          &launch_form<kType, kRows, kTileTokens, kSlotWidth, kWeightMulticast, kCtasPerSm>};
}

// One warpgroup of fp8: slots of a stage, alone on its multiprocessor; or of half a stage, so that
// half a multiprocessor has room for enough of them.
template <int kRows, int kWeightMulticast = 1>
constexpr UnswappedConfig whole() {
  return make_form<TileType::fp8, kRows, 64, kStageWidth, kWeightMulticast, 1>();
}
template <int kRows>
constexpr UnswappedConfig half() {
  return make_form<TileType::fp8, kRows, 64, kStageWidth / 2, 1, 2>();
}
/// These take block after block.
template <TileType kType, int kRows, int kTileTokens>
constexpr UnswappedConfig repeating() {
  return make_form<kType, kRows, kTileTokens, kStageWidth / 2, 1, 1>();
}

// NOTE: those of a kind with the fewest rows first: choose_unswapped_config() takes the first whose CTAs are
// all there at once.
constexpr UnswappedConfig kForms[] = {
    whole<24>(),
    whole<32>(),
    whole<40>(),
    whole<48>(),
    whole<56>(),
    whole<96>(),
    whole<48, 2>(),
    whole<56, 2>(),
    whole<80, 2>(),
    whole<96, 2>(),
    half<40>(),
    half<80>(),
    repeating<TileType::fp8, 96, 64>(),
    repeating<TileType::fp8, 112, 64>(),
    repeating<TileType::fp8, 96, 128>(),
    repeating<TileType::fp8, 112, 128>(),
    repeating<TileType::bf16, 144, 64>(),
    repeating<TileType::bf16, 144, 128>(),
};

bool can_multiply(const UnswappedConfig& of, const Gemm& p) {
  const int slices = slices_of(of.form, p.tokens);
  return of.type == p.type && slices >= of.form.weight_multicast &&
         slices <= (is_persistent(of.form) ? 1 : 2) &&
         ((p.type == TileType::fp8 && of.form.columns == 64) || p.split_k == 1);
}

}  // namespace

std::vector<DecodeGemmConfig> unswapped_configs(const Gemm& p) {
  std::vector<DecodeGemmConfig> forms;
  for (const UnswappedConfig& of : kForms)
    if (can_multiply(of, p)) forms.push_back(of.form);
  return forms;
}

DecodeGemmConfig choose_unswapped_config(const Gemm& p, int multiprocessors) {
  constexpr int kTokensMin = 17;
  constexpr int kTokensMany = 33;
  constexpr int kTilesOfWaves = 200;  // from here on CTAs may follow each other
  constexpr int kSharedRows = 48;     // from here on two weigh more than a cluster's beginning
  // The next call's CTAs beside this one's are worth more than slots of the ring: measured with 6
  // stages, with 12 they are not.
  constexpr int kShortStages = 8;
  DecodeGemmConfig form;
  // NOTE: products of what lies beyond a width are zeros, but cut the sums that they are added to.
  if (p.tokens < kTokensMin || p.width_bytes % kStageWidth != 0) return form;
  const int slices = ceil_div(p.tokens, 64);
  if (p.type == TileType::fp8) {
    const bool halves = p.width_bytes <= kShortStages * kStageWidth;
    for (const UnswappedConfig& of : kForms) {
      const int shared = !halves && slices > 1 && of.form.rows >= kSharedRows ? 2 : 1;
      if (of.type != p.type || is_persistent(of.form) || of.form.weight_multicast != shared ||
          of.form.ctas_per_sm != (halves ? 2 : 1))
        continue;
      const int ctas = ceil_div(p.rows, of.form.rows) * slices;
      if (ctas > multiprocessors) continue;  // at once
      // On most multiprocessors; or, where the other kernel's products are few, on nearly all.
      const bool loads =
          p.tokens < kTokensMany ? ctas * 5 >= multiprocessors * 4 : ctas * 2 > multiprocessors;
      if (!loads) break;
      return of.form;
    }
  }
  const bool bf16 = p.type == TileType::bf16;
  if ((!bf16 && p.tokens < kTokensMany) || p.split_k > 1 || p.tiles < kTilesOfWaves) return form;
  form.columns = slices == 1 ? 64 : 128;
  form.slot_width = kStageWidth / 2;
  // The vocabulary's 151552 rows, all, a quarter and an eighth of them, are 7.97, 1.99 and 0.997
  // blocks of 144 a multiprocessor; of 96 rows they are 12.0, 3.0 and 1.5.
  form.rows = bf16 ? 144 : ceil_div(p.rows, 112) <= multiprocessors ? 112 : 96;
  const int blocks = ceil_div(p.rows, form.rows);
  const int each = ceil_div(blocks, multiprocessors);
  // Uneven shares: 24576 rows are 1.3 such blocks a multiprocessor.
  if (bf16 && slices == 1 && blocks * 8 < each * multiprocessors * 7) return {};
  if (each > 1) form.ctas = ceil_div(blocks, each);
  return form;
}

cudaError_t launch_gemm_decode_unswapped_sm90(const Gemm& p,
                                              const WeightTensorMaps& weight_maps,
                                              const CUtensorMap& x_map,
                                              const DecodeGemmConfig& form,
                                              cudaStream_t stream) {
  for (const UnswappedConfig& of : kForms)
    if (of.type == p.type && of.form.columns == form.columns &&
        of.form.slot_width == form.slot_width && of.form.rows == form.rows &&
        of.form.ctas_per_sm == form.ctas_per_sm &&
        of.form.weight_multicast == form.weight_multicast)
      return can_multiply(of, p) && (form.ctas == 0 || is_persistent(form))
                 ? of.launch(p, weight_maps, x_map, form, stream)
                 : cudaErrorInvalidValue;
  return cudaErrorInvalidValue;
}

const void* kernel_of::gemm_decode_unswapped_sm90() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
