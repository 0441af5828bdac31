// SPDX-License-Identifier: Apache-2.0
// The second matrix of experts in decode, quantising their rows itself: of experts sliced thin,
// with rows of up to 512 bytes, of which matmul.cuh's items of one tile were too small for what
// each of them costs; and of few whole experts for few tokens, where the kernel that quantised
// between the two matrices stood for a larger part of the time. Two forms, as of matmul.cuh: on
// mma.sync (experts_down_portable.cu) and on wgmma.
//
//   grid     persistent; the tiles of all entries, one entry after the other, are cut into equal
//            runs, a CTA each, so that a CTA meets few entries and ends with the others
//   roles    warp 4 copies: a tile's whole width in one slot, or (kWide) 256 bytes of K a slot; its
//            rows' scales come with the last. Warps 0-3 quantise an entry's rows once, as
//            launch_quantise_rows() does, and multiply 64 rows x 8 * kTiles tokens a tile
//   ahead    weights do not depend on the kernel before, and the list of entries is older: the ring
//            fills while that kernel ends
//   shared   barriers 128 B · tokens' scales 128 B · an entry's codes · slots
//   sums     as the form of matmul.cuh on the same instruction, so a row's bits are that kernel's
//   bytes    weights once an entry, an entry's rows once a CTA that meets it (from L2)
//
// Numbers: docs/kernels/README.md.
#pragma once

#include <cfloat>

#include "base/arithmetic.h"
#include "cuda/launch.cuh"
#include "cuda/matmul.h"
#include "cuda/matmul_end.cuh"
#include "cuda/numeric.cuh"
#include "cuda/ptx.cuh"
#include "cuda/tiles.h"

namespace koho::cuda {
namespace {

constexpr int kMultipliers = 128;
constexpr int kThreads = kMultipliers + 32;
constexpr int kBarrierBytes = 128;  // those of full slots, then those of empty ones
constexpr int kSlotsMax = 8;
constexpr int kScaleBytes = 128;
constexpr int kRowScaleBytes = 4 * kTileRows;
constexpr int kMultiprocessorShared = 228 * 1024;
constexpr int kReserved = 1024;  // bytes a CTA
constexpr int kCodesBarrier = 1;

/// The tiles of this CTA, counted through all entries.
struct Run {
  int begin;
  int end;
};
__device__ __forceinline__ Run run_of(const Matmul& p) {
  const std::int64_t tiles = static_cast<std::int64_t>(*p.entry_count) * p.tiles;
  return {static_cast<int>(tiles * blockIdx.x / gridDim.x),
          static_cast<int>(tiles * (blockIdx.x + 1) / gridDim.x)};
}

/// Bytes of a weight row that a form has room for.
template <int kTiles, bool kWide>
constexpr int kDownWidthOf = kWide         ? kDownWidthMax
                             : kTiles == 1 ? kStageWidth
                                           : kDownThinWidth;

/// The ring. kWide: slots of kStageWidth bytes of K, several a tile.
template <bool kWide>
struct Slots {
  std::uint32_t full;
  std::uint32_t empty;
  std::uint8_t* first;
  int tile_width;  // bytes of K
  int count;
  int slot = 0;
  std::uint32_t phase = 0;

  __device__ __forceinline__ std::uint32_t barrier_of(std::uint32_t barriers) const {
    return barriers + 8U * static_cast<std::uint32_t>(slot);
  }
  __device__ __forceinline__ void advance() {
    if (++slot == count) {
      slot = 0;
      phase ^= 1U;
    }
  }
  static constexpr int width_of(int tile_width) {
    return kWide && tile_width > kStageWidth ? kStageWidth : tile_width;
  }
  static constexpr int bytes_of(int tile_width) {
    return kTileRows * width_of(tile_width) + kRowScaleBytes;
  }
  __device__ __forceinline__ int each() const {  // slots of a tile
    return kWide ? ceil_div(tile_width, kStageWidth) : 1;
  }
  /// Bytes of K in a tile's slot `part`.
  __device__ __forceinline__ int part_width(int part) const {
    return kWide ? min(kStageWidth, tile_width - part * kStageWidth) : tile_width;
  }
  __device__ __forceinline__ std::uint8_t* data() const {
    return first + slot * bytes_of(tile_width);
  }
  __device__ __forceinline__ float* scales() const {
    return reinterpret_cast<float*>(data() + kTileRows * width_of(tile_width));
  }
};

template <bool kWide>
__device__ void copy_tiles(const Matmul& p, Slots<kWide> slots, const Run& run) {
  const std::uint64_t policy = evict_first_policy();
  const int tile_bytes = kTileRows * p.width_bytes;
  int entry = run.begin / p.tiles;
  int tile = run.begin % p.tiles;
  int expert = run.begin < run.end ? p.entries[entry].expert : 0;
  for (int index = run.begin; index < run.end; ++index) {
    const std::int64_t at = static_cast<std::int64_t>(expert) * p.tiles + tile;
    for (int part = 0; part < slots.each(); ++part) {
      mbarrier_wait(slots.barrier_of(slots.empty), slots.phase ^ 1U);
      if (elect_one()) {
        const bool last = part + 1 == slots.each();
        const auto bytes = static_cast<std::uint32_t>(kTileRows * slots.part_width(part));
        const std::uint32_t barrier = slots.barrier_of(slots.full);
        mbarrier_arrive_expect(barrier, bytes + (last ? kRowScaleBytes : 0));
        bulk_copy(shared_address(slots.data()),
                  p.weight + at * tile_bytes + part * (kTileRows * kStageWidth), bytes, barrier,
                  policy);
        if (last)
          bulk_copy(shared_address(slots.scales()), p.row_scales + at * kTileRows, kRowScaleBytes,
                    barrier, policy);
      }
      slots.advance();
    }
    if (++tile == p.tiles && index + 1 < run.end) {
      tile = 0;
      expert = p.entries[++entry].expert;
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
__device__ __forceinline__ uint2 codes_of(const float (&v)[8], const Divisor& divisor) {
  float q[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) q[i] = divisor.quotient(v[i]);
  return make_uint2(pack_e4m3(q[0], q[1], q[2], q[3]), pack_e4m3(q[4], q[5], q[6], q[7]));
}

/// An entry's rows of bf16 become codes and scales; a warp a row, several rows under way at once.
template <typename Products, int kTiles, bool kWide>
__device__ __forceinline__ void quantise_entry(const Matmul& p,
                                               const MatmulEntry& entry,
                                               std::uint8_t* codes,
                                               float* scales) {
  constexpr int kSteps = kDownWidthOf<kTiles, kWide> / 256;
  constexpr int kRows = kTiles == 1 ? 2 : 4;
  constexpr int kWarps = kMultipliers / 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int columns = p.x_bytes / 2;
  for (int first = warp; first < entry.count; first += kWarps * kRows) {
    uint4 raw[kRows][kSteps];
#pragma unroll
    for (int i = 0; i < kRows; ++i)
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const int row = first + i * kWarps;
        const int column = (step * 32 + lane) * 8;
        raw[i][step] = make_uint4(0, 0, 0, 0);
        if (row < entry.count && column < columns)
          raw[i][step] = __ldcg(reinterpret_cast<const uint4*>(
              p.x + static_cast<std::int64_t>(entry.first + row) * p.x_stride_bytes + 2 * column));
      }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = first + i * kWarps;
      if (row >= entry.count) break;
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
        Products::store(codes, row, column,
                        column < columns ? codes_of(v[step], divisor) : make_uint2(0, 0));
      }
    }
  }
}

/// Scales and writes a tile's results: two turns give a lane two pairs of neighbouring weight rows
/// of a token, an exchange four neighbouring ones.
template <int kTiles>
__device__ __forceinline__ void finish_tile(const Matmul& p,
                                            const MatmulEntry& entry,
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
    if (i * 8 >= entry.count) break;
    const float2 x_scale = *reinterpret_cast<const float2*>(x_scales + i * 8 + pair * 2);
    float value[4];
#pragma unroll
    for (int k = 0; k < 4; ++k)
      value[k] = scale_sum<TileType::fp8, false>(p, sum[i][k], row_scales[k / 2],
                                                 k % 2 == 0 ? x_scale.x : x_scale.y, 0.0F);
    const std::uint32_t low = transposed(pack_bf16(value[0], value[1]));
    const std::uint32_t high = transposed(pack_bf16(value[2], value[3]));
    const std::uint32_t other = __shfl_xor_sync(0xFFFFFFFFU, odd ? low : high, 1);
    const int token = i * 8 + lane / 4;
    if (token < entry.count && column < p.rows)
      *reinterpret_cast<uint2*>(static_cast<Bf16*>(p.out) +
                                static_cast<std::int64_t>(entry.first + token) * p.out_stride +
                                column) = odd ? make_uint2(other, high) : make_uint2(low, other);
  }
}

template <template <int> class Products, int kTiles, bool kWide>
__device__ void multiply_tiles(
    const Matmul& p, Slots<kWide> slots, const Run& run, std::uint8_t* codes, float* x_scales) {
  const int row = static_cast<int>(threadIdx.x) / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
  for (int index = run.begin; index < run.end;) {
    const MatmulEntry entry = p.entries[index / p.tiles];
    int tile = index % p.tiles;
    const int stop = min(run.end, index + p.tiles - tile);
    named_barrier(kCodesBarrier, kMultipliers);  // all have multiplied the codes of the one before
    quantise_entry<Products<kTiles>, kTiles, kWide>(p, entry, codes, x_scales);
    proxy_fence();  // for products that read shared memory themselves
    named_barrier(kCodesBarrier, kMultipliers);
    for (; index < stop; ++index, ++tile) {
      Products<kTiles> products;
      float row_scales[2] = {};
      for (int part = 0; part < slots.each(); ++part) {
        mbarrier_wait(slots.barrier_of(slots.full), slots.phase);
        if (part + 1 == slots.each()) {
          row_scales[0] = slots.scales()[row];
          row_scales[1] = slots.scales()[row + 8];
        }
        products.multiply(
            shared_address(slots.data()),
            shared_address(codes + part * (kStageWidth * Products<kTiles>::kColumnBytes)),
            slots.part_width(part));
        mbarrier_arrive(slots.barrier_of(slots.empty));
        slots.advance();
      }
      finish_tile<kTiles>(p, entry, tile, products.sum, row_scales, x_scales);
    }
  }
}

template <typename Products>
constexpr int codes_end(int width) {
  return kBarrierBytes + kScaleBytes + Products::kColumnBytes * width;
}

/// `Products<kTiles>` holds a thread's sums of one tile and an entry, and says how the entry's
/// codes lie: kColumnBytes a column of all tokens, eight columns of a row written by store().
template <template <int> class Products, int kTiles, bool kWide, int kResident>
__global__ void __launch_bounds__(kThreads, kResident)
    experts_down_kernel(const __grid_constant__ Matmul p, int slot_count) {
  extern __shared__ __align__(128) std::uint8_t shared[];
  const std::uint32_t barriers = shared_address(shared);
  auto* x_scales = reinterpret_cast<float*>(shared + kBarrierBytes);
  std::uint8_t* codes = shared + kBarrierBytes + kScaleBytes;
  const Slots<kWide> slots{barriers, barriers + 8 * kSlotsMax,
                           shared + codes_end<Products<kTiles>>(p.width_bytes), p.width_bytes,
                           slot_count};
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < slot_count; ++slot) {
      mbarrier_init(barriers + 8U * static_cast<std::uint32_t>(slot), 1);
      mbarrier_init(barriers + 8U * static_cast<std::uint32_t>(kSlotsMax + slot), kMultipliers);
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  const Run run = run_of(p);
  if (warp_index() == kMultipliers / 32) {
    copy_tiles(p, slots, run);
    return;
  }
  grid_begin();
  multiply_tiles<Products, kTiles, kWide>(p, slots, run, codes, x_scales);
}

template <template <int> class Products, int kTiles, bool kWide, int kResident>
cudaError_t launch_experts_down_form(const Matmul& p, int multiprocessors, cudaStream_t stream) {
  if (p.type != TileType::fp8 || p.token_tiles != kTiles ||
      p.width_bytes > kDownWidthOf<kTiles, kWide> || p.bias != nullptr || p.rows % 4 != 0 ||
      p.x_bytes % 16 != 0)
    return cudaErrorInvalidValue;
  constexpr int kShared = kMultiprocessorShared / kResident / 128 * 128 - kReserved;
  const auto kernel = experts_down_kernel<Products, kTiles, kWide, kResident>;
  static PerDevice prepared;
  const cudaError_t usable = prepared.once([&] {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  });
  if (usable != cudaSuccess) return usable;
  const int slot_bytes = Slots<kWide>::bytes_of(p.width_bytes);
  const int slots =
      min((kShared - codes_end<Products<kTiles>>(p.width_bytes)) / slot_bytes, kSlotsMax);
  return launch_kernel(
      kernel,
      {dim3(static_cast<unsigned>(kResident * multiprocessors)), dim3(kThreads),
       static_cast<std::size_t>(codes_end<Products<kTiles>>(p.width_bytes) + slots * slot_bytes)},
      stream, p, slots);
}

}  // namespace
}  // namespace koho::cuda
