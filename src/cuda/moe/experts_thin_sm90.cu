// SPDX-License-Identifier: Apache-2.0
// The experts of up to eight tokens on Hopper, where a rank has a slice of each: gate and up,
// SwiGLU, quantisation and down in one kernel (contract: Backend::experts without its combine).
//
//   grid     a cluster a token-expert pair, of as many CTAs as gate and up of an expert have tiles
//            of 64 rows (6 at 192 columns, 12 at 384). The cluster of an expert's first pair takes
//            all of them, those of the others end at once, so nobody makes a list. A CTA
//            multiplies one of the tiles, sends its 32 inner columns to all CTAs of the cluster,
//            quantises the whole inner rows, and multiplies its share of the tiles of the down
//            projection
//   roles    warp 8, the producer, fills one ring for both projections, so the weights of the
//            second are on their way while the first ends. Warps 0-3 multiply the first projection,
//            warps 0-3 and 4-7 the tiles of the second in turn
//   prefetch the shared expert's weights before the wait for the previous kernel, which chooses the
//            others: its own CTAs into their rings, all CTAs into L2
//   shared   a ring of slots of 16 KB and 256 bytes of scales: 12 for one token, 4 or 6 where two
//            CTAs share an SM (for three tokens on, or clusters of more than 8, of which a GPC has
//            room for one with a CTA an SM) · the tokens · the inner rows, in f32 and in e4m3
//   operand  the MMA has eight columns, of which T hold tokens. A core matrix is eight rows of 16
//            bytes; one begins T rows after another, so its last rows are the next one's first, and
//            the sums of these columns are not stored
//   sums     as gemm_grouped_decode_sm90.cu and experts_down_wgmma.cu: each 256 bytes of K by
//            itself, added in order in f32, so a token has the bits that it has among others
//   bytes    weights once: bound by memory, after some 3 us of start, exchange and end
//
// Which kernel runs when, and measured times: docs/kernels/experts.md.
#include "base/arithmetic.h"
#include "cuda/device/launch.cuh"
#include "cuda/device/numeric.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/tiled_layout.h"
#include "cuda/moe/experts_thin.h"
#include "cuda/moe/experts_thin_producer.cuh"
#include "cuda/moe/stage_sums.cuh"

namespace koho::cuda {
namespace {

/// What the kernel gets: how the launcher divided shared memory.
struct ThinParams {
  ExpertsThin of;
  int slots;
};

/// A thread's sums of one tile.
struct TileSums : StageSums<1> {
  /// Adds a stage of `bytes` of K, at most 256, by one warpgroup; the operand has `rows` tokens.
  __device__ __forceinline__ void add_stage(std::uint32_t weights,
                                            std::uint32_t tokens,
                                            int rows,
                                            int bytes) {
    const auto chunk = static_cast<std::uint32_t>(rows * kTileChunk);
    add_some<kStageWidth / kTileWidthStep>(bytes / kTileWidthStep,
                                           core_matrix_descriptor(weights, kTileRows * kTileChunk),
                                           core_matrix_descriptor(tokens, chunk), 2 * chunk);
  }
};

/// Copies the columns' tokens to shared memory, zeros behind them. Does not wait for them.
__device__ __forceinline__ void copy_tokens(const ExpertsThin& p,
                                            const Columns& columns,
                                            std::uint32_t to) {
  const Gemm& g = p.gate_up;
  for (int column = 0; column < columns.count; ++column) {
    const std::uint8_t* x = g.x + columns.token_of(p, column) * g.x_stride_bytes;
    for (int at = static_cast<int>(threadIdx.x) * kTileChunk; at < g.width_bytes;
         at += kConsumers * kTileChunk) {
      const int bytes = min(max(g.x_bytes - at, 0), kTileChunk);
      cp_async_16(to + static_cast<std::uint32_t>(at * p.tokens + column * kTileChunk),
                  bytes > 0 ? x + at : x, static_cast<std::uint32_t>(bytes));
    }
  }
  cp_async_commit_group();
}

/// Multiplies this CTA's tile of the gate and up projection, and sends its inner columns to all
/// CTAs of the cluster, to rows of `inner`. One warpgroup.
__device__ __forceinline__ void multiply_gate_up(const ExpertsThin& p,
                                                 const Columns& columns,
                                                 const WeightRing& ring,
                                                 std::uint32_t tokens,
                                                 std::uint32_t inner,
                                                 std::uint32_t inner_barrier,
                                                 int rank,
                                                 int ctas) {
  const Gemm& g = p.gate_up;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const float* scales = g.row_scales +
                        (static_cast<std::int64_t>(columns.expert) * g.tiles + rank) * kTileRows +
                        warp * 16 + lane / 4;
  const float row_scales[2] = {scales[0], scales[8]};
  float x_scales[2];
#pragma unroll
  for (int i = 0; i < 2; ++i)
    x_scales[i] = g.x_scales[columns.token_of(p, min(lane % 4 * 2 + i, columns.count - 1))];
  RingState state;
  TileSums sums;
  for (int begin = 0; begin < g.width_bytes; begin += kStageWidth) {
    mbarrier_wait(WeightRing::barrier(ring.full, state), state.parity);
    sums.add_stage(ring.at(state), tokens + static_cast<std::uint32_t>(begin * p.tokens), p.tokens,
                   min(kStageWidth, g.width_bytes - begin));
    mbarrier_arrive(WeightRing::barrier(ring.empty, state));
    state.advance(1, ring.slots);
  }
  const int inner_column = rank * kTileInner + warp * 8 + lane / 4;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int column = lane % 4 * 2 + i;
    const float gate = round_bf16(
        apply_scales<TileType::fp8, false>(g, sums.sum[0][i], row_scales[0], x_scales[i], 0.0F));
    const float up = round_bf16(apply_scales<TileType::fp8, false>(
        g, sums.sum[0][2 + i], row_scales[1], x_scales[i], 0.0F));
    if (column >= columns.count) continue;
    const float value = inner_column < g.rows ? silu_mul(gate, up) : 0.0F;
    const std::uint32_t to =
        inner + 4U * static_cast<std::uint32_t>(column * p.down.width_bytes + inner_column);
    for (std::uint32_t cta = 0; cta < static_cast<std::uint32_t>(ctas); ++cta)
      st_async(map_shared_rank(to, cta), value, map_shared_rank(inner_barrier, cta));
  }
}

/// Quantises the inner rows, f32 at `inner`, to e4m3 at `quantized`, as an MMA reads them; a warp a
/// row. As experts_down.cuh: NaN does not count for a scale.
__device__ __forceinline__ void quantize_inner(const ExpertsThin& p,
                                               const Columns& columns,
                                               const float* inner,
                                               std::uint8_t* quantized,
                                               float* scales) {
  static_assert(kThinTokensMax <= kConsumers / 32);
  const int width = p.down.width_bytes;
  const int row = warp_index();
  if (row >= columns.count) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  constexpr int kSteps = kDownThinWidth / 128;
  float4 v[kSteps];
  float largest = 0.0F;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int column = step * 128 + lane * 4;
    v[step] = column < width ? *reinterpret_cast<const float4*>(inner + row * width + column)
                             : make_float4(0.0F, 0.0F, 0.0F, 0.0F);
    largest =
        fmaxf(fmaxf(fmaxf(largest, fabsf(v[step].x)), fmaxf(fabsf(v[step].y), fabsf(v[step].z))),
              fabsf(v[step].w));
  }
  const float scale = quant_scale(warp_largest(largest));
  if (lane == 0) scales[row] = scale;
  const Divisor divisor = divisor_of(scale);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int column = step * 128 + lane * 4;
    if (column >= width) continue;
    *reinterpret_cast<std::uint32_t*>(
        quantized + (column / kTileChunk * p.tokens + row) * kTileChunk + column % kTileChunk) =
        pack_e4m3(divisor.quotient(v[step].x), divisor.quotient(v[step].y),
                  divisor.quotient(v[step].z), divisor.quotient(v[step].w));
  }
}

/// Multiplies this CTA's tiles of the down projection and stores them. Each warpgroup takes every
/// second tile; `stages` came before the first one's in the ring.
__device__ __forceinline__ void multiply_down(const ExpertsThin& p,
                                              const Columns& columns,
                                              const WeightRing& ring,
                                              int stages,
                                              std::uint32_t quantized,
                                              const float* scales,
                                              const DownTiles& tiles) {
  const Gemm& d = p.down;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int group = warp_index() / 4;
  const int row = static_cast<int>(threadIdx.x) % kWarpgroup / 32 * 16 + lane / 4;  // of a tile
  const int tile_stages = ceil_div(d.width_bytes, kStageWidth);
  float x_scales[2] = {};
  Bf16* out[2] = {};  // of this lane's columns; null: there is none
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int column = lane % 4 * 2 + i;
    if (column >= columns.count) continue;
    x_scales[i] = scales[column];
    out[i] = static_cast<Bf16*>(d.out) + columns.row_of(p, column) * d.out_stride;
  }
  RingState state{stages % ring.slots, static_cast<std::uint32_t>(stages / ring.slots) & 1U};
  state.advance(group * tile_stages, ring.slots);
  for (int tile = tiles.begin + group; tile < tiles.end; tile += kGroups) {
    TileSums sums;
    float row_scales[2] = {};
    for (int begin = 0; begin < d.width_bytes; begin += kStageWidth) {
      const std::uint32_t slot = ring.at(state);
      mbarrier_wait(WeightRing::barrier(ring.full, state), state.parity);
      if (begin + kStageWidth >= d.width_bytes) {
        const std::uint32_t at = WeightRing::scales_of(slot) + 4U * static_cast<std::uint32_t>(row);
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(row_scales[0]) : "r"(at) : "memory");
        asm volatile("ld.shared.f32 %0, [%1+32];" : "=f"(row_scales[1]) : "r"(at) : "memory");
      }
      sums.add_stage(slot, quantized + static_cast<std::uint32_t>(begin * p.tokens), p.tokens,
                     min(kStageWidth, d.width_bytes - begin));
      mbarrier_arrive(WeightRing::barrier(ring.empty, state));
      state.advance(1, ring.slots);
    }
    state.advance(tile_stages, ring.slots);  // the other warpgroup's tile
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int output = tile * kTileRows + row + half * 8;
      float value[2];
#pragma unroll
      for (int i = 0; i < 2; ++i)
        value[i] = apply_scales<TileType::fp8, false>(d, sums.sum[0][2 * half + i],
                                                      row_scales[half], x_scales[i], 0.0F);
      const std::uint32_t both = pack_bf16(value[0], value[1]);
      if (output >= d.rows) continue;
      if (out[0] != nullptr) out[0][output] = static_cast<Bf16>(both & 0xFFFFU);
      if (out[1] != nullptr) out[1][output] = static_cast<Bf16>(both >> 16U);
    }
  }
}

/// Bytes of dynamic shared memory beside the ring: the tokens, then the inner rows in e4m3, both
/// with what a core matrix reaches beyond them, then in f32, then their scales.
constexpr int operand_bytes(const ExpertsThin& p, const Gemm& of) {
  return round_up(p.tokens * of.width_bytes, 128) + kOperandPad;
}
constexpr int row_bytes(const ExpertsThin& p) {
  return operand_bytes(p, p.gate_up) + operand_bytes(p, p.down) +
         4 * p.tokens * p.down.width_bytes + 4 * kThinTokensMax;
}

__global__ void __launch_bounds__(kThreads, 2)
    experts_thin_kernel(const __grid_constant__ ThinParams params) {
  extern __shared__ __align__(128) std::uint8_t shared[];
  __shared__ __align__(8) std::uint64_t barriers[2 * kSlotsMax + 1];
  const ExpertsThin& p = params.of;
  const int ctas = static_cast<int>(cluster_size());
  const int rank = static_cast<int>(cluster_rank());
  const int cluster = static_cast<int>(blockIdx.x) / ctas;
  std::uint8_t* const tokens = shared + params.slots * kSlotBytes;
  std::uint8_t* const quantized = tokens + operand_bytes(p, p.gate_up);
  auto* const inner = reinterpret_cast<float*>(quantized + operand_bytes(p, p.down));
  float* const scales = inner + p.tokens * p.down.width_bytes;
  const WeightRing ring{shared_address(shared), shared_address(barriers),
                        shared_address(barriers) + 8 * kSlotsMax, params.slots};
  const std::uint32_t inner_barrier = shared_address(barriers) + 16 * kSlotsMax;
  if (threadIdx.x == 0) {
    for (std::uint32_t slot = 0; slot < kSlotsMax; ++slot) {
      mbarrier_init(ring.full + 8 * slot, 1);
      mbarrier_init(ring.empty + 8 * slot, kWarpgroup);
    }
    mbarrier_init(inner_barrier, 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  cluster_arrive();
  cluster_wait();  // every CTA has its barriers
  if (warp_index() == kConsumers / 32) {
    load_weights(p, ring, cluster, rank, ctas);
    return;
  }
  wait_on_dependent_grids();
  launch_dependent_grids();
  const Columns columns(p, cluster);
  if (columns.expert < 0) return;  // as all CTAs of the cluster
  copy_tokens(p, columns, shared_address(tokens));
  if (threadIdx.x == 0)
    mbarrier_arrive_expect_tx(inner_barrier,
                              static_cast<std::uint32_t>(4 * kTileInner * ctas * columns.count));
  cp_async_wait_group<0>();
  fence_proxy_async_shared();  // wgmma reads shared memory through the async proxy
  named_barrier_sync(kConsumerBarrier, kConsumers);
  if (warp_index() < kWarpgroup / 32)
    multiply_gate_up(p, columns, ring, shared_address(tokens), shared_address(inner), inner_barrier,
                     rank, ctas);
  // NOTE: no CTA ends before it has what the others send, so none sends to one that has ended.
  mbarrier_wait_cluster(inner_barrier, 0);
  quantize_inner(p, columns, inner, quantized, scales);
  fence_proxy_async_shared();
  named_barrier_sync(kConsumerBarrier, kConsumers);
  multiply_down(p, columns, ring, ceil_div(p.gate_up.width_bytes, kStageWidth),
                shared_address(quantized), scales, DownTiles(p.down, rank, ctas));
}

constexpr int kMultiprocessorShared = 228 << 10;
constexpr int kReserved = 1024 + 256;  // what the system keeps of each CTA, and barriers

int clusters_of(const ExpertsThin& p) {
  return p.tokens * p.top_k + (p.shared ? 1 : 0);
}

/// Ring slots that fit beside the rows: with one CTA an SM where all clusters find room so, else
/// two. NOTE: a multiple of the stages of two tiles, so that a slot's tiles of the down projection
/// are one warpgroup's. With the other's it could wait for the slot's next stage before the one
/// before has arrived, and the parity of a barrier cannot tell these.
int slots_of(const ExpertsThin& p, int multiprocessors) {
  const bool alone = p.gate_up.tiles <= kClusterPortable &&
                     8 * clusters_of(p) * p.gate_up.tiles <= 7 * multiprocessors;
  const int bytes = kMultiprocessorShared / (alone ? 1 : 2) - kReserved - row_bytes(p);
  const int slots = bytes / kSlotBytes < kSlotsMax ? bytes / kSlotBytes : kSlotsMax;
  const int step = kGroups * ceil_div(p.down.width_bytes, kStageWidth);
  return slots / step * step;
}

}  // namespace

bool experts_thin_supports(const ExpertsThin& p) {
  constexpr int kSlotsMin = 4;
  return p.gate_up.type == TileType::fp8 && p.down.type == TileType::fp8 &&
         p.gate_up.bias == nullptr && p.down.bias == nullptr && p.ids != nullptr && p.tokens >= 1 &&
         p.tokens <= kThinTokensMax && p.tokens * p.top_k <= kThinPairsMax && p.gate_up.tiles > 1 &&
         p.gate_up.tiles <= kClusterMax && p.gate_up.width_bytes <= kThinHiddenMax &&
         p.down.width_bytes <= kDownThinWidth &&
         p.down.width_bytes == p.gate_up.tiles * kTileInner && slots_of(p, 0) >= kSlotsMin;
}

cudaError_t launch_experts_thin(const ExpertsThin& p, int multiprocessors, cudaStream_t stream) {
  if (!experts_thin_supports(p)) return cudaErrorInvalidValue;
  static PerDevice prepared;
  const cudaError_t ready = prepared.once([] {
    return allow_nonportable_clusters(experts_thin_kernel, kMultiprocessorShared - kReserved);
  });
  if (ready != cudaSuccess) return ready;
  const ThinParams params{p, slots_of(p, multiprocessors)};
  return launch_kernel(
      experts_thin_kernel,
      {dim3(static_cast<unsigned>(clusters_of(p) * p.gate_up.tiles)), dim3(kThreads),
       static_cast<std::size_t>(params.slots * kSlotBytes + row_bytes(p)), p.gate_up.tiles},
      stream, params);
}

const void* kernel_of::experts_thin() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
