// SPDX-License-Identifier: Apache-2.0
// The router of many tokens: the sums and the choice of route.cu's fast form without its clusters,
// whose exchange of sums costs 4 us for each 16 tokens.
//
//   grid     a CTA takes 64 tokens and all experts; a warp has 16 experts
//   shared   two parts of H of the token rows; then the scores of all experts
//   weights  from L2, prefetched seven steps before, into places of shared memory that a lane has to itself;
//            every CTA reads all of them
//   choice   a warp a token, as route.cu
//   bytes    token rows once, weights from L2 once a CTA: bound by L2 and by shared memory's reads
//
// Numbers: docs/kernels/README.md.
#include <algorithm>

#include "cuda/device/launch.cuh"
#include "cuda/moe/route.cuh"

namespace koho::cuda {
namespace {

constexpr int kTokens = 64;
constexpr int kTiles = kTokens / 8;
constexpr int kPrefetch = 7;  // steps whose weights are under way
constexpr int kScoreRow = kFastExperts + 8;

/// Elements from one token row of a part in shared memory to the next: an odd multiple of 64 bytes,
/// so that two rows' 64 bytes meet all banks.
constexpr int token_row(int hidden) {
  const int steps = (hidden / kRouteStep + kRouteSplitK - 1) / kRouteSplitK;
  return (steps + (steps + 1) % 2) * kRouteStep;
}

/// Token rows and weights under way, and then the scores.
constexpr int shared_bytes(int row, int threads) {
  return std::max(2 * kTokens * kScoreRow * static_cast<int>(sizeof(float)),
                  2 * kTokens * row * 2 + kPrefetch * 2 * threads * 16);
}
static_assert(shared_bytes(token_row(kRouteSplitK * kFastStepsMax * kRouteStep),
                           kFastExperts * 2) <= 227 * 1024);

__global__ void __launch_bounds__(kFastExperts * 2, 1)
    route_many_kernel(const __grid_constant__ Route p, int row) {
  extern __shared__ __align__(16) std::uint8_t raw[];
  auto* tokens = reinterpret_cast<Bf16*>(raw);  // [2][kTokens][row]
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int group = lane / 4;
  const int quad = lane % 4;
  const int steps = p.hidden / kRouteStep;
  const std::int64_t first_token = static_cast<std::int64_t>(blockIdx.x) * kTokens;
  launch_dependent_grids();
  const auto weights_of = [&](int expert) {
    return static_cast<const Bf16*>(p.weight) +
           static_cast<std::int64_t>(min(expert, p.experts - 1)) * p.hidden + quad * 8;
  };
  const Bf16* low = weights_of(warp * 16 + group);
  const Bf16* high = weights_of(warp * 16 + group + 8);
  // Places of a step's weights: [kPrefetch][2][threads].
  const int threads = static_cast<int>(blockDim.x);
  auto* prefetched = reinterpret_cast<uint4*>(raw + 2 * kTokens * row * sizeof(Bf16)) + thread;
  const auto fetch_weights = [&](int step, int place) {
    uint4* to = prefetched + place * 2 * threads;
    if (step < steps) {
      cp_async_16(shared_address(to), low + step * kRouteStep, 16);
      cp_async_16(shared_address(to + threads), high + step * kRouteStep, 16);
    }
    cp_async_commit_group();
  };
#pragma unroll
  for (int i = 0; i < kPrefetch; ++i) fetch_weights(i, i);
  wait_on_dependent_grids();
  // A part of the token rows, 16 bytes a lane, a warp a row; the last row again in place of absent
  // ones.
  const int warps = static_cast<int>(blockDim.x) / 32;
  const auto fetch_tokens = [&](int part) {
    const int begin = split_k_begin(p.hidden, part);
    const int end = split_k_begin(p.hidden, part + 1);
    for (int i = warp; i < kTokens; i += warps) {
      const Bf16* from = p.x + min(first_token + i, p.tokens - 1) * p.x_stride + begin * kRouteStep;
      const std::uint32_t to = shared_address(tokens + (part % 2 * kTokens + i) * row);
      for (int at = lane * 8; at < (end - begin) * kRouteStep; at += 32 * 8)
        cp_async_16(to + static_cast<std::uint32_t>(at) * 2, from + at, 16);
    }
  };
  float logits[kTiles][4] = {};
  float sums[kTiles][2][4] = {};
  const auto add_part = [&] {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        logits[tile][i] += sums[tile][0][i] + sums[tile][1][i];
        sums[tile][0][i] = sums[tile][1][i] = 0.0F;
      }
  };
  int part = -1;  // which this step belongs to
  int next = 0;   // first step of the one after
  int here = 0;   // this lane's elements of step 0, had the part begun there
  fetch_tokens(0);
  cp_async_commit_group();
  int place = 0;
  // A part's tokens are fetched when the part before begins, and so before the weights of step
  // kPrefetch of that one.
  const bool early = steps / kRouteSplitK >= kPrefetch;
#pragma unroll 2
  for (int step = 0; step < steps; ++step) {
    if (step == next) {
      if (part >= 0) add_part();
      ++part;
      here = (part % 2 * kTokens + group) * row + quad * 8 - step * kRouteStep;
      next = split_k_begin(p.hidden, part + 1);
      if (part > 0 && early)
        cp_async_wait_group<kPrefetch - 1>();
      else
        cp_async_wait_group<0>();
      __syncthreads();  // this part is there, and all are done with the one before
      if (part + 1 < kRouteSplitK) fetch_tokens(part + 1);
    } else {
      cp_async_wait_group<kPrefetch - 1>();
    }
    const uint4* weights = prefetched + place * 2 * threads;
    const uint4 of_low = weights[0];
    const uint4 of_high = weights[threads];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
      multiply_tile(
          sums[tile], of_low, of_high,
          *reinterpret_cast<const uint4*>(tokens + here + tile * 8 * row + step * kRouteStep));
    fetch_weights(step + kPrefetch, place);  // what lay there has been multiplied
    place = place + 1 == kPrefetch ? 0 : place + 1;
  }
  cp_async_wait_group<0>();
  add_part();
  __syncthreads();  // the rows' place is the scores' now

  auto* scores = reinterpret_cast<float*>(raw);  // [kTokens][kScoreRow]
  float* selection = scores + kTokens * kScoreRow;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int expert = warp * 16 + group + i / 2 * 8;
    if (expert >= p.experts) continue;
    const float bias = p.bias[expert];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int at = (tile * 8 + quad * 2 + i % 2) * kScoreRow + expert;
      const float score = sigmoid(logits[tile][i]);
      scores[at] = score;
      selection[at] = selection_score(score, bias);
    }
  }
  __syncthreads();
  for (int i = warp; i < kTokens; i += warps)
    if (first_token + i < p.tokens)
      select_top_k<kFastExperts / 32>(p, first_token + i, scores + i * kScoreRow,
                                      selection + i * kScoreRow);
}

}  // namespace

cudaError_t launch_route_many(const Route& p, cudaStream_t stream) {
  static PerDevice prepared;
  const cudaError_t ready = prepared.once([] {
    return cudaFuncSetAttribute(
        route_many_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
        shared_bytes(token_row(kRouteSplitK * kFastStepsMax * kRouteStep), kFastExperts * 2));
  });
  if (ready != cudaSuccess) return ready;
  const int row = token_row(p.hidden);
  const int threads = (p.experts + 15) / 16 * 32;
  return launch_kernel(
      route_many_kernel,
      {dim3(static_cast<unsigned>((p.tokens + kTokens - 1) / kTokens)),
       dim3(static_cast<unsigned>(threads)), static_cast<std::size_t>(shared_bytes(row, threads))},
      stream, p, row);
}

const void* kernel_of::route_many() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
