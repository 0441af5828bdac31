// SPDX-License-Identifier: Apache-2.0
// Kernels that end in a row of activations: residual + RMSNorm, SiLU * up, quantisation; and
// padding of rows.
//
//   grid     one block a row; quantisation of many rows: a warp or a block takes rows in turn
//   block    a row stays in registers (16 bytes a thread and step, or single elements where rows
//            are not aligned) from the read to the last write. The number of threads depends on the
//            width only, so a row's bits do not depend on other rows
//   bytes    each input once, each output form once; bound by launch to some 32 rows of 5120, by
//            memory above
//
// Measured times and what was tried: docs/kernels/rows.md.
#include <algorithm>

#include "cuda/device/launch.cuh"
#include "cuda/device/numeric.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/kernels.h"
#include "cuda/rows/row_epilogue.cuh"

namespace koho::cuda {
namespace {

/// A thread's column in each step of a row.
template <int kVector>
__device__ __forceinline__ int column_of(int step) {
  return (step * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * kVector;
}

/// The address of a thread's elements of the first step, through a shuffle. NOTE: the shuffle pins
/// the computation here, before the wait for the previous kernel; the compiler would move it to its
/// first use, after the wait.
template <int kVector>
__device__ __forceinline__ std::uint64_t place_in(const Bf16* row) {
  return __shfl_sync(0xFFFFFFFFU, reinterpret_cast<std::uint64_t>(row + column_of<kVector>(0)),
                     static_cast<int>(threadIdx.x) % 32);
}
/// Bytes from a thread's elements of one step to those of `step` steps later.
template <int kVector>
__device__ __forceinline__ std::uint64_t steps_bytes(int step) {
  return static_cast<std::uint64_t>(step) * blockDim.x * kVector * sizeof(Bf16);
}

/// The sum over a block of whole warps. Its order is a butterfly over 32 lanes, the farthest first,
/// in each warp and then over warps: every thread gets the same bits.
struct BlockSum {
  std::uint32_t to;    // address of this warp's sum
  std::uint32_t from;  // address of the eight sums that a lane adds

  /// All threads, before a barrier. Lane l adds the sums of warps l % 4, l % 4 + 4, ..., which lie
  /// together in
  /// `sums`, zero where there is no warp.
  __device__ __forceinline__ explicit BlockSum(float (&sums)[32]) {
    if (threadIdx.x < 32) sums[threadIdx.x] = 0.0F;
    const unsigned warp = threadIdx.x / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    to = __shfl_sync(0xFFFFFFFFU, shared_address(&sums[warp % 4 * 8 + warp / 4]), lane);
    from = __shfl_sync(0xFFFFFFFFU, shared_address(&sums[threadIdx.x % 4 * 8]), lane);
  }
  __device__ __forceinline__ float of(float value) const {
    value = warp_sum(value);
    if (threadIdx.x % 32 == 0)
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(value) : "memory");
    __syncthreads();
    std::uint32_t a[4];
    std::uint32_t b[4];
    load_shared(a, from);
    load_shared(b, from + 16);
    float four[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) four[i] = __uint_as_float(a[i]) + __uint_as_float(b[i]);
    float sum = (four[0] + four[2]) + (four[1] + four[3]);
    sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 2);
    return sum + __shfl_xor_sync(0xFFFFFFFFU, sum, 1);
  }
};

/// Up to this many rows the norm releases the next kernel at once, so that a GEMM's first weights
/// and a router's are on their way when the row is done.
constexpr unsigned kReleaseAtOnceRows = 8;

template <int kVector, int kSteps>
__global__ void __launch_bounds__(kRowThreadsMax)
    rms_norm_kernel(const RowOutputs out, const NormRows norm) {
  if (gridDim.x <= kReleaseAtOnceRows) launch_dependent_grids();
  __shared__ RowScratch scratch;
  __shared__ alignas(16) float sums[32];
  using Part = Pairs<kVector>;
  const int width = static_cast<int>(norm.width);
  const std::int64_t row = blockIdx.x;
  // Before the wait: the weight, and the row's addresses, which the previous kernel does not write.
  Part weight[kSteps];
  const std::uint64_t weight_at = place_in<kVector>(norm.weight);
#pragma unroll
  for (int step = 0; step < kSteps; ++step)
    if (column_of<kVector>(step) < width) weight[step].load(weight_at + steps_bytes<kVector>(step));
  const bool adds = norm.block_output != nullptr;
  const std::uint64_t x_at = place_in<kVector>(norm.x + row * norm.x_stride);
  const std::uint64_t block_output_at = place_in<kVector>(norm.block_output + row * norm.width);
  const BlockSum block_sum(sums);
  __syncthreads();
  pdl_begin();
  Part v[kSteps];
  Part block_output[kSteps];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if (column_of<kVector>(step) >= width) continue;
    v[step].load(x_at + steps_bytes<kVector>(step));
    if (adds) block_output[step].load(block_output_at + steps_bytes<kVector>(step));
  }
  float squares = 0.0F;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if (adds) {
#pragma unroll
      for (int i = 0; i < Part::kCount; ++i)
        v[step].words[i] = pack_bf16(v[step].low(i) + block_output[step].low(i),
                                     v[step].high(i) + block_output[step].high(i));
      if (column_of<kVector>(step) < width)
        v[step].store(norm.residual + row * norm.x_stride + column_of<kVector>(step));
    }
#pragma unroll
    for (int i = 0; i < Part::kCount; ++i) {
      squares += v[step].low(i) * v[step].low(i);
      squares += v[step].high(i) * v[step].high(i);
    }
  }
  const float mean = block_sum.of(squares) / static_cast<float>(width);
  const float inverse = 1.0F / sqrtf(mean + norm.eps);
  // Two bf16 multiply exactly in f32, so the multiplication of pairs rounds as f32 and a rounding
  // would.
#pragma unroll
  for (int step = 0; step < kSteps; ++step)
#pragma unroll
    for (int i = 0; i < Part::kCount; ++i)
      v[step].words[i] = multiply_bf16(
          pack_bf16(v[step].low(i) * inverse, v[step].high(i) * inverse), weight[step].words[i]);
  store_row_outputs<kVector, kSteps>(out, row, width, v, scratch);
}

template <int kVector, int kSteps>
__global__ void __launch_bounds__(kRowThreadsMax)
    silu_mul_kernel(const RowOutputs out, const Bf16* gate_up, std::int64_t stride, int width) {
  __shared__ RowScratch scratch;
  using Part = Pairs<kVector>;
  const std::int64_t row = blockIdx.x;
  const std::uint64_t gate_at = place_in<kVector>(gate_up + row * stride);
  const std::uint64_t up_at = place_in<kVector>(gate_up + row * stride + width);
  pdl_begin();
  Part v[kSteps];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if (column_of<kVector>(step) >= width) continue;
    Part gate;
    Part up;
    gate.load(gate_at + steps_bytes<kVector>(step));
    up.load(up_at + steps_bytes<kVector>(step));
#pragma unroll
    for (int i = 0; i < Part::kCount; ++i)
      v[step].words[i] =
          pack_bf16(silu_mul(gate.low(i), up.low(i)), silu_mul(gate.high(i), up.high(i)));
  }
  store_row_outputs<kVector, kSteps>(out, row, width, v, scratch);
}

template <int kVector, int kSteps>
__global__ void __launch_bounds__(kRowThreadsMax) quantize_kernel(const RowOutputs out,
                                                                  const Bf16* x,
                                                                  std::int64_t stride,
                                                                  const std::int32_t* rows_count,
                                                                  int width) {
  __shared__ RowScratch scratch;
  const std::int64_t row = blockIdx.x;
  const std::uint64_t x_at = place_in<kVector>(x + row * stride);
  pdl_begin();
  if (rows_count != nullptr && row >= *rows_count) return;
  Pairs<kVector> v[kSteps];
#pragma unroll
  for (int step = 0; step < kSteps; ++step)
    if (column_of<kVector>(step) < width) v[step].load(x_at + steps_bytes<kVector>(step));
  store_row_outputs<kVector, kSteps>(out, row, width, v, scratch);
}

/// quantize_kernel for many rows: kRowWarps warps, one or all of a block, take rows of up to
/// 256 * kSteps * kRowWarps aligned elements in turn, and load the next row before they quantise
/// one. A single warp needs no barrier.
constexpr int kManySteps = 6;
constexpr int kManyWarps = 4;   // of a block that take a row each
constexpr int kManyBlocks = 8;  // an SM
constexpr int kWideWarps = 8;   // of a block that take a row together
constexpr int kWideBlocks = 3;  // an SM
template <int kSteps, int kRowWarps>
__global__ void __launch_bounds__(32 * std::max(kManyWarps, kRowWarps),
                                  kRowWarps == 1 ? 0 : kWideBlocks)
    quantize_many_kernel(const RowOutputs out,
                         const Bf16* x,
                         std::int64_t stride,
                         std::int64_t rows_max,
                         const std::int32_t* rows_count,
                         int width) {
  const std::int64_t rows = rows_count != nullptr ? *rows_count : rows_max;
  constexpr int kRowThreads = 32 * kRowWarps;
  constexpr int kRowsTogether = kRowWarps == 1 ? kManyWarps : 1;
  __shared__ std::uint32_t maxima[2][32];  // of warps, of two rows in turn
  const int lane = static_cast<int>(threadIdx.x) % kRowThreads;
  const std::int64_t step_rows = static_cast<std::int64_t>(gridDim.x) * kRowsTogether;
  std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kRowsTogether +
                     static_cast<int>(threadIdx.x) / kRowThreads;
  uint4 next[kSteps] = {};
  const auto load = [&](std::int64_t of) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int column = (step * kRowThreads + lane) * 8;
      if (column < width) next[step] = *reinterpret_cast<const uint4*>(x + of * stride + column);
    }
  };
  pdl_begin();
  if (row < rows) load(row);
  for (int turn = 0; row < rows; row += step_rows, turn ^= 1) {
    uint4 raw[kSteps];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) raw[step] = next[step];
    if (row + step_rows < rows) load(row + step_rows);
    const auto value = [&](int step, int i) {
      const std::uint32_t word = i / 2 == 0   ? raw[step].x
                                 : i / 2 == 1 ? raw[step].y
                                 : i / 2 == 2 ? raw[step].z
                                              : raw[step].w;
      return __uint_as_float(i % 2 == 0 ? word << 16 : word & 0xFFFF0000U);
    };
    float largest = 0.0F;
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
#pragma unroll
      for (int i = 0; i < 8; ++i) largest = fmaxf(largest, fabsf(value(step, i)));
    const float scale =
        quant_scale(kRowWarps == 1 ? warp_largest(largest) : block_largest(largest, maxima[turn]));
    if (lane == 0) out.scales[row] = scale;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int column = (step * kRowThreads + lane) * 8;
      float v[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = value(step, i);
      if (column < width)
        store_quantized(out.quantized + row * out.quantized_stride, column, v, scale);
    }
  }
}

__global__ void pad_rows_kernel(std::uint8_t* out,
                                std::int64_t out_stride,
                                const std::uint8_t* x,
                                std::int64_t x_stride,
                                std::int64_t bytes) {
  pdl_begin();
  for (std::int64_t i = threadIdx.x; i < out_stride; i += blockDim.x)
    out[blockIdx.x * out_stride + i] = i < bytes ? x[blockIdx.x * x_stride + i] : 0;
}

}  // namespace

cudaError_t launch_rms_norm(const RowOutputs& out, const NormRows& norm, cudaStream_t stream) {
  const bool vector = row_vectors(out, norm.x, norm.x_stride, norm.width) &&
                      aligned(norm.block_output, 2 * norm.width, 16) &&
                      aligned(norm.weight, 16, 16);
  return with_row_shape(
      norm.width, vector, [&]<int kVector, int kSteps>(RowShape<kVector, kSteps>, unsigned block) {
        return launch_kernel(rms_norm_kernel<kVector, kSteps>,
                             {dim3(static_cast<unsigned>(norm.rows)), dim3(block)}, stream, out,
                             norm);
      });
}

cudaError_t launch_silu_mul(const RowOutputs& out, const SiluMul& p, cudaStream_t stream) {
  const bool vector = row_vectors(out, p.gate_up, p.stride, p.width);
  return with_row_shape(
      p.width, vector, [&]<int kVector, int kSteps>(RowShape<kVector, kSteps>, unsigned block) {
        return launch_kernel(silu_mul_kernel<kVector, kSteps>,
                             {dim3(static_cast<unsigned>(p.rows)), dim3(block)}, stream, out,
                             p.gate_up, p.stride, static_cast<int>(p.width));
      });
}

cudaError_t launch_quantize_rows(const RowOutputs& out,
                                 const QuantizeRows& p,
                                 cudaStream_t stream) {
  const bool vector = row_vectors(out, p.x, p.stride, p.width);
  constexpr std::int64_t kMany = 1024;  // rows
  constexpr std::int64_t kManyWide = 512;
  constexpr std::int64_t kManyWidth = 256 * kManySteps;
  constexpr std::int64_t kWideLeast = 4096;  // columns
  const bool only_rows = vector && out.values == nullptr && out.block_quantized == nullptr;
  const auto launch_many = [&](const auto& kernel, int warps, int blocks, std::int64_t turns) {
    const std::int64_t resident = static_cast<std::int64_t>(blocks) * p.multiprocessors;
    const auto grid = static_cast<unsigned>(std::min(resident, turns));
    return launch_kernel(kernel, {dim3(grid), dim3(32U * static_cast<unsigned>(warps))}, stream,
                         out, p.x, p.stride, p.rows, p.rows_count, static_cast<int>(p.width));
  };
  if (p.rows >= kMany && only_rows && p.width <= kManyWidth)
    return launch_many(
        p.width <= 2 * 256 ? quantize_many_kernel<2, 1> : quantize_many_kernel<kManySteps, 1>,
        kManyWarps, kManyBlocks, (p.rows + kManyWarps - 1) / kManyWarps);
  if (p.rows >= kManyWide && only_rows && p.width > kWideLeast &&
      p.width <= kManyWidth * kWideWarps)
    return launch_many(quantize_many_kernel<kManySteps, kWideWarps>, kWideWarps, kWideBlocks,
                       p.rows);
  return with_row_shape(
      p.width, vector, [&]<int kVector, int kSteps>(RowShape<kVector, kSteps>, unsigned block) {
        return launch_kernel(quantize_kernel<kVector, kSteps>,
                             {dim3(static_cast<unsigned>(p.rows)), dim3(block)}, stream, out, p.x,
                             p.stride, p.rows_count, static_cast<int>(p.width));
      });
}

cudaError_t launch_pad_rows(const PadRows& p, cudaStream_t stream) {
  return launch_kernel(pad_rows_kernel, {dim3(static_cast<unsigned>(p.rows)), dim3(256)}, stream,
                       p.out, p.out_stride, p.x, p.x_stride, p.bytes);
}

const void* kernel_of::norm() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
