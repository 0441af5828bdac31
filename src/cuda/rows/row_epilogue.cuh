// SPDX-License-Identifier: Apache-2.0
// The end of every kernel that makes a row of activations: a block holds the row in registers, 8
// adjacent elements a thread and step (single elements where rows are not aligned), and writes it
// in the forms wanted: bf16, FP8 with a scale a row, FP8 with a scale for every 128 columns.
//
// NOTE: with one row only one block works, so the kernel's time is that of its instructions and of
// what they wait for: elements stay pairs of bf16, and a warp's maximum is one instruction.
#pragma once

#include <cfloat>

#include "cuda/device/numeric.cuh"
#include "cuda/kernels.h"

namespace koho::cuda {

constexpr int kRowThreadsMax = 1024;
constexpr int kBlocksMax = 512;  // quantisation blocks of a row: widths to 65,536

struct RowScratch {
  std::uint32_t maxima[32];       // of warps, used once a row
  int block_largest[kBlocksMax];  // bits of a non-negative float: integer order is float order
};

/// `kVector` elements at `column` of a bf16 row.
template <int kVector>
__device__ __forceinline__ void load_row(float (&v)[kVector], const Bf16* row, int column) {
  if constexpr (kVector == 8) {
    const uint4 raw = *reinterpret_cast<const uint4*>(row + column);
    const std::uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[2 * i] = __uint_as_float(words[i] << 16);
      v[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000U);
    }
  } else {
    v[0] = to_float(row[column]);
  }
}

template <int kVector>
__device__ __forceinline__ void store_row(Bf16* row, int column, const float (&v)[kVector]) {
  if constexpr (kVector == 8) {
    *reinterpret_cast<uint4*>(row + column) = make_uint4(
        pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
  } else {
    row[column] = to_bf16(v[0]);
  }
}

/// `kVector` adjacent elements as they lie in memory; a single one is paired with a zero.
template <int kVector>
struct Pairs {
  static constexpr int kCount = (kVector + 1) / 2;
  std::uint32_t words[kCount] = {};

  __device__ __forceinline__ float low(int i) const { return __uint_as_float(words[i] << 16); }
  __device__ __forceinline__ float high(int i) const {
    return __uint_as_float(words[i] & 0xFFFF0000U);
  }
  /// From an address in global memory. NOTE: volatile keeps program order, so that loads written
  /// together are in flight together.
  __device__ __forceinline__ void load(std::uint64_t from) {
    if constexpr (kVector == 8) {
      asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                   : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                   : "l"(from)
                   : "memory");
    } else {
      Bf16 element;
      asm volatile("ld.global.u16 %0, [%1];" : "=h"(element) : "l"(from) : "memory");
      words[0] = element;
    }
  }
  __device__ __forceinline__ void store(Bf16* to) const {
    if constexpr (kVector == 8) {
      *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
    } else {
      *to = static_cast<Bf16>(words[0]);
    }
  }
};

/// The largest of a block's magnitudes, as warp_largest().
__device__ __forceinline__ float block_largest(float magnitude, std::uint32_t* scratch) {
  magnitude = warp_largest(magnitude);
  const unsigned lane = threadIdx.x % 32;
  if (lane == 0) scratch[threadIdx.x / 32] = __float_as_uint(magnitude);
  __syncthreads();
  return warp_largest(lane < blockDim.x / 32 ? __uint_as_float(scratch[lane]) : 0.0F);
}

/// Stores e4m3 values of elements that are bf16 numbers.
template <int kVector>
__device__ __forceinline__ void store_quantized(std::uint8_t* row,
                                                int column,
                                                const float (&v)[kVector],
                                                float scale) {
  if constexpr (kVector == 8) {
    float q[8];
    if (scale <= FLT_MAX) {
      const Divisor divisor(scale);
#pragma unroll
      for (int i = 0; i < 8; ++i) q[i] = divisor.quotient(v[i]);
    } else {  // the row has an infinity
#pragma unroll
      for (int i = 0; i < 8; ++i) q[i] = v[i] / scale;
    }
    *reinterpret_cast<uint2*>(row + column) =
        make_uint2(pack_e4m3(q[0], q[1], q[2], q[3]), pack_e4m3(q[4], q[5], q[6], q[7]));
  } else {
    row[column] = to_e4m3(v[0] / scale);
  }
}

/// Writes a row in the forms that `out` has; elements of `v` beyond the width are zero.
template <int kVector, int kSteps>
__device__ void store_row_outputs(const RowOutputs& out,
                                  std::int64_t row,
                                  int width,
                                  const Pairs<kVector> (&v)[kSteps],
                                  RowScratch& scratch) {
  const auto column_of = [](int step) {
    return (step * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * kVector;
  };
  const auto largest_of = [](const Pairs<kVector>& pairs) {
    float largest = 0.0F;  // NOTE: fmaxf leaves NaN out
#pragma unroll
    for (int i = 0; i < Pairs<kVector>::kCount; ++i)
      largest = fmaxf(largest, fmaxf(fabsf(pairs.low(i)), fabsf(pairs.high(i))));
    return largest;
  };
  const auto store = [](std::uint8_t* quantized, int column, const Pairs<kVector>& pairs,
                        float scale) {
    float values[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) values[i] = i % 2 == 0 ? pairs.low(i / 2) : pairs.high(i / 2);
    store_quantized(quantized, column, values, scale);
  };
  if (out.values != nullptr) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      if (column_of(step) < width)
        v[step].store(out.values + row * out.values_stride + column_of(step));
  }
  if (out.quantized != nullptr) {
    float largest = 0.0F;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) largest = fmaxf(largest, largest_of(v[step]));
    const float scale = quant_scale(block_largest(largest, scratch.maxima));
    if (threadIdx.x == 0) out.scales[row] = scale;
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      if (column_of(step) < width)
        store(out.quantized + row * out.quantized_stride, column_of(step), v[step], scale);
  }
  if (out.block_quantized != nullptr) {
    const int blocks = (width + kQuantColumns - 1) / kQuantColumns;
    for (int i = static_cast<int>(threadIdx.x); i < blocks; i += static_cast<int>(blockDim.x))
      scratch.block_largest[i] = 0;
    __syncthreads();
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      if (column_of(step) < width)
        atomicMax(&scratch.block_largest[column_of(step) / kQuantColumns],
                  __float_as_int(largest_of(v[step])));
    __syncthreads();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (column_of(step) >= width) continue;
      const int block = column_of(step) / kQuantColumns;
      const float scale = quant_scale(__int_as_float(scratch.block_largest[block]));
      if (column_of(step) % kQuantColumns == 0)
        out.block_scales[row * out.block_scales_stride + block] = scale;
      store(out.block_quantized + row * out.block_quantized_stride, column_of(step), v[step],
            scale);
    }
  }
}

template <int kVector, int kSteps>
struct RowShape {};

/// Calls `run` with the vector width and steps for rows of `width`; `vector`: row_vectors().
template <typename Run>
cudaError_t with_row_shape(std::int64_t width, bool vector, const Run& run) {
  const std::int64_t items = vector ? width / 8 : width;
  const std::int64_t steps = items <= 1024 ? 1 : items <= 2048 ? 2 : items <= 4096 ? 4 : 16;
  const std::int64_t threads = ((items + steps - 1) / steps + 31) / 32 * 32;
  if (threads > kRowThreadsMax || (vector && steps > 4)) return cudaErrorInvalidValue;
  const auto block = static_cast<unsigned>(threads);
  if (vector) {
    if (steps == 1) return run(RowShape<8, 1>{}, block);
    if (steps == 2) return run(RowShape<8, 2>{}, block);
    return run(RowShape<8, 4>{}, block);
  }
  if (steps == 1) return run(RowShape<1, 1>{}, block);
  if (steps == 2) return run(RowShape<1, 2>{}, block);
  if (steps == 4) return run(RowShape<1, 4>{}, block);
  return run(RowShape<1, 16>{}, block);
}

inline bool aligned(const void* pointer, std::int64_t stride_bytes, int alignment) {
  return reinterpret_cast<std::uintptr_t>(pointer) % static_cast<unsigned>(alignment) == 0 &&
         stride_bytes % alignment == 0;
}

/// Whether all rows that a kernel with these outputs touches are aligned for 8 elements at a time.
inline bool row_vectors(const RowOutputs& out,
                        const Bf16* x,
                        std::int64_t stride,
                        std::int64_t width) {
  return width % 8 == 0 && aligned(x, 2 * stride, 16) &&
         aligned(out.values, 2 * out.values_stride, 16) &&
         aligned(out.quantized, out.quantized_stride, 8) &&
         aligned(out.block_quantized, out.block_quantized_stride, 8);
}

}  // namespace koho::cuda
