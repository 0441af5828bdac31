// SPDX-License-Identifier: Apache-2.0
// The router in two kernels: logits, then the choice.
//
//   logits   a block takes 16 tokens, a run of experts and an eighth of H; its 4 warps each a
//            quarter of that, summed by bf16 mma.sync in f32 and added in warp order. Operands go
//            from global memory to fragments: a lane loads 8 neighbouring elements of a row, which
//            tokens and weights take as the same order of K.
//   choice   one warp a token adds the parts in order, takes the sigmoid and selects by A rounds of
//            a warp-wide maximum over (score, lower id first).
//
// Which sums belong to a logit depends on H only, so a row's bits do not depend on its neighbours.
#include <algorithm>

#include "cuda/kernels.h"
#include "cuda/launch.cuh"
#include "cuda/numeric.cuh"
#include "cuda/ptx.cuh"

namespace koho::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kTokens = 16;
constexpr int kStep = 32;  // elements of H a warp takes at a time

/// The range of H of warp `warp` in part `part`.
struct Span {
  int begin;
  int end;
};
__device__ __forceinline__ Span span_of(int hidden, int part, int warp) {
  const int steps = (hidden + kStep - 1) / kStep;
  const int place = part * kWarps + warp;
  constexpr int kPlaces = kRouteParts * kWarps;
  return {steps * place / kPlaces * kStep, min(steps * (place + 1) / kPlaces * kStep, hidden)};
}

/// Adds the warps' sums in order and writes logits of one part.
template <int kTiles>
__device__ void write_logits(const Route& p, float (*sums)[kTokens][8 * kTiles]) {
  const int first_token = static_cast<int>(blockIdx.x) * kTokens;
  const int first_expert = static_cast<int>(blockIdx.y) * 8 * kTiles;
  for (int i = static_cast<int>(threadIdx.x); i < kTokens * 8 * kTiles; i += kWarps * 32) {
    const int token = i / (8 * kTiles);
    const int expert = i % (8 * kTiles);
    if (first_token + token >= p.tokens || first_expert + expert >= p.experts) continue;
    float sum = 0.0F;
    for (int warp = 0; warp < kWarps; ++warp) sum += sums[warp][token][expert];
    p.partial[(static_cast<std::int64_t>(blockIdx.z) * p.tokens + first_token + token) * p.experts +
              first_expert + expert] = sum;
  }
}

template <int kTiles>
__global__ void __launch_bounds__(kWarps * 32) logits_mma_kernel(const Route p) {
  __shared__ float sums[kWarps][kTokens][8 * kTiles];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int group = lane / 4;
  const int quad = lane % 4;
  const Span span = span_of(p.hidden, static_cast<int>(blockIdx.z), warp);
  const int first_token = static_cast<int>(blockIdx.x) * kTokens;
  const int last = static_cast<int>(p.tokens) - 1;
  const Bf16* low = p.x + min(first_token + group, last) * p.x_stride + quad * 8;
  const Bf16* high = p.x + min(first_token + group + 8, last) * p.x_stride + quad * 8;
  const Bf16* weights[kTiles];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const int expert =
        min((static_cast<int>(blockIdx.y) * kTiles + tile) * 8 + group, p.experts - 1);
    weights[tile] = static_cast<const Bf16*>(p.weight) +
                    static_cast<std::int64_t>(expert) * p.hidden + quad * 8;
  }
  // The weights do not depend on the kernel before: the first steps' are fetched while it ends.
  constexpr int kAhead = kTiles == 1 ? 5 : 0;
  uint4 ahead[kAhead + 1];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    const int k = span.begin + i * kStep;
    if (k < span.end) ahead[i] = *reinterpret_cast<const uint4*>(weights[0] + k);
  }
  grid_begin();
  float sum[kTiles][4] = {};
  if constexpr (kAhead > 0) {
    uint4 a[kAhead][2];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int k = span.begin + i * kStep;
      if (k >= span.end) continue;
      a[i][0] = *reinterpret_cast<const uint4*>(low + k);
      a[i][1] = *reinterpret_cast<const uint4*>(high + k);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (span.begin + i * kStep >= span.end) continue;
      mma_bf16(sum[0], a[i][0].x, a[i][1].x, a[i][0].y, a[i][1].y, ahead[i].x, ahead[i].y);
      mma_bf16(sum[0], a[i][0].z, a[i][1].z, a[i][0].w, a[i][1].w, ahead[i].z, ahead[i].w);
    }
  }
#pragma unroll 2
  for (int k = span.begin + kAhead * kStep; k < span.end; k += kStep) {
    const uint4 a0 = *reinterpret_cast<const uint4*>(low + k);
    const uint4 a1 = *reinterpret_cast<const uint4*>(high + k);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const uint4 b = *reinterpret_cast<const uint4*>(weights[tile] + k);
      mma_bf16(sum[tile], a0.x, a1.x, a0.y, a1.y, b.x, b.y);
      mma_bf16(sum[tile], a0.z, a1.z, a0.w, a1.w, b.z, b.w);
    }
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      sums[warp][group + i / 2 * 8][tile * 8 + quad * 2 + i % 2] = sum[tile][i];
  __syncthreads();
  write_logits<kTiles>(p, sums);
}

/// Any dtype and width: one warp sums its span of H for each of 8 experts and 16 tokens.
template <typename Weight>
__global__ void __launch_bounds__(kWarps * 32) logits_plain_kernel(const Route p) {
  __shared__ float sums[kWarps][kTokens][8];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Span span = span_of(p.hidden, static_cast<int>(blockIdx.z), warp);
  grid_begin();
  for (int token = 0; token < kTokens; ++token) {
    const std::int64_t row =
        min(static_cast<std::int64_t>(blockIdx.x) * kTokens + token, p.tokens - 1);
    for (int i = 0; i < 8; ++i) {
      const std::int64_t expert = min(static_cast<int>(blockIdx.y) * 8 + i, p.experts - 1);
      const Weight* weight = static_cast<const Weight*>(p.weight) + expert * p.hidden;
      float sum = 0.0F;
      for (int k = span.begin + lane; k < span.end; k += 32) {
        float w;
        if constexpr (sizeof(Weight) == 4)
          w = weight[k];
        else
          w = to_float(weight[k]);
        sum += to_float(p.x[row * p.x_stride + k]) * w;
      }
      sum = warp_sum(sum);
      if (lane == 0) sums[warp][token][i] = sum;
    }
  }
  __syncthreads();
  write_logits<1>(p, sums);
}

/// A score in an order that unsigned comparison keeps, the lower id first among equals.
__device__ __forceinline__ std::uint64_t rank_key(float score, int id) {
  const std::uint32_t bits = __float_as_uint(score);
  const std::uint32_t ordered = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  return (static_cast<std::uint64_t>(ordered) << 32U) |
         (0xFFFFFFFFU - static_cast<std::uint32_t>(id));
}
__device__ __forceinline__ std::uint64_t warp_largest(std::uint64_t key) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const std::uint64_t other = __shfl_xor_sync(0xFFFFFFFFU, key, offset);
    key = other > key ? other : key;
  }
  return key;
}

/// Groups beyond the kept ones lose their experts. One lane a group; the score of a group is the
/// sum of its two largest.
__device__ void drop_groups(const Route& p, float* selection) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int size = p.experts / p.groups;
  __shared__ float group_scores[kWarps][kRouteExpertsMax];
  float* scores = group_scores[threadIdx.x / 32];
  for (int group = lane; group < p.groups; group += 32) {
    float first = -INFINITY;
    float second = -INFINITY;
    for (int i = 0; i < size; ++i) {
      const float score = selection[group * size + i];
      if (score > first) {
        second = first;
        first = score;
      } else if (score > second) {
        second = score;
      }
    }
    scores[group] = size > 1 ? first + second : first;
  }
  __syncwarp();
  for (int group = lane; group < p.groups; group += 32) {
    int better = 0;
    for (int other = 0; other < p.groups; ++other)
      if (scores[other] > scores[group] || (scores[other] == scores[group] && other < group))
        ++better;
    if (better < p.groups_kept) continue;
    for (int i = 0; i < size; ++i) selection[group * size + i] = -INFINITY;
  }
  __syncwarp();
}

__global__ void __launch_bounds__(kWarps * 32) choose_kernel(const Route p) {
  extern __shared__ float rows[];  // [kWarps][2][E]: scores, selection scores
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp;
  float* scores = rows + warp * 2 * p.experts;
  float* selection = scores + p.experts;
  grid_begin();
  if (token >= p.tokens) return;
  for (int expert = lane; expert < p.experts; expert += 32) {
    float logit = 0.0F;
    for (int part = 0; part < kRouteParts; ++part)
      logit += p.partial[(static_cast<std::int64_t>(part) * p.tokens + token) * p.experts + expert];
    const float score = 1.0F / (1.0F + expf(-logit));
    scores[expert] = score;
    const float biased = score + p.bias[expert];
    selection[expert] = isnan(biased) ? -INFINITY : biased;
  }
  __syncwarp();
  if (p.groups > 1) drop_groups(p, selection);
  float sum = 0.0F;
  for (int slot = 0; slot < p.top_k; ++slot) {
    std::uint64_t best = 0;  // below every key of an expert
    for (int expert = lane; expert < p.experts; expert += 32) {
      if (isnan(selection[expert])) continue;  // taken
      const std::uint64_t key = rank_key(selection[expert], expert);
      best = key > best ? key : best;
    }
    const int chosen =
        static_cast<int>(0xFFFFFFFFU - static_cast<std::uint32_t>(warp_largest(best)));
    if (chosen % 32 == lane) selection[chosen] = NAN;
    const float score = scores[chosen];
    sum += score;
    if (lane == 0) {
      p.ids[token * p.top_k + slot] = chosen;
      p.weights[token * p.top_k + slot] = score;
    }
    __syncwarp();
  }
  if (lane != 0) return;
  for (int slot = 0; slot < p.top_k; ++slot) {
    float& weight = p.weights[token * p.top_k + slot];
    if (p.normalise) weight = weight / (sum + 1e-20F);
    weight *= p.scale;
  }
}

template <typename Kernel>
cudaError_t launch_logits(Kernel kernel, const Route& p, int experts_a_block, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((p.tokens + kTokens - 1) / kTokens),
                  static_cast<unsigned>((p.experts + experts_a_block - 1) / experts_a_block),
                  kRouteParts);
  return launch_kernel(kernel, {grid, dim3(kWarps * 32)}, stream, p);
}

}  // namespace

cudaError_t launch_route(const Route& p, cudaStream_t stream) {
  if (p.experts > kRouteExpertsMax) return cudaErrorInvalidValue;
  const bool aligned = p.hidden % kStep == 0 && p.x_stride % 8 == 0 &&
                       reinterpret_cast<std::uintptr_t>(p.x) % 16 == 0 &&
                       reinterpret_cast<std::uintptr_t>(p.weight) % 16 == 0;
  constexpr std::int64_t kManyTokens = 64;  // then fewer, larger blocks, so x is read less often
  cudaError_t status;
  if (p.weight_f32)
    status = launch_logits(logits_plain_kernel<float>, p, 8, stream);
  else if (!aligned)
    status = launch_logits(logits_plain_kernel<Bf16>, p, 8, stream);
  else if (p.tokens > kManyTokens)
    status = launch_logits(logits_mma_kernel<8>, p, 64, stream);
  else
    status = launch_logits(logits_mma_kernel<1>, p, 8, stream);
  if (status != cudaSuccess) return status;
  return launch_kernel(
      choose_kernel,
      {dim3(static_cast<unsigned>((p.tokens + kWarps - 1) / kWarps)), dim3(kWarps * 32),
       sizeof(float) * 2 * kWarps * static_cast<std::size_t>(p.experts)},
      stream, p);
}

}  // namespace koho::cuda
