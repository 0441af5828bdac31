// SPDX-License-Identifier: Apache-2.0
// The router of any dtype, width, number of experts and groups (contract: Backend::route): every
// shape that the other kernels do not take (choose_route.cpp). One kernel writes split-K sums to
// memory, a second one adds them and chooses.
//
// The router's shape alone decides which sums a logit has, so a row's bits do not depend on the
// other rows.
#include "cuda/device/launch.cuh"
#include "cuda/moe/route.cuh"

namespace koho::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kTokens = 16;
constexpr int kStep = kRouteStep;

/// The range of H that a warp of the plain kernel sums.
struct HiddenRange {
  int begin;
  int end;
};
__device__ __forceinline__ HiddenRange hidden_range_of(int hidden, int split, int warp) {
  const int steps = (hidden + kStep - 1) / kStep;
  const int place = split * kWarps + warp;
  constexpr int kPlaces = kRoutePlainSplitK * kWarps;
  return {steps * place / kPlaces * kStep, min(steps * (place + 1) / kPlaces * kStep, hidden)};
}

/// Adds the warps' sums in order and writes one split's logits.
__device__ void write_logits(const Route& p, float (*sums)[kTokens][8]) {
  const int first_token = static_cast<int>(blockIdx.x) * kTokens;
  const int first_expert = static_cast<int>(blockIdx.y) * 8;
  for (int i = static_cast<int>(threadIdx.x); i < kTokens * 8; i += kWarps * 32) {
    const int token = i / 8;
    const int expert = i % 8;
    if (first_token + token >= p.tokens || first_expert + expert >= p.experts) continue;
    float sum = 0.0F;
    for (int warp = 0; warp < kWarps; ++warp) sum += sums[warp][token][expert];
    p.partial[(static_cast<std::int64_t>(blockIdx.z) * p.tokens + first_token + token) * p.experts +
              first_expert + expert] = sum;
  }
}

/// Split-K logits of any dtype and width: a CTA has 16 tokens and 8 experts, each warp a range of
/// H.
template <typename Weight>
__global__ void __launch_bounds__(kWarps * 32) logits_plain_kernel(const Route p) {
  __shared__ float sums[kWarps][kTokens][8];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const HiddenRange range = hidden_range_of(p.hidden, static_cast<int>(blockIdx.z), warp);
  pdl_begin();
  for (int token = 0; token < kTokens; ++token) {
    const std::int64_t row =
        min(static_cast<std::int64_t>(blockIdx.x) * kTokens + token, p.tokens - 1);
    for (int i = 0; i < 8; ++i) {
      const std::int64_t expert = min(static_cast<int>(blockIdx.y) * 8 + i, p.experts - 1);
      const Weight* weight = static_cast<const Weight*>(p.weight) + expert * p.hidden;
      float sum = 0.0F;
      for (int k = range.begin + lane; k < range.end; k += 32) {
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
  write_logits(p, sums);
}

/// Excludes the experts of all but the best groups, a lane per group. A group scores the sum of its
/// two largest selection scores.
__device__ void mask_groups(const Route& p, float* selection) {
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

/// Adds the split-K sums and chooses, a warp per token.
__global__ void __launch_bounds__(kWarps * 32) top_k_kernel(const Route p) {
  extern __shared__ float rows[];  // [kWarps][2][E]: scores, selection scores
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp;
  float* scores = rows + warp * 2 * p.experts;
  float* selection = scores + p.experts;
  pdl_begin();
  if (token >= p.tokens) return;
  for (int expert = lane; expert < p.experts; expert += 32) {
    float logit = 0.0F;
    for (int split = 0; split < kRoutePlainSplitK; ++split)
      logit +=
          p.partial[(static_cast<std::int64_t>(split) * p.tokens + token) * p.experts + expert];
    const float score = sigmoid(logit);
    scores[expert] = score;
    selection[expert] = selection_score(score, p.bias[expert]);
  }
  __syncwarp();
  if (p.groups > 1) mask_groups(p, selection);
  select_top_k<kRouteExpertsMax / 32>(p, token, scores, selection);
}

template <typename Weight>
cudaError_t launch_logits(const Route& p, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((p.tokens + kTokens - 1) / kTokens),
                  static_cast<unsigned>((p.experts + 7) / 8), kRoutePlainSplitK);
  return launch_kernel(logits_plain_kernel<Weight>, {grid, dim3(kWarps * 32)}, stream, p);
}

}  // namespace

cudaError_t launch_route_plain(const Route& p, cudaStream_t stream) {
  const cudaError_t status =
      p.weight_f32 ? launch_logits<float>(p, stream) : launch_logits<Bf16>(p, stream);
  if (status != cudaSuccess) return status;
  return launch_kernel(
      top_k_kernel,
      {dim3(static_cast<unsigned>((p.tokens + kWarps - 1) / kWarps)), dim3(kWarps * 32),
       sizeof(float) * 2 * kWarps * static_cast<std::size_t>(p.experts)},
      stream, p);
}

const void* kernel_of::route() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
