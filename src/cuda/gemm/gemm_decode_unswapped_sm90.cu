// SPDX-License-Identifier: Apache-2.0
// Decode GEMM of one weight matrix on Hopper in the usual orientation: 64 tokens are the MMA's M,
// weight rows its N (launch_gemm_decode_unswapped_sm90 in gemm_sm90.h). N may be any multiple of 8,
// so the grid can be one even wave, and each CTA has the whole K.
//
//   grid     one CTA per block of kRows weight rows (which may begin within a tile) and token block
//            of 64 per warpgroup. The CTAs of two token blocks are adjacent, so that the second
//            finds the weights in L2; with kWeightMulticast 2 they are a cluster, and each
//            multicasts half of the weights. With kCtasPerSm 2 the next GEMM's CTAs fill their
//            rings beside this one's. Persistent configurations take several blocks of weight rows
//            in turn. bf16: a cluster of two blocks' CTAs multicasts tokens (kTokenMulticast)
//   roles    one producer warp copies weights in TMA boxes that become core matrices, before it
//            waits for the previous kernel; another one token rows (128 bytes of K, swizzled). An
//            MMA warpgroup (wgmma m64nXk32) has 64 tokens; bf16: two share these, by rows
//   sums     the swap-AB kernel's bits. fp8: 256 bytes of K (block scales: 128) are summed by
//            themselves and added in f32, splits in their order. bf16: one chain of MMAs
//   output   fp8: from registers, or through the ring. bf16 (logits): through shared memory beside
//            the ring, from where TMA stores it while the next block is multiplied
//   shared   barriers, scales · ring of slots of kSlotWidth * (kRows + tokens) bytes · bf16: output
//   bytes    weights once from memory; they per token block, tokens per block of rows from L2
//   files    gemm_decode_unswapped_sm90_plan.cuh, _producer.cuh, _blocks.cuh (block scales)
#include <algorithm>
#include <cstddef>
#include <iterator>
#include <type_traits>
#include <utility>

#include "base/arithmetic.h"
#include "cuda/device/launch.cuh"
#include "cuda/device/wgmma.cuh"
#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/gemm_decode_unswapped_sm90_blocks.cuh"
#include "cuda/gemm/gemm_decode_unswapped_sm90_plan.cuh"
#include "cuda/gemm/gemm_decode_unswapped_sm90_producer.cuh"
#include "cuda/gemm/gemm_sm90.h"

namespace koho::cuda {
namespace unswapped {
namespace {

template <TileType kType,
          int kRows,
          int kTileTokens,
          int kSlotWidth,
          int kWeightMulticast,
          int kCtasPerSm>
__global__ void __launch_bounds__(
    UnswappedPlan<kType, kRows, kTileTokens, kSlotWidth, kCtasPerSm>::kThreads, kCtasPerSm)
    gemm_decode_unswapped_kernel(const __grid_constant__ Gemm p,
                                 const __grid_constant__ WeightTensorMaps weight_maps,
                                 const __grid_constant__ CUtensorMap x_map,
                                 const UnswappedLaunch launch) {
  using Plan = UnswappedPlan<kType, kRows, kTileTokens, kSlotWidth, kCtasPerSm>;
  constexpr bool kWhole = Plan::kWhole;
  // Issues a stage's MMAs before it waits for the previous stage's, if registers have room.
  constexpr bool kOverlapsMma = kTileTokens == 64 && kSlotWidth == kStageWidth;
  constexpr int kCluster = kWeightMulticast * Plan::kTokenMulticast;
  constexpr int kTiles = Plan::kTiles;
  constexpr int kHalves = kStageWidth / kSlotWidth;
  extern __shared__ std::uint8_t unaligned[];
  std::uint8_t* shared = unaligned + (1024U - shared_address(unaligned) % 1024U) % 1024U;
  const std::uint32_t full = shared_address(shared);
  UnswappedRing<Plan::kSlots> ring{full, full + 8U * kRingSlotsMax,
                                   shared_address(shared) + Plan::kRingBegin};
  auto* first_scales = reinterpret_cast<float*>(shared + kBarrierBytes);
  float* row_scales = first_scales;
  float* bias = row_scales + kRows;

  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = warp_index();
  UnswappedCtaTile cta = UnswappedCtaTile::of<kRows, kWeightMulticast>(p, launch);
  const int stages = (p.width_bytes + kStageWidth - 1) / kStageWidth;
  if (warp == Plan::kWarps) {  // initialises the barriers and waits for no other warp of this CTA
    if (elect_one()) {
#pragma unroll
      for (int slot = 0; slot < Plan::kSlots; ++slot) {
        mbarrier_init(ring.full + 8U * static_cast<std::uint32_t>(slot), 1);
        mbarrier_init(ring.empty + 8U * static_cast<std::uint32_t>(slot),
                      static_cast<std::uint32_t>(Plan::kWarps * kCluster));
      }
      fence_mbarrier_init();
    }
    __syncwarp();
    named_barrier_arrive(2, Plan::kThreads);
  } else {
    named_barrier_sync(2, Plan::kThreads);
  }
  // NOTE: all warps arrive here and all wait: under compute-sanitizer an arrival waits for the
  // other warps.
  if constexpr (kCluster > 1) cluster_arrive();
  const int next_block = static_cast<int>(gridDim.x) * kRows;  // rows
  // NOTE: both CTAs of a pair take the same number of blocks. The last block may lie beyond the
  // matrix; its CTA then multiplies the last rows again and stores nothing.
  const int rows_end = p.rows + multicast_rank<Plan>() * kRows;

  if (warp >= Plan::kWarps) {  // ---- the producer warps
    const int k_tiles = stages * kHalves;
    if constexpr (kCluster > 1) cluster_wait();  // the other CTAs' barriers are ready
    if (elect_one()) {
      if (warp == Plan::kWarps) {
        do {
          copy_weights<Plan, kRows, kSlotWidth, kWeightMulticast>(p, weight_maps, cta, k_tiles,
                                                                  ring);
          cta.row += next_block;
        } while (Plan::kPersistent && cta.row < rows_end);
      } else {
        prefetch_tensor_map(&x_map);
        wait_on_dependent_grids();
        do {
          copy_tokens<Plan, kSlotWidth>(x_map, cta, launch, k_tiles, ring);
          cta.row += next_block;
        } while (Plan::kPersistent && cta.row < rows_end);
      }
    }
    return;  // NOTE: at once, or ptxas puts every copy into a loop over lanes
  }

  // ---- the MMA warps
  static_assert(kRows <= 32 * Plan::kWarps);
  const auto row_scale = [&](int n) {
    return kType == TileType::fp8 && n < p.rows ? p.row_scales[n] : 1.0F;
  };
  const auto row_bias = [&](int n) {
    return p.bias != nullptr && n < p.rows ? to_float(p.bias[n]) : kNoBias;
  };
  if (thread < kRows) {
    row_scales[thread] = row_scale(cta.row + thread);
    bias[thread] = row_bias(cta.row + thread);
  }
  wait_on_dependent_grids();
  if (launch.released_after < 0) launch_dependent_grids();
  if constexpr (kCluster > 1) cluster_wait();
  const int group = warp / 4 / Plan::kRowGroups * 64 + warp % 4 * kWarpTokens;  // of tokens
  const int group_row = warp / 4 % Plan::kRowGroups * Plan::kGroupRows;
  const int token = cta.token + group + lane / 4;    // and the eighth behind it
  const int tokens = cta.token + launch.cta_tokens;  // where this CTA's end
  float x_scales[2];
#pragma unroll
  for (int i = 0; i < 2; ++i)
    x_scales[i] =
        kType == TileType::fp8 && token + 8 * i < tokens ? p.x_scales[token + 8 * i] : 1.0F;

  [[maybe_unused]] const std::uint64_t policy =
      launch.evict_first ? evict_first_policy() : evict_normal_policy();
  // NOTE: a warp releases only slots that are filled again. Then each CTA of a cluster waits for
  // every arrival from another one, and may exit when it is done.
  const int blocks = Plan::kPersistent ? (rows_end - cta.row + next_block - 1) / next_block : 1;
  int wanted = blocks * stages * kHalves - Plan::kSlots;
  int oldest = 0;  // slot of the oldest MMAs that still read
  do {
    float next_scale = 1.0F;  // of the next block's rows
    float next_bias = 0.0F;
    if (Plan::kPersistent && thread < kRows) {
      next_scale = row_scale(cta.row + next_block + thread);
      next_bias = row_bias(cta.row + next_block + thread);
    }
    Sums<kTiles> sum = {};
    Sums<kWhole ? kTiles : 1> total = {};  // of the splits before
    {
      const std::uint64_t weights =
          core_matrix_descriptor(ring.slots + static_cast<std::uint32_t>(group_row * kSlotWidth),
                                 kTileChunk * 8, kSlotWidth * 8);
      const std::uint64_t rows = swizzle128_descriptor(
          ring.slots + static_cast<std::uint32_t>(Plan::kWeightBytes) +
          static_cast<std::uint32_t>(warp / 4 / Plan::kRowGroups * 64 * kTmaBoxBytes));
      // In a cluster lane i arrives at CTA i.
      const std::uint32_t theirs =
          kCluster > 1 ? map_shared_rank(ring.empty, static_cast<std::uint32_t>(lane % kCluster))
                       : ring.empty;
      const auto release = [&] {
        const std::uint32_t barrier = theirs + 8U * static_cast<std::uint32_t>(oldest);
        if constexpr (kCluster > 1) {
          if (lane < kCluster && wanted > 0) mbarrier_arrive_remote(barrier);
          --wanted;
        } else if (lane == 0) {
          mbarrier_arrive(barrier);
        }
        if (++oldest == Plan::kSlots) oldest = 0;
      };
      // Issues the MMAs of a slot.
      const auto issue = [&](Sums<kTiles>& partial, bool accumulate) {
        mbarrier_wait(ring.full_barrier(), ring.phase);
        const auto at = static_cast<std::uint32_t>(ring.slot * Plan::kSlot);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < kSlotWidth / kTileWidthStep; ++i)
          wgmma<kType, Plan::kGroupRows>(
              &partial[0][0],
              advance_descriptor(advance_descriptor(rows, at),
                                 static_cast<std::uint32_t>(i / 4 * kTmaBoxBytes * Plan::kTokens +
                                                            i % 4 * kTileWidthStep)),
              advance_descriptor(advance_descriptor(weights, at),
                                 static_cast<std::uint32_t>(i) * 256U),
              accumulate || i > 0 ? 1 : 0);
        wgmma_commit_group();
        ring.advance();
      };
      const auto issue_stage = [&](Sums<kTiles>& partial) {
#pragma unroll
        for (int half = 0; half < kHalves; ++half) issue(partial, half > 0);
      };
      int split = 1;
      int next_split = kWhole ? stages / p.split_k : 0;  // stage where the next split begins
      // Adds a stage's sums. Where a split begins, the previous split's sums go to the total.
      const auto add = [&](int stage, const Sums<kTiles>& partial) {
        if (kWhole && stage == next_split) {
          ++split;
          next_split = stages * split / p.split_k;
#pragma unroll
          for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              total[kWhole ? tile : 0][i] += sum[tile][i];
              sum[tile][i] = 0.0F;
            }
        }
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            sum[tile][i] += partial[tile][i];
            // NOTE: keeps ptxas from moving the additions behind the MMAs that are issued next.
            if (kOverlapsMma) asm volatile("" : "+f"(sum[tile][i]));
          }
      };
      int stage = 0;
      if constexpr (kType == TileType::fp8_block) {
        multiply_blocks<Plan, kSlotWidth>(p, cta.row, token, weights, rows, ring, release, sum,
                                          total);
      } else if constexpr (kChained<kType>) {
#pragma unroll 1
        for (int k_tile = 0; k_tile < stages * kHalves; ++k_tile) {
          issue(sum, true);
          wgmma_wait_group<0>();
          release();
        }
      } else if constexpr (kOverlapsMma) {
        Sums<kTiles> partials[2] = {};
        // Two stages, the first of which is issued already; if more follow, issues the next one
        // too.
        const auto run_two = [&](auto more) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            if (more || i == 0) {
              issue_stage(partials[1 - i]);
              wgmma_wait_group<kHalves>();
            } else {
              wgmma_wait_group<0>();
            }
#pragma unroll
            for (int half = 0; half < kHalves; ++half) release();
            add(stage++, partials[i]);
          }
        };
        if (stage < stages) {
          issue_stage(partials[0]);
#pragma unroll 1
          while (stage + 2 < stages) run_two(std::true_type{});  // NOTE: no condition on an issue
          if (stage + 1 < stages) {
            run_two(std::false_type{});
          } else {
            wgmma_wait_group<0>();
#pragma unroll
            for (int half = 0; Plan::kPersistent && half < kHalves; ++half) release();
            add(stage, partials[0]);
          }
        }
      } else {  // another warpgroup or CTA multiplies while this one adds
#pragma unroll 1
        for (; stage < stages; ++stage) {
          Sums<kTiles> partial;
          issue_stage(partial);
          if constexpr (kHalves > 1) {
            wgmma_wait_group<1>();
            release();
          }
          wgmma_wait_group<0>();
          release();
          add(stage, partial);
        }
      }
      if constexpr (kWhole) {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
          for (int i = 0; i < 4; ++i) sum[tile][i] = total[tile][i] + sum[tile][i];
      }
    }

    named_barrier_sync(1, 32 * Plan::kWarps);  // scales are there
    const auto scaled = [&](int tile, const float(&of)[4], float(&value)[4]) {
      const int row = group_row + tile * 8 + lane % 4 * 2;
      const float2 scales = *reinterpret_cast<const float2*>(row_scales + row);
      const float2 biases = *reinterpret_cast<const float2*>(bias + row);
#pragma unroll
      for (int j = 0; j < 4; ++j)
        value[j] = apply_scales<kType>(of[j], j % 2 == 0 ? scales.x : scales.y, x_scales[j / 2],
                                       j % 2 == 0 ? biases.x : biases.y);
    };
    // Stores up to four tiles in bf16, 16 bytes of a token's row per lane.
    const auto store_vectors = [&](int tile, int count, const float(&of)[4][4]) {
      std::uint32_t words[2][4] = {};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i >= count) break;
        float value[4];
        scaled(tile + i, of[i], value);
        words[0][i] = pack_bf16(value[0], value[1]);
        words[1][i] = pack_bf16(value[2], value[3]);
      }
      const int n = cta.row + (tile + lane % 4) * 8;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const uint4 eight = quad_transpose(words[j]);
        if (lane % 4 < count && n < p.rows && token + 8 * j < tokens)
          *reinterpret_cast<uint4*>(static_cast<Bf16*>(p.out) +
                                    static_cast<std::int64_t>(token + 8 * j) * p.out_stride + n) =
              eight;
      }
    };
    // Otherwise the sums pass through the free ring, so that the code for one element exists once:
    // unrolled beside every tile it took a microsecond.
    auto* left = reinterpret_cast<float4*>(shared + Plan::kRingBegin + warp * kTiles * kTileSums);
    const auto leave = [&](int tile, int count, const float(&of)[4][4]) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (i < count)
          left[(tile + i) * 32 + lane] = make_float4(of[i][0], of[i][1], of[i][2], of[i][3]);
    };
    const auto store_left = [&](int first, int end) {
#pragma unroll 1
      for (int tile = first; tile < end; ++tile) {
        const float4 four = left[tile * 32 + lane];
        float value[4];
        scaled(tile, {four.x, four.y, four.z, four.w}, value);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int n = cta.row + tile * 8 + lane % 4 * 2 + j % 2;
          if (n < p.rows && token + j / 2 * 8 < tokens)
            store_output(p, token + j / 2 * 8, n, value[j]);
        }
      }
    };
    const auto finish_all = [&](const auto& end_of) {
#pragma unroll
      for (int tile = 0; tile < kTiles; tile += 4) {
        float of[4][4] = {};
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j)
            if (tile + i < kTiles) of[i][j] = sum[tile + i < kTiles ? tile + i : 0][j];
        end_of(tile, std::min(4, kTiles - tile), of);
      }
    };
    if constexpr (Plan::kStaged) {
      // Through shared memory beside the ring, half of the rows at a time, so that no warp waits
      // for stores.
      float* staged =
          reinterpret_cast<float*>(shared + Plan::kRingBegin + Plan::kSlots * Plan::kSlot) +
          warp * kWarpTokens * Plan::kStagedRows;
#pragma unroll
      for (int first = 0; first < Plan::kGroupRows; first += Plan::kStagedRows) {
        bulk_store_wait_read();
        __syncwarp();
#pragma unroll
        for (int i = 0; i < Plan::kStagedRows / 8; ++i) {
          float value[4];
          scaled(first / 8 + i, sum[first / 8 + i], value);
#pragma unroll
          for (int j = 0; j < 2; ++j)
            *reinterpret_cast<float2*>(staged + (lane / 4 + 8 * j) * Plan::kStagedRows + i * 8 +
                                       lane % 4 * 2) = make_float2(value[2 * j], value[2 * j + 1]);
        }
        const int row = cta.row + group_row + first;
        const int rows = min(p.rows - row, Plan::kStagedRows);
        const int first_token = cta.token + group;
        if (launch.vector_stores) {
          fence_proxy_async_shared();
          __syncwarp();
          if (lane < kWarpTokens && first_token + lane < tokens && rows > 0)
            bulk_store(static_cast<float*>(p.out) + (first_token + lane) * p.out_stride + row,
                       shared_address(staged + lane * Plan::kStagedRows),
                       static_cast<std::uint32_t>(rows * 4), policy);
          bulk_store_commit();
        } else {
          __syncwarp();
          for (int i = 0; i < min(kWarpTokens, tokens - first_token); ++i)
            for (int n = lane; n < rows; n += 32)
              store_output(p, first_token + i, row + n, staged[i * Plan::kStagedRows + n]);
        }
      }
    } else if (launch.vector_stores) {
      finish_all(store_vectors);
    } else {
      finish_all(leave);
      store_left(0, kTiles);
    }
    if constexpr (Plan::kPersistent) {
      cta.row += next_block;
      row_scales = first_scales + (row_scales == first_scales ? Plan::kScales : 0);
      bias = row_scales + kRows;
      if (thread < kRows) {
        row_scales[thread] = next_scale;
        bias[thread] = next_bias;
      }
    }
  } while (Plan::kPersistent && cta.row < rows_end);
  if constexpr (Plan::kStaged) bulk_store_wait_read();  // before shared memory is another CTA's
}

template <TileType kType,
          int kRows,
          int kTileTokens,
          int kSlotWidth,
          int kWeightMulticast,
          int kCtasPerSm>
cudaError_t launch_config(const Gemm& p,
                          const WeightTensorMaps& weight_maps,
                          const CUtensorMap& x_map,
                          const DecodeGemmConfig& config,
                          cudaStream_t stream) {
  using Plan = UnswappedPlan<kType, kRows, kTileTokens, kSlotWidth, kCtasPerSm>;
  const auto kernel = gemm_decode_unswapped_kernel<kType, kRows, kTileTokens, kSlotWidth,
                                                   kWeightMulticast, kCtasPerSm>;
  static PerDevice prepared;
  const cudaError_t ready =
      prepared.once([&] { return allow_dynamic_shared_memory(kernel, kSharedMax); });
  if (ready != cudaSuccess) return ready;
  const auto out_bits = reinterpret_cast<std::uintptr_t>(p.out);
  const int all_token_blocks = num_token_blocks_of(config, p.tokens);
  const int token_blocks = all_token_blocks % 2 == 0 ? 2 : 1;  // along x
  constexpr bool bf16 = kType == TileType::bf16;
  constexpr int together = bf16 ? 4 : 8;  // elements in 16 bytes
  const UnswappedLaunch launch{
      .token_blocks = token_blocks,
      .cta_tokens = tokens_per_cta(config, p.tokens),
      .vector_stores = p.epilogue == (bf16 ? Epilogue::f32 : Epilogue::bf16) &&
                       p.rows % together == 0 && p.out_stride % together == 0 && out_bits % 16 == 0,
      .evict_first = std::int64_t{4} * p.tokens * p.rows > kEvictFirstBytes,
      .released_after = released_after<Plan>(kCtasPerSm, all_token_blocks)};
  int blocks = ceil_div(p.rows, kRows);
  // NOTE: persistent CTAs must store in vectors or staged, since the other way passes through the
  // ring.
  if ((Plan::kStaged || launch.vector_stores) && config.ctas > 0)
    blocks = std::min(blocks, config.ctas);
  blocks = round_up(blocks, Plan::kTokenMulticast);
  return launch_kernel(kernel,
                       {dim3(static_cast<unsigned>(blocks * token_blocks),
                             static_cast<unsigned>(all_token_blocks / token_blocks)),
                        dim3(Plan::kThreads), static_cast<std::size_t>(Plan::kLaunchBytes),
                        kWeightMulticast * Plan::kTokenMulticast},
                       stream, p, weight_maps, x_map, launch);
}

using Launcher = decltype(&launch_gemm_decode_unswapped_sm90);

template <std::size_t kIndex>
constexpr Launcher launcher_of() {
  constexpr UnswappedConfig of = kUnswappedConfigs[kIndex];
  return &launch_config<of.type, of.config.rows, of.config.columns, of.config.slot_width,
                        of.config.weight_multicast, of.config.ctas_per_sm>;
}

template <std::size_t... kIndices>
Launcher find_launcher(std::size_t index, std::index_sequence<kIndices...>) {
  constexpr Launcher launchers[] = {launcher_of<kIndices>()...};
  return launchers[index];
}

}  // namespace
}  // namespace unswapped

cudaError_t launch_gemm_decode_unswapped_sm90(const Gemm& p,
                                              const WeightTensorMaps& weight_maps,
                                              const CUtensorMap& x_map,
                                              const DecodeGemmConfig& config,
                                              cudaStream_t stream) {
  constexpr std::size_t kCount = std::size(kUnswappedConfigs);
  for (std::size_t i = 0; i < kCount; ++i) {
    const UnswappedConfig& of = kUnswappedConfigs[i];
    if (of.type != p.type || of.config.columns != config.columns ||
        of.config.slot_width != config.slot_width || of.config.rows != config.rows ||
        of.config.ctas_per_sm != config.ctas_per_sm ||
        of.config.weight_multicast != config.weight_multicast)
      continue;
    if (!supports(of, p) || (config.ctas != 0 && !is_persistent(config)))
      return cudaErrorInvalidValue;
    return unswapped::find_launcher(i, std::make_index_sequence<kCount>())(p, weight_maps, x_map,
                                                                           config, stream);
  }
  return cudaErrorInvalidValue;
}

const void* kernel_of::gemm_decode_unswapped_sm90() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
