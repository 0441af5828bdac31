// SPDX-License-Identifier: Apache-2.0
// The epilogue of a cuBLASLt GEMM without row and column scales (launch_gemm_scale_epilogue in
// gemm.h): multiplies f32 sums by the scales of tokens and of weight rows, adds the bias, rounds
// once to bf16.
//
//   grid     a thread has 8 adjacent columns of 4 tokens, all of which it reads before it writes; a
//            CTA 1,024 columns. No shared memory
//   bytes    6 per element; bound by memory
#include "cuda/device/launch.cuh"
#include "cuda/device/numeric.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/gemm.h"
#include "cuda/rows/row_epilogue.cuh"

namespace koho::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kVector = 8;  // columns: 16 bytes of bf16
constexpr int kTokens = 4;  // 128 bytes of sums in flight per thread

__global__ void __launch_bounds__(kThreads)
    gemm_scale_epilogue_kernel(const __grid_constant__ Gemm p, const float* sums) {
  const int n = static_cast<int>(blockIdx.y * kThreads + threadIdx.x) * kVector;
  float row_scales[kVector];
  float bias[kVector] = {};
  if (n < p.rows) {  // weights, which no step writes
    const auto* scales = reinterpret_cast<const float4*>(p.row_scales + n);
    const float4 low = scales[0];
    const float4 high = scales[1];
    const float values[kVector] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < kVector; ++i) row_scales[i] = values[i];
    if (p.bias != nullptr) load_row(bias, p.bias, n);
  }
  pdl_begin();
  if (n >= p.rows) return;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kTokens;
  float4 low[kTokens];
  float4 high[kTokens];
  float x_scales[kTokens];
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    if (first + t >= p.tokens) continue;
    const auto* row = reinterpret_cast<const float4*>(sums + (first + t) * p.rows + n);
    low[t] = __ldcs(row);  // nobody reads them again
    high[t] = __ldcs(row + 1);
    x_scales[t] = p.x_scales[first + t];
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    if (first + t >= p.tokens) continue;
    float values[kVector] = {low[t].x,  low[t].y,  low[t].z,  low[t].w,
                             high[t].x, high[t].y, high[t].z, high[t].w};
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      values[i] = apply_scales<TileType::fp8>(p, values[i], row_scales[i], x_scales[t], bias[i]);
    store_row(static_cast<Bf16*>(p.out) + (first + t) * p.out_stride, n, values);
  }
}

}  // namespace

cudaError_t launch_gemm_scale_epilogue(const Gemm& p, const float* sums, cudaStream_t stream) {
  constexpr int kColumns = kThreads * kVector;
  if (p.tokens == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>((p.tokens + kTokens - 1) / kTokens),
                  static_cast<unsigned>((p.rows + kColumns - 1) / kColumns));
  return launch_kernel(gemm_scale_epilogue_kernel, {grid, dim3(kThreads)}, stream, p, sums);
}

const void* kernel_of::gemm_scale_epilogue() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
