// SPDX-License-Identifier: Apache-2.0
// The router of 2 tokens and more (contract: Backend::route), with the sums of route.cuh.
//
//   grid     clusters of 16 CTAs: up to 64 tokens 1 to 3 with up to 22 tokens each, beyond as many
//            as the GPU holds, or whole waves of them, with up to 64 each. CTA r has split r of H
//   weights  a warp's 16 experts are in registers before the kernel waits for its predecessor. One
//            CTA fills a multiprocessor; an H200 holds 7 clusters
//   tokens   pass through shared memory. The CTA multiplies eight at a time, then each warp sends
//            its 16 experts' sums, 64 bytes a token, to the CTA that owns the token
//   choice   a CTA owns up to two tokens, of 64 up to four; each half of its threads chooses for
//            one at a time: route_top_k.cuh
//   shared   FewPlan, the cluster's token rows, weights of steps beyond kKept
//   bytes    weights once per cluster, from L2 after the first
//
// NOTE: after the wait every CTA runs one chain once. So each thread computes before the wait what
// it needs after it (Prepared), in shared memory where registers would spill. Measured times:
// docs/kernels/router.md.
#include <algorithm>

#include "base/arithmetic.h"
#include "cuda/device/launch.cuh"
#include "cuda/device/resident_clusters.cuh"
#include "cuda/moe/route_top_k.cuh"

namespace koho::cuda {
namespace {

constexpr int kSplitK = kRouteSplitK;
constexpr int kStep = kRouteStep;
constexpr std::uint32_t kStepBytes = kStep * sizeof(Bf16);
constexpr int kTile = 8;    // tokens multiplied at a time
constexpr int kChosen = 2;  // tokens that a CTA chooses for at a time
constexpr int kOwnFew = 2;  // tokens that a CTA owns at most
constexpr int kOwnMany = 4;
constexpr int kThreadsMax = kChosen * kFastExperts;
constexpr std::size_t kSharedMax = 227 << 10;
constexpr int kOwnBarrier = 1;     // the first of kChosen named barriers
constexpr int kStageRow = 16 + 4;  // floats of a token's 16 experts, padded: no bank conflicts

/// What a thread needs after the wait, as two vectors of 16 bytes.
struct Prepared {
  std::uint64_t fetch_from;  // its 16 bytes of the token rows
  std::uint32_t fetch_to;
  int fetch_token;
  float bias;             // of its expert
  int list;               // of its expert
  int out;                // index of its token's first expert in p.ids
  std::uint32_t send_to;  // where its sums go in the shared memory of the token's CTA
};

/// Shared memory of a warp: `prepared` before its first tile, then the sums of a tile.
union WarpPlan {
  Prepared prepared[32];
  alignas(16) float stage[kTile * kStageRow];
};

template <int kOwn>
struct FewPlan {
  float received[kOwn][kSplitK][kFastExperts];  // [token][split]: sums of this CTA's tokens
  CountingTopK choice[kChosen];
  WarpPlan warps[kThreadsMax / 32];
  float nothing[kThreadsMax];  // multiply_by_zero()
  std::uint64_t barrier;
};

/// Where a token's sums go: the CTA that owns it, which has it as number `slot`.
struct TokenOwner {
  int rank;
  int slot;
};

/// The tokens of a cluster, and which CTA owns which. With up to 16 tokens CTA r owns token r. With
/// more, the first `doubled` CTAs own a second token; where CTAs own more than two, token t is CTA
/// t % 16's.
template <int kOwn>
struct FewTokens {
  int first;
  int count;
  // NOTE: the second tokens are those of tile 1, whose sums arrive before the last tile's: a CTA
  // with two tokens takes longer to choose, so it shall start earlier.
  int doubled;

  __device__ __forceinline__ FewTokens(const Route& p, int each)
      : first(static_cast<int>(blockIdx.x) / kSplitK * each),
        count(min(static_cast<int>(p.tokens) - first, each)),
        doubled(max(count - kSplitK, 0)) {}
  /// How many tokens CTA `rank` owns.
  __device__ __forceinline__ int owned(int rank) const {
    return (count - rank + kSplitK - 1) / kSplitK;
  }
  /// CTA `rank`'s token number `slot`.
  __device__ __forceinline__ int token_of(int rank, int slot) const {
    if constexpr (kOwn > kOwnFew) return first + rank + slot * kSplitK;
    return first + rank + (slot > 0 ? kTile : rank < kTile ? 0 : doubled);
  }
  /// Who owns the cluster's token `token`.
  __device__ __forceinline__ TokenOwner owner_of(int token) const {
    if constexpr (kOwn > kOwnFew) return {token % kSplitK, token / kSplitK};
    const bool second = token >= kTile && token < kTile + doubled;
    return {second ? token - kTile : token < kTile ? token : token - doubled, second ? 1 : 0};
  }
};

/// Starts a thread's copies of token rows: the first tile as a group of its own, so that it can be
/// multiplied before the others have arrived.
template <int kOwn>
__device__ __forceinline__ void fetch_tokens(const Route& p,
                                             const FewTokens<kOwn>& tokens,
                                             const std::uint32_t (&fetch)[4],
                                             int rows,
                                             int row) {
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

/// Weights in shared memory, of the steps beyond those in registers.
struct Beyond {
  std::uint32_t at;  // this thread's first
  std::uint32_t
      stride;  // bytes from an expert's to those of the expert 8 further, then to the next step

  __device__ __forceinline__ std::uint32_t low(int i) const {
    return at + static_cast<std::uint32_t>(2 * i) * stride;
  }
};

/// Multiplies a tile of eight tokens by a warp's 16 experts; `token`: this lane's token row.
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
    // NOTE: inline PTX, since the compiler would load 8 bytes at a time, with bank conflicts.
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

/// Sends a warp's sums of a tile to the CTAs that own the tokens. NOTE: transposed in shared memory
/// first, so that four neighbouring lanes send one token's 64 bytes. These cross between
/// multiprocessors together; 16 bytes to four places would take as long each.
template <int kOwn>
__device__ __forceinline__ void send_sums(const float (&s)[2][4],
                                          float* stage,
                                          const FewTokens<kOwn>& tokens,
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
  const TokenOwner owner = tokens.owner_of(sent);
  const auto to = static_cast<std::uint32_t>(owner.rank);
  const std::uint32_t place =
      send_to + static_cast<std::uint32_t>(owner.slot) *
                    static_cast<std::uint32_t>(sizeof FewPlan<kOwn>::received[0]);
  st_async(map_shared_rank(place, to), four, map_shared_rank(barrier, to));
}

/// Multiplies the weights by zero. NOTE: called before the wait, and its result kept alive, so that
/// ptxas moves the operands of mma.sync into neighbouring registers there. Otherwise it does so
/// after the wait, with four moves for each mma.sync.
template <int kKept>
__device__ __forceinline__ float multiply_by_zero(const uint4 (&kept)[kKept][2]) {
  float zero[2][4] = {};
#pragma unroll
  for (int i = 0; i < kKept; ++i)
    multiply_tile(zero, kept[i][0], kept[i][1], make_uint4(0, 0, 0, 0));
  return (zero[0][0] + zero[0][1]) + (zero[1][0] + zero[1][1]);
}

/// Computes before the wait what a thread does after it, and clears the choices.
template <int kOwn>
__device__ __forceinline__ void prepare(const Route& p,
                                        const FewTokens<kOwn>& tokens,
                                        int tokens_each,
                                        int row,
                                        int begin,
                                        int chunks,
                                        int own_threads,
                                        const RoutePlace& at,
                                        Bf16* rows,
                                        FewPlan<kOwn>& shared) {
  const auto [thread, threads, warp, lane, group, quad, rank] = at;
  const int expert = thread % own_threads;
  const int token = thread / chunks;
  const int column = thread % chunks * 8;
  shared.warps[warp].prepared[lane] = {
      .fetch_from = reinterpret_cast<std::uint64_t>(p.x + (tokens.first + token) * p.x_stride +
                                                    begin * kStep + column),
      .fetch_to = shared_address(rows + token * row + column),
      .fetch_token = token < threads / chunks ? token : tokens_each,
      .bias = bias_of(p, expert),
      .list = expert / 32,
      .out = tokens.token_of(rank, thread / own_threads) * p.top_k,
      .send_to = shared_address(&shared.received[0][rank][warp * 16 + lane % 4 * 4])};
  for (int i = thread; i < static_cast<int>(sizeof shared.choice / 4); i += threads)
    reinterpret_cast<std::uint32_t*>(shared.choice)[i] = 0;
}

/// Adds the sums of the CTA's tokens `half`, `half` + 2, … of `owned`, and chooses their experts;
/// `out`: where in p.ids those of the first begin.
template <int kOwn>
__device__ __forceinline__ void choose_for_tokens(
    const Route& p, FewPlan<kOwn>& shared, int owned, int half, int out, const TopKThread& at) {
#pragma unroll 1
  for (int slot = half; slot < owned; slot += kChosen) {
    reduce_split_k_and_choose(p, out, shared.received[slot], shared.choice[half], at);
    if constexpr (kOwn <= kChosen) break;
    out += kChosen * kSplitK * p.top_k;
  }
}

template <int kOwn>
constexpr std::size_t kPlanBytes = (sizeof(FewPlan<kOwn>) + 127) / 128 * 128;

/// `tokens_each`: tokens of a cluster. `row`: route_row_elements(). Weights of kKept steps, which
/// every split of H has, stay in registers, those of further steps in shared memory.
template <int kThreads, int kKept, int kOwn>
__global__ void __launch_bounds__(kThreads, 1)
    route_few_kernel(const Route p, int tokens_each, int row) {
  // NOTE: aligned to 128 bytes: copies arrive by 32 bytes, and 16 bytes off a call takes 0.1 us
  // more.
  extern __shared__ __align__(128) std::uint8_t raw[];
  auto& shared = *reinterpret_cast<FewPlan<kOwn>*>(raw);
  auto* rows = reinterpret_cast<Bf16*>(raw + kPlanBytes<kOwn>);  // [tokens_each][row]
  const RoutePlace at = route_place();
  const auto [thread, threads, warp, lane, group, quad, rank] = at;
  const FewTokens<kOwn> tokens(p, tokens_each);
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
  // Weights do not depend on the preceding kernel: load them while it ends.
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
  const int half = thread / own_threads;
  const int chunks = steps * kStep / 8;  // of a token's row, at most as many as threads
  const int fetch_rows = threads / chunks;
  prepare(p, tokens, tokens_each, row, begin, chunks, own_threads, at, rows, shared);
  shared.nothing[thread] = multiply_by_zero(kept);
  cluster_wait();  // every CTA runs
  const Prepared& prepared = shared.warps[warp].prepared[lane];
  std::uint32_t fetch[4];
  load_shared(fetch, shared_address(&prepared));
  std::uint32_t own[4];  // bias, list, out, send_to
  load_shared(own, shared_address(&prepared.bias));
  wait_on_dependent_grids();
  fetch_tokens(p, tokens, fetch, fetch_rows, row);
  cp_async_wait_group<1>();
  __syncthreads();
  const auto address_of = [&](int tile) {  // an absent token reads the last one's row
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
  if (half >= owned) return;  // nobody sends for these threads
  mbarrier_wait_cluster(barrier, 0);
  choose_for_tokens(p, shared, owned, half, static_cast<int>(own[2]),
                    {.list = static_cast<int>(own[1]),
                     .lane = lane,
                     .barrier = kOwnBarrier + half,
                     .threads = own_threads,
                     .bias = __uint_as_float(own[0])});
}

constexpr int kFewThreads = 320;  // E <= 160
constexpr int kWideSteps = 10;    // steps of a split: H >= 5120

/// A configuration of the kernel.
struct FewKernel {
  void (*kernel)(const Route, int, int) = nullptr;  // null: it cannot be launched
  int kept = 0;                                     // steps
  std::size_t plan_bytes = 0;
  int clusters = 0;  // that the GPU holds at a time
};

template <int kThreads, int kKept, int kOwn>
FewKernel few_kernel() {
  const auto kernel = route_few_kernel<kThreads, kKept, kOwn>;
  static PerDevice resident;
  const int clusters =
      resident.number([&] { return resident_clusters(kernel, kSplitK, kThreads, kSharedMax); });
  return {.kernel = clusters > 0 ? kernel : nullptr,
          .kept = kKept,
          .plan_bytes = kPlanBytes<kOwn>,
          .clusters = clusters};
}

template <int kOwn>
FewKernel few_kernel_of(const Route& p) {
  if (p.experts > kFewThreads / kChosen) return few_kernel<kThreadsMax, kRouteFewSteps, kOwn>();
  return p.hidden >= kSplitK * kStep * kWideSteps ? few_kernel<kFewThreads, kWideSteps, kOwn>()
                                                  : few_kernel<kFewThreads, kRouteFewSteps, kOwn>();
}

/// How many clusters a call of up to 64 tokens uses. An H200 holds 7, and beyond 3 a call would
/// wait for its predecessor's multiprocessors. Measured, us with 1, 2 and 3 clusters: 2.1, 2.0, 2.5
/// at 8 tokens; 2.6, 2.2, 2.6 at 16; 3.6, 2.6, 2.7 at 32; -, 3.6, 3.1 at 64. One up to 8 tokens, so
/// that the next kernel finds more multiprocessors free.
int clusters_of(int tokens) {
  if (tokens <= kTile) return 1;
  return tokens <= 32 ? 2 : 3;
}

}  // namespace

bool route_has_clusters() {
  return few_kernel<kThreadsMax, kRouteFewSteps, kOwnMany>().kernel != nullptr;
}

cudaError_t launch_route_few(const Route& p, cudaStream_t stream) {
  const auto tokens = static_cast<int>(p.tokens);
  const bool few = tokens <= kRouteFew;
  const FewKernel of = few ? few_kernel_of<kOwnFew>(p) : few_kernel_of<kOwnMany>(p);
  if (of.kernel == nullptr) return cudaErrorInvalidValue;
  const int threads = (p.experts + 31) / 32 * kChosen * 32;
  // Whole waves, and every cluster about as many tokens.
  const std::size_t beside = of.plan_bytes + route_rows_bytes(p.hidden, 0, threads, of.kept);
  const auto room = static_cast<int>((kSharedMax - beside) / route_row_bytes(p.hidden));
  const int waves = ceil_div(tokens, of.clusters * std::min(room, kOwnMany * kSplitK));
  const int each = ceil_div(tokens, few ? clusters_of(tokens) : waves * of.clusters);
  return launch_kernel(
      of.kernel,
      {dim3(static_cast<unsigned>(kSplitK * ceil_div(tokens, each))),
       dim3(static_cast<unsigned>(threads)),
       of.plan_bytes + route_rows_bytes(p.hidden, each, threads, of.kept), kSplitK},
      stream, p, each, route_row_elements(p.hidden));
}

const void* kernel_of::route_few() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
