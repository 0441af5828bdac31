// SPDX-License-Identifier: Apache-2.0
// The router of 2 to 64 tokens: a decode step's, by the sums of route.cu's fast form.
//
//   grid     clusters of 16 CTAs, each with up to 22 tokens; CTA r has part r of H
//   weights  a warp's 16 experts wait in registers since before the kernel before ended: a
//            multiprocessor holds one CTA, an H200 7 clusters
//   tokens   through shared memory; eight at a time multiplied and their sums sent, of a warp's 16
//            experts 64 bytes a token
//   choice   a CTA has a token, or two (the first CTAs, of the first tiles), one for each half of
//            its threads, a thread an expert: each ranks its expert by counting in a quarter of
//            all, then one warp the first eight of every quarter
//   bytes    weights once a cluster: all of them from L2 after the first
//
// NOTE: what a call does after the wait is a chain that every CTA goes through once, so all that
// can be known before is known before, and is in shared memory where registers would be spilled.
// Numbers: docs/kernels/README.md.
#include "cuda/launch.cuh"
#include "cuda/route.cuh"

namespace koho::cuda {
namespace {

constexpr int kParts = kFastParts;
constexpr int kStep = kRouteStep;
constexpr std::uint32_t kStepBytes = kStep * sizeof(Bf16);
constexpr int kTile = 8;  // tokens that are multiplied at a time
constexpr int kOwn = 2;   // tokens of a CTA
constexpr int kThreadsMax = kOwn * kFastExperts;
constexpr int kTop = 8;  // what is ranked by counting; more by choose()
constexpr int kQuarters = 4;
constexpr int kOwnBarrier = 1;     // the first of kOwn named barriers
constexpr int kStageRow = 16 + 4;  // floats of a token's 16 experts; writes meet no bank twice

/// What a thread does after the wait, in two pieces of 16 bytes.
struct Prepared {
  std::uint64_t fetch_from;  // 16 bytes of the tokens
  std::uint32_t fetch_to;
  int fetch_token;
  float bias;             // of its expert
  int quarter;            // of its expert
  int place;              // in the quarter
  std::uint32_t send_to;  // where its sums go in the shared memory of a token's CTA
};

/// Of a warp: before its first tile, and then the sums of a tile.
union WarpPlan {
  Prepared prepared[32];
  alignas(16) float stage[kTile * kStageRow];
};

/// One token's choice; zero where nobody is.
template <int kQuarter>
struct FewChoice {
  alignas(16) std::uint32_t keys[kQuarters][2 * kQuarter];  // twice: keys_before()
  alignas(16) std::uint32_t first[2 * kQuarters * kTop];    // those of each quarter's first eight
  int experts[kQuarters * kTop];
  float scores[kQuarters * kTop];
  alignas(16) float chosen[kTop];  // scores
};

template <int kQuarter>
struct FewPlan {
  float received[kOwn][kParts][kFastExperts];  // every part's sums of this CTA's tokens
  FewChoice<kQuarter> choice[kOwn];
  WarpPlan warps[kThreadsMax / 32];
  float nothing[kThreadsMax];
  std::uint64_t barrier;
};

/// Pieces of two experts as the operands of the two products of a step.
struct Weights {
  uint4 first;
  uint4 second;
};
__device__ __forceinline__ Weights operands(const uint4& low, const uint4& high) {
  return {make_uint4(low.x, high.x, low.y, high.y), make_uint4(low.z, high.z, low.w, high.w)};
}
__device__ __forceinline__ void multiply(float (&sum)[2][4], const Weights& w, uint4 x) {
  mma_bf16(sum[0], w.first.x, w.first.y, w.first.z, w.first.w, x.x, x.y);
  mma_bf16(sum[1], w.second.x, w.second.y, w.second.z, w.second.w, x.z, x.w);
}

/// Adds 1 if `key` is larger, in two instructions of which one is no integer's.
__device__ __forceinline__ void count_larger(float& count, std::uint32_t key, std::uint32_t than) {
  asm("{\n\t.reg .pred p;\n\tsetp.gt.u32 p, %1, %2;\n\t@p add.f32 %0, %0, 0f3F800000;\n\t}"
      : "+f"(count)
      : "r"(key), "r"(than));
}
/// How many of `kCount` keys come before `mine`, which is number `place` of them: larger ones, and
/// equal ones of lower numbers. The keys lie in `twice` and, each larger by one, again behind: read
/// around from the four of `place`, the ones before those four come out larger where equal.
template <int kCount>
__device__ __forceinline__ int keys_before(const std::uint32_t* twice,
                                           std::uint32_t mine,
                                           int place) {
  const auto* fours = reinterpret_cast<const uint4*>(twice) + place / 4;
  float count[4] = {8388608.0F};  // 2^23: the sum's low bits are a whole number
#pragma unroll
  for (int i = 0; i < kCount / 4; ++i) {
    const uint4 four = fours[i];
    count_larger(count[0], four.x, mine);
    count_larger(count[1], four.y, mine);
    count_larger(count[2], four.z, mine);
    count_larger(count[3], four.w, mine);
  }
  const uint4 own = fours[0];
  if (place % 4 > 0 && own.x == mine) count[0] += 1.0F;
  if (place % 4 > 1 && own.y == mine) count[1] += 1.0F;
  if (place % 4 > 2 && own.z == mine) count[2] += 1.0F;
  return static_cast<int>(__float_as_uint((count[0] + count[1]) + (count[2] + count[3])) & 0xFFU);
}

/// Chooses the experts of token `token`. Each of `threads` threads has the logit of its expert;
/// they alone meet at `barrier`.
template <int kQuarter>
__device__ __forceinline__ void choose_by_counting(const Route& p,
                                                   std::int64_t token,
                                                   int expert,
                                                   float logit,
                                                   float bias,
                                                   int quarter,
                                                   int place,
                                                   FewChoice<kQuarter>& choice,
                                                   int barrier,
                                                   int threads) {
  const bool real = expert < p.experts;
  const float score = sigmoid(logit);
  const std::uint32_t key = real ? ordered(selection_score(score, bias)) : 0;
  std::uint32_t* keys = choice.keys[min(quarter, kQuarters - 1)];
  if (real) {
    keys[place] = key;
    keys[kQuarter + place] = key + 1;
  }
  named_barrier(barrier, threads);
  const int in_quarter = keys_before<kQuarter>(keys, key, place);
  if (real && in_quarter < kTop) {
    const int at = quarter * kTop + in_quarter;
    choice.first[at] = key;
    choice.first[kQuarters * kTop + at] = key + 1;
    choice.experts[at] = expert;
    choice.scores[at] = score;
  }
  named_barrier(barrier, threads);
  if (expert >= 32) return;
  const std::uint32_t candidate = choice.first[expert];
  const int before = keys_before<kQuarters * kTop>(choice.first, candidate, expert);
  const bool chosen = candidate != 0 && before < p.top_k;
  const float mine = choice.scores[expert];
  const std::int64_t out = token * p.top_k + before;
  if (chosen) {
    choice.chosen[before] = mine;
    p.ids[out] = choice.experts[expert];
  }
  __syncwarp();
  const float4 a = *reinterpret_cast<const float4*>(choice.chosen);
  const float4 b = *reinterpret_cast<const float4*>(choice.chosen + 4);
  const float sum = ((((((a.x + a.y) + a.z) + a.w) + b.x) + b.y) + b.z) + b.w;
  if (chosen) p.weights[out] = final_weight(p, mine, sum);
}

/// `tokens_each`: of a cluster; `row`: route_row_elements(). Weights of kKept steps, which every
/// part of H has, stay in registers, those of further ones in shared memory.
template <int kThreads, int kKept>
__global__ void __launch_bounds__(kThreads, 1)
    route_few_kernel(const Route p, int tokens_each, int row) {
  constexpr int kQuarter = kThreads / (kOwn * kQuarters);
  __shared__ FewPlan<kQuarter> shared;
  extern __shared__ __align__(16) std::uint8_t raw[];
  auto* rows = reinterpret_cast<Bf16*>(raw);  // [tokens_each][row]
  const auto [thread, threads, warp, lane, group, quad, rank] = route_place();
  const int first = static_cast<int>(blockIdx.x) / kParts * tokens_each;
  const int tokens = min(static_cast<int>(p.tokens) - first, tokens_each);
  const int begin = part_begin(p.hidden, rank);
  const int steps = part_begin(p.hidden, rank + 1) - begin;
  const int owned = (tokens - rank + kParts - 1) / kParts;  // tokens of this CTA
  // NOTE: CTAs of two tokens, the second from tile 1 on: they take longer to choose, and the sums
  // of the last tile come last.
  const int doubled = max(tokens - kParts, 0);
  const std::uint32_t barrier = shared_address(&shared.barrier);
  if (thread == 0) {
    mbarrier_init(barrier, 1);
    mbarrier_init_fence();
    mbarrier_arrive_expect(barrier, static_cast<std::uint32_t>(kParts * threads * 2 * owned));
  }
  __syncwarp();
  cluster_arrive();
  grid_release();
  // Weights do not depend on the kernel before: they are fetched while it ends.
  const Bf16* low = weight_piece(p, begin, quad, warp * 16 + group);
  const Bf16* high = weight_piece(p, begin, quad, warp * 16 + group + 8);
  uint4 pieces[kKept][2];
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    pieces[i][0] = *reinterpret_cast<const uint4*>(low + i * kStep);
    pieces[i][1] = *reinterpret_cast<const uint4*>(high + i * kStep);
  }
  auto* beyond = reinterpret_cast<uint4*>(rows + tokens_each * row) + thread;  // [][2][threads]
#pragma unroll 2
  for (int i = kKept; i < steps; ++i) {
    const Weights w = operands(*reinterpret_cast<const uint4*>(low + i * kStep),
                               *reinterpret_cast<const uint4*>(high + i * kStep));
    beyond[(i - kKept) * 2 * threads] = w.first;
    beyond[((i - kKept) * 2 + 1) * threads] = w.second;
  }
  const int own_threads = (p.experts + 31) / 32 * 32;
  const int slot = thread / own_threads;
  const int expert = thread % own_threads;
  const int chunks = steps * kStep / 8;  // of a token's row, at most as many as threads
  const int fetch_rows = threads / chunks;
  {
    const int quarter = (p.experts + kQuarters - 1) / kQuarters;
    const int token = thread / chunks;
    const int at = thread % chunks * 8;
    shared.warps[warp].prepared[lane] = {
        .fetch_from = reinterpret_cast<std::uint64_t>(p.x + (first + token) * p.x_stride +
                                                      begin * kStep + at),
        .fetch_to = shared_address(rows + token * row + at),
        .fetch_token = token < fetch_rows ? token : tokens_each,
        .bias = expert < p.experts ? p.bias[expert] : 0.0F,
        .quarter = expert / quarter,
        .place = expert % quarter,
        .send_to = shared_address(&shared.received[0][rank][warp * 16 + lane % 4 * 4])};
    for (int i = thread; i < static_cast<int>(sizeof shared.choice / 4); i += threads)
      reinterpret_cast<std::uint32_t*>(shared.choice)[i] = 0;
  }
  // NOTE: multiplies nothing, so that ptxas gathers the products' operands in neighbouring
  // registers here and not, four instructions a product, in the chain after the wait.
  Weights kept[kKept];
  float nothing[4] = {};
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    kept[i] = operands(pieces[i][0], pieces[i][1]);
    const Weights& w = kept[i];
    mma_bf16(nothing, w.first.x, w.first.y, w.first.z, w.first.w, 0, 0);
    mma_bf16(nothing, w.second.x, w.second.y, w.second.z, w.second.w, 0, 0);
  }
  shared.nothing[thread] = (nothing[0] + nothing[1]) + (nothing[2] + nothing[3]);
  cluster_wait();  // every CTA has begun
  const Prepared& prepared = shared.warps[warp].prepared[lane];
  std::uint32_t fetch[4];
  load_shared(fetch, shared_address(&prepared));
  std::uint32_t own[4];  // bias, quarter, place, send_to
  load_shared(own, shared_address(&prepared.bias));
  grid_wait();
  {
    std::uint64_t from = static_cast<std::uint64_t>(fetch[1]) << 32U | fetch[0];
    std::uint32_t to = fetch[2];
    int token = static_cast<int>(fetch[3]);
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {  // the first tile, and the others
      const int end = i == 0 ? min(tokens, kTile) : tokens;
#pragma unroll 1
      for (; token < end; token += fetch_rows) {
        copy_16(to, reinterpret_cast<const void*>(from), 16);
        from += static_cast<std::uint64_t>(fetch_rows * p.x_stride) * sizeof(Bf16);
        to += static_cast<std::uint32_t>(fetch_rows * row) * sizeof(Bf16);
      }
      copy_commit();
    }
  }
  copy_wait<1>();
  __syncthreads();
  const auto address_of = [&](int tile) {  // absent tokens are the last one again
    return shared_address(rows + min(tile * kTile + group, tokens - 1) * row + quad * 8);
  };
  std::uint32_t token = address_of(0);
#pragma unroll 1
  for (int tile = 0; tile * kTile < tokens; ++tile) {
    if (tile == 1) {
      copy_wait<0>();
      __syncthreads();
    }
    float s[2][4] = {};
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      std::uint32_t x[4];
      load_shared(x, token + i * kStepBytes);
      multiply(s, kept[i], make_uint4(x[0], x[1], x[2], x[3]));
    }
#pragma unroll 1
    for (int i = kKept; i < steps; ++i) {
      // NOTE: by the instruction itself: the compiler reads 8 bytes at a time, with bank conflicts.
      const std::uint32_t at =
          shared_address(beyond) + static_cast<std::uint32_t>((i - kKept) * 2 * threads) * 16;
      std::uint32_t a[4];
      std::uint32_t b[4];
      std::uint32_t x[4];
      load_shared(a, at);
      load_shared(b, at + static_cast<std::uint32_t>(threads) * 16);
      load_shared(x, token + static_cast<std::uint32_t>(i) * kStepBytes);
      multiply(s, {make_uint4(a[0], a[1], a[2], a[3]), make_uint4(b[0], b[1], b[2], b[3])},
               make_uint4(x[0], x[1], x[2], x[3]));
    }
    token = address_of(tile + 1);
    // NOTE: turned in shared memory, so that four neighbouring lanes send a token's 64 bytes: those
    // pass between multiprocessors at once, where 16 bytes of each lane elsewhere take as long
    // each.
    float* stage = shared.warps[warp].stage;
    float* to_stage = stage + quad * 2 * kStageRow + group;
    __syncwarp();
    to_stage[0] = s[0][0] + s[1][0];
    to_stage[kStageRow] = s[0][1] + s[1][1];
    to_stage[8] = s[0][2] + s[1][2];
    to_stage[kStageRow + 8] = s[0][3] + s[1][3];
    __syncwarp();
    const int sent = tile * kTile + lane / 4;
    if (sent >= tokens) continue;
    const float4 four =
        *reinterpret_cast<const float4*>(stage + lane / 4 * kStageRow + lane % 4 * 4);
    const bool second = sent >= kTile && sent < kTile + doubled;
    const auto to = static_cast<std::uint32_t>(second         ? sent - kTile
                                               : sent < kTile ? sent
                                                              : sent - doubled);
    const std::uint32_t place =
        own[3] + (second ? static_cast<std::uint32_t>(sizeof shared.received[0]) : 0);
    cluster_send(cluster_address(place, to), four, cluster_address(barrier, to));
  }
  if (slot >= owned) return;  // nobody sends for these threads
  mbarrier_wait_cluster(barrier, 0);
  float logit = 0.0F;
#pragma unroll
  for (int part = 0; part < kParts; ++part) logit += shared.received[slot][part][expert];
  const std::int64_t chosen_for = first + rank + (slot > 0 ? kTile : rank < kTile ? 0 : doubled);
  const float bias = __uint_as_float(own[0]);
  if (p.top_k > kTop) [[unlikely]] {
    float* scores = shared.received[slot][0];  // of which this thread has read its own
    float* selection = shared.received[slot][1];
    scores[expert] = sigmoid(logit);
    selection[expert] = selection_score(scores[expert], bias);
    named_barrier(kOwnBarrier + slot, own_threads);
    if (expert < 32) choose<kFastExperts / 32>(p, chosen_for, scores, selection);
    return;
  }
  choose_by_counting(p, chosen_for, expert, logit, bias, static_cast<int>(own[1]),
                     static_cast<int>(own[2]), shared.choice[slot], kOwnBarrier + slot,
                     own_threads);
}

using FewKernel = void (*)(const Route, int, int);
constexpr int kFewThreads = 320;  // of up to 160 experts
constexpr int kWideSteps = 10;    // of a part of H = 5120 and more
constexpr int kTokensEachMax = kOwn * kParts;

/// A kernel ready to be launched in clusters; null if it cannot be.
template <int kThreads, int kKept>
FewKernel few_kernel() {
  static const FewKernel ready = []() -> FewKernel {
    const FewKernel kernel = route_few_kernel<kThreads, kKept>;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) ==
                       cudaSuccess &&
                   use_shared_memory(kernel, route_rows_bytes(kParts * kStep * kFastStepsMax,
                                                              kTokensEachMax, kThreads, kKept)) ==
                       cudaSuccess
               ? kernel
               : nullptr;
  }();
  return ready;
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
  const bool wide = p.hidden >= kParts * kStep * kWideSteps;
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
      {dim3(static_cast<unsigned>(kParts * clusters)), dim3(static_cast<unsigned>(threads)),
       route_rows_bytes(p.hidden, each, threads, kept), kParts},
      stream, p, each, route_row_elements(p.hidden));
}

}  // namespace koho::cuda
