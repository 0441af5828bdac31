// SPDX-License-Identifier: Apache-2.0
// The router (contract: Backend::route): the cluster kernel for 65 to 1,919 tokens, and the plain
// kernels for every shape that the others do not take (choose_route.cpp).
//
// Cluster kernel: a cluster of 16 CTAs takes 16 tokens at a time.
//   logits  CTA r has split r of H, warp w 16 experts. Their weights are in registers before the
//           kernel waits for its predecessor (programmatic dependent launch); token rows pass
//           through shared memory. Sums as route.cuh.
//   choice  every CTA sends its sums of token t to CTA t through distributed shared memory. CTA t
//           adds them in order of r and chooses by select_top_k().
//   shared  sizeof(FastPlan): two tiles of token rows, sums sent and received
//   bytes   weights once per cluster, from L2 after the first
//
// Plain kernels: any dtype, width, number of experts and groups. One kernel writes split-K sums to
// memory, a second one adds them and chooses.
//
// The router's shape alone decides which sums a logit has, so a row's bits do not depend on the
// other rows. Measured times: docs/kernels/router.md.
#include <algorithm>

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

// ---- the cluster kernel ------------------------------------------------------------------------

constexpr int kSplitK = kRouteSplitK;  // CTAs of a cluster, tokens at a time
constexpr int kStepsKept = 10;         // steps whose weights stay in registers: all if H <= 5120
constexpr int kRowPad = 8;  // elements between token rows in shared memory: no bank conflicts
constexpr int kSumRow = kFastExperts + 8;
constexpr int kTokenRow = kFastStepsMax * kStep + kRowPad;

struct FastPlan {
  float sums[kSplitK][kSumRow];      // [token]: sums of this CTA's split of H
  float received[kSplitK][kSumRow];  // [split]: sums of this CTA's token
  Bf16 tokens[2][kSplitK][kTokenRow];
  float scores[kFastExperts];
  float selection[kFastExperts];
  std::uint64_t barrier;
};

/// Adds 16 experts times 16 tokens over one step.
__device__ __forceinline__ void multiply_step(float (&sum)[2][2][4],
                                              const uint4& low,
                                              const uint4& high,
                                              const Bf16* tokens) {
#pragma unroll
  for (int tile = 0; tile < 2; ++tile)
    multiply_tile(sum[tile], low, high,
                  *reinterpret_cast<const uint4*>(tokens + tile * 8 * kTokenRow));
}

/// Loads the weights of the first steps into registers.
__device__ __forceinline__ void keep_weights(uint4 (&kept)[kStepsKept][2],
                                             const Bf16* low,
                                             const Bf16* high,
                                             int steps) {
#pragma unroll
  for (int i = 0; i < kStepsKept; ++i) {
    if (i >= steps) continue;
    kept[i][0] = *reinterpret_cast<const uint4*>(low + i * kStep);
    kept[i][1] = *reinterpret_cast<const uint4*>(high + i * kStep);
  }
}

/// Sends the sums of a tile, of this CTA's split of H: those of token t to CTA t of the cluster.
__device__ __forceinline__ void send_sums(FastPlan& shared,
                                          const RoutePlace& place,
                                          const float (&sum)[2][2][4],
                                          std::uint32_t barrier) {
  const auto [thread, threads, warp, lane, group, quad, rank] = place;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float(&s)[2][4] = sum[i / 4];
    shared.sums[i / 4 * 8 + quad * 2 + i % 2][warp * 16 + group + i / 2 % 2 * 8] =
        s[0][i % 4] + s[1][i % 4];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 2; ++i) {  // 16 bytes at a time, of 16 tokens' experts
    const int each = threads / 8;
    const auto owner = static_cast<std::uint32_t>((thread + i * threads) / each);
    const int at = (thread + i * threads) % each * 4;
    st_async(map_shared_rank(shared_address(&shared.received[rank][at]), owner),
             *reinterpret_cast<const float4*>(&shared.sums[owner][at]),
             map_shared_rank(barrier, owner));
  }
}

/// Adds the split-K sums of this CTA's token in order, a thread per expert: score and selection
/// score.
__device__ __forceinline__ void reduce_split_k(const Route& p,
                                               FastPlan& shared,
                                               int expert,
                                               float bias) {
  if (expert >= p.experts) return;
  float logit = 0.0F;
#pragma unroll
  for (int split = 0; split < kSplitK; ++split) logit += shared.received[split][expert];
  const float score = sigmoid(logit);
  shared.scores[expert] = score;
  shared.selection[expert] = selection_score(score, bias);
}

__global__ void __launch_bounds__(kFastExperts * 2) route_kernel(const Route p) {
  extern __shared__ __align__(16) std::uint8_t raw[];
  FastPlan& shared = *reinterpret_cast<FastPlan*>(raw);
  const RoutePlace at = route_place();
  const auto [thread, threads, warp, lane, group, quad, rank] = at;
  const int clusters = static_cast<int>(gridDim.x) / kSplitK;
  const int tiles = (static_cast<int>(p.tokens) + kSplitK - 1) / kSplitK;
  const int begin = split_k_begin(p.hidden, rank);
  const int steps = split_k_begin(p.hidden, rank + 1) - begin;
  const std::uint32_t barrier = shared_address(&shared.barrier);
  const auto received_bytes = static_cast<std::uint32_t>(kSplitK * threads * 2);
  if (thread == 0) {
    mbarrier_init(barrier, 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(barrier, received_bytes);
  }
  __syncthreads();
  cluster_arrive();
  launch_dependent_grids();
  // Weights do not depend on the preceding kernel: load them while it ends.
  const Bf16* low = weight_piece(p, begin, quad, warp * 16 + group);
  const Bf16* high = weight_piece(p, begin, quad, warp * 16 + group + 8);
  uint4 kept[kStepsKept][2];
  keep_weights(kept, low, high, steps);
  const float bias = thread < p.experts ? p.bias[thread] : 0.0F;
  wait_on_dependent_grids();
  // Copies a tile's token rows, 16 bytes a thread; absent rows are the last row again.
  const auto fetch = [&](int tile, int buffer) {
    const int chunks = steps * kStep / 8;
    for (int i = thread; i < kSplitK * chunks; i += threads) {
      const std::int64_t token =
          min(static_cast<std::int64_t>(tile) * kSplitK + i / chunks, p.tokens - 1);
      cp_async_16(shared_address(&shared.tokens[buffer][i / chunks][i % chunks * 8]),
                  p.x + token * p.x_stride + begin * kStep + i % chunks * 8, 16);
    }
    cp_async_commit_group();
  };
  int tile = static_cast<int>(blockIdx.x) / kSplitK;
  fetch(tile, 0);
  std::uint32_t phase = 0;
  for (; tile < tiles; tile += clusters) {
    const bool more = tile + clusters < tiles;
    if (more) {
      fetch(tile + clusters, static_cast<int>(phase ^ 1U));
      cp_async_wait_group<1>();
    } else {
      cp_async_wait_group<0>();
    }
    __syncthreads();
    float sum[2][2][4] = {};
    const Bf16* tokens = &shared.tokens[phase][group][quad * 8];
#pragma unroll
    for (int i = 0; i < kStepsKept; ++i)
      if (i < steps) multiply_step(sum, kept[i][0], kept[i][1], tokens + i * kStep);
    for (int i = kStepsKept; i < steps; ++i)
      multiply_step(sum, *reinterpret_cast<const uint4*>(low + i * kStep),
                    *reinterpret_cast<const uint4*>(high + i * kStep), tokens + i * kStep);
    cluster_wait();  // every CTA runs, and has read what it received for the previous tile
    send_sums(shared, at, sum, barrier);
    __syncwarp();
    mbarrier_wait_cluster(barrier, phase);
    reduce_split_k(p, shared, thread, bias);
    if (more && thread == 0) mbarrier_arrive_expect_tx(barrier, received_bytes);
    __syncthreads();
    cluster_arrive();
    const std::int64_t token = static_cast<std::int64_t>(tile) * kSplitK + rank;
    if (warp == 0 && token < p.tokens)
      select_top_k<kFastExperts / 32>(p, token, shared.scores, shared.selection);
    phase ^= 1U;
  }
  __syncwarp();
  cluster_wait();  // NOTE: no CTA may leave while its sums are being sent
}

/// How many clusters a GPU runs at a time; 0 = the cluster kernel cannot run there.
int resident_clusters() {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(kSplitK);
  config.blockDim = dim3(kFastExperts * 2);
  config.dynamicSmemBytes = sizeof(FastPlan);
  cudaLaunchAttribute size;
  size.id = cudaLaunchAttributeClusterDimension;
  size.val.clusterDim = {kSplitK, 1, 1};
  config.attrs = &size;
  config.numAttrs = 1;
  int count = 0;
  if (cudaFuncSetAttribute(route_kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) !=
          cudaSuccess ||
      cudaFuncSetAttribute(route_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           sizeof(FastPlan)) != cudaSuccess ||
      cudaOccupancyMaxActiveClusters(&count, route_kernel, &config) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return 0;
  }
  return count;
}

template <typename Weight>
cudaError_t launch_logits(const Route& p, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((p.tokens + kTokens - 1) / kTokens),
                  static_cast<unsigned>((p.experts + 7) / 8), kRoutePlainSplitK);
  return launch_kernel(logits_plain_kernel<Weight>, {grid, dim3(kWarps * 32)}, stream, p);
}

}  // namespace

int route_clusters_max() {
  static PerDevice clusters;
  return clusters.number(resident_clusters);
}

cudaError_t launch_route_clusters(const Route& p, int clusters, cudaStream_t stream) {
  const auto tiles = static_cast<int>((p.tokens + kSplitK - 1) / kSplitK);
  const int threads = (p.experts + 15) / 16 * 32;
  return launch_kernel(route_kernel,
                       {dim3(static_cast<unsigned>(kSplitK * std::min(tiles, clusters))),
                        dim3(static_cast<unsigned>(threads)), sizeof(FastPlan), kSplitK},
                       stream, p);
}

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
