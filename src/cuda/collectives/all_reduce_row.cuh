// SPDX-License-Identifier: Apache-2.0
// A row in the kernels of an all-reduce: their parameters, and the residual add and RMSNorm of a
// row that they have summed. Knows nothing of how rows are exchanged.
#pragma once

#include <cstdint>

#include "cuda/collectives/all_reduce_norm.h"
#include "cuda/device/numeric.cuh"
#include "cuda/rows/row_epilogue.cuh"

namespace koho::cuda {

/// Parameters of the all-reduce kernels.
struct AllReduceParams {
  PeerGroup group;
  const Bf16* x = nullptr;
  Bf16* out = nullptr;       // plain only
  std::int64_t rows = 0;     // distributed over CTAs
  unsigned row_vectors = 0;  // of 8 elements
  std::int64_t vectors = 0;  // of all rows; the plain kernel's last row may be shorter
  Bf16* residual = nullptr;  // fused only, from here on
  std::int64_t residual_stride = 0;
  const Bf16* weight = nullptr;
  float eps = 0.0F;
  int width = 0;
  RowOutputs outputs;
};

__device__ __forceinline__ uint4 load_vector(const Bf16* from) {
  uint4 v;
  // NOTE: volatile keeps program order, so that loads written together are in flight together.
  asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}

/// The sum over a block in norm.cu's order: a butterfly over 32 lanes, the farthest first, then
/// over warps w % 4 apart. `sums` is zero where there is no warp.
__device__ __forceinline__ float block_sum(float value, float (&sums)[32]) {
  value = warp_sum(value);
  const unsigned warp = threadIdx.x / 32;
  if (threadIdx.x % 32 == 0) sums[warp % 4 * 8 + warp / 4] = value;
  __syncthreads();
  const float* const from = &sums[threadIdx.x % 4 * 8];
  float four[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) four[i] = from[i] + from[i + 4];
  float sum = (four[0] + four[2]) + (four[1] + four[3]);
  sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 2);
  return sum + __shfl_xor_sync(0xFFFFFFFFU, sum, 1);
}

/// The residual add and RMSNorm of one row, as norm.cu computes them.
template <int kSteps>
struct Norm {
  Pairs<8> weight[kSteps];
  Pairs<8> residual[kSteps];

  __device__ __forceinline__ void load_weight(const AllReduceParams& p) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      if (column(step) < p.width)
        weight[step].load(reinterpret_cast<std::uint64_t>(p.weight + column(step)));
  }
  __device__ __forceinline__ void load_residual(const AllReduceParams& p, std::int64_t row) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      if (column(step) < p.width)
        residual[step].load(
            reinterpret_cast<std::uint64_t>(p.residual + row * p.residual_stride + column(step)));
  }
  /// `sum` is the all-reduced row; writes the residual and the outputs.
  __device__ __forceinline__ void add_and_normalize(const AllReduceParams& p,
                                                    std::int64_t row,
                                                    const uint4 (&sum)[kSteps],
                                                    float (&sums)[32],
                                                    RowScratch& scratch) {
    float squares = 0.0F;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      Pairs<8>& v = residual[step];
      const bool has = column(step) < p.width;
      Pairs<8> addend;
      if (has) {
        addend.words[0] = sum[step].x;
        addend.words[1] = sum[step].y;
        addend.words[2] = sum[step].z;
        addend.words[3] = sum[step].w;
      } else {  // the registers still hold the last row
        v = Pairs<8>{};
      }
#pragma unroll
      for (int i = 0; i < 4; ++i)
        v.words[i] = pack_bf16(v.low(i) + addend.low(i), v.high(i) + addend.high(i));
      if (has) v.store(p.residual + row * p.residual_stride + column(step));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        squares += v.low(i) * v.low(i);
        squares += v.high(i) * v.high(i);
      }
    }
    const float mean = block_sum(squares, sums) / static_cast<float>(p.width);
    const float inverse = 1.0F / sqrtf(mean + p.eps);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      Pairs<8>& v = residual[step];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        v.words[i] = multiply_bf16(pack_bf16(v.low(i) * inverse, v.high(i) * inverse),
                                   weight[step].words[i]);
    }
    store_row_outputs<8, kSteps>(p.outputs, row, p.width, residual, scratch);
  }

 private:
  static __device__ __forceinline__ int column(int step) {
    return (step * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * 8;
  }
};

}  // namespace koho::cuda
