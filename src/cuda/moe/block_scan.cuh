// SPDX-License-Identifier: Apache-2.0
// The exclusive scan over a CTA's threads that turns experts' counts into offsets.
#pragma once

#include "cuda/device/ptx.cuh"

namespace koho::cuda {
namespace {

/// Rows in the low half, token blocks in the high one, so that one scan adds both.
using OffsetSum = unsigned long long;

/// Exclusive scan over one value per thread of a CTA; also gives the total.
template <int kThreads>
__device__ __forceinline__ OffsetSum block_scan(OffsetSum value, OffsetSum& total) {
  constexpr int kWarps = kThreads / 32;
  constexpr unsigned kAll = 0xFFFFFFFFU;
  __shared__ OffsetSum warps[kWarps];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const auto scan = [lane](OffsetSum sum, int lanes) {
#pragma unroll
    for (int offset = 1; offset < lanes; offset *= 2) {
      const OffsetSum other = __shfl_up_sync(kAll, sum, static_cast<unsigned>(offset));
      if (lane >= offset) sum += other;
    }
    return sum;
  };
  const OffsetSum sum = scan(value, 32);
  if (lane == 31) warps[warp] = sum;
  __syncthreads();
  const OffsetSum ends = scan(lane < kWarps ? warps[lane] : 0, kWarps);
  const OffsetSum before = __shfl_sync(kAll, ends, warp > 0 ? warp - 1 : 0);
  total = __shfl_sync(kAll, ends, kWarps - 1);
  return sum - value + (warp > 0 ? before : 0);
}

}  // namespace
}  // namespace koho::cuda
