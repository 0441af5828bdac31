// SPDX-License-Identifier: Apache-2.0
// launch_all_reduce_norm() and launch_all_reduce(), and the kernels that reset and abort a group.
//
// mapping  fused: a CTA is a channel (exchange.cuh) and takes rows blockIdx.x, + gridDim.x, ...; a
//          thread holds the same vectors of 8 elements as in norm.cu from the addend to the last
//          output, so the norm's bits are norm.cu's. Plain: the message is cut into rows of one
//          vector a thread. The next row's addends are loaded while a row is exchanged, and sent
//          before the row is normalised. Few rows, fused and one-shot: a row has a cluster
//          of its own (all_reduce_few_kernel), with all addresses computed before the wait for the
//          previous kernel, the residual loaded before the row is sent, and slots reset last.
// shared   2.4 KiB static: maxima and sums of warps; a cluster: a row more, for its sums
// bytes    a rank sends (n-1) * S one-shot, 2 (n-1)/n * S two-shot, S = 2 bytes an element, over
//          the link; it reads S; fused, it also reads and writes the residual and writes the
//          outputs. Arrived data is read and reset in L2: channels are few and reuse their slots.
// floor    one link latency t one-shot, two two-shot, + bytes sent / link bandwidth; t is half a
//          flag's round trip, which collectives_bench measures (--only link)
// numbers  rows of 5,120, fused with FP8 output, us (collectives_bench --only times, 2026-11-26):
//            4 H200s, NVLink   1 row 3.6   8 rows 4.6   16 rows 5.4   64 rows 7.7   256 rows 17
//            2 H200s, NVLink         3.4                        4.7           6.2            12
//          Of 4, up to 24 rows one-shot by clusters, beyond two-shot; of 2, one-shot
// checked  all_reduce_kernel: 2, 4 and 8 ranks on one and on two H100s, 4 on 4 H200s, every case,
//          and 8,000 calls back to back, bit-equal to the sum in rank order; also processes with
//          cudaIpc. all_reduce_few_kernel: on 4 H200s 10^5 calls and communicator_test, but before
//          wide rows were kept from it, over which the cases hung; all cases since on one H200, in
//          loopback and with ranks that share it. A rank that never comes or leaves, and a host
//          that aborts, end all waits within 0.05 to 0.2 s
// waits    each has a timeout (exchange.cuh). CTAs of one grid do not wait for each other, but the
//          first of a cluster for the others, which run when it does; and all CTAs of a grid are
//          resident: there are no more than the GPU holds at once.
#include <algorithm>

#include "cuda/collectives/all_reduce_norm.h"
#include "cuda/collectives/all_reduce_row.cuh"
#include "cuda/collectives/exchange.cuh"
#include "cuda/device/launch.cuh"
#include "cuda/device/numeric.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/rows/row_epilogue.cuh"

namespace koho::cuda {
namespace {

constexpr int kPlainThreads = 512;  // a CTA of the plain kernel at most: its widest row in a slot
constexpr unsigned kFewThreads = 640;  // a CTA of all_reduce_few_kernel at most: its widest row
constexpr int kClusterMax = 8;

/// CTAs an SM that a kernel's registers allow: two of up to 640 threads, unless a thread loads the
/// addends of 8 ranks at once.
template <int kRanks, bool kOneShot, int kThreads>
constexpr int kCtasPerSm = kThreads > 640 || (kOneShot && kRanks > 4) ? 1 : 2;

template <int kRanks, bool kOneShot, bool kNorm, int kThreads, int kSteps, int kCtas, int kTogether>
__global__ void __launch_bounds__(kThreads, kCtas)
    all_reduce_kernel(const __grid_constant__ AllReduceParams p) {
  __shared__ RowScratch scratch;
  __shared__ alignas(16) float sums[2][32];  // by parity of the row's number in this CTA
  Channel<kRanks, kOneShot, kSteps, kTogether> channel(p.group, blockIdx.x);
  Norm<kSteps> norm;
  if constexpr (kNorm) {
    norm.load_weight(p);
    if (threadIdx.x < 64) sums[threadIdx.x / 32][threadIdx.x % 32] = 0.0F;
    // A block of one warp clears both.
    if (threadIdx.x < 32) sums[1][threadIdx.x] = 0.0F;
    __syncthreads();
  }
  const auto vectors_of = [&](std::int64_t row) {
    const std::int64_t left = p.vectors - row * p.row_vectors;
    return kNorm || left >= p.row_vectors ? p.row_vectors : static_cast<unsigned>(left);
  };
  const auto load = [&](uint4(&x)[kSteps], std::int64_t row, unsigned vectors) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const unsigned vector = channel.vector_of(step);
      if (vector < vectors) x[step] = load_vector(p.x + (row * p.row_vectors + vector) * 8);
    }
  };
  wait_on_dependent_grids();
  // NOTE: where ranks share a GPU the next kernel may start only when this one ends: it would
  // occupy SMs that the ranks need for which this kernel waits.
  if (!p.group.shares_gpu) launch_dependent_grids();
  uint4 x[kSteps] = {};
  std::int64_t row = blockIdx.x;
  unsigned vectors = vectors_of(row);
  load(x, row, vectors);
  channel.open();
  channel.push(x, vectors, static_cast<unsigned>(row));
  for (int parity = 0;; parity ^= 1) {
    if constexpr (kNorm) norm.load_residual(p, row);
    const std::int64_t next = row + gridDim.x;
    const bool more = next < p.rows;
    uint4 next_x[kSteps] = {};
    unsigned next_vectors = 0;
    if (more) {
      next_vectors = vectors_of(next);
      load(next_x, next, next_vectors);
    }
    channel.receive(x, vectors, static_cast<unsigned>(row));
    // NOTE: two-shot, the warp that resets a vector of a slot is not the one whose peer fills it
    // three rows later (shard_index()), so all warps of the CTA must have finished the row; in the
    // fused kernel add_and_normalize() synchronises them. It must come before next_row()'s fence,
    // which orders all warps' resets before this thread's push.
    if constexpr (!kNorm && !kOneShot)
      if (more) __syncthreads();
    channel.next_row(more);
    if (more) channel.push(next_x, next_vectors, static_cast<unsigned>(next));
    if constexpr (kNorm) {
      norm.add_and_normalize(p, row, x, sums[parity], scratch);
    } else {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const unsigned vector = channel.vector_of(step);
        if (vector < vectors)
          *reinterpret_cast<uint4*>(p.out + (row * p.row_vectors + vector) * 8) = x[step];
      }
    }
    if (!more) break;
    row = next;
    vectors = next_vectors;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) x[step] = next_x[step];
  }
  if constexpr (!kNorm)
    __syncthreads();  // all have opened the channel; add_and_normalize() has a barrier too
  if (threadIdx.x == 0) channel.close();
}

/// One-shot and fused, few rows, each a cluster's. CTA c exchanges and sums the c-th part of the
/// row; the sums go to the first CTA, whose threads normalise the row as all_reduce_kernel's do, so
/// its bits are the same.
///
/// A thread waits for the addends of all ranks at once, which ends by the wait's timeout; then it
/// sends its sum, whatever that is. So the first CTA gets the whole row, and only then may leave;
/// nobody sends to the others. By then all threads that read the epoch have done so, and it may be
/// advanced.
template <int kRanks>
__global__ void __launch_bounds__(kFewThreads, 1)
    all_reduce_few_kernel(const __grid_constant__ AllReduceParams p) {
  __shared__ RowScratch scratch;
  __shared__ alignas(16) float sums[32];
  extern __shared__ uint4 row_sum[];  // [row_vectors] of a cluster's first CTA
  __shared__ alignas(8) std::uint64_t row_sum_barrier;
  const unsigned ctas = cluster_size();
  const unsigned part = cluster_rank();
  const unsigned number = blockIdx.x / ctas;  // of the row and its channel
  const unsigned each = (blockDim.x / 32 + ctas - 1) / ctas * 32;
  const unsigned vector = part * each + threadIdx.x;
  const bool exchanges = threadIdx.x < each && vector < p.row_vectors;
  const std::uint32_t barrier = shared_address(&row_sum_barrier);
  Norm<1> norm;
  if (part == 0) {
    if (threadIdx.x == 0) {
      mbarrier_init(barrier, 1);
      fence_mbarrier_init();
      mbarrier_arrive_expect_tx(barrier, p.row_vectors * 16);
    }
    norm.load_weight(p);
    if (threadIdx.x < 32) sums[threadIdx.x] = 0.0F;
    __syncthreads();
  }
  cluster_arrive();
  OneShotVector<kRanks> exchange(p.group, number, vector);
  cluster_wait();  // every CTA runs, the barrier is there
  if (part != 0 && !exchanges) return;
  wait_on_dependent_grids();
  if (!p.group.shares_gpu) launch_dependent_grids();  // as all_reduce_kernel
  uint4 x = {};
  if (exchanges) {
    x = load_vector(p.x + (std::int64_t{number} * p.row_vectors + vector) * 8);
    exchange.open();
  }
  if (part == 0) norm.load_residual(p, number);  // in flight while the row is exchanged
  if (exchanges) {
    exchange.push(x);
    x = exchange.sum(x);
    st_async(map_shared_rank(shared_address(&row_sum[vector]), 0),
             make_float4(__uint_as_float(x.x), __uint_as_float(x.y), __uint_as_float(x.z),
                         __uint_as_float(x.w)),
             map_shared_rank(barrier, 0));
  }
  if (part == 0) {
    // Twice what a wait may take at 2 GHz.
    mbarrier_wait_cluster(barrier, 0, static_cast<long long>(4 * p.group.timeout_ns));
    std::uint32_t words[4] = {};
    if (threadIdx.x < p.row_vectors) load_shared(words, shared_address(&row_sum[threadIdx.x]));
    const uint4 sum[1] = {make_uint4(words[0], words[1], words[2], words[3])};
    norm.add_and_normalize(p, number, sum, sums, scratch);
  }
  if (exchanges) exchange.reset();  // last: nothing in this kernel waits for it
  if (part == 0 && threadIdx.x == 0) exchange.close();
}

__global__ void __launch_bounds__(1024)
    reset_exchange_kernel(const __grid_constant__ PeerGroup group, std::uint32_t first_epoch) {
  pdl_begin();
  std::uint8_t* const buffer = group.buffers[group.rank];
  const std::int64_t epochs_end =
      group.layout.epochs +
      2 * group.layout.channels * static_cast<std::int64_t>(sizeof(std::uint32_t));
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < group.layout.total_bytes / 16; i += step) {
    std::uint32_t word = kSentinel;
    if (16 * i < group.layout.epochs)
      word = 0;
    else if (16 * i < epochs_end)
      word = first_epoch;
    store_system(reinterpret_cast<std::uint64_t>(buffer + 16 * i),
                 make_uint4(word, word, word, word));
  }
}

__global__ void abort_group_kernel(const __grid_constant__ PeerGroup group) {
  if (threadIdx.x < static_cast<unsigned>(group.layout.ranks))
    store_system_word(group.buffers[threadIdx.x] + offsetof(ExchangeHeader, aborted), 1);
}

// ---- launching

/// Whether a message of `bytes` goes one-shot.
bool choose_one_shot(const PeerGroup& group,
                     AllReduceAlgorithm algorithm,
                     bool norm,
                     std::int64_t bytes) {
  if (algorithm != AllReduceAlgorithm::automatic) return algorithm == AllReduceAlgorithm::one_shot;
  if (group.one_shot_bytes_max >= 0) return bytes <= group.one_shot_bytes_max;
  // Two ranks send the same bytes either way, but two-shot sums each element once, not twice; a
  // norm needs whole rows, which two-shot has to gather first: one-shot with it is faster at every
  // size but 256 and 512 rows of 5,120, where they are equal, and without it up to 192 (2 H200s).
  // Of four, it is the faster up to 24 rows of 24 and 32 with the norm, up to 8 of 8 and 16 without
  // (4 H200s).
  // NOTE: for eight it follows from the bytes sent, it is not measured.
  switch (group.layout.ranks) {
    case 2:
      return norm || bytes <= 2LL << 20;
    case 4:
      return bytes <= (norm ? 24 : 12) * 10'240;
    default:
      return bytes <= 8 * 10'240;
  }
}

/// CTAs a row of all_reduce_few_kernel, 2 or more, or 0 where another kernel is to take the rows:
/// too many or too wide ones, and those of two ranks, which have little to poll. All of a grid run
/// at once: an SM holds one, and clusters need at most half of the SMs, which is what fits at least
/// into every group of SMs (GPC) that has room for one.
int few_ctas(const AllReduceNorm& reduce) {
  const PeerGroup& group = *reduce.group;
  if (reduce.width / 8 > kFewThreads) return 0;
  const std::int64_t channels = group.layout.channels;
  int ctas = reduce.ctas_per_row_max;
  if (ctas == 0) ctas = group.layout.ranks > 2 ? 4 : 1;
  while (ctas > 1 && reduce.rows * ctas > (group.shares_gpu ? channels : channels / 4)) ctas /= 2;
  return ctas > 1 ? ctas : 0;
}

template <int kRanks>
cudaError_t launch_few_ranks(const AllReduceParams& p,
                             int ctas,
                             unsigned threads,
                             cudaStream_t stream) {
  return launch_kernel(all_reduce_few_kernel<kRanks>,
                       {dim3(static_cast<unsigned>(p.rows * ctas)), dim3(threads),
                        p.row_vectors * sizeof(uint4), ctas},
                       stream, p);
}

cudaError_t launch_few(const AllReduceParams& p, int ctas, unsigned threads, cudaStream_t stream) {
  switch (p.group.layout.ranks) {
    case 2:
      return launch_few_ranks<2>(p, ctas, threads, stream);
    case 4:
      return launch_few_ranks<4>(p, ctas, threads, stream);
    case 8:
      return launch_few_ranks<8>(p, ctas, threads, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

template <int kRanks, bool kOneShot, bool kNorm, int kThreads, int kSteps>
cudaError_t launch_shape(const AllReduceParams& p, unsigned threads, cudaStream_t stream) {
  constexpr int kCtas = kCtasPerSm<kRanks, kOneShot, kThreads>;
  const auto launch = [&]<int kLaunched, int kTogether>() {
    const std::int64_t channels =
        std::max<std::int64_t>(1, std::int64_t{p.group.layout.channels} * kLaunched / 2);
    const auto grid = static_cast<unsigned>(std::min(p.rows, channels));
    return launch_kernel(
        all_reduce_kernel<kRanks, kOneShot, kNorm, kThreads, kSteps, kLaunched, kTogether>,
        {dim3(grid), dim3(threads)}, stream, p);
  };
  if constexpr (!kOneShot && kRanks > 4) {
    // Few rows: registers for all ranks' addends at once, a wait less for each vector.
    if constexpr (kNorm && kCtas == 2)
      if (p.rows <= p.group.layout.channels / 2) return launch.template operator()<1, kRanks>();
    return launch.template operator()<kCtas, 4>();
  } else {
    return launch.template operator()<kCtas, kRanks>();
  }
}

template <bool kNorm, int kThreads, int kSteps>
cudaError_t launch_ranks(const AllReduceParams& p,
                         bool one_shot,
                         unsigned threads,
                         cudaStream_t stream) {
  switch (p.group.layout.ranks) {
    case 2:
      return one_shot ? launch_shape<2, true, kNorm, kThreads, kSteps>(p, threads, stream)
                      : launch_shape<2, false, kNorm, kThreads, kSteps>(p, threads, stream);
    case 4:
      return one_shot ? launch_shape<4, true, kNorm, kThreads, kSteps>(p, threads, stream)
                      : launch_shape<4, false, kNorm, kThreads, kSteps>(p, threads, stream);
    case 8:
      return one_shot ? launch_shape<8, true, kNorm, kThreads, kSteps>(p, threads, stream)
                      : launch_shape<8, false, kNorm, kThreads, kSteps>(p, threads, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

std::int64_t round_up(std::int64_t value, std::int64_t to) {
  return (value + to - 1) / to * to;
}

}  // namespace

ExchangeLayout exchange_layout(int ranks, std::int64_t width_max, int channels) {
  const std::int64_t warps =
      std::max<std::int64_t>(round_up(width_max / 8, 32), kPlainThreads) / 32;
  ExchangeLayout layout;
  layout.ranks = ranks;
  layout.channels = channels;
  layout.row_bytes = warps * 512;
  layout.shard_bytes = (warps + ranks - 1) / ranks * 512;
  layout.epochs = 256;  // behind ExchangeHeader
  layout.one_shot = round_up(layout.epochs + 2 * channels * 4, 1024);
  const std::int64_t slots = std::int64_t{channels} * kSlots;
  layout.reduce_scatter_slots = layout.one_shot + slots * ranks * layout.row_bytes;
  layout.gathered = layout.reduce_scatter_slots + slots * ranks * layout.shard_bytes;
  layout.total_bytes = layout.gathered + slots * layout.row_bytes;
  return layout;
}

int exchange_channels(int multiprocessors, int ranks_on_gpu) {
  // NOTE: kernels of one CTA an SM use half as many channels (launch_shape()).
  if (ranks_on_gpu <= 1) return 2 * multiprocessors;
  return std::max(1, multiprocessors / (8 * ranks_on_gpu));
}

cudaError_t launch_reset_exchange(const PeerGroup& group,
                                  std::uint32_t first_epoch,
                                  cudaStream_t stream) {
  if (first_epoch >= kCollectiveEpochs) return cudaErrorInvalidValue;
  return launch_kernel(reset_exchange_kernel, {dim3(64), dim3(1024)}, stream, group, first_epoch);
}

cudaError_t launch_abort_group(const PeerGroup& group, cudaStream_t stream) {
  abort_group_kernel<<<1, 32, 0, stream>>>(group);
  return cudaGetLastError();
}

cudaError_t launch_all_reduce(const AllReduce& reduce, cudaStream_t stream) {
  if (reduce.elements == 0) return cudaSuccess;
  if (reduce.elements < 0 || reduce.elements % 8 != 0 || !aligned(reduce.x, 0, 16) ||
      !aligned(reduce.out, 0, 16))
    return cudaErrorInvalidValue;
  const PeerGroup& group = *reduce.group;
  AllReduceParams p;
  p.group = group;
  p.x = reduce.x;
  p.out = reduce.out;
  p.vectors = reduce.elements / 8;
  // The fewest threads a CTA that still give every channel a row: a short message leaves from many
  // SMs.
  unsigned threads = 128;
  while (threads < kPlainThreads && p.vectors > std::int64_t{threads} * group.layout.channels)
    threads *= 2;
  p.row_vectors = threads;
  p.rows = (p.vectors + threads - 1) / threads;
  if (p.rows > INT32_MAX) return cudaErrorInvalidValue;
  return launch_ranks<false, kPlainThreads, 1>(
      p, choose_one_shot(group, reduce.algorithm, false, 2 * reduce.elements), threads, stream);
}

bool all_reduce_norm_supports(const RowOutputs& out, const AllReduceNorm& reduce) {
  const bool vectors = row_vectors(out, reduce.residual, reduce.residual_stride, reduce.width) &&
                       aligned(reduce.x, 2 * reduce.width, 16) && aligned(reduce.weight, 16, 16);
  return vectors && reduce.rows >= 0 && reduce.rows <= INT32_MAX && reduce.width > 0 &&
         reduce.ctas_per_row_max >= 0 && reduce.ctas_per_row_max <= kClusterMax &&
         (reduce.ctas_per_row_max & (reduce.ctas_per_row_max - 1)) == 0 &&
         reduce.width <= kCollectiveWidthMax && 2 * reduce.width <= reduce.group->layout.row_bytes;
}

cudaError_t launch_all_reduce_norm(const RowOutputs& out,
                                   const AllReduceNorm& reduce,
                                   cudaStream_t stream) {
  if (reduce.rows == 0) return cudaSuccess;
  if (!all_reduce_norm_supports(out, reduce)) return cudaErrorInvalidValue;
  const PeerGroup& group = *reduce.group;
  AllReduceParams p;
  p.group = group;
  p.x = reduce.x;
  p.rows = reduce.rows;
  p.row_vectors = static_cast<unsigned>(reduce.width / 8);
  p.vectors = reduce.rows * p.row_vectors;
  p.residual = reduce.residual;
  p.residual_stride = reduce.residual_stride;
  p.weight = reduce.weight;
  p.eps = reduce.eps;
  p.width = static_cast<int>(reduce.width);
  p.outputs = out;
  const bool one_shot =
      choose_one_shot(group, reduce.algorithm, true, 2 * reduce.rows * reduce.width);
  return with_row_shape(reduce.width, true,
                        [&]<int kVector, int kSteps>(RowShape<kVector, kSteps>, unsigned block) {
                          const int ctas = one_shot ? few_ctas(reduce) : 0;
                          if (ctas > 0) return launch_few(p, ctas, block, stream);
                          // NOTE: a second step beyond the row's end adds zeros to its squares.
                          if constexpr (kVector == 8 && kSteps <= 2)
                            return kSteps == 1 && block <= 640
                                       ? launch_ranks<true, 640, 1>(p, one_shot, block, stream)
                                       : launch_ranks<true, 1024, 2>(p, one_shot, block, stream);
                          else
                            return cudaErrorInvalidValue;
                        });
}

const void* kernel_of::all_reduce_norm() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
