// SPDX-License-Identifier: Apache-2.0
// The second matrix of experts in decode on Hopper, quantising their rows itself: of experts sliced
// thin, with rows of up to 512 bytes, of which matmul.cuh's items of one tile were too small for
// what each of them costs; and of few whole experts for few tokens, where the kernel that quantised
// between the two matrices stood for a larger part of the time.
//
//   grid     persistent; the tiles of all entries, one entry after the other, are cut into equal
//            runs, a CTA each, so that a CTA meets few entries and ends with the others
//   roles    warp 4 copies: a tile's whole width in one slot, of whole experts 256 bytes of K a
//            slot; its rows' scales come with the last. Warps 0-3 quantise an entry's rows once, as
//            launch_quantise_rows() does, and multiply 64 rows x 8 * kTiles tokens a tile
//   ahead    weights do not depend on the kernel before, and the list of entries is older: the ring
//            fills while that kernel ends
//   shared   barriers 128 B · tokens' scales 128 B · an entry's codes, core matrices · slots
//   sums     as matmul_wgmma.cu: every 256 bytes of K by themselves, added in order; so a row's
//            bits are that kernel's
//   bytes    weights once an entry, an entry's rows once a CTA that meets it (from L2)
//
// Numbers: docs/kernels/README.md.
#include "base/arithmetic.h"
#include "cuda/launch.cuh"
#include "cuda/matmul_end.cuh"
#include "cuda/matmul_hopper.h"
#include "cuda/numeric.cuh"
#include "cuda/ptx.cuh"
#include "cuda/row.cuh"
#include "cuda/tiles.h"
#include "cuda/wgmma.cuh"

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
  static constexpr int width_of(int tile_width) { return kWide ? kStageWidth : tile_width; }
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

/// An entry's rows of bf16 become codes in core matrices and scales; a warp a row, several rows
/// under way at once.
template <int kTiles, bool kWide>
__device__ __forceinline__ void quantise_entry(const Matmul& p,
                                               const MatmulEntry& entry,
                                               std::uint8_t* codes,
                                               float* scales) {
  constexpr int kSteps = (kWide ? kDownWidthMax : kDownThinWidth) / 256;
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
        const std::uint32_t words[4] = {raw[i][step].x, raw[i][step].y, raw[i][step].z,
                                        raw[i][step].w};
#pragma unroll
        for (int k = 0; k < 8; ++k) {
          v[step][k] =
              __uint_as_float(k % 2 == 0 ? words[k / 2] << 16 : words[k / 2] & 0xFFFF0000U);
          largest = fmaxf(largest, fabsf(v[step][k]));
        }
      }
      const float scale = quant_scale(warp_largest(largest));
      if (lane == 0) scales[row] = scale;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const int column = (step * 32 + lane) * 8;
        if (column >= p.width_bytes) continue;
        std::uint8_t* to = codes + column / kTileChunk * (8 * kTiles * kTileChunk) +
                           row * kTileChunk + column % kTileChunk;
        if (column < columns)
          store_codes(to, 0, v[step], scale);
        else  // padding of the width: what it is multiplied with is zero, but must be finite
          *reinterpret_cast<uint2*>(to) = make_uint2(0, 0);
      }
    }
  }
}

/// The products of one tile and an entry.
template <int kTiles>
struct Products {
  float sum[kTiles][4] = {};

  template <int kSteps>
  __device__ __forceinline__ void run(std::uint64_t weights, std::uint64_t tokens) {
    constexpr std::uint32_t kWeightStep = 2 * kTileRows * kTileChunk;
    constexpr std::uint32_t kTokenStep = 2 * 8 * kTiles * kTileChunk;
    float part[kTiles][4] = {};
    wgmma_begin();
#pragma unroll
    for (std::uint32_t i = 0; i < kSteps; ++i)
      wgmma<TileType::fp8, 8 * kTiles>(&part[0][0], operand_at(weights, i * kWeightStep),
                                       operand_at(tokens, i * kTokenStep), i > 0 ? 1 : 0);
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[tile][i] += part[tile][i];
  }

  __device__ __forceinline__ void multiply(std::uint32_t weights, std::uint32_t tokens, int width) {
    constexpr std::uint32_t kStageTokens = kStageWidth * 8 * kTiles;
    std::uint64_t a = core_operand(weights, kTileRows * kTileChunk);
    std::uint64_t b = core_operand(tokens, 8 * kTiles * kTileChunk);
#pragma unroll 1
    for (; width >= kStageWidth; width -= kStageWidth) {
      run<kStageWidth / kTileWidthStep>(a, b);
      a = operand_at(a, kStageWidth * kTileRows);
      b = operand_at(b, kStageTokens);
    }
    switch (width / kTileWidthStep) {
      case 1:
        return run<1>(a, b);
      case 2:
        return run<2>(a, b);
      case 3:
        return run<3>(a, b);
      case 4:
        return run<4>(a, b);
      case 5:
        return run<5>(a, b);
      case 6:
        return run<6>(a, b);
      case 7:
        return run<7>(a, b);
      default:
        return;
    }
  }
};

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

template <int kTiles, bool kWide>
__device__ void multiply_tiles(
    const Matmul& p, Slots<kWide> slots, const Run& run, std::uint8_t* codes, float* x_scales) {
  const int row = static_cast<int>(threadIdx.x) / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
  for (int index = run.begin; index < run.end;) {
    const MatmulEntry entry = p.entries[index / p.tiles];
    int tile = index % p.tiles;
    const int stop = min(run.end, index + p.tiles - tile);
    named_barrier(kCodesBarrier, kMultipliers);  // all have multiplied the codes of the one before
    quantise_entry<kTiles, kWide>(p, entry, codes, x_scales);
    proxy_fence();
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
        products.multiply(shared_address(slots.data()),
                          shared_address(codes + part * (8 * kTiles * kStageWidth)),
                          slots.part_width(part));
        mbarrier_arrive(slots.barrier_of(slots.empty));
        slots.advance();
      }
      finish_tile<kTiles>(p, entry, tile, products.sum, row_scales, x_scales);
    }
  }
}

template <int kTiles>
constexpr int codes_end(int width) {
  return kBarrierBytes + kScaleBytes + 8 * kTiles * width;
}

template <int kTiles, bool kWide, int kResident>
__global__ void __launch_bounds__(kThreads, kResident)
    experts_down_kernel(const __grid_constant__ Matmul p, int slot_count) {
  extern __shared__ __align__(128) std::uint8_t shared[];
  const std::uint32_t barriers = shared_address(shared);
  auto* x_scales = reinterpret_cast<float*>(shared + kBarrierBytes);
  std::uint8_t* codes = shared + kBarrierBytes + kScaleBytes;
  const Slots<kWide> slots{barriers, barriers + 8 * kSlotsMax,
                           shared + codes_end<kTiles>(p.width_bytes), p.width_bytes, slot_count};
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
  multiply_tiles<kTiles, kWide>(p, slots, run, codes, x_scales);
}

template <int kTiles, bool kWide, int kResident>
cudaError_t launch_form(const Matmul& p, int multiprocessors, cudaStream_t stream) {
  constexpr int kShared = kMultiprocessorShared / kResident / 128 * 128 - kReserved;
  const auto kernel = experts_down_kernel<kTiles, kWide, kResident>;
  static PerDevice prepared;
  const cudaError_t usable = prepared.once([&] {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  });
  if (usable != cudaSuccess) return usable;
  const int slot_bytes = Slots<kWide>::bytes_of(p.width_bytes);
  const int slots = min((kShared - codes_end<kTiles>(p.width_bytes)) / slot_bytes, kSlotsMax);
  return launch_kernel(
      kernel,
      {dim3(static_cast<unsigned>(kResident * multiprocessors)), dim3(kThreads),
       static_cast<std::size_t>(codes_end<kTiles>(p.width_bytes) + slots * slot_bytes)},
      stream, p, slots);
}

}  // namespace

cudaError_t launch_experts_down(const Matmul& p, int multiprocessors, cudaStream_t stream) {
  if (p.token_tiles == 4) return launch_form<4, false, 2>(p, multiprocessors, stream);
  return p.width_bytes > kDownThinWidth ? launch_form<1, true, 3>(p, multiprocessors, stream)
                                        : launch_form<1, false, 3>(p, multiprocessors, stream);
}

const void* kernel_of::experts_down() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
