// SPDX-License-Identifier: Apache-2.0
// The router of 2 to 64 tokens: a decode step's, by the sums of route.cu's fast form.
//
//   grid     clusters of 16 CTAs, each with up to 22 tokens; CTA r has part r of H
//   weights  a warp's 16 experts wait in registers since before the kernel before ended: a
//            multiprocessor holds one CTA, an H200 7 clusters
//   tokens   through shared memory; eight at a time multiplied and their sums sent, of a warp's 16
//            experts 64 bytes a token
//   choice   a CTA has a token, or two (the first CTAs, of the first tiles), one for each half of
//            its threads: route_top_k.cuh
//   bytes    weights once a cluster: all of them from L2 after the first
//
// NOTE: what a call does after the wait is a chain that every CTA goes through once, so all that
// can be known before is known before, and is in shared memory where registers would be spilled.
// Numbers: docs/kernels/README.md.
#include "cuda/device/launch.cuh"
#include "cuda/moe/route_top_k.cuh"

namespace koho::cuda {
namespace {

constexpr int kSplitK = kRouteSplitK;
constexpr int kStep = kRouteStep;
constexpr std::uint32_t kStepBytes = kStep * sizeof(Bf16);
constexpr int kTile = 8;  // tokens that are multiplied at a time
constexpr int kOwn = 2;   // tokens of a CTA
constexpr int kThreadsMax = kOwn * kFastExperts;
constexpr int kOwnBarrier = 1;     // the first of kOwn named barriers
constexpr int kStageRow = 16 + 4;  // floats of a token's 16 experts; writes meet no bank twice

/// What a thread does after the wait, in two pieces of 16 bytes.
struct Prepared {
  std::uint64_t fetch_from;  // 16 bytes of the tokens
  std::uint32_t fetch_to;
  int fetch_token;
  float bias;             // of its expert
  int list;               // of its expert
  int out;                // first place of its token's experts
  std::uint32_t send_to;  // where its sums go in the shared memory of a token's CTA
};

/// Of a warp: before its first tile, and then the sums of a tile.
union WarpPlan {
  Prepared prepared[32];
  alignas(16) float stage[kTile * kStageRow];
};

struct FewPlan {
  float received[kOwn][kSplitK][kFastExperts];  // every part's sums of this CTA's tokens
  CountingTopK choice[kOwn];
  WarpPlan warps[kThreadsMax / 32];
  float nothing[kThreadsMax];
  std::uint64_t barrier;
};

/// The tokens of a cluster. CTA r owns token r, or, if there are more than CTAs, r and the second
/// tile's r, or `doubled` further: see token_of().
struct FewTokens {
  int first;
  int count;
  // NOTE: CTAs of two tokens, the second from tile 1 on: they take longer to choose, and the sums
  // of the last tile come last.
  int doubled;

  __device__ __forceinline__ FewTokens(const Route& p, int each)
      : first(static_cast<int>(blockIdx.x) / kSplitK * each),
        count(min(static_cast<int>(p.tokens) - first, each)),
        doubled(max(count - kSplitK, 0)) {}
  /// Tokens of CTA `rank`.
  __device__ __forceinline__ int owned(int rank) const {
    return (count - rank + kSplitK - 1) / kSplitK;
  }
  /// CTA `rank`'s token number `slot`.
  __device__ __forceinline__ int token_of(int rank, int slot) const {
    return first + rank + (slot > 0 ? kTile : rank < kTile ? 0 : doubled);
  }
};

/// Fetches a thread's part of the tokens, those of the first tile by themselves.
__device__ __forceinline__ void fetch_tokens(
    const Route& p, const FewTokens& tokens, const std::uint32_t (&fetch)[4], int rows, int row) {
  std::uint64_t from = static_cast<std::uint64_t>(fetch[1]) << 32U | fetch[0];
  std::uint32_t to = fetch[2];
  int token = static_cast<int>(fetch[3]);
#pragma unroll 1
  for (int i = 0; i < 2; ++i) {  // the first tile, and the others
    const int end = i == 0 ? min(tokens.count, kTile) : tokens.count;
#pragma unroll 1
    for (; token < end; token += rows) {
      cp_async_16(to, reinterpret_cast<const void*>(from), 16);
      from += static_cast<std::uint64_t>(rows * p.x_stride) * sizeof(Bf16);
      to += static_cast<std::uint32_t>(rows * row) * sizeof(Bf16);
    }
    cp_async_commit_group();
  }
}

/// Weights in shared memory: of the steps that are not kept in registers.
struct Beyond {
  std::uint32_t at;      // this thread's
  std::uint32_t stride;  // bytes from the low pieces to the high ones, and from these to the next

  __device__ __forceinline__ std::uint32_t low(int i) const {
    return at + static_cast<std::uint32_t>(2 * i) * stride;
  }
};

/// A tile's sums of a warp's 16 experts: the tokens of lane's group lie at `token`.
template <int kKept>
__device__ __forceinline__ void multiply(float (&s)[2][4],
                                         const uint4 (&kept)[kKept][2],
                                         const Beyond& beyond,
                                         int steps,
                                         std::uint32_t token) {
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    std::uint32_t x[4];
    load_shared(x, token + i * kStepBytes);
    multiply_tile(s, kept[i][0], kept[i][1], make_uint4(x[0], x[1], x[2], x[3]));
  }
#pragma unroll 1
  for (int i = kKept; i < steps; ++i) {
    // NOTE: by the instruction itself: the compiler reads 8 bytes at a time, with bank conflicts.
    std::uint32_t a[4];
    std::uint32_t b[4];
    std::uint32_t x[4];
    load_shared(a, beyond.low(i - kKept));
    load_shared(b, beyond.low(i - kKept) + beyond.stride);
    load_shared(x, token + static_cast<std::uint32_t>(i) * kStepBytes);
    multiply_tile(s, make_uint4(a[0], a[1], a[2], a[3]), make_uint4(b[0], b[1], b[2], b[3]),
                  make_uint4(x[0], x[1], x[2], x[3]));
  }
}

/// Sends a warp's sums of a tile to the tokens' CTAs. NOTE: turned in shared memory, so that four
/// neighbouring lanes send a token's 64 bytes: those pass between multiprocessors at once, where 16
/// bytes of each lane elsewhere take as long each.
__device__ __forceinline__ void send_sums(const float (&s)[2][4],
                                          float* stage,
                                          const FewTokens& tokens,
                                          int tile,
                                          const RoutePlace& at,
                                          std::uint32_t send_to,
                                          std::uint32_t barrier) {
  float* to_stage = stage + at.quad * 2 * kStageRow + at.group;
  __syncwarp();
  to_stage[0] = s[0][0] + s[1][0];
  to_stage[kStageRow] = s[0][1] + s[1][1];
  to_stage[8] = s[0][2] + s[1][2];
  to_stage[kStageRow + 8] = s[0][3] + s[1][3];
  __syncwarp();
  const int sent = tile * kTile + at.lane / 4;
  if (sent >= tokens.count) return;
  const float4 four =
      *reinterpret_cast<const float4*>(stage + at.lane / 4 * kStageRow + at.lane % 4 * 4);
  const bool second = sent >= kTile && sent < kTile + tokens.doubled;
  const auto to = static_cast<std::uint32_t>(second         ? sent - kTile
                                             : sent < kTile ? sent
                                                            : sent - tokens.doubled);
  const std::uint32_t place =
      send_to + (second ? static_cast<std::uint32_t>(sizeof FewPlan::received[0]) : 0);
  st_async(map_shared_rank(place, to), four, map_shared_rank(barrier, to));
}

/// `tokens_each`: of a cluster; `row`: route_row_elements(). Weights of kKept steps, which every
/// part of H has, stay in registers, those of further ones in shared memory.
template <int kThreads, int kKept>
__global__ void __launch_bounds__(kThreads, 1)
    route_few_kernel(const Route p, int tokens_each, int row) {
  __shared__ FewPlan shared;
  // NOTE: tokens come by 32 bytes: from 16 bytes beside, a call takes 0.1 us longer.
  extern __shared__ __align__(128) std::uint8_t raw[];
  auto* rows = reinterpret_cast<Bf16*>(raw);  // [tokens_each][row]
  const RoutePlace at = route_place();
  const auto [thread, threads, warp, lane, group, quad, rank] = at;
  const FewTokens tokens(p, tokens_each);
  const int begin = split_k_begin(p.hidden, rank);
  const int steps = split_k_begin(p.hidden, rank + 1) - begin;
  const int owned = tokens.owned(rank);
  const std::uint32_t barrier = shared_address(&shared.barrier);
  if (thread == 0) {
    mbarrier_init(barrier, 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(barrier, static_cast<std::uint32_t>(kSplitK * threads * 2 * owned));
  }
  __syncwarp();
  cluster_arrive();
  launch_dependent_grids();
  // Weights do not depend on the kernel before: they are fetched while it ends.
  const Bf16* low = weight_piece(p, begin, quad, warp * 16 + group);
  const Bf16* high = weight_piece(p, begin, quad, warp * 16 + group + 8);
  uint4 kept[kKept][2];
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    kept[i][0] = *reinterpret_cast<const uint4*>(low + i * kStep);
    kept[i][1] = *reinterpret_cast<const uint4*>(high + i * kStep);
  }
  const Beyond beyond{
      shared_address(rows + tokens_each * row) + static_cast<std::uint32_t>(thread) * 16,
      static_cast<std::uint32_t>(threads) * 16};
#pragma unroll 1
  for (int i = kKept; i < steps; ++i) {
    cp_async_16(beyond.low(i - kKept), low + i * kStep, 16);
    cp_async_16(beyond.low(i - kKept) + beyond.stride, high + i * kStep, 16);
  }
  const int own_threads = (p.experts + 31) / 32 * 32;
  const int slot = thread / own_threads;
  const int chunks = steps * kStep / 8;  // of a token's row, at most as many as threads
  const int fetch_rows = threads / chunks;
  {
    const int expert = thread % own_threads;
    const int token = thread / chunks;
    const int column = thread % chunks * 8;
    shared.warps[warp].prepared[lane] = {
        .fetch_from = reinterpret_cast<std::uint64_t>(p.x + (tokens.first + token) * p.x_stride +
                                                      begin * kStep + column),
        .fetch_to = shared_address(rows + token * row + column),
        .fetch_token = token < fetch_rows ? token : tokens_each,
        .bias = bias_of(p, expert),
        .list = expert / 32,
        .out = tokens.token_of(rank, slot) * p.top_k,
        .send_to = shared_address(&shared.received[0][rank][warp * 16 + lane % 4 * 4])};
    for (int i = thread; i < static_cast<int>(sizeof shared.choice / 4); i += threads)
      reinterpret_cast<std::uint32_t*>(shared.choice)[i] = 0;
  }
  // NOTE: multiplies nothing, so that ptxas gathers the products' operands in neighbouring
  // registers here and not, four instructions a product, in the chain after the wait.
  float nothing[2][4] = {};
#pragma unroll
  for (int i = 0; i < kKept; ++i)
    multiply_tile(nothing, kept[i][0], kept[i][1], make_uint4(0, 0, 0, 0));
  shared.nothing[thread] = (nothing[0][0] + nothing[0][1]) + (nothing[1][0] + nothing[1][1]);
  cluster_wait();  // every CTA has begun
  const Prepared& prepared = shared.warps[warp].prepared[lane];
  std::uint32_t fetch[4];
  load_shared(fetch, shared_address(&prepared));
  std::uint32_t own[4];  // bias, list, out, send_to
  load_shared(own, shared_address(&prepared.bias));
  wait_on_dependent_grids();
  fetch_tokens(p, tokens, fetch, fetch_rows, row);
  cp_async_wait_group<1>();
  __syncthreads();
  const auto address_of = [&](int tile) {  // absent tokens are the last one again
    return shared_address(rows + min(tile * kTile + group, tokens.count - 1) * row + quad * 8);
  };
  std::uint32_t token = address_of(0);
#pragma unroll 1
  for (int tile = 0; tile * kTile < tokens.count; ++tile) {
    if (tile == 1) {
      cp_async_wait_group<0>();
      __syncthreads();
    }
    float s[2][4] = {};
    multiply(s, kept, beyond, steps, token);
    token = address_of(tile + 1);
    send_sums(s, shared.warps[warp].stage, tokens, tile, at, own[3], barrier);
  }
  if (slot >= owned) return;  // nobody sends for these threads
  mbarrier_wait_cluster(barrier, 0);
  reduce_split_k_and_choose(p, static_cast<int>(own[2]), shared.received[slot], shared.choice[slot],
                            {.list = static_cast<int>(own[1]),
                             .lane = lane,
                             .barrier = kOwnBarrier + slot,
                             .threads = own_threads,
                             .bias = __uint_as_float(own[0])});
}

using FewKernel = void (*)(const Route, int, int);
constexpr int kFewThreads = 320;  // of up to 160 experts
constexpr int kWideSteps = 10;    // of a part of H = 5120 and more
constexpr int kTokensEachMax = kOwn * kSplitK;

/// A kernel ready to be launched in clusters; null if it cannot be.
template <int kThreads, int kKept>
FewKernel few_kernel() {
  const FewKernel kernel = route_few_kernel<kThreads, kKept>;
  static PerDevice prepared;
  const cudaError_t ready = prepared.once([&] {
    return allow_nonportable_clusters(
        kernel, route_rows_bytes(kSplitK * kStep * kFastStepsMax, kTokensEachMax, kThreads, kKept));
  });
  return ready == cudaSuccess ? kernel : nullptr;
}

/// Clusters for so many tokens. An H200 holds 7: with 4 a call waits for the multiprocessors of the
/// one before. Measured, us with 1, 2 and 3 clusters: 2.1, 2.0, 2.5 at 8 tokens; 2.6, 2.2, 2.6 at
/// 16; 3.0, 2.5, 2.6 at 24; 3.6, 2.6, 2.7 at 32; -, 3.0, 2.8 at 40; -, 3.6, 3.1 at 64. One up to 8:
/// what comes next waits for fewer multiprocessors.
int clusters_of(int tokens) {
  if (tokens <= kTile) return 1;
  return tokens <= 32 ? 2 : 3;
}

}  // namespace

cudaError_t launch_route_few(const Route& p, cudaStream_t stream) {
  const bool wide = p.hidden >= kSplitK * kStep * kWideSteps;
  const bool small = p.experts <= kFewThreads / kOwn;
  const FewKernel kernel = !small ? few_kernel<kThreadsMax, kRouteFewSteps>()
                           : wide ? few_kernel<kFewThreads, kWideSteps>()
                                  : few_kernel<kFewThreads, kRouteFewSteps>();
  if (kernel == nullptr) return cudaErrorInvalidValue;
  const int kept = small && wide ? kWideSteps : kRouteFewSteps;
  const int threads = (p.experts + 31) / 32 * kOwn * 32;
  const auto tokens = static_cast<int>(p.tokens);
  const int clusters = clusters_of(tokens);
  const int each = (tokens + clusters - 1) / clusters;
  return launch_kernel(
      kernel,
      {dim3(static_cast<unsigned>(kSplitK * clusters)), dim3(static_cast<unsigned>(threads)),
       route_rows_bytes(p.hidden, each, threads, kept), kSplitK},
      stream, p, each, route_row_elements(p.hidden));
}

const void* kernel_of::route_few() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
