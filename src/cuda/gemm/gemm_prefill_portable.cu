// SPDX-License-Identifier: Apache-2.0
// The prefill GEMM on mma.sync, for every GPU: FP8 linear layers and experts of prompts, SwiGLU
// included. A row has the bits of the portable grouped decode GEMM: the same MMAs in one order.
//
//   grid      persistent, two CTAs a multiprocessor; a CTA takes work tiles (token block, pair of
//             weight tiles) by stride
//   CTA       128 weight rows x up to 128 tokens, 4 warps of 64 x 64: weight tiles by two halves
//             of the token block. The mainloop is compiled for 32, 48, 64, … 128 tokens
//   operands  e4m3 in shared memory as in device memory (core matrices), f16 in registers, exactly.
//             64 x 64 is the warp tile with the fewest conversions an MMA, one. NOTE: mma.sync on
//             e4m3 would be no faster: for sm_90a and sm_100f ptxas makes these conversions of it,
//             and MMAs of f16
//   copies    cp.async of 64 bytes of K a stage: weights as they lie, token rows through p.x_rows
//   shared    ring of stages of 16 KB · 1 KB of scales · split-K: 64 KB, the sums of the splits
//             before
//   sums      f32, one chain of MMAs over K, or over each split, in order
//
// docs/kernels/blackwell.md: when it runs and how fast.
#include "base/arithmetic.h"
#include "cuda/device/launch.cuh"
#include "cuda/device/numeric.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/mma_tile.cuh"
#include "cuda/gemm/tiled_layout.h"

namespace koho::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kCtasPerSm = 2;
constexpr int kPairTiles = 2;  // weight tiles of a work tile, one of each two warps
constexpr int kTokens = kPortablePrefillTokensMax;
constexpr int kRowTiles = kTileRows / 16;     // m16 tiles of a warp
constexpr int kTokenTilesMax = kTokens / 16;  // n8 tiles of a warp
constexpr int kSlotWidth = 64;                // bytes of K
constexpr int kTileSlot = kTileRows * kSlotWidth;
constexpr int kHalfSlot = kTileRows * kTileWidthStep;
static_assert(kHalfSlot == kThreads * kTileChunk);
constexpr int kWeightBytes = kPairTiles * kTileSlot;
constexpr int kTokenChunk = kTokens * kTileChunk;  // one chunk of K of all tokens
constexpr int kStage = kWeightBytes + kTokens * kSlotWidth;
constexpr int kSlotSteps = kSlotWidth / kTileWidthStep;

template <bool kSplitK>
struct Plan {
  static constexpr int kStages = kSplitK ? 3 : 6;
  static constexpr int kScales = kStages * kStage;  // of tokens, then of weight rows
  static constexpr int kSums = kScales + 4 * (kTokens + kPairTiles * kTileRows);
  static constexpr int kShared = kSums + (kSplitK ? 4 * kTokens * kPairTiles * kTileRows : 0);
};

/// A thread's sums: rows g and g + 8 of each m16 tile of its warp, tokens 2t and 2t + 1 of each n8
/// tile.
using Sums = float[kRowTiles][kTokenTilesMax][4];

struct PairTile {
  int expert;
  int pair;   // of weight tiles
  int first;  // permuted row
  int count;
};

/// Where token block `block` of a linear layer begins; blocks differ by 16 tokens at most.
__device__ __forceinline__ int block_begin(const Gemm& p, int token_blocks, int block) {
  const int steps = (p.tokens + kPortablePrefillTokenStep - 1) / kPortablePrefillTokenStep;
  const auto step = static_cast<int>(static_cast<std::int64_t>(steps) * block / token_blocks);
  return min(step * kPortablePrefillTokenStep, p.tokens);
}

/// An expert's token blocks take each pair of weight tiles in turn, and so do kBand token blocks of
/// a linear layer: CTAs that run at once read the same weights and few tokens.
__device__ __forceinline__ PairTile pair_tile_at(const Gemm& p,
                                                 int index,
                                                 int pairs,
                                                 int token_blocks) {
  constexpr int kBand = 16;
  if (p.token_blocks == nullptr) {
    const int band = index / (pairs * kBand);
    const int of_band = index - band * pairs * kBand;
    const int blocks = min(kBand, token_blocks - band * kBand);
    const int block = band * kBand + of_band % blocks;
    const int first = block_begin(p, token_blocks, block);
    return {0, of_band / blocks, first, block_begin(p, token_blocks, block + 1) - first};
  }
  const int at = index / pairs;
  const ExpertTokenBlock any = p.token_blocks[at];
  const int first = at - any.block_of_expert;
  const int of_expert = index - first * pairs;
  const ExpertTokenBlock block = p.token_blocks[first + of_expert % any.blocks_of_expert];
  return {block.expert, of_expert / any.blocks_of_expert, block.first, block.count};
}

/// The pair's weight tile `index`, or the one before it where p has an odd number of tiles.
__device__ __forceinline__ int weight_tile(const Gemm& p, const PairTile& tile, int index) {
  return min(tile.pair * kPairTiles + index, p.tiles - 1);
}

__device__ __forceinline__ int x_row_of(const Gemm& p, int row) {
  return p.x_rows != nullptr ? p.x_rows[row] : row;
}

/// What a thread copies of each stage, in order: 32 bytes of each weight tile, one chunk of token
/// rows lane % 8 + 8 * warp + 32 * i. What is absent becomes zeros.
struct Copies {
  static constexpr int kRows = kTokens / 32;
  const std::uint8_t* weights;  // of the next stage
  int second_tile;              // bytes from the first
  int weights_left;             // bytes of K from the next stage on
  const std::uint8_t* x;        // this thread's chunk of row 0
  int x_left;                   // bytes of K from there on
  std::uint32_t rows[kRows];    // in 16 bytes from x
  int present;                  // of these rows

  __device__ __forceinline__ void begin(const Gemm& p, const PairTile& tile) {
    const int thread = static_cast<int>(threadIdx.x);
    const int row = thread / 32 * 8 + thread % 8;
    const int chunk = thread % 32 / 8;
    const int tile_bytes = kTileRows * p.width_bytes;
    const int first_tile = tile.pair * kPairTiles;
    weights = p.weight +
              (static_cast<std::int64_t>(tile.expert) * p.tiles + first_tile) * tile_bytes +
              thread * kTileChunk;
    second_tile = (weight_tile(p, tile, 1) - first_tile) * tile_bytes;
    weights_left = p.width_bytes;
    x = p.x + chunk * kTileChunk;
    x_left = p.x_bytes - chunk * kTileChunk;
    present = tile.count > row ? (tile.count - row + 31) / 32 : 0;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int x_row = x_row_of(p, tile.first + min(row + 32 * i, tile.count - 1));
      rows[i] = static_cast<std::uint32_t>(x_row * (p.x_stride_bytes / kTileChunk));
    }
  }

  /// Copies the next stage to `slot`.
  __device__ __forceinline__ void copy(std::uint32_t slot) {
    const int thread = static_cast<int>(threadIdx.x);
    const std::uint32_t to = slot + static_cast<std::uint32_t>(thread * kTileChunk);
#pragma unroll
    for (int half = 0; half < kSlotSteps; ++half) {
      const std::uint32_t bytes = weights_left > half * kTileWidthStep ? kTileChunk : 0;
      const std::uint8_t* from = weights + (bytes > 0 ? half * kHalfSlot : 0);
      cp_async_16(to + half * kHalfSlot, from, bytes);
      cp_async_16(to + kTileSlot + half * kHalfSlot, from + second_tile, bytes);
    }
    const int bytes = min(max(x_left, 0), kTileChunk);
    const std::uint32_t tokens_to =
        slot + kWeightBytes +
        static_cast<std::uint32_t>(thread % 32 / 8 * kTokenChunk +
                                   (thread / 32 * 8 + thread % 8) * kTileChunk);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const std::uint32_t here = i < present ? static_cast<std::uint32_t>(bytes) : 0;
      cp_async_16(tokens_to + i * 32 * kTileChunk,
                  x + static_cast<std::int64_t>(rows[i]) * kTileChunk, here);
    }
    weights += kTileSlot;
    weights_left -= kSlotWidth;
    if (x_left > kSlotWidth) x += kSlotWidth;  // else it stays where there is something to read
    x_left -= kSlotWidth;
  }
};

/// The operands of 32 bytes of K, two chunks, of a warp.
template <int kTiles>
struct Fragments {
  std::uint32_t weights[kRowTiles][4];      // as load_weights() (mma_tile.cuh)
  std::uint32_t x[round_up(kTiles, 2)][2];  // of n8 tile and chunk

  __device__ __forceinline__ void load(std::uint32_t weights_at, std::uint32_t tokens_at) {
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
      ldmatrix_x4(weights[i], weights_at + static_cast<std::uint32_t>(i * 16 * kTileChunk));
#pragma unroll
    for (int j = 0; j < kTiles; j += 2) {
      std::uint32_t r[4];
      ldmatrix_x4(r, tokens_at + static_cast<std::uint32_t>(j * 8 * kTileChunk));
      x[j][0] = r[0];
      x[j][1] = r[1];
      x[j + 1][0] = r[2];
      x[j + 1][1] = r[3];
    }
  }

  __device__ __forceinline__ void multiply(float (&sums)[kRowTiles][kTiles][4]) const {
#pragma unroll
    for (int chunk = 0; chunk < 2; ++chunk) {
      std::uint32_t a[kRowTiles][4];
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
        upcast_weights(a[i], weights[i][2 * chunk], weights[i][2 * chunk + 1]);
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        std::uint32_t b[2];
        e4m3_to_f16(x[j][chunk], b[0], b[1]);
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i)
          mma_f16(sums[i][j], a[i][0], a[i][1], a[i][2], a[i][3], b[0], b[1]);
      }
    }
  }
};

/// Where split-K divides K, as stage_range() (gemm_grouped_decode_tiles.cuh) does, and the sums of
/// the splits before, added in order: each thread's own, in shared memory.
template <bool kSplitK>
struct SplitEnd {
  int split = 0;
  int end = 0;  // in stages

  __device__ __forceinline__ explicit SplitEnd(const Gemm& p) { find_end(p); }
  __device__ __forceinline__ void find_end(const Gemm& p) {
    end =
        ceil_div(p.width_bytes, kStageWidth) * (split + 1) / p.split_k * (kStageWidth / kSlotWidth);
  }
  template <int kTiles>
  __device__ __forceinline__ void keep(const Gemm& p,
                                       float (&sum)[kRowTiles][kTiles][4],
                                       float* kept) {
    if (split > 0) add(sum, kept);
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int j = 0; j < kTiles; ++j)
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          kept[((i * kTiles + j) * 4 + k) * kThreads + threadIdx.x] = sum[i][j][k];
          sum[i][j][k] = 0.0F;
        }
    ++split;
    find_end(p);
  }
  template <int kTiles>
  __device__ __forceinline__ void add(float (&sum)[kRowTiles][kTiles][4], const float* kept) const {
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int j = 0; j < kTiles; ++j)
#pragma unroll
        for (int k = 0; k < 4; ++k)
          sum[i][j][k] = kept[((i * kTiles + j) * 4 + k) * kThreads + threadIdx.x] + sum[i][j][k];
  }
};
template <>
struct SplitEnd<false> {
  __device__ __forceinline__ explicit SplitEnd(const Gemm& /*p*/) {}
};

/// Multiplies a work tile of up to 16 * kTiles tokens: sums of the last split of K (of all of K
/// without split-K), and in shared memory of those before. Sums of absent n8 tiles are not set.
template <int kTiles, bool kSplitK>
__device__ __forceinline__ void multiply(
    const Gemm& p, Copies& copies, std::uint32_t ring, float* split_sums, Sums& sums) {
  constexpr int kStages = Plan<kSplitK>::kStages;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int matrix = lane / 8;
  // The four blocks of an ldmatrix: weights (chunk, 8 rows), tokens (n8 tile, chunk).
  const auto weights_at =
      static_cast<std::uint32_t>(warp / 2 * kTileSlot + matrix / 2 * kTileRows * kTileChunk +
                                 (matrix % 2 * 8 + lane % 8) * kTileChunk);
  const auto tokens_at =
      static_cast<std::uint32_t>(kWeightBytes + matrix % 2 * kTokenChunk +
                                 (warp % 2 * kTiles * 8 + matrix / 2 * 8 + lane % 8) * kTileChunk);
  const int stages = ceil_div(p.width_bytes, kSlotWidth);
  float sum[kRowTiles][kTiles][4] = {};
  SplitEnd<kSplitK> splits(p);
#pragma unroll 1
  for (int stage = 0; stage < kStages - 1; ++stage) {
    if (stage < stages) copies.copy(ring + static_cast<std::uint32_t>(stage * kStage));
    cp_async_commit_group();
  }
  std::uint32_t slot = ring;
  std::uint32_t free_slot = ring + (kStages - 1) * kStage;
#pragma unroll 1
  for (int stage = 0; stage < stages; ++stage) {
    cp_async_wait_group<kStages - 2>();
    __syncthreads();  // the stage has arrived, and every warp has read the one before
    Fragments<kTiles> fragments[kSlotSteps];
    fragments[0].load(slot + weights_at, slot + tokens_at);
    if (stage + kStages - 1 < stages) copies.copy(free_slot);
    cp_async_commit_group();
    fragments[1].load(slot + weights_at + kHalfSlot, slot + tokens_at + 2 * kTokenChunk);
    fragments[0].multiply(sum);
    fragments[1].multiply(sum);
    free_slot = slot;
    slot = slot == ring + (kStages - 1) * kStage ? ring : slot + kStage;
    if constexpr (kSplitK)
      if (stage + 1 == splits.end && stage + 1 < stages) splits.keep(p, sum, split_sums);
  }
  if constexpr (kSplitK) splits.add(sum, split_sums);
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
    for (int j = 0; j < kTiles; ++j)
#pragma unroll
      for (int k = 0; k < 4; ++k) sums[i][j][k] = sum[i][j][k];
}

/// Scales, SwiGLU or bias, and stores of 16 bytes: a lane gets 8 adjacent columns of one token.
__device__ __forceinline__ void store(
    const Gemm& p, const PairTile& tile, int tiles, const float* scales, const Sums& sums) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int weight_index = tile.pair * kPairTiles + warp / 2;
  if (weight_index >= p.tiles) return;
  const int row = weight_index * kTileRows + lane / 4;
  float row_scales[kRowTiles][2];
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      row_scales[i][half] = scales[kTokens + warp / 2 * kTileRows + i * 16 + half * 8 + lane / 4];
  auto* out = static_cast<Bf16*>(p.out) + tile.first * p.out_stride;
#pragma unroll
  for (int j = 0; j < kTokenTilesMax; ++j) {
    const int first = (warp % 2 * tiles + j) * 8;
    if (j >= tiles || first >= tile.count) break;
    const float x_scale[2] = {scales[first + lane % 4 * 2], scales[first + lane % 4 * 2 + 1]};
    const int token = first + lane / 4;  // whose columns this lane stores
    const auto write = [&](std::uint32_t(&words)[4], int column) {
      const uint4 eight = quad_transpose(words);
      column += lane % 4 * 8;
      if (token < tile.count && column < p.rows)
        *reinterpret_cast<uint4*>(out + token * p.out_stride + column) = eight;
    };
    const auto value = [&](int i, int k, float bias) {
      return apply_scales<TileType::fp8>(p, sums[i][j][k], row_scales[i][k / 2], x_scale[k % 2],
                                         bias);
    };
    if (p.epilogue == Epilogue::silu_mul) {
      std::uint32_t words[4];
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
        words[i] = movmatrix_trans(
            pack_bf16(silu_mul(round_bf16(value(i, 0, 0.0F)), round_bf16(value(i, 2, 0.0F))),
                      silu_mul(round_bf16(value(i, 1, 0.0F)), round_bf16(value(i, 3, 0.0F)))));
      write(words, weight_index * kPairRows);
      continue;
    }
#pragma unroll
    for (int two = 0; two < kRowTiles; two += 2) {
      std::uint32_t words[4];
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        const int i = two + word / 2;
        const int half = word % 2;
        const int n = row + i * 16 + half * 8;
        const float bias = p.bias != nullptr && n < p.rows ? to_float(p.bias[n]) : 0.0F;
        words[word] =
            movmatrix_trans(pack_bf16(value(i, 2 * half, bias), value(i, 2 * half + 1, bias)));
      }
      write(words, weight_index * kTileRows + two * 16);
    }
  }
}

template <bool kSplitK>
__global__ void __launch_bounds__(kThreads, kCtasPerSm)
    gemm_prefill_portable_kernel(const __grid_constant__ Gemm p) {
  using Shared = Plan<kSplitK>;
  extern __shared__ __align__(128) std::uint8_t shared[];
  auto* const scales = reinterpret_cast<float*>(shared + Shared::kScales);
  auto* const split_sums = reinterpret_cast<float*>(shared + Shared::kSums);
  const std::uint32_t ring = shared_address(shared);
  const int thread = static_cast<int>(threadIdx.x);
  pdl_begin();
  const int token_blocks =
      p.token_blocks != nullptr ? *p.token_block_count : ceil_div(p.tokens, kTokens);
  const int pairs = ceil_div(p.tiles, kPairTiles);
  const int work_tiles = token_blocks * pairs;
  for (int index = static_cast<int>(blockIdx.x); index < work_tiles;
       index += static_cast<int>(gridDim.x)) {
    const PairTile tile = pair_tile_at(p, index, pairs, token_blocks);
    Copies copies;
    copies.begin(p, tile);
    __syncthreads();  // the work tile before has been multiplied and stored
    scales[thread] = thread < tile.count ? p.x_scales[x_row_of(p, tile.first + thread)] : 0.0F;
    scales[kTokens + thread] = p.row_scales[(static_cast<std::int64_t>(tile.expert) * p.tiles +
                                             weight_tile(p, tile, thread / kTileRows)) *
                                                kTileRows +
                                            thread % kTileRows];
    Sums sums;
    const int tiles = max(ceil_div(tile.count, 16), 2);  // n8 tiles of a warp
    switch (tiles) {
      case 2:
        multiply<2, kSplitK>(p, copies, ring, split_sums, sums);
        break;
      case 3:
        multiply<3, kSplitK>(p, copies, ring, split_sums, sums);
        break;
      case 4:
        multiply<4, kSplitK>(p, copies, ring, split_sums, sums);
        break;
      case 5:
        multiply<5, kSplitK>(p, copies, ring, split_sums, sums);
        break;
      case 6:
        multiply<6, kSplitK>(p, copies, ring, split_sums, sums);
        break;
      case 7:
        multiply<7, kSplitK>(p, copies, ring, split_sums, sums);
        break;
      default:
        multiply<8, kSplitK>(p, copies, ring, split_sums, sums);
        break;
    }
    store(p, tile, tiles, scales, sums);
  }
  cp_async_wait_group<0>();
}

template <bool kSplitK>
cudaError_t launch(const Gemm& p, int multiprocessors, cudaStream_t stream) {
  const auto kernel = gemm_prefill_portable_kernel<kSplitK>;
  constexpr std::size_t kShared = Plan<kSplitK>::kShared;
  static PerDevice found;
  const int resident = found.number([&] {  // CTAs of a multiprocessor; 0 if the kernel cannot run
    int count = 0;
    if (allow_dynamic_shared_memory(kernel, kShared) != cudaSuccess ||
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&count, kernel, kThreads, kShared) !=
            cudaSuccess)
      return 0;
    return count;
  });
  if (resident == 0) return cudaErrorInvalidConfiguration;
  int grid = resident * multiprocessors;
  if (p.token_blocks == nullptr)
    grid = min(grid, ceil_div(p.tokens, kTokens) * ceil_div(p.tiles, kPairTiles));
  return launch_kernel(kernel, {dim3(static_cast<unsigned>(grid)), dim3(kThreads), kShared}, stream,
                       p);
}

}  // namespace

cudaError_t launch_gemm_prefill_portable(const Gemm& p, int multiprocessors, cudaStream_t stream) {
  if (!prefill_portable_supports(p) || p.split_k > ceil_div(p.width_bytes, kStageWidth))
    return cudaErrorInvalidValue;
  return p.split_k > 1 ? launch<true>(p, multiprocessors, stream)
                       : launch<false>(p, multiprocessors, stream);
}

const void* kernel_of::gemm_prefill_portable() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
