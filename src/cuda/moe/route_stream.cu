// SPDX-License-Identifier: Apache-2.0
// The router of 256 tokens and more (contract: Backend::route), with the sums of route.cuh.
//
//   grid     clusters of 16 CTAs, as many as the GPU holds, each with tokens of its own. CTA r has
//            split r of H
//   turn     16 tokens of the cluster, of which CTA r owns number r: multiplied while others are
//            fetched, sent and chosen for
//   weights  a consumer warp's 32 experts stay in registers for the whole call, loaded before the
//            wait: more experts a warp, fewer reads of a token
//   warps    consumers multiply and send their sums to the owners; choosers take a turn each; the
//            producer fetches token rows by cp.async
//   slots    sums of kSlots turns in shared memory. An owner that has added its token's sums
//            releases the slot to all 16 CTAs, which wait for 16 releases before they send there
//            again
//   bytes    token rows once, weights once per cluster
//
// Measured times: docs/kernels/router.md.
#include <cstddef>

#include "base/arithmetic.h"
#include "cuda/device/launch.cuh"
#include "cuda/device/resident_clusters.cuh"
#include "cuda/moe/route.cuh"

namespace koho::cuda {
namespace {

constexpr int kTurn = kRouteSplitK;  // tokens: one for each CTA
constexpr int kTile = 8;             // tokens that mma.sync takes at a time
constexpr int kTiles = kTurn / kTile;
constexpr int kStageRow = 32 + 4;  // floats of a token's 32 experts, padded against bank conflicts

constexpr int kOtherRegisters = 72;  // of other warps, where kConsumerRegisters is not 0

/// A configuration: H = 512 * steps, E <= 32 * lists. Four consumer warps have 128 experts, 32
/// each; a further 32 are those of four helpers, each for every fourth turn, so that each quarter
/// of a multiprocessor multiplies as much. kConsumerRegisters: 0: as launched.
template <int kSteps_, int kLists_, int kConsumerRegisters_>
struct Stream {
  static constexpr int kSteps = kSteps_;  // of a split of H
  static constexpr int kLists = kLists_;  // experts of a chooser's lane
  static constexpr int kSlots = 8;        // turns whose sums have a place
  static constexpr int kStages = 8;       // turns whose tokens have a place
  static constexpr int kChoosers = 3;     // warps
  static constexpr int kExperts = kLists * 32;
  static_assert(kLists == 4 || kLists == 5);
  static constexpr int kConsumers = kLists == 5 ? 8 : 4;  // warps
  static constexpr int kConsumed = kLists == 5 ? 5 : 4;   // of these multiply a turn
  static constexpr int kWarps = kConsumers + kChoosers + 1;
  // Elements from one token row to the next: an odd multiple of 64 bytes, so that the 64 bytes of
  // two rows fall into different banks.
  static constexpr int kRow = (kSteps + (kSteps + 1) % 2) * kRouteStep;
  static constexpr int kConsumerRegisters = kConsumerRegisters_;
};

/// Shared memory.
template <typename S>
struct StreamPlan {
  alignas(128) Bf16 tokens[S::kStages][kTurn][S::kRow];
  alignas(128) float received[S::kSlots][kRouteSplitK][S::kExperts];
  alignas(16) float stage[S::kConsumers][kTurn * kStageRow];
  std::uint64_t fetched[S::kStages];     // by the lanes of the producer
  std::uint64_t multiplied[S::kStages];  // by the consumers
  std::uint64_t sums[S::kSlots];         // bytes from 16 CTAs
  std::uint64_t released[S::kSlots];     // by 16 CTAs
};

/// The cluster's tokens, and this CTA's place.
struct StreamTokens {
  std::int64_t first;
  int count;
  int turns;
  int rank;

  __device__ __forceinline__ StreamTokens(const Route& p, int each)
      : first(static_cast<std::int64_t>(blockIdx.x) / kRouteSplitK * each),
        count(static_cast<int>(min(p.tokens - first, static_cast<std::int64_t>(each)))),
        turns((count + kTurn - 1) / kTurn),
        rank(static_cast<int>(cluster_rank())) {}
  /// Tokens of a turn.
  __device__ __forceinline__ int of_turn(int turn) const {
    return min(count - turn * kTurn, kTurn);
  }
};

/// A place in a ring of kSize, and how often it was used before, modulo 2.
template <int kSize>
struct RingPlace {
  int at = 0;
  std::uint32_t parity = 0;

  __device__ __forceinline__ void advance(int by) {
    at += by;
    if (at < kSize) return;
    at -= kSize;
    parity ^= 1U;
  }
};

template <typename S>
__device__ __forceinline__ void init_barriers(StreamPlan<S>& shared) {
  for (int i = 0; i < S::kStages; ++i) {
    mbarrier_init(shared_address(&shared.fetched[i]), 32);
    mbarrier_init(shared_address(&shared.multiplied[i]), S::kConsumed);
  }
  for (int i = 0; i < S::kSlots; ++i) {
    mbarrier_init(shared_address(&shared.sums[i]), 1);
    mbarrier_init(shared_address(&shared.released[i]), kRouteSplitK);
  }
  fence_mbarrier_init();
  for (int i = 0; i < S::kSlots; ++i)
    mbarrier_arrive_expect_tx(shared_address(&shared.sums[i]), sizeof shared.received[i]);
}

/// The producer warp: eight lanes copy 128 bytes of a row at a time.
template <typename S>
__device__ __forceinline__ void fetch_tokens(const Route& p,
                                             StreamPlan<S>& shared,
                                             const StreamTokens& tokens,
                                             int lane) {
  constexpr int kColumns = S::kSteps * kRouteStep / 64;  // of 128 bytes
  static_assert(S::kSteps % 2 == 0);
  const int row = lane / 8;
  const Bf16* from =
      p.x + (tokens.first + row) * p.x_stride + tokens.rank * S::kSteps * kRouteStep + lane % 8 * 8;
  const std::uint32_t to = shared_address(&shared.tokens[0][row][lane % 8 * 8]);
  RingPlace<S::kStages> place;
#pragma unroll 1
  for (int turn = 0; turn < tokens.turns; ++turn) {
    if (turn >= S::kStages)
      mbarrier_wait(shared_address(&shared.multiplied[place.at]), place.parity ^ 1U);
    const int rows = tokens.of_turn(turn) - row;
    const std::uint32_t there =
        to + static_cast<std::uint32_t>(place.at * static_cast<int>(sizeof shared.tokens[0]));
#pragma unroll
    for (int i = 0; i < kTurn; i += 4) {
      if (i < rows) {
#pragma unroll
        for (int column = 0; column < kColumns; ++column)
          cp_async_16(there + static_cast<std::uint32_t>(i * S::kRow + column * 64) * 2,
                      from + column * 64, 16);
      }
      from += 4 * p.x_stride;
    }
    cp_async_mbarrier_arrive(shared_address(&shared.fetched[place.at]));
    place.advance(1);
  }
}

/// Multiplies kCount tiles by 32 experts; `x`: this lane's row of the first.
template <typename S, int kCount>
__device__ __forceinline__ void multiply_turn(float (&s)[kTiles][2][2][4],
                                              const uint4 (&kept)[S::kSteps][2][2],
                                              std::uint32_t x) {
#pragma unroll
  for (int i = 0; i < S::kSteps; ++i)
#pragma unroll
    for (int tile = 0; tile < kCount; ++tile) {
      std::uint32_t t[4];
      load_shared(t, x + static_cast<std::uint32_t>((tile * kTile * S::kRow + i * kRouteStep) * 2));
#pragma unroll
      for (int half = 0; half < 2; ++half)
        multiply_tile(s[tile][half], kept[i][half][0], kept[i][half][1],
                      make_uint4(t[0], t[1], t[2], t[3]));
    }
}

/// A consumer warp of 32 experts from `expert` on, for turns `first`, `first` + `every`, ….
template <typename S>
__device__ __forceinline__ void multiply_and_send(const Route& p,
                                                  StreamPlan<S>& shared,
                                                  const StreamTokens& tokens,
                                                  float* stage,
                                                  int expert,
                                                  int first,
                                                  int every,
                                                  int lane) {
  static_assert(4 <= S::kStages && 4 <= S::kSlots);
  const int group = lane / 4;
  const int quad = lane % 4;
  const int begin = tokens.rank * S::kSteps;
  uint4 kept[S::kSteps][2][2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const Bf16* low = weight_piece(p, begin, quad, expert + half * 16 + group);
    const Bf16* high = weight_piece(p, begin, quad, expert + half * 16 + group + 8);
#pragma unroll
    for (int i = 0; i < S::kSteps; ++i) {
      kept[i][half][0] = *reinterpret_cast<const uint4*>(low + i * kRouteStep);
      kept[i][half][1] = *reinterpret_cast<const uint4*>(high + i * kRouteStep);
    }
  }
  float* to_stage = stage + quad * 2 * kStageRow + group;
  const float* from_stage = stage + lane / 8 * kStageRow + lane % 8 * 4;
  const std::uint32_t base = shared_address(&shared);
  const auto place_of = [&](const void* at) { return shared_address(at) - base; };
  const std::uint32_t sums_to = place_of(&shared.received[0][tokens.rank][expert + lane % 8 * 4]);
  const std::uint32_t row = shared_address(&shared.tokens[0][group][quad * 8]);
  RingPlace<S::kStages> stage_place;
  RingPlace<S::kSlots> slot;
  stage_place.advance(first);
  slot.advance(first);
  cluster_wait();  // every CTA runs
#pragma unroll 1
  for (int turn = first; turn < tokens.turns; turn += every) {
    const int here = tokens.of_turn(turn);
    mbarrier_wait(shared_address(&shared.fetched[stage_place.at]), stage_place.parity);
    float s[kTiles][2][2][4] = {};
    const std::uint32_t x = row + static_cast<std::uint32_t>(
                                      stage_place.at * static_cast<int>(sizeof shared.tokens[0]));
    if (here > kTile)
      multiply_turn<S, kTiles>(s, kept, x);
    else
      multiply_turn<S, 1>(s, kept, x);
    __syncwarp();  // all lanes have read the rows, and what the last turn staged
    if (elect_one()) mbarrier_arrive(shared_address(&shared.multiplied[stage_place.at]));
    stage_place.advance(every);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float* to = to_stage + tile * kTile * kStageRow + half * 16;
        const float(&sum)[2][4] = s[tile][half];
        to[0] = sum[0][0] + sum[1][0];
        to[kStageRow] = sum[0][1] + sum[1][1];
        to[8] = sum[0][2] + sum[1][2];
        to[kStageRow + 8] = sum[0][3] + sum[1][3];
      }
    __syncwarp();
    if (turn >= S::kSlots)
      mbarrier_wait_cluster(shared_address(&shared.released[slot.at]), slot.parity ^ 1U);
    const auto at = static_cast<std::uint32_t>(slot.at);
    const std::uint32_t to =
        base + sums_to + at * static_cast<std::uint32_t>(sizeof shared.received[0]);
    const std::uint32_t barrier = base + place_of(&shared.sums[0]) + at * 8;
#pragma unroll
    for (int i = 0; i < kTiles * 2; ++i) {  // four tokens at a time
      const int token = i * 4 + lane / 8;
      if (token >= here) continue;
      const auto owner = static_cast<std::uint32_t>(token);
      st_async(map_shared_rank(to, owner),
               *reinterpret_cast<const float4*>(from_stage + i * 4 * kStageRow),
               map_shared_rank(barrier, owner));
    }
    slot.advance(every);
  }
}

/// A consumer warp.
template <typename S>
__device__ __forceinline__ void consume(const Route& p, StreamPlan<S>& shared, int each) {
  const int warp = warp_index();
  const bool helps = warp >= 4;
  multiply_and_send(p, shared, StreamTokens(p, each), shared.stage[warp], min(warp, 4) * 32,
                    helps ? warp - 4 : 0, helps ? 4 : 1, static_cast<int>(threadIdx.x) % 32);
}

/// Chooses a token's experts by a warp, in A rounds, each the warp's maximum; equal scores go to
/// the lower id. A lane has experts lane, lane + 32, ….
template <int kLists>
__device__ __forceinline__ void choose_of_registers(const Route& p,
                                                    std::int64_t token,
                                                    const float (&logits)[kLists],
                                                    const float (&bias)[kLists],
                                                    int lane) {
  float scores[kLists];
  std::uint32_t keys[kLists];
#pragma unroll
  for (int i = 0; i < kLists; ++i) {
    scores[i] = sigmoid(logits[i]);
    keys[i] = lane + 32 * i < p.experts ? ordered(selection_score(scores[i], bias[i])) : 0;
  }
  int my_expert = 0;
  float my_score = 0.0F;
  float sum = 0.0F;
#pragma unroll 1
  for (int slot = 0; slot < p.top_k; ++slot) {
    std::uint32_t best = keys[0];
#pragma unroll
    for (int i = 1; i < kLists; ++i) best = max(best, keys[i]);
    const std::uint32_t largest = __reduce_max_sync(0xFFFFFFFFU, best);
    int expert = 0x7FFFFFFF;
    float score = 0.0F;
#pragma unroll
    for (int i = kLists - 1; i >= 0; --i) {
      if (keys[i] != largest) continue;
      expert = lane + 32 * i;
      score = scores[i];
    }
    const std::uint32_t winners = __ballot_sync(0xFFFFFFFFU, best == largest);
    int winner = __ffs(static_cast<int>(winners)) - 1;
    if ((winners & (winners - 1)) != 0)  // equal scores in several lanes
      winner = static_cast<int>(__reduce_min_sync(0xFFFFFFFFU, static_cast<unsigned>(expert))) % 32;
    const int chosen = __shfl_sync(0xFFFFFFFFU, expert, winner);
    const float of_chosen = __shfl_sync(0xFFFFFFFFU, score, winner);
#pragma unroll
    for (int i = 0; i < kLists; ++i)
      if (chosen == lane + 32 * i) keys[i] = 0;  // taken
    sum += of_chosen;
    my_expert = lane == slot ? chosen : my_expert;
    my_score = lane == slot ? of_chosen : my_score;
  }
  if (lane >= p.top_k) return;
  p.ids[token * p.top_k + lane] = my_expert;
  p.weights[token * p.top_k + lane] = final_weight(p, my_score, sum);
}

/// A choosing warp: turns `first`, `first` + kChoosers, ….
template <typename S>
__device__ __forceinline__ void add_and_choose(
    const Route& p, StreamPlan<S>& shared, const StreamTokens& tokens, int first, int lane) {
  static_assert(S::kChoosers <= S::kSlots);
  float bias[S::kLists];
#pragma unroll
  for (int i = 0; i < S::kLists; ++i)
    bias[i] = lane + 32 * i < p.experts ? p.bias[lane + 32 * i] : 0.0F;
  const std::uint32_t released =
      map_shared_rank(shared_address(&shared.released[0]), static_cast<std::uint32_t>(lane % 16));
  RingPlace<S::kSlots> slot;
  slot.advance(first);
  cluster_wait();
  wait_on_dependent_grids();  // the results' last readers
#pragma unroll 1
  for (int turn = first; turn < tokens.turns; turn += S::kChoosers) {
    const int token = turn * kTurn + tokens.rank;
    if (token >= tokens.count) return;
    mbarrier_wait_cluster(shared_address(&shared.sums[slot.at]), slot.parity);
    const float* sums = shared.received[slot.at][0] + lane;
    float logits[S::kLists] = {};
#pragma unroll
    for (int split = 0; split < kRouteSplitK; ++split)
#pragma unroll
      for (int i = 0; i < S::kLists; ++i) logits[i] += sums[split * S::kExperts + 32 * i];
    if (turn + S::kSlots < tokens.turns) {
      if (elect_one())
        mbarrier_arrive_expect_tx(shared_address(&shared.sums[slot.at]), sizeof shared.received[0]);
      __syncwarp();
      if (lane < kRouteSplitK)
        mbarrier_arrive_remote_release(released + static_cast<std::uint32_t>(slot.at) * 8);
    }
    choose_of_registers<S::kLists>(p, tokens.first + token, logits, bias, lane);
    slot.advance(S::kChoosers);
  }
}

/// `each`: tokens of a cluster.
template <typename S>
__global__ void __launch_bounds__(S::kWarps * 32, 1)
    route_stream_kernel(const __grid_constant__ Route p, int each) {
  extern __shared__ __align__(128) std::uint8_t raw[];
  auto& shared = *reinterpret_cast<StreamPlan<S>*>(raw);
  constexpr int kProducer = S::kWarps - 1;
  if (threadIdx.x == kProducer * 32) init_barriers(shared);
  __syncwarp();
  cluster_arrive();
  launch_dependent_grids();
  if (threadIdx.x < S::kConsumers * 32) {
    if constexpr (S::kConsumerRegisters > 0)
      asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(S::kConsumerRegisters) : "memory");
    consume(p, shared, each);
  } else {
    if constexpr (S::kConsumerRegisters > 0)
      asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kOtherRegisters) : "memory");
    const int warp = warp_index();
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const StreamTokens tokens(p, each);
    if (warp < kProducer) {
      add_and_choose(p, shared, tokens, warp - S::kConsumers, lane);
    } else {
      wait_on_dependent_grids();
      fetch_tokens(p, shared, tokens, lane);
      cluster_wait();
    }
  }
}

template <typename S>
cudaError_t launch_stream(const Route& p, cudaStream_t stream) {
  const auto kernel = route_stream_kernel<S>;
  static PerDevice resident;
  const int held = resident.number([&] {
    return resident_clusters(kernel, kRouteSplitK, S::kWarps * 32, sizeof(StreamPlan<S>));
  });
  if (held == 0) return cudaErrorInvalidValue;
  const auto tokens = static_cast<int>(p.tokens);
  const int each = ceil_div(tokens, held);
  return launch_kernel(kernel,
                       {dim3(static_cast<unsigned>(kRouteSplitK * ceil_div(tokens, each))),
                        dim3(S::kWarps * 32), sizeof(StreamPlan<S>), kRouteSplitK},
                       stream, p, each);
}

}  // namespace

bool route_streams(const Route& p) {
  return (p.hidden == 5120 && p.experts <= 160) || (p.hidden == 4096 && p.experts <= 128);
}

cudaError_t launch_route_stream(const Route& p, cudaStream_t stream) {
  return p.hidden == 5120 ? launch_stream<Stream<10, 5, 216>>(p, stream)
                          : launch_stream<Stream<8, 4, 0>>(p, stream);
}

const void* kernel_of::route_stream() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
