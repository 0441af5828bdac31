// SPDX-License-Identifier: Apache-2.0
// The permutation, gather and combine of an expert layer (contract: Backend::experts; what each
// computes: expert_permutation.h). Which runs when: docs/kernels/experts.md.
//
//   permutation  a histogram of the chosen experts, its exclusive scan, then a row for each pair.
//                One CTA; for more than 4,096 pairs a cluster of 8, each with an eighth of them
//   gather       a warp per token and part of its row, read once, written for each local expert
//   combine      a CTA per token and 1,024 columns; from 512 tokens on a warp per 4 tokens and 256
//                columns. Sums in f32 in the order of a token's choices
//   bytes        bound by memory, but the permutation: by the latency of its chain
#include "base/arithmetic.h"
#include "cuda/device/launch.cuh"
#include "cuda/device/numeric.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/moe/block_scan.cuh"
#include "cuda/moe/expert_permutation.h"

namespace koho::cuda {
namespace {

constexpr int kPermutationThreads = 1024;
constexpr int kPermutationThreadsFew = 256;  // decode: barriers and scans of 8 warps, not 32
constexpr int kPermutationCluster = 8;       // CTAs, for many pairs
template <int kThreads>  // of the kernel of one CTA; more would take longer than the cluster
constexpr int kPairsPerThread = kThreads == kPermutationThreads ? 4 : 8;
constexpr int kCombineThreads = 128;

/// Token block `index` of the `token_blocks` of an expert whose `count` rows begin at `first_row`.
__device__ __forceinline__ ExpertTokenBlock token_block_of(
    const ExpertPermutation& p, int expert, int first_row, int count, int token_blocks, int index) {
  constexpr int kTogether = 4;  // token blocks that read the expert's weights at the same time
  if (token_blocks == 1) return {expert, first_row, count, 0, 1};
  const int steps = (count + p.block_tokens_step - 1) / p.block_tokens_step;
  const auto begin = [&](int i) {
    return min((steps / token_blocks * i + min(steps % token_blocks, i)) * p.block_tokens_step,
               count);
  };
  const int groups = (token_blocks + kTogether - 1) / kTogether;
  const int places = (token_blocks + groups - 1) / groups;
  const int place = index % places;
  return {expert, first_row + begin(index), begin(index + 1) - begin(index),
          static_cast<std::int16_t>(place),
          static_cast<std::int16_t>(min(places, token_blocks - index + place))};
}

__device__ __forceinline__ bool is_local(const ExpertPermutation& p, int expert) {
  return expert >= 0 && expert < p.count;
}

/// Rows and token blocks of the shared expert, which come before all others.
struct SharedExpert {
  int rows;
  int token_blocks;
};
__device__ __forceinline__ SharedExpert shared_expert(const ExpertPermutation& p) {
  const int rows = p.shared ? static_cast<int>(p.tokens) : 0;
  return {rows, ceil_div(rows, p.block_tokens)};
}

/// Lists the shared expert's rows and blocks; all CTAs take part. Loops stay rolled: few run twice.
__device__ __forceinline__ void list_shared(const ExpertPermutation& p,
                                            const SharedExpert& shared) {
  const int step = static_cast<int>(gridDim.x * blockDim.x);
  const int first = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
#pragma unroll 1
  for (int i = first; i < shared.token_blocks; i += step)
    p.token_blocks[i] = token_block_of(p, p.count, 0, shared.rows, shared.token_blocks, i);
#pragma unroll 1
  for (int i = first; i < shared.rows; i += step) p.rows[i] = i;
#pragma unroll 1
  for (int i = first; i < p.rows_stored_count; i += step) p.rows_stored[i] = 0;
}

/// Lists the token blocks of expert threadIdx.x, which `count` pairs chose; returns its first
/// permuted row. Several CTAs share an expert's token blocks out among them.
template <int kThreads>
__device__ __forceinline__ int list_token_blocks(const ExpertPermutation& p,
                                                 const SharedExpert& shared,
                                                 int count) {
  const int expert = static_cast<int>(threadIdx.x);
  const int block = static_cast<int>(blockIdx.x);
  // Most experts have one token block: no division for these.
  const int token_blocks =
      count <= p.block_tokens ? (count > 0 ? 1 : 0) : ceil_div(count, p.block_tokens);
  OffsetSum total;
  const OffsetSum before = block_scan<kThreads>(
      static_cast<OffsetSum>(count) | static_cast<OffsetSum>(token_blocks) << 32U, total);
  const int first_row = shared.rows + static_cast<int>(before & 0xFFFFFFFFU);
  const int first_block = shared.token_blocks + static_cast<int>(before >> 32U);
#pragma unroll 1
  for (int i = block; i < token_blocks; i += static_cast<int>(gridDim.x))
    p.token_blocks[first_block + i] = token_block_of(p, expert, first_row, count, token_blocks, i);
  if (block == 0 && expert == 0) {
    *p.row_count = shared.rows + static_cast<int>(total & 0xFFFFFFFFU);
    *p.token_block_count = shared.token_blocks + static_cast<int>(total >> 32U);
  }
  return first_row;
}

/// Few pairs, one CTA. The count that atomicAdd returns for a pair is its place among its expert's
/// rows, so the kernel reads each id once.
template <int kThreads>
__global__ void __launch_bounds__(kThreads) expert_permutation_kernel(const ExpertPermutation p) {
  __shared__ int counts[kThreads];
  __shared__ int first_rows[kThreads];
  const int thread = static_cast<int>(threadIdx.x);
  const int pairs = static_cast<int>(p.tokens) * p.top_k;
  const int top_k = max(p.top_k, 1);
  const SharedExpert shared = shared_expert(p);
  // This thread's first pair; its next one is token_step and choice_step further.
  int token = thread / top_k;
  int choice = thread % top_k;
  const int token_step = kThreads / top_k;
  const int choice_step = kThreads % top_k;
  if (p.releases_at_once) launch_dependent_grids();
  counts[thread] = 0;
  __syncthreads();
  pdl_begin();
  int experts[kPairsPerThread<kThreads>];
  int places[kPairsPerThread<kThreads>];
  // NOTE: no id is used in this loop, so that all loads are in flight at once.
#pragma unroll
  for (int i = 0; i < kPairsPerThread<kThreads>; ++i) {
    if (i * kThreads >= pairs) break;
    experts[i] = p.ids[min(thread + i * kThreads, pairs - 1)];
  }
  list_shared(p, shared);
#pragma unroll
  for (int i = 0; i < kPairsPerThread<kThreads>; ++i) {
    if (i * kThreads >= pairs) break;
    experts[i] = thread + i * kThreads < pairs ? experts[i] - p.first : -1;
    places[i] = is_local(p, experts[i]) ? atomicAdd(&counts[experts[i]], 1) : 0;
  }
  __syncthreads();
  first_rows[thread] = list_token_blocks<kThreads>(p, shared, counts[thread]);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kPairsPerThread<kThreads>; ++i) {
    const int pair = thread + i * kThreads;
    if (pair >= pairs) break;
    const int row = is_local(p, experts[i]) ? first_rows[experts[i]] + places[i] : -1;
    if (row >= 0) p.rows[row] = token;
    p.permuted_row[pair] = row;
    token += token_step;
    choice += choice_step;
    if (choice >= top_k) {
      choice -= top_k;
      ++token;
    }
  }
}

/// Calls `run` with each of this CTA's pairs and its local expert; keeps several loads in flight.
template <typename Run>
__device__ __forceinline__ void for_each_pair(const ExpertPermutation& p,
                                              int first,
                                              int end,
                                              const Run& run) {
  constexpr int kPrefetch = 8;
  for (int begin = first + static_cast<int>(threadIdx.x); begin < end;
       begin += kPrefetch * kPermutationThreads) {
    int experts[kPrefetch];
#pragma unroll
    for (int i = 0; i < kPrefetch; ++i)
      experts[i] = begin + i * kPermutationThreads < end
                       ? p.ids[begin + i * kPermutationThreads] - p.first
                       : 0;
#pragma unroll
    for (int i = 0; i < kPrefetch; ++i)
      if (begin + i * kPermutationThreads < end) run(begin + i * kPermutationThreads, experts[i]);
  }
}

/// Many pairs, one cluster. Each CTA counts its eighth of the pairs, reads the other CTAs' counts
/// through distributed shared memory and places its pairs behind those of lower CTAs.
__global__ void __launch_bounds__(kPermutationThreads)
    expert_permutation_cluster_kernel(const ExpertPermutation p) {
  __shared__ int counts[kExpertsMax];
  __shared__ int next[kExpertsMax];
  const int thread = static_cast<int>(threadIdx.x);
  const int block = static_cast<int>(blockIdx.x);
  const int pairs = static_cast<int>(p.tokens) * p.top_k;
  const int each = ceil_div(pairs, kPermutationCluster);
  const int begin = min(block * each, pairs);
  const int end = min(begin + each, pairs);
  if (thread < p.count) counts[thread] = 0;
  __syncthreads();
  pdl_begin();
  for_each_pair(p, begin, end, [&](int, int expert) {
    if (is_local(p, expert)) atomicAdd(&counts[expert], 1);
  });
  const SharedExpert shared = shared_expert(p);
  list_shared(p, shared);
  __syncthreads();
  cluster_sync();
  int count = 0;   // of all CTAs
  int before = 0;  // of those before this one
  if (thread < p.count)
    for (int i = 0; i < kPermutationCluster; ++i) {
      const int other = static_cast<int>(
          cluster_load_word(shared_address(&counts[thread]), static_cast<std::uint32_t>(i)));
      if (i < block) before += other;
      count += other;
    }
  const int first_row = list_token_blocks<kPermutationThreads>(p, shared, count);
  if (thread < p.count) next[thread] = first_row + before;
  __syncthreads();
  for_each_pair(p, begin, end, [&](int i, int expert) {
    const bool local = is_local(p, expert);
    const int row = local ? atomicAdd(&next[expert], 1) : -1;
    if (local) p.rows[row] = i / p.top_k;
    p.permuted_row[i] = row;
  });
  __syncwarp();
  cluster_sync();  // NOTE: no CTA may exit while another reads its counts
}

/// A warp takes a token and part of its row, reads it once and writes it for each of the token's
/// local experts. All loads of 16 bytes a lane are in flight at once. The last of a row may read
/// beyond its end, within the stride. Block scales are copied by the warp of the row's first part.
constexpr int kGatherSteps = 8;
template <bool kBlockScales>
__global__ void __launch_bounds__(kCombineThreads) expert_gather_kernel(const ExpertGather p) {
  pdl_begin();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t token = blockIdx.x * (kCombineThreads / 32) + threadIdx.x / 32;
  if (token >= p.tokens) return;
  const int pieces_all = (p.row_bytes + 15) / 16;
  const int each = (pieces_all + static_cast<int>(gridDim.y) - 1) / static_cast<int>(gridDim.y);
  const int first_piece = static_cast<int>(blockIdx.y) * each;
  const int pieces = min(pieces_all - first_piece, each);
  const auto* from =
      reinterpret_cast<const uint4*>(p.x + token * p.x_stride_bytes) + first_piece + lane;
  const float scale = kBlockScales ? 0.0F : p.x_scales[token];
  const int places = p.top_k + (p.shared ? 1 : 0);
  uint4 part[kGatherSteps];
#pragma unroll
  for (int i = 0; i < kGatherSteps; ++i)
    if (lane + i * 32 < pieces) part[i] = from[i * 32];
  for (int first = 0; first < places; first += 32) {
    const int choice = first + lane;
    int mine = choice == p.top_k && p.shared ? static_cast<int>(token) : -1;
    if (choice < p.top_k) mine = p.permuted_row[token * p.top_k + choice];
    if (!kBlockScales && mine >= 0 && blockIdx.y == 0) p.out_scales[mine] = scale;
    for (int i = 0; i < min(32, places - first); ++i) {
      const int row = __shfl_sync(0xFFFFFFFFU, mine, i);
      if (row < 0) continue;
      auto* to = reinterpret_cast<uint4*>(p.out + row * p.out_stride_bytes) + first_piece + lane;
#pragma unroll
      for (int k = 0; k < kGatherSteps; ++k)
        if (lane + k * 32 < pieces) to[k * 32] = part[k];
      if (kBlockScales && blockIdx.y == 0)
        for (int block = lane; block < p.row_scales; block += 32)
          p.out_scales[static_cast<std::int64_t>(row) * p.row_scales + block] =
              p.x_scales[token * p.x_scales_stride + block];
    }
  }
}

/// Eight columns of a row as they lie in memory; `width` of them where rows are not aligned.
struct EightColumns {
  uint4 raw;

  __device__ __forceinline__ void load(const Bf16* from, bool vector, int width) {
    if (vector) {
      raw = *reinterpret_cast<const uint4*>(from);
      return;
    }
    std::uint32_t words[4] = {};
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (i < width) words[i / 2] |= static_cast<std::uint32_t>(from[i]) << (i % 2 * 16);
    raw = make_uint4(words[0], words[1], words[2], words[3]);
  }
  __device__ __forceinline__ float operator[](int i) const {
    const std::uint32_t word = i < 2 ? raw.x : i < 4 ? raw.y : i < 6 ? raw.z : raw.w;
    return __uint_as_float(i % 2 == 0 ? word << 16 : word & 0xFFFF0000U);
  }
};

/// The combine of few tokens, eight of a token's experts at a time. The kernel finds their rows
/// before it waits for its predecessor, then loads all of them at once.
__global__ void __launch_bounds__(kCombineThreads) expert_combine_kernel(const ExpertCombine p) {
  constexpr int kVector = 8;
  constexpr int kSlots = 8;
  constexpr int kLanesOfLine = 128 / (kVector * sizeof(Bf16));
  const std::int64_t token = blockIdx.y;
  const int column =
      (static_cast<int>(blockIdx.x) * kCombineThreads + static_cast<int>(threadIdx.x)) * kVector;
  std::int64_t rows[kSlots];
  float weights[kSlots];
  const auto find = [&](int first) {
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      const int choice = first + i;
      rows[i] = -1;
      weights[i] = 0.0F;
      if (choice >= p.top_k) continue;
      weights[i] = p.weights[token * p.top_k + choice];
      if (p.permuted_row != nullptr) {
        rows[i] = p.permuted_row[token * p.top_k + choice];
      } else {
        const std::int64_t pair = token * p.top_k + choice;
        const int expert = p.ids[pair] - p.first;
        if (expert >= 0 && expert < p.count) rows[i] = p.first_row + pair;
      }
    }
  };
  // NOTE: read before the wait: the routing and the permutation are older than the predecessor.
  find(0);
  pdl_begin();
  if (column >= p.hidden) return;
  const int width = min(kVector, p.hidden - column);
  const bool vector = width == kVector && p.hidden % kVector == 0;
  EightColumns shared{};
  if (p.shared != nullptr) shared.load(p.shared + token * p.hidden + column, vector, width);
  float sum[kVector] = {};
  for (int first = 0; first < p.top_k; first += kSlots) {
    if (first > 0) find(first);
    EightColumns y[kSlots];
#pragma unroll
    for (int i = 0; i < kSlots; ++i)
      if (rows[i] >= 0) y[i].load(p.y + rows[i] * p.hidden + column, vector, width);
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      if (rows[i] < 0) continue;
#pragma unroll
      for (int k = 0; k < kVector; ++k) sum[k] += weights[i] * y[i][k];
    }
    if (!p.discards) continue;
    __syncwarp();  // all lanes have read
    if (threadIdx.x % kLanesOfLine != 0) continue;
#pragma unroll
    for (int i = 0; i < kSlots; ++i)
      if (rows[i] >= 0) discard_line(p.y + rows[i] * p.hidden + column);
  }
  if (p.shared != nullptr) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum[i] = round_bf16(sum[i]) + shared[i];
    if (p.discards) {
      __syncwarp();
      if (threadIdx.x % kLanesOfLine == 0) discard_line(p.shared + token * p.hidden + column);
    }
  }
  Bf16* out = p.out + token * p.hidden + column;
  if (vector) {
    *reinterpret_cast<uint4*>(out) =
        make_uint4(pack_bf16(sum[0], sum[1]), pack_bf16(sum[2], sum[3]), pack_bf16(sum[4], sum[5]),
                   pack_bf16(sum[6], sum[7]));
  } else {
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      if (i < width) out[i] = to_bf16(sum[i]);
  }
}

/// The combine of many tokens. A warp takes kManyTogether tokens and 256 columns and keeps eight
/// rows in flight, whichever of its tokens they belong to: with experts on several ranks a token
/// has few local rows, and loading one token's at a time would leave memory idle.
constexpr int kManyTogether = 4;
constexpr int kManyChoices = 32 / kManyTogether;
__global__ void __launch_bounds__(kCombineThreads)
    expert_combine_many_kernel(const ExpertCombine p) {
  constexpr int kVector = 8;
  constexpr int kRows = 8;  // in flight at once
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.y) * kManyTogether;
  const int tokens =
      static_cast<int>(min(static_cast<std::int64_t>(kManyTogether), p.tokens - first));
  const int column =
      (static_cast<int>(blockIdx.x) * kCombineThreads + static_cast<int>(threadIdx.x)) * kVector;
  // A lane's choice: choice lane % kManyChoices of token lane / kManyChoices.
  // NOTE: read before the wait: the routing and the permutation are older than the predecessor.
  const std::int64_t choice = (first + lane / kManyChoices) * p.top_k + lane % kManyChoices;
  const bool chosen = lane / kManyChoices < tokens && lane % kManyChoices < p.top_k;
  const int permuted_row = chosen ? p.permuted_row[choice] : -1;
  const float weight_of = chosen ? p.weights[choice] : 0.0F;
  unsigned left = __ballot_sync(0xFFFFFFFFU, permuted_row >= 0);
  pdl_begin();
  const bool here = column < p.hidden;
  const Bf16* from = p.y + (here ? column : 0);
  EightColumns shared[kManyTogether] = {};
  if (p.shared != nullptr && here) {
#pragma unroll
    for (int i = 0; i < kManyTogether; ++i)
      if (i < tokens) shared[i].load(p.shared + (first + i) * p.hidden + column, true, kVector);
  }
  float sum[kVector] = {};
  int token = 0;
  const auto finish = [&] {
    if (p.shared != nullptr) {
      EightColumns of = shared[0];
#pragma unroll
      for (int i = 1; i < kManyTogether; ++i)
        if (i == token) of = shared[i];
#pragma unroll
      for (int i = 0; i < kVector; ++i) sum[i] = round_bf16(sum[i]) + of[i];
    }
    if (here)
      *reinterpret_cast<uint4*>(p.out + (first + token) * p.hidden + column) =
          make_uint4(pack_bf16(sum[0], sum[1]), pack_bf16(sum[2], sum[3]),
                     pack_bf16(sum[4], sum[5]), pack_bf16(sum[6], sum[7]));
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum[i] = 0.0F;
    ++token;
  };
  while (left != 0) {
    EightColumns y[kRows];
    unsigned pending = left;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (pending == 0) break;
      const int place = __ffs(static_cast<int>(pending)) - 1;
      pending &= pending - 1;
      const std::int64_t row = __shfl_sync(0xFFFFFFFFU, permuted_row, place);
      y[i].load(from + row * p.hidden, true, kVector);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (left == 0) break;
      const int place = __ffs(static_cast<int>(left)) - 1;
      left &= left - 1;
      while (token < place / kManyChoices) finish();
      const float weight = __shfl_sync(0xFFFFFFFFU, weight_of, place);
#pragma unroll
      for (int k = 0; k < kVector; ++k) sum[k] += weight * y[i][k];
    }
  }
  while (token < tokens) finish();
}

__global__ void __launch_bounds__(kCombineThreads)
    dense_expert_rows_kernel(const DenseExpertRows p) {
  pdl_begin();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kCombineThreads + threadIdx.x;
  if (i >= p.tokens * p.top_k) return;
  const int expert = p.ids[i] - p.first;
  const bool local = expert >= 0 && expert < p.count;
  p.permuted_row[i] = local ? expert * p.rows_each + static_cast<int>(i / p.top_k) : -1;
}

}  // namespace

cudaError_t launch_dense_expert_rows(const DenseExpertRows& p, cudaStream_t stream) {
  const std::int64_t blocks = (p.tokens * p.top_k + kCombineThreads - 1) / kCombineThreads;
  return launch_kernel(dense_expert_rows_kernel,
                       {dim3(static_cast<unsigned>(blocks)), dim3(kCombineThreads)}, stream, p);
}

std::int64_t expert_token_blocks_max(std::int64_t tokens, int top_k, int count, int block_tokens) {
  return (tokens + block_tokens - 1) / block_tokens + tokens * top_k / block_tokens + count + 1;
}

cudaError_t launch_expert_permutation(const ExpertPermutation& p, cudaStream_t stream) {
  if (p.count > kExpertsMax) return cudaErrorInvalidValue;
  const std::int64_t pairs = p.tokens * p.top_k;
  constexpr int kFew = kPermutationThreadsFew, kAll = kPermutationThreads;
  if (pairs <= kPairsPerThread<kFew> * kFew && p.count <= kFew)
    return launch_kernel(expert_permutation_kernel<kFew>, {dim3(1), dim3(kFew)}, stream, p);
  if (pairs <= kPairsPerThread<kAll> * kAll)
    return launch_kernel(expert_permutation_kernel<kAll>, {dim3(1), dim3(kAll)}, stream, p);
  return launch_kernel(
      expert_permutation_cluster_kernel,
      {dim3(kPermutationCluster), dim3(kPermutationThreads), 0, kPermutationCluster}, stream, p);
}

cudaError_t launch_expert_gather(const ExpertGather& p, cudaStream_t stream) {
  constexpr std::int64_t kRows = kCombineThreads / 32;
  constexpr int kPartBytes = 16 * 32 * kGatherSteps;
  return launch_kernel(
      p.x_scales_stride > 0 ? expert_gather_kernel<true> : expert_gather_kernel<false>,
      {dim3(static_cast<unsigned>((p.tokens + kRows - 1) / kRows),
            static_cast<unsigned>((p.row_bytes + kPartBytes - 1) / kPartBytes)),
       dim3(kCombineThreads)},
      stream, p);
}

cudaError_t launch_expert_combine(const ExpertCombine& p, cudaStream_t stream) {
  constexpr std::int64_t kMany = 512;  // tokens
  const int columns = kCombineThreads * 8;
  if (p.tokens >= kMany && p.permuted_row != nullptr && p.top_k <= kManyChoices &&
      p.hidden % 8 == 0)
    return launch_kernel(
        expert_combine_many_kernel,
        {dim3(static_cast<unsigned>((p.hidden + columns - 1) / columns),
              static_cast<unsigned>((p.tokens + kManyTogether - 1) / kManyTogether)),
         dim3(kCombineThreads)},
        stream, p);
  return launch_kernel(expert_combine_kernel,
                       {dim3(static_cast<unsigned>((p.hidden + columns - 1) / columns),
                             static_cast<unsigned>(p.tokens)),
                        dim3(kCombineThreads)},
                       stream, p);
}

const void* kernel_of::experts() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
