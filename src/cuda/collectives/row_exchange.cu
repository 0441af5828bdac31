// SPDX-License-Identifier: Apache-2.0
// launch_push_rows(), launch_row_barrier(), launch_combine_rows() and launch_mask_ids().
//
// mapping  push: a CTA copies one row, or kChunkBytes of it, to one receiver, 16 bytes a thread
//          where everything is aligned so, else 4. Barrier: one warp, a lane a peer. Combine: a CTA
//          a row, a thread a vector of 8 elements, which it reads from all ranks at once.
// bytes    push: each row once over the link to each receiver; combine: the results of a row once
//          from each receiver
// order    the barrier's release at system scope covers what the kernels before it stored: they
//          have ended when it begins. Data is read past L1 (__ldcg, system loads), which may hold
//          what a kernel read there before.
#include <algorithm>

#include "cuda/collectives/exchange.cuh"
#include "cuda/collectives/row_exchange.h"
#include "cuda/device/launch.cuh"
#include "cuda/device/numeric.cuh"
#include "cuda/device/ptx.cuh"

namespace koho::cuda {
namespace {

constexpr int kPushThreads = 256;
constexpr std::int64_t kChunkBytes = 16 << 10;
constexpr int kCombineThreads = 256;

/// Whether a row with these ids goes to `rank`.
__device__ __forceinline__ bool goes_to(const std::int32_t* ids,
                                        int choices,
                                        std::int64_t ids_per_rank,
                                        int rank) {
  bool goes = false;
  for (int i = 0; i < choices; ++i) {
    const std::int32_t id = ids[i];
    goes = goes || (id >= 0 && (ids_per_rank == 0 || id / ids_per_rank == rank));
  }
  return goes;
}

template <typename Word>
__device__ __forceinline__ void copy_words(std::uint8_t* to,
                                           const std::uint8_t* from,
                                           std::int64_t bytes) {
  const auto* source = reinterpret_cast<const Word*>(from);
  auto* target = reinterpret_cast<Word*>(to);
  for (std::int64_t i = threadIdx.x; i < bytes / static_cast<std::int64_t>(sizeof(Word));
       i += kPushThreads)
    target[i] = __ldcg(source + i);
}

__global__ void __launch_bounds__(kPushThreads)
    push_rows_kernel(const __grid_constant__ PushRows p) {
  pdl_begin();
  const int receiver = static_cast<int>((blockIdx.y + static_cast<unsigned>(p.first_receiver)) %
                                        static_cast<unsigned>(p.receiver_count));
  std::int64_t row = blockIdx.x;
  std::int64_t to_row = row;
  if (p.pattern == RowPattern::owners) {
    row += receiver * p.each;
    if (static_cast<std::int64_t>(blockIdx.x) >= p.each || row >= p.rows) return;
  }
  const bool routed = p.pattern == RowPattern::routed;
  const std::int32_t* const ids = routed ? p.ids + row * p.choices : nullptr;
  const bool goes = !routed || goes_to(ids, p.choices, p.ids_per_rank, receiver);
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.z) * kChunkBytes;
  for (int i = 0; i < p.tensor_count; ++i) {
    const RowTensor& tensor = p.tensors[i];
    const std::uint8_t* const from = tensor.from + row * tensor.from_stride + begin;
    std::uint8_t* const to = p.receivers[receiver] + tensor.to + to_row * tensor.to_stride + begin;
    const std::int64_t bytes = min(kChunkBytes, tensor.row_bytes - begin);
    if (bytes <= 0) continue;
    if (routed && tensor.from == reinterpret_cast<const std::uint8_t*>(p.ids)) {
      const auto choice = static_cast<int>(threadIdx.x);
      if (choice < p.choices) {
        const std::int32_t id = ids[choice];
        const bool held = id >= 0 && (p.ids_per_rank == 0 || id / p.ids_per_rank == receiver);
        reinterpret_cast<std::int32_t*>(to)[choice] = held ? id : -1;
      }
      continue;
    }
    if (!goes) continue;
    const std::uint64_t bits = reinterpret_cast<std::uint64_t>(from) |
                               reinterpret_cast<std::uint64_t>(to) |
                               static_cast<std::uint64_t>(bytes);
    if (bits % 16 == 0)
      copy_words<uint4>(to, from, bytes);
    else
      copy_words<std::uint32_t>(to, from, bytes);
  }
}

__global__ void __launch_bounds__(32)
    row_barrier_kernel(const __grid_constant__ PeerGroup group, int barrier) {
  wait_on_dependent_grids();
  std::uint8_t* const own = group.buffers[group.rank];
  auto* const header = reinterpret_cast<ExchangeHeader*>(own);
  const std::uint32_t epoch = load_system_word(&header->barrier_epochs[barrier]) + 1;
  const int peer = static_cast<int>(threadIdx.x);
  bool aborted = false;
  __syncwarp();
  if (peer < group.layout.ranks && peer != group.rank) {
    fence_system();
    auto* const there = reinterpret_cast<ExchangeHeader*>(group.buffers[peer]);
    store_system_word(&there->barrier_flags[barrier][group.loopback ? peer : group.rank], epoch);
    SpinWait wait{group, ExchangePhase::row_barrier, epoch, 0, aborted};
    while (static_cast<std::int32_t>(load_system_word(&header->barrier_flags[barrier][peer]) -
                                     epoch) < 0)
      if (wait.must_abort([&] { return peer; })) break;
    fence_system();
  }
  __syncwarp();
  if (threadIdx.x == 0) store_system_word(&header->barrier_epochs[barrier], epoch);
}

__global__ void __launch_bounds__(kCombineThreads)
    combine_rows_kernel(const __grid_constant__ CombineRows p) {
  pdl_begin();
  const std::int64_t row = blockIdx.x;
  const std::int32_t* const ids = p.ids + row * p.choices;
  unsigned receivers = 0;
  for (int rank = 0; rank < p.ranks; ++rank)
    if (goes_to(ids, p.choices, p.ids_per_rank, rank)) receivers |= 1U << rank;
  const std::int64_t offset = row * p.width * 2;
  for (std::int64_t vector = threadIdx.x; vector < p.width / 8; vector += kCombineThreads) {
    uint4 parts[kCollectiveRanksMax];
#pragma unroll
    for (int rank = 0; rank < kCollectiveRanksMax; ++rank)
      if ((receivers >> rank & 1U) != 0)
        parts[rank] = load_system(reinterpret_cast<std::uint64_t>(p.results[rank] + offset) +
                                  16 * static_cast<std::uint64_t>(vector));
    Accumulator sums;
#pragma unroll
    for (int rank = 0; rank < kCollectiveRanksMax; ++rank)
      if ((receivers >> rank & 1U) != 0) sums.add(parts[rank]);
    auto* const out = reinterpret_cast<uint4*>(p.out + row * p.width) + vector;
    Accumulator total;
    total.add(*out);
    total.add(sums.rounded());
    *out = total.rounded();
  }
}

__global__ void __launch_bounds__(kPushThreads) mask_ids_kernel(std::int32_t* ids,
                                                                std::int64_t elements,
                                                                std::int64_t first,
                                                                std::int64_t count) {
  pdl_begin();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kPushThreads + threadIdx.x;
  if (i < elements && (ids[i] < first || ids[i] >= first + count)) ids[i] = -1;
}

}  // namespace

cudaError_t launch_push_rows(const PushRows& push, cudaStream_t stream) {
  if (push.rows == 0 || push.tensor_count == 0) return cudaSuccess;
  std::int64_t row_bytes = 0;
  for (int i = 0; i < push.tensor_count; ++i) {
    const RowTensor& tensor = push.tensors[i];
    if ((reinterpret_cast<std::uint64_t>(tensor.from) |
         static_cast<std::uint64_t>(tensor.from_stride | tensor.row_bytes | tensor.to |
                                    tensor.to_stride)) %
            4 !=
        0)
      return cudaErrorInvalidValue;
    row_bytes = std::max(row_bytes, tensor.row_bytes);
  }
  if (push.tensor_count > kRowTensorsMax || push.choices > kPushThreads ||
      push.receiver_count < 1 || push.receiver_count > kCollectiveRanksMax)
    return cudaErrorInvalidValue;
  const std::int64_t rows = push.pattern == RowPattern::owners ? push.each : push.rows;
  const std::int64_t chunks = (row_bytes + kChunkBytes - 1) / kChunkBytes;
  if (rows > INT32_MAX || chunks > 65'535) return cudaErrorInvalidValue;
  return launch_kernel(
      push_rows_kernel,
      {dim3(static_cast<unsigned>(rows), static_cast<unsigned>(push.receiver_count),
            static_cast<unsigned>(chunks)),
       dim3(kPushThreads)},
      stream, push);
}

cudaError_t launch_row_barrier(const PeerGroup& group, int barrier, cudaStream_t stream) {
  if (barrier < 0 || barrier >= kRowBarriers) return cudaErrorInvalidValue;
  return launch_kernel(row_barrier_kernel, {dim3(1), dim3(32)}, stream, group, barrier);
}

cudaError_t launch_combine_rows(const CombineRows& combine, cudaStream_t stream) {
  if (combine.rows == 0) return cudaSuccess;
  if (combine.width % 8 != 0 || combine.rows > INT32_MAX || combine.ranks > kCollectiveRanksMax)
    return cudaErrorInvalidValue;
  return launch_kernel(combine_rows_kernel,
                       {dim3(static_cast<unsigned>(combine.rows)), dim3(kCombineThreads)}, stream,
                       combine);
}

cudaError_t launch_mask_ids(std::int32_t* ids,
                            std::int64_t elements,
                            std::int64_t first,
                            std::int64_t count,
                            cudaStream_t stream) {
  if (elements == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>((elements + kPushThreads - 1) / kPushThreads);
  return launch_kernel(mask_ids_kernel, {dim3(blocks), dim3(kPushThreads)}, stream, ids, elements,
                       first, count);
}

const void* kernel_of::row_exchange() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
