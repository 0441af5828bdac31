// SPDX-License-Identifier: Apache-2.0
// The router of 1,920 tokens and more (contract: Backend::route), with the sums of route.cuh and no
// clusters, whose exchange costs 4 us for each 16 tokens.
//
//   grid     a CTA takes kTokens tokens and all experts; a warp has 16 experts
//   weights  from L2, by cp.async seven steps before their use, into shared memory that each lane
//            has to itself. Every CTA reads all of them
//   tokens   two splits of H at a time in shared memory
//   choice   the scores replace the token rows in shared memory; a warp takes a token
//   bytes    token rows once, weights once per CTA from L2: bound by L2 and by shared-memory reads
//
// Measured times: docs/kernels/router.md.
#include <algorithm>

#include "cuda/device/launch.cuh"
#include "cuda/moe/route.cuh"

namespace koho::cuda {
namespace {

constexpr int kTokensFew = 32;
constexpr int kTokensMany = 64;
constexpr int kPrefetch = 7;  // steps whose copies are in flight
constexpr int kScoreRow = kFastExperts + 8;

/// Elements from one token row of a split to the next in shared memory; odd multiples of 64 bytes,
/// as route_row_elements() says.
constexpr int token_row(int hidden) {
  const int steps = (hidden / kRouteStep + kRouteSplitK - 1) / kRouteSplitK;
  return (steps + (steps + 1) % 2) * kRouteStep;
}

/// Bytes for token rows and weights in flight, or for the scores that replace them.
constexpr int shared_bytes(int tokens, int row, int threads) {
  return std::max(2 * tokens * kScoreRow * static_cast<int>(sizeof(float)),
                  2 * tokens * row * 2 + kPrefetch * 2 * threads * 16);
}
constexpr int shared_bytes_max(int tokens) {
  return shared_bytes(tokens, token_row(kRouteSplitK * kFastStepsMax * kRouteStep),
                      kFastExperts * 2);
}
static_assert(shared_bytes_max(kTokensMany) <= 227 * 1024);

/// Adds a split's sums to the logits and clears the sums.
template <int kTiles>
__device__ __forceinline__ void add_split(float (&logits)[kTiles][4], float (&sums)[kTiles][2][4]) {
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      logits[tile][i] += sums[tile][0][i] + sums[tile][1][i];
      sums[tile][0][i] = sums[tile][1][i] = 0.0F;
    }
}

/// Starts the copies of split `split` of the token rows: 16 bytes a lane, a warp a row. Absent rows
/// are the last row again.
template <int kTokens>
__device__ __forceinline__ void fetch_split(const Route& p,
                                            Bf16* tokens,
                                            int row,
                                            std::int64_t first_token,
                                            int split,
                                            int warp,
                                            int warps,
                                            int lane) {
  const int begin = split_k_begin(p.hidden, split);
  const int end = split_k_begin(p.hidden, split + 1);
  for (int i = warp; i < kTokens; i += warps) {
    const Bf16* from = p.x + min(first_token + i, p.tokens - 1) * p.x_stride + begin * kRouteStep;
    const std::uint32_t to = shared_address(tokens + (split % 2 * kTokens + i) * row);
    for (int at = lane * 8; at < (end - begin) * kRouteStep; at += 32 * 8)
      cp_async_16(to + static_cast<std::uint32_t>(at) * 2, from + at, 16);
  }
}

template <int kTokens, int kTiles = kTokens / 8>
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
  // This thread's weights of the steps in flight: [kPrefetch][2][threads].
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
  const int warps = static_cast<int>(blockDim.x) / 32;
  const auto fetch_tokens = [&](int split) {
    fetch_split<kTokens>(p, tokens, row, first_token, split, warp, warps, lane);
  };
  float logits[kTiles][4] = {};
  float sums[kTiles][2][4] = {};
  int split = -1;  // the split of H that the step belongs to
  int next = 0;    // first step of the next split
  int here = 0;    // this lane's elements of the split, less its first step's offset
  fetch_tokens(0);
  cp_async_commit_group();
  int place = 0;
  // The kernel starts a split's token copies when the split before begins. If that split has
  // kPrefetch steps or more, they have arrived with the weights that were committed after them.
  const bool early = steps / kRouteSplitK >= kPrefetch;
#pragma unroll 2
  for (int step = 0; step < steps; ++step) {
    if (step == next) {
      if (split >= 0) add_split(logits, sums);
      ++split;
      here = (split % 2 * kTokens + group) * row + quad * 8 - step * kRouteStep;
      next = split_k_begin(p.hidden, split + 1);
      if (split > 0 && early)
        cp_async_wait_group<kPrefetch - 1>();
      else
        cp_async_wait_group<0>();
      __syncthreads();  // this split has arrived, and all warps have read the previous one
      if (split + 1 < kRouteSplitK) fetch_tokens(split + 1);
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
    fetch_weights(step + kPrefetch, place);  // the weights there have been multiplied
    place = place + 1 == kPrefetch ? 0 : place + 1;
  }
  cp_async_wait_group<0>();
  add_split(logits, sums);
  __syncthreads();  // the scores overwrite the token rows

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

template <int kTokens>
cudaError_t launch(const Route& p, cudaStream_t stream) {
  const auto kernel = route_many_kernel<kTokens>;
  static PerDevice prepared;
  const cudaError_t ready = prepared.once([&] {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                shared_bytes_max(kTokens));
  });
  if (ready != cudaSuccess) return ready;
  const int row = token_row(p.hidden);
  const int threads = (p.experts + 15) / 16 * 32;
  return launch_kernel(kernel,
                       {dim3(static_cast<unsigned>((p.tokens + kTokens - 1) / kTokens)),
                        dim3(static_cast<unsigned>(threads)),
                        static_cast<std::size_t>(shared_bytes(kTokens, row, threads))},
                       stream, p, row);
}

}  // namespace

cudaError_t launch_route_many(const Route& p, cudaStream_t stream) {
  // Every CTA reads all weights, so few tokens a CTA only where they give an H200's 132
  // multiprocessors one CTA at most.
  return p.tokens <= 132 * kTokensFew ? launch<kTokensFew>(p, stream)
                                      : launch<kTokensMany>(p, stream);
}

const void* kernel_of::route_many() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
