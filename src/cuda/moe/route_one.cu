// SPDX-License-Identifier: Apache-2.0
// The router of one token (contract: Backend::route), with the sums of route.cuh.
//
//   grid     one cluster of 16 CTAs. CTA r multiplies split r of H; the first CTA adds and chooses
//   weights  loaded before the kernel waits for its predecessor: eight steps of a split into
//            registers, the others into shared memory
//   choice   route_top_k.cuh
//   shared   OnePlan, the token's split, the weights of the steps beyond eight
//   bytes    weights once; bound by the latency of its chain, about 2 us
//
// By itself route_few.cu is faster at one token. But the experts' kernel follows at once and
// prefetches the shared expert's weights meanwhile, and this kernel's CTAs leave it more room:
// GLM-4.5-Air's step of one token is shorter with it (docs/kernels/router.md).
//
// NOTE: loops are short and stay rolled where they can: a call runs its code once, and fetching
// instructions takes as long as running them.
#include "cuda/device/launch.cuh"
#include "cuda/moe/route_top_k.cuh"

namespace koho::cuda {
namespace {

constexpr int kSplitK = kRouteSplitK;
constexpr int kStep = kRouteStep;
constexpr int kKept = kRouteFewSteps;  // steps whose weights stay in registers
constexpr int kOwnBarrier = 1;         // named barrier of the warps that choose

struct OnePlan {
  float received[kSplitK][kFastExperts];  // [split]: its sums
  CountingTopK choice;
  std::uint64_t barrier;
};

/// Multiplies a warp's 16 experts by the token at `token`, which stands for all eight of a tile.
/// Weights of the first steps are in registers, those of the others in shared memory.
__device__ __forceinline__ void multiply(float (&s)[2][4],
                                         const uint4 (&kept)[kKept][2],
                                         const uint4* beyond,
                                         int threads,
                                         int steps,
                                         const Bf16* token) {
#pragma unroll
  for (int i = 0; i < kKept; ++i)
    multiply_tile(s, kept[i][0], kept[i][1], *reinterpret_cast<const uint4*>(token + i * kStep));
#pragma unroll 1
  for (int i = kKept; i < steps; ++i) {
    const uint4* weights = beyond + (i - kKept) * 2 * threads;
    // NOTE: inline PTX, since the compiler would load 8 bytes at a time, with bank conflicts.
    std::uint32_t a[4];
    std::uint32_t b[4];
    load_shared(a, shared_address(weights));
    load_shared(b, shared_address(weights + threads));
    multiply_tile(s, make_uint4(a[0], a[1], a[2], a[3]), make_uint4(b[0], b[1], b[2], b[3]),
                  *reinterpret_cast<const uint4*>(token + i * kStep));
  }
}

template <int kThreads, int kCtas>
__global__ void __launch_bounds__(kThreads, kCtas)
    route_one_kernel(const Route p, int row_elements) {
  __shared__ OnePlan shared;
  extern __shared__ __align__(128) std::uint8_t raw[];
  auto* row = reinterpret_cast<Bf16*>(raw);  // [row_elements], the token's split
  const auto [thread, threads, warp, lane, group, quad, rank] = route_place();
  const int begin = split_k_begin(p.hidden, rank);
  const int steps = split_k_begin(p.hidden, rank + 1) - begin;
  const std::uint32_t barrier = shared_address(&shared.barrier);
  if (thread == 0) {
    mbarrier_init(barrier, 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(barrier, static_cast<std::uint32_t>(kSplitK * threads * 2));
  }
  __syncwarp();
  cluster_arrive();
  launch_dependent_grids();
  // Weights do not depend on the preceding kernel: load them while it ends.
  if (thread < p.experts)
    prefetch_bulk(weight_piece(p, begin, 0, thread),
                  static_cast<std::uint32_t>(steps) * kStep * sizeof(Bf16));
  const Bf16* low = weight_piece(p, begin, quad, warp * 16 + group);
  const Bf16* high = weight_piece(p, begin, quad, warp * 16 + group + 8);
  auto* beyond = reinterpret_cast<uint4*>(row + row_elements) + thread;  // [][2][threads]
#pragma unroll 1
  for (int i = kKept; i < steps; ++i) {
    uint4* to = beyond + (i - kKept) * 2 * threads;
    cp_async_16(shared_address(to), low + i * kStep, 16);
    cp_async_16(shared_address(to + threads), high + i * kStep, 16);
  }
  uint4 kept[kKept][2];
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    kept[i][0] = *reinterpret_cast<const uint4*>(low + i * kStep);
    kept[i][1] = *reinterpret_cast<const uint4*>(high + i * kStep);
  }
  const float bias = bias_of(p, thread);
  for (int i = thread; i < static_cast<int>(sizeof shared.choice / 4); i += threads)
    reinterpret_cast<std::uint32_t*>(&shared.choice)[i] = 0;
  // NOTE: through shuffles, so that the compiler does not compute the addresses again after the
  // wait.
  std::uint64_t from = __shfl_sync(
      0xFFFFFFFFU, reinterpret_cast<std::uint64_t>(p.x + begin * kStep + thread * 8), lane);
  std::uint32_t to = __shfl_sync(0xFFFFFFFFU, shared_address(row + thread * 8), lane);
  const std::uint32_t to_end = shared_address(row + steps * kStep);
  cluster_wait();  // every CTA runs
  wait_on_dependent_grids();
#pragma unroll 1
  for (; to < to_end; to += static_cast<std::uint32_t>(threads) * 16) {
    cp_async_16(to, reinterpret_cast<const void*>(from), 16);
    from += static_cast<std::uint64_t>(threads) * 16;
  }
  cp_async_commit_group();
  cp_async_wait_group<0>();
  __syncthreads();
  float s[2][4] = {};
  multiply(s, kept, beyond, threads, steps, row + quad * 8);
  const float4 four = transpose_lanes(
      make_float4(s[0][0] + s[1][0], s[0][1] + s[1][1], s[0][2] + s[1][2], s[0][3] + s[1][3]));
  if (quad * 2 + group % 2 == 0) {  // the one token's sums go to the first CTA
    const int expert = warp * 16 + group / 2 % 2 * 8 + group / 4 * 4;
    st_async(map_shared_rank(shared_address(&shared.received[rank][expert]), 0), four,
             map_shared_rank(barrier, 0));
  }
  const int own_threads = (p.experts + 31) / 32 * 32;
  if (rank > 0 || thread >= own_threads) return;  // nobody sends for these threads
  mbarrier_wait_cluster(barrier, 0);
  reduce_split_k_and_choose(
      p, 0, shared.received, shared.choice,
      {.list = warp, .lane = lane, .barrier = kOwnBarrier, .threads = own_threads, .bias = bias});
}

using OneKernel = void (*)(const Route, int);
constexpr int kFewThreads = 320;  // E <= 160: two such CTAs fit a multiprocessor

/// The kernel for `threads` threads, prepared for launch in a cluster of 16; null if that fails.
OneKernel one_kernel(int threads) {
  static PerDevice prepared[2];
  const bool small = threads <= kFewThreads;
  const OneKernel kernel =
      small ? route_one_kernel<kFewThreads, 2> : route_one_kernel<kFastExperts * 2, 1>;
  const cudaError_t ready = prepared[small ? 0 : 1].once([&] {
    return allow_nonportable_clusters(
        kernel, route_rows_bytes(kSplitK * kStep * kFastStepsMax, 1, kFastExperts * 2, kKept));
  });
  return ready == cudaSuccess ? kernel : nullptr;
}

}  // namespace

cudaError_t launch_route_one(const Route& p, cudaStream_t stream) {
  const int threads = (p.experts + 15) / 16 * 32;
  const OneKernel kernel = one_kernel(threads);
  if (kernel == nullptr) return cudaErrorInvalidValue;
  return launch_kernel(kernel,
                       {dim3(kSplitK), dim3(static_cast<unsigned>(threads)),
                        route_rows_bytes(p.hidden, 1, threads, kKept), kSplitK},
                       stream, p, route_row_elements(p.hidden));
}

const void* kernel_of::route_one() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
