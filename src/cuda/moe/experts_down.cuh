// SPDX-License-Identifier: Apache-2.0
// The down projection (w2) of routed experts in decode, a grouped GEMM that quantises the experts'
// inner rows itself (contract: Backend::experts). For FP8 weights with a scale per row: of thin
// experts (rows <= 512 bytes), and of few whole experts (rows <= 1,536 bytes) with few tokens, such
// as those of one token. There a quantising kernel between the two GEMMs, and GEMM tiles of one
// short row, cost more than they do. Two versions of the tile: experts_down_wgmma.cu and
// experts_down_portable.cu (mma.sync).
//
//   grid     persistent. The tiles of 64 weight rows of all token blocks, one token block after the
//            other, are cut into equal ranges, one per CTA: a CTA meets few token blocks, and all
//            CTAs end together
//   roles    warp 4, the producer: bulk copies of a tile's whole width in one stage, or (kWide) of
//            256 bytes of K a stage; the row scales come with the last. Warps 0-3, the consumers:
//            quantise a token block's rows once, then multiply 64 weight rows x 8 * kTiles tokens
//            a tile
//   prefetch the producer does not wait for the preceding kernel: neither weights nor the list of
//            token blocks depend on it, so the pipeline fills while it ends
//   overlap  with p.rows_stored the consumers wait for a token block's rows, not for the preceding
//            kernel. Its CTAs all run by then, so they do not wait for this one's to leave
//   shared   barriers 128 B · token scales 128 B · a token block's quantised rows · stages
//   sums     as gemm_grouped_decode.cuh with the same instruction: a row's bits are that kernel's
//   bytes    weights once per token block, a token block's rows once per CTA that meets it (L2)
//
// Which kernel runs when, and measured times: docs/kernels/experts.md.
#pragma once

#include "base/arithmetic.h"
#include "cuda/device/launch.cuh"
#include "cuda/device/numeric.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/tiled_layout.h"
#include "cuda/moe/experts_down.h"

namespace koho::cuda {
namespace {

constexpr int kConsumerThreads = 128;
constexpr int kThreads = kConsumerThreads + 32;
constexpr int kBarrierBytes = 128;  // full barriers of the stages, then empty ones
constexpr int kStagesMax = 8;
constexpr int kScaleBytes = 128;
constexpr int kRowScaleBytes = 4 * kTileRows;
constexpr int kMultiprocessorShared = 228 * 1024;
constexpr int kReserved = 1024;  // bytes that the system keeps per CTA
constexpr int kQuantizedBarrier = 1;

/// The token blocks with rows, as one warp sees them; its lanes act together. Those of a step of
/// one token are the shared expert's and those of the choices that this rank has: lane i knows
/// choice i.
struct TokenBlockList {
  const Gemm& p;
  int expert = -1;          // that this lane's choice fell on
  std::uint32_t local = 0;  // choices whose experts are here

  __device__ __forceinline__ explicit TokenBlockList(const Gemm& p) : p(p) {
    if (p.single_ids == nullptr) return;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (lane < p.single_token_blocks - shared()) expert = p.single_ids[lane] - p.single_first;
    local = __ballot_sync(0xFFFFFFFFU, expert >= 0 && expert < p.single_count);
  }
  __device__ __forceinline__ int shared() const { return p.single_shared ? 1 : 0; }
  __device__ __forceinline__ int count() const {
    return p.single_ids == nullptr ? *p.token_block_count : shared() + __popc(local);
  }
  __device__ __forceinline__ ExpertTokenBlock at(int index) const {
    if (p.single_ids == nullptr) return p.token_blocks[index];
    if (index < shared()) return {p.single_count, 0, 1, 0, 1};
    std::uint32_t left = local;
    for (int i = shared(); i < index; ++i) left &= left - 1;
    const int choice = __ffs(static_cast<int>(left)) - 1;
    return {__shfl_sync(0xFFFFFFFFU, expert, choice), choice + shared(), 1, 0, 1};
  }
};

/// The tiles of this CTA, counted through all token blocks.
struct TileRange {
  int begin;
  int end;
};
__device__ __forceinline__ TileRange tile_range_of(const Gemm& p, const TokenBlockList& blocks) {
  const int of_shared = p.shared.token_blocks * p.tiles;
  const std::int64_t others = static_cast<std::int64_t>(blocks.count()) * p.tiles - of_shared;
  // The shared expert's tile counts 1, another as many as it takes longer.
  const int weight = of_shared > 0 ? max(p.width_bytes / p.shared.width_bytes, 1) : 1;
  const auto tile_at = [&](unsigned cta) {
    const std::int64_t at = (of_shared + others * weight) * cta / gridDim.x;
    return static_cast<int>(at <= of_shared ? at : of_shared + (at - of_shared) / weight);
  };
  return {tile_at(blockIdx.x), tile_at(blockIdx.x + 1)};
}

/// What differs for the shared expert's token blocks.
struct ExpertWidth {
  int bytes;    // of a weight row
  int x_bytes;  // of a row of x
  std::uint32_t rows_stored_full;
};
template <bool kWide>
__device__ __forceinline__ ExpertWidth width_of(const Gemm& p, int token_block) {
  if (kWide && token_block < p.shared.token_blocks)
    return {p.shared.width_bytes, p.shared.x_bytes, p.shared.rows_stored_full};
  return {p.width_bytes, p.x_bytes, p.rows_stored_full};
}

/// Bytes of a weight row at most, for each instance.
template <int kTiles, bool kWide>
constexpr int kDownWidthOf = kWide         ? kDownWidthMax
                             : kTiles == 1 ? kStageWidth
                                           : kDownThinWidth;

/// The pipeline's stages, as a thread sees them. kWide: a tile takes several stages of kStageWidth
/// bytes of K; else one. Tiles of a narrow shared expert leave part of a stage empty.
template <bool kWide>
struct PipelineStages {
  std::uint32_t full;
  std::uint32_t empty;
  std::uint8_t* first;
  int tile_width;  // bytes of K of the widest tile
  int count;
  int stage = 0;
  std::uint32_t phase = 0;

  __device__ __forceinline__ std::uint32_t barrier_of(std::uint32_t barriers) const {
    return barriers + 8U * static_cast<std::uint32_t>(stage);
  }
  __device__ __forceinline__ void advance() {
    if (++stage == count) {
      stage = 0;
      phase ^= 1U;
    }
  }
  static constexpr int width_of(int tile_width) {
    return kWide && tile_width > kStageWidth ? kStageWidth : tile_width;
  }
  static constexpr int bytes_of(int tile_width) {
    return kTileRows * width_of(tile_width) + kRowScaleBytes;
  }
  /// Stages of a tile of `width` bytes of K.
  static __device__ __forceinline__ int each(int width) {
    return kWide ? ceil_div(width, kStageWidth) : 1;
  }
  /// Bytes of K in its stage `part`.
  static __device__ __forceinline__ int part_width(int width, int part) {
    return kWide ? min(kStageWidth, width - part * kStageWidth) : width;
  }
  __device__ __forceinline__ std::uint8_t* data() const {
    return first + stage * bytes_of(tile_width);
  }
  __device__ __forceinline__ float* scales() const {
    return reinterpret_cast<float*>(data() + kTileRows * width_of(tile_width));
  }
};

/// The producer warp: waits for an empty stage, then copies a tile's weights (and scales) into it.
template <bool kWide>
__device__ void load_tiles(const Gemm& p,
                           PipelineStages<kWide> stages,
                           const TokenBlockList& blocks,
                           const TileRange& run) {
  const std::uint64_t policy = evict_first_policy();
  const std::int64_t expert_bytes = static_cast<std::int64_t>(p.tiles) * kTileRows * p.width_bytes;
  int token_block = run.begin / p.tiles;
  int tile = run.begin % p.tiles;
  int expert = run.begin < run.end ? blocks.at(token_block).expert : 0;
  int width = width_of<kWide>(p, token_block).bytes;
  for (int index = run.begin; index < run.end; ++index) {
    const std::uint8_t* tile_weights =
        p.weight + expert * expert_bytes + static_cast<std::int64_t>(tile) * kTileRows * width;
    const int tile_stages = stages.each(width);
    for (int part = 0; part < tile_stages; ++part) {
      mbarrier_wait(stages.barrier_of(stages.empty), stages.phase ^ 1U);
      if (elect_one()) {
        const bool last = part + 1 == tile_stages;
        const auto bytes = static_cast<std::uint32_t>(kTileRows * stages.part_width(width, part));
        const std::uint32_t barrier = stages.barrier_of(stages.full);
        mbarrier_arrive_expect_tx(barrier, bytes + (last ? kRowScaleBytes : 0));
        bulk_copy(shared_address(stages.data()), tile_weights + part * (kTileRows * kStageWidth),
                  bytes, barrier, policy);
        if (last)
          bulk_copy(shared_address(stages.scales()),
                    p.row_scales + (static_cast<std::int64_t>(expert) * p.tiles + tile) * kTileRows,
                    kRowScaleBytes, barrier, policy);
      }
      stages.advance();
    }
    if (++tile == p.tiles && index + 1 < run.end) {
      tile = 0;
      expert = blocks.at(++token_block).expert;
      width = width_of<kWide>(p, token_block).bytes;
    }
  }
}

/// Upcasts eight bf16 values to f32.
__device__ __forceinline__ void upcast(float (&v)[8], const uint4& raw) {
  const std::uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int k = 0; k < 8; ++k)
    v[k] = __uint_as_float(k % 2 == 0 ? words[k / 2] << 16 : words[k / 2] & 0xFFFF0000U);
}

__device__ __forceinline__ uint2 quantized_of(const float (&v)[8], const Divisor& divisor) {
  float q[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) q[i] = divisor.quotient(v[i]);
  return make_uint2(pack_e4m3(q[0], q[1], q[2], q[3]), pack_e4m3(q[4], q[5], q[6], q[7]));
}

/// The consumers quantise a token block's bf16 rows into shared memory, per token: a warp per row,
/// several rows in flight.
template <typename TileMma, int kTiles, bool kWide>
__device__ __forceinline__ void quantize_token_block(const Gemm& p,
                                                     const ExpertTokenBlock& token_block,
                                                     const ExpertWidth& width,
                                                     std::uint8_t* quantized,
                                                     float* scales) {
  constexpr int kSteps = kDownWidthOf<kTiles, kWide> / 256;
  constexpr int kRows = kTiles == 1 ? 2 : 4;
  constexpr int kWarps = kConsumerThreads / 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int columns = width.x_bytes / 2;
  for (int first = warp; first < token_block.count; first += kWarps * kRows) {
    uint4 raw[kRows][kSteps];
#pragma unroll
    for (int i = 0; i < kRows; ++i)
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const int row = first + i * kWarps;
        const int column = (step * 32 + lane) * 8;
        raw[i][step] = make_uint4(0, 0, 0, 0);
        if (row < token_block.count && column < columns)
          raw[i][step] = __ldcg(reinterpret_cast<const uint4*>(
              p.x + static_cast<std::int64_t>(token_block.first + row) * p.x_stride_bytes +
              2 * column));
      }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = first + i * kWarps;
      if (row >= token_block.count) break;
      float v[kSteps][8];
      float largest = 0.0F;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        upcast(v[step], raw[i][step]);
#pragma unroll
        for (int k = 0; k < 8; ++k) largest = fmaxf(largest, fabsf(v[step][k]));
      }
      const float scale = quant_scale(warp_largest(largest));
      if (lane == 0) scales[row] = scale;
      const Divisor divisor = divisor_of(scale);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const int column = (step * 32 + lane) * 8;
        if (column >= width.bytes) continue;
        // Padding of the width: its weights are zero, but the values must be finite.
        TileMma::store(quantized, row, column,
                       column < columns ? quantized_of(v[step], divisor) : make_uint2(0, 0));
      }
    }
  }
}

/// The epilogue: scales a tile's sums and writes them. Two movmatrix transposes give a lane two
/// pairs of neighbouring columns of a token's output; a shuffle makes them four, 8 bytes in a row.
template <int kTiles>
__device__ __forceinline__ void finish_tile(const Gemm& p,
                                            const ExpertTokenBlock& token_block,
                                            int tile,
                                            const float (&sum)[kTiles][4],
                                            const float (&row_scales)[2],
                                            const float* x_scales) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int pair = lane % 4;
  const bool odd = pair % 2 != 0;
  const int column = tile * kTileRows + static_cast<int>(threadIdx.x) / 32 * 16 +
                     (odd ? 8 + 2 * (pair - 1) : 2 * pair);
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    if (i * 8 >= token_block.count) break;
    const float2 x_scale = *reinterpret_cast<const float2*>(x_scales + i * 8 + pair * 2);
    float value[4];
#pragma unroll
    for (int k = 0; k < 4; ++k)
      value[k] = apply_scales<TileType::fp8, false>(p, sum[i][k], row_scales[k / 2],
                                                    k % 2 == 0 ? x_scale.x : x_scale.y, 0.0F);
    const std::uint32_t low = movmatrix_trans(pack_bf16(value[0], value[1]));
    const std::uint32_t high = movmatrix_trans(pack_bf16(value[2], value[3]));
    const std::uint32_t other = __shfl_xor_sync(0xFFFFFFFFU, odd ? low : high, 1);
    const int token = i * 8 + lane / 4;
    if (token < token_block.count && column < p.rows)
      *reinterpret_cast<uint2*>(
          static_cast<Bf16*>(p.out) +
          static_cast<std::int64_t>(token_block.first + token) * p.out_stride + column) =
          odd ? make_uint2(other, high) : make_uint2(low, other);
  }
}

/// The consumer warps: per token block quantise its rows, then per tile wait for each full stage,
/// multiply, release the stage, and write the results.
template <template <int> class TileMma, int kTiles, bool kWide>
__device__ void mma_tiles(const Gemm& p,
                          PipelineStages<kWide> stages,
                          const TokenBlockList& blocks,
                          const TileRange& run,
                          std::uint8_t* quantized,
                          float* x_scales) {
  const int row = static_cast<int>(threadIdx.x) / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
  for (int index = run.begin; index < run.end;) {
    const ExpertTokenBlock token_block = blocks.at(index / p.tiles);
    int tile = index % p.tiles;
    const int stop = min(run.end, index + p.tiles - tile);
    const ExpertWidth width = width_of<kWide>(p, index / p.tiles);
    const int tile_stages = stages.each(width.bytes);
    if (p.rows_stored != nullptr)
      wait_for_count(p.rows_stored + index / p.tiles, width.rows_stored_full);
    // All consumers have read the previous token block's quantised rows.
    named_barrier_sync(kQuantizedBarrier, kConsumerThreads);
    quantize_token_block<TileMma<kTiles>, kTiles, kWide>(p, token_block, width, quantized,
                                                         x_scales);
    fence_proxy_async_shared();  // wgmma reads shared memory through the async proxy
    named_barrier_sync(kQuantizedBarrier, kConsumerThreads);
    for (; index < stop; ++index, ++tile) {
      TileMma<kTiles> tile_mma;
      float row_scales[2] = {};
      for (int part = 0; part < tile_stages; ++part) {
        mbarrier_wait(stages.barrier_of(stages.full), stages.phase);
        if (part + 1 == tile_stages) {
          row_scales[0] = stages.scales()[row];
          row_scales[1] = stages.scales()[row + 8];
        }
        tile_mma.multiply(
            shared_address(stages.data()),
            shared_address(quantized + part * (kStageWidth * TileMma<kTiles>::kColumnBytes)),
            stages.part_width(width.bytes, part));
        mbarrier_arrive(stages.barrier_of(stages.empty));
        stages.advance();
      }
      finish_tile<kTiles>(p, token_block, tile, tile_mma.sum, row_scales, x_scales);
    }
  }
}

template <typename TileMma>
constexpr int quantized_end(int width) {
  return kBarrierBytes + kScaleBytes + TileMma::kColumnBytes * width;
}

/// `TileMma<kTiles>` holds a thread's sums of one tile, and defines how quantised rows lie in
/// shared memory: kColumnBytes for one column of all tokens; store() writes eight columns of a row.
template <template <int> class TileMma, int kTiles, bool kWide, int kResident>
__global__ void __launch_bounds__(kThreads, kResident)
    experts_down_kernel(const __grid_constant__ Gemm p, int stage_count) {
  extern __shared__ __align__(128) std::uint8_t shared[];
  const std::uint32_t barriers = shared_address(shared);
  auto* x_scales = reinterpret_cast<float*>(shared + kBarrierBytes);
  std::uint8_t* quantized = shared + kBarrierBytes + kScaleBytes;
  const PipelineStages<kWide> stages{barriers, barriers + 8 * kStagesMax,
                                     shared + quantized_end<TileMma<kTiles>>(p.width_bytes),
                                     p.width_bytes, stage_count};
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < stage_count; ++stage) {
      mbarrier_init(barriers + 8U * static_cast<std::uint32_t>(stage), 1);
      mbarrier_init(barriers + 8U * static_cast<std::uint32_t>(kStagesMax + stage),
                    kConsumerThreads);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  const TokenBlockList blocks(p);
  const TileRange run = tile_range_of(p, blocks);
  if (warp_index() == kConsumerThreads / 32) {
    load_tiles(p, stages, blocks, run);
    return;
  }
  if (p.rows_stored == nullptr) wait_on_dependent_grids();
  launch_dependent_grids();
  mma_tiles<TileMma, kTiles, kWide>(p, stages, blocks, run, quantized, x_scales);
  // Its rows are complete, but the grid must not end before the previous one.
  if (p.rows_stored != nullptr) wait_on_dependent_grids();
}

template <template <int> class TileMma, int kTiles, bool kWide, int kResident>
cudaError_t launch_experts_down_form(const Gemm& p, int multiprocessors, cudaStream_t stream) {
  if (p.type != TileType::fp8 || p.token_tiles != kTiles ||
      p.width_bytes > kDownWidthOf<kTiles, kWide> || p.bias != nullptr || p.rows % 4 != 0 ||
      p.x_bytes % 16 != 0)
    return cudaErrorInvalidValue;
  constexpr int kShared = kMultiprocessorShared / kResident / 128 * 128 - kReserved;
  const auto kernel = experts_down_kernel<TileMma, kTiles, kWide, kResident>;
  static PerDevice prepared;
  const cudaError_t usable = prepared.once([&] {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  });
  if (usable != cudaSuccess) return usable;
  const int stage_bytes = PipelineStages<kWide>::bytes_of(p.width_bytes);
  const int stages =
      min((kShared - quantized_end<TileMma<kTiles>>(p.width_bytes)) / stage_bytes, kStagesMax);
  return launch_kernel(kernel,
                       {dim3(static_cast<unsigned>(kResident * multiprocessors)), dim3(kThreads),
                        static_cast<std::size_t>(quantized_end<TileMma<kTiles>>(p.width_bytes) +
                                                 stages * stage_bytes)},
                       stream, p, stages);
}

}  // namespace
}  // namespace koho::cuda
