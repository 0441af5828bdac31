// SPDX-License-Identifier: Apache-2.0
// The second matrix of experts in decode, quantising their rows itself: of experts sliced thin,
// with rows of up to 512 bytes, of which gemm_grouped_decode.cuh's items of one tile were too small
// for what each of them costs; and of few whole experts for few tokens, where the kernel that
// quantised between the two matrices stood for a larger part of the time. Two forms, as of
// gemm_grouped_decode.cuh: on mma.sync (experts_down_portable.cu) and on wgmma.
//
//   grid     persistent; the tiles of all entries, one entry after the other, are cut into equal
//            runs, a CTA each, so that a CTA meets few entries and ends with the others
//   roles    warp 4 copies: a tile's whole width in one stage, or (kWide) 256 bytes of K a stage;
//            its rows' scales come with the last. Warps 0-3 quantise an entry's rows once, as
//            launch_quantize_rows() does, and multiply 64 rows x 8 * kTiles tokens a tile
//   prefetch weights do not depend on the kernel before, and the list of entries is older: the ring
//            fills while that kernel ends
//   shared   barriers 128 B · tokens' scales 128 B · an entry's quantised values · stages
//   sums     as the form of gemm_grouped_decode.cuh on the same instruction, so a row's bits are
//            that kernel's
//   bytes    weights once an entry, an entry's rows once a CTA that meets it (from L2)
//
// Numbers: docs/kernels/README.md.
#pragma once

#include <cfloat>

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
constexpr int kBarrierBytes = 128;  // those of full stages, then those of empty ones
constexpr int kStagesMax = 8;
constexpr int kScaleBytes = 128;
constexpr int kRowScaleBytes = 4 * kTileRows;
constexpr int kMultiprocessorShared = 228 * 1024;
constexpr int kReserved = 1024;  // bytes a CTA
constexpr int kQuantizedBarrier = 1;

/// The tiles of this CTA, counted through all entries.
struct TileRange {
  int begin;
  int end;
};
__device__ __forceinline__ TileRange tile_range_of(const Gemm& p) {
  const std::int64_t tiles = static_cast<std::int64_t>(*p.token_block_count) * p.tiles;
  return {static_cast<int>(tiles * blockIdx.x / gridDim.x),
          static_cast<int>(tiles * (blockIdx.x + 1) / gridDim.x)};
}

/// Bytes of a weight row that a form has room for.
template <int kTiles, bool kWide>
constexpr int kDownWidthOf = kWide         ? kDownWidthMax
                             : kTiles == 1 ? kStageWidth
                                           : kDownThinWidth;

/// The ring. kWide: stages of kStageWidth bytes of K, several a tile.
template <bool kWide>
struct PipelineStages {
  std::uint32_t full;
  std::uint32_t empty;
  std::uint8_t* first;
  int tile_width;  // bytes of K
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
  __device__ __forceinline__ int each() const {  // stages of a tile
    return kWide ? ceil_div(tile_width, kStageWidth) : 1;
  }
  /// Bytes of K in a tile's stage `part`.
  __device__ __forceinline__ int part_width(int part) const {
    return kWide ? min(kStageWidth, tile_width - part * kStageWidth) : tile_width;
  }
  __device__ __forceinline__ std::uint8_t* data() const {
    return first + stage * bytes_of(tile_width);
  }
  __device__ __forceinline__ float* scales() const {
    return reinterpret_cast<float*>(data() + kTileRows * width_of(tile_width));
  }
};

template <bool kWide>
__device__ void load_tiles(const Gemm& p, PipelineStages<kWide> stages, const TileRange& run) {
  const std::uint64_t policy = evict_first_policy();
  const int tile_bytes = kTileRows * p.width_bytes;
  int token_block = run.begin / p.tiles;
  int tile = run.begin % p.tiles;
  int expert = run.begin < run.end ? p.token_blocks[token_block].expert : 0;
  for (int index = run.begin; index < run.end; ++index) {
    const std::int64_t at = static_cast<std::int64_t>(expert) * p.tiles + tile;
    for (int part = 0; part < stages.each(); ++part) {
      mbarrier_wait(stages.barrier_of(stages.empty), stages.phase ^ 1U);
      if (elect_one()) {
        const bool last = part + 1 == stages.each();
        const auto bytes = static_cast<std::uint32_t>(kTileRows * stages.part_width(part));
        const std::uint32_t barrier = stages.barrier_of(stages.full);
        mbarrier_arrive_expect_tx(barrier, bytes + (last ? kRowScaleBytes : 0));
        bulk_copy(shared_address(stages.data()),
                  p.weight + at * tile_bytes + part * (kTileRows * kStageWidth), bytes, barrier,
                  policy);
        if (last)
          bulk_copy(shared_address(stages.scales()), p.row_scales + at * kTileRows, kRowScaleBytes,
                    barrier, policy);
      }
      stages.advance();
    }
    if (++tile == p.tiles && index + 1 < run.end) {
      tile = 0;
      expert = p.token_blocks[++token_block].expert;
    }
  }
}

/// Eight numbers of bf16.
__device__ __forceinline__ void widen(float (&v)[8], const uint4& raw) {
  const std::uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int k = 0; k < 8; ++k)
    v[k] = __uint_as_float(k % 2 == 0 ? words[k / 2] << 16 : words[k / 2] & 0xFFFF0000U);
}

/// What divides by a row's scale. Of one with an infinity, by an infinite scale: to zeros, and NaN
/// where the infinity is.
__device__ __forceinline__ Divisor divisor_of(float scale) {
  Divisor divisor(scale);
  if (scale > FLT_MAX) divisor.scale = 0.0F;
  return divisor;
}
__device__ __forceinline__ uint2 quantized_of(const float (&v)[8], const Divisor& divisor) {
  float q[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) q[i] = divisor.quotient(v[i]);
  return make_uint2(pack_e4m3(q[0], q[1], q[2], q[3]), pack_e4m3(q[4], q[5], q[6], q[7]));
}

/// An entry's rows of bf16 become quantised values and scales; a warp a row, several rows under way
/// at once.
template <typename TileMma, int kTiles, bool kWide>
__device__ __forceinline__ void quantize_entry(const Gemm& p,
                                               const ExpertTokenBlock& token_block,
                                               std::uint8_t* quantized,
                                               float* scales) {
  constexpr int kSteps = kDownWidthOf<kTiles, kWide> / 256;
  constexpr int kRows = kTiles == 1 ? 2 : 4;
  constexpr int kWarps = kConsumerThreads / 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int columns = p.x_bytes / 2;
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
        widen(v[step], raw[i][step]);
#pragma unroll
        for (int k = 0; k < 8; ++k) largest = fmaxf(largest, fabsf(v[step][k]));
      }
      const float scale = quant_scale(warp_largest(largest));
      if (lane == 0) scales[row] = scale;
      const Divisor divisor = divisor_of(scale);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const int column = (step * 32 + lane) * 8;
        if (column >= p.width_bytes) continue;
        // Padding of the width: what it is multiplied with is zero, but must be finite.
        TileMma::store(quantized, row, column,
                       column < columns ? quantized_of(v[step], divisor) : make_uint2(0, 0));
      }
    }
  }
}

/// Scales and writes a tile's results: two turns give a lane two pairs of neighbouring weight rows
/// of a token, an exchange four neighbouring ones.
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

template <template <int> class TileMma, int kTiles, bool kWide>
__device__ void mma_tiles(const Gemm& p,
                          PipelineStages<kWide> stages,
                          const TileRange& run,
                          std::uint8_t* quantized,
                          float* x_scales) {
  const int row = static_cast<int>(threadIdx.x) / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
  for (int index = run.begin; index < run.end;) {
    const ExpertTokenBlock token_block = p.token_blocks[index / p.tiles];
    int tile = index % p.tiles;
    const int stop = min(run.end, index + p.tiles - tile);
    named_barrier_sync(
        kQuantizedBarrier,
        kConsumerThreads);  // all have multiplied the quantised values of the one before
    quantize_entry<TileMma<kTiles>, kTiles, kWide>(p, token_block, quantized, x_scales);
    fence_proxy_async_shared();  // for tile_mma that read shared memory themselves
    named_barrier_sync(kQuantizedBarrier, kConsumerThreads);
    for (; index < stop; ++index, ++tile) {
      TileMma<kTiles> tile_mma;
      float row_scales[2] = {};
      for (int part = 0; part < stages.each(); ++part) {
        mbarrier_wait(stages.barrier_of(stages.full), stages.phase);
        if (part + 1 == stages.each()) {
          row_scales[0] = stages.scales()[row];
          row_scales[1] = stages.scales()[row + 8];
        }
        tile_mma.multiply(
            shared_address(stages.data()),
            shared_address(quantized + part * (kStageWidth * TileMma<kTiles>::kColumnBytes)),
            stages.part_width(part));
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

/// `TileMma<kTiles>` holds a thread's sums of one tile and an entry, and says how the entry's
/// quantised values lie: kColumnBytes a column of all tokens, eight columns of a row written by
/// store().
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
  const TileRange run = tile_range_of(p);
  if (warp_index() == kConsumerThreads / 32) {
    load_tiles(p, stages, run);
    return;
  }
  pdl_begin();
  mma_tiles<TileMma, kTiles, kWide>(p, stages, run, quantized, x_scales);
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
