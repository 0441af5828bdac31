// SPDX-License-Identifier: Apache-2.0
// All-reduce among 2, 4 or 8 GPUs of one host through peer memory: plain, or fused with the
// residual add, RMSNorm and quantisation that follow it in the model.
//
// Owns no memory and opens no handles: the caller allocates each rank's exchange buffer (plain
// cudaMalloc), makes it accessible to the other ranks (cudaIpc between processes, peer access
// between threads, nothing on one GPU) and resets it. Refuses NVLink multicast, and more than one
// stream a rank.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "cuda/kernels.h"

namespace koho::cuda {

constexpr int kCollectiveRanksMax = 8;
constexpr std::int64_t kCollectiveWidthMax = 16'384;  // elements of a row that is normalised
/// Epochs wrap to 0 here: a multiple of the three slots of a channel, so that the slots' order
/// survives the wrap.
constexpr std::uint32_t kCollectiveEpochs = 3U << 30U;

enum class FaultKind : std::uint32_t {
  none,
  timed_out,        // a wait reached its timeout
  aborted_by_peer,  // another rank aborted the group
  aborted_by_host,  // CollectiveHostState::abort
};
enum class ExchangePhase : std::uint32_t { one_shot, reduce_scatter, all_gather, row_barrier };

/// The first wait of a rank that aborted.
struct CollectiveFault {
  std::uint32_t kind = 0;        // a FaultKind; written last
  std::uint32_t rank = 0;        // which waited
  std::uint32_t waited_for = 0;  // the rank whose data was not there
  std::uint32_t epoch = 0;       // of the channel
  std::uint32_t channel = 0;     // CTA or cluster of the kernel
  std::uint32_t phase = 0;       // an ExchangePhase
};

/// What a rank's kernels and its host share, in mapped host memory. The host zeroes it first.
struct CollectiveHostState {
  CollectiveFault fault;    // read by the host at any time; valid once `kind` is not none
  std::uint32_t abort = 0;  // set by the host: waits abort
  std::uint32_t pad = 0;
};

/// Sizes and byte offsets of a rank's exchange buffer; equal on all ranks.
///
/// One CTA or cluster of every rank exchanges rows through a channel: three slots, used in turn. A
/// one-shot slot has a row for each source rank; a two-shot slot has, for each source, the shard of
/// a row that this rank reduces, and one row of gathered sums.
struct ExchangeLayout {
  int ranks = 0;
  int channels = 0;
  std::int64_t row_bytes = 0;             // of a row in a slot
  std::int64_t shard_bytes = 0;           // of a source's shard of a row
  std::int64_t epochs = 0;                // u32 [2, channels]: one-shot, two-shot
  std::int64_t one_shot = 0;              // [channels, 3, ranks, row_bytes]
  std::int64_t reduce_scatter_slots = 0;  // [channels, 3, ranks, shard_bytes]
  std::int64_t gathered = 0;              // [channels, 3, row_bytes]
  std::int64_t total_bytes = 0;           // of the buffer
};

/// For rows of up to `width_max` elements; `channels` from exchange_channels().
ExchangeLayout exchange_layout(int ranks, std::int64_t width_max, int channels);

/// Channels of a rank on a GPU of `multiprocessors` that `ranks_on_gpu` ranks use: two a
/// multiprocessor on a GPU of its own. Where ranks share a GPU, all their waiting CTAs together
/// are at most an eighth as many as its multiprocessors, so that what they wait for can run: also
/// clusters of 16 CTAs.
int exchange_channels(int multiprocessors, int ranks_on_gpu);

/// A rank's view of its group. A group runs its collectives on one stream of each rank, in the same
/// order and with the same shapes and algorithms on all ranks.
struct PeerGroup {
  ExchangeLayout layout;
  std::uint8_t* buffers[kCollectiveRanksMax] = {};  // every rank's, at this rank's addresses
  int rank = 0;
  bool shares_gpu = false;               // with another rank of the group
  bool loopback = false;                 // the other ranks are not there: see exchange.cuh
  CollectiveHostState* host = nullptr;   // its device address
  std::uint64_t timeout_ns = 0;          // of a wait
  std::int64_t one_shot_bytes_max = -1;  // automatic: threshold of a message; -1: built in
};

enum class AllReduceAlgorithm { automatic, one_shot, two_shot };

/// Fills this rank's exchange buffer with sentinels, clears its abort flags and starts its epochs
/// at `first_epoch`, the same on all ranks. Before the first collective and after a fault.
/// Requires: no collective of the group is in flight on any rank until all ranks' resets are
/// complete. The host clears its own state.
cudaError_t launch_reset_exchange(const PeerGroup& group,
                                  std::uint32_t first_epoch,
                                  cudaStream_t stream);
/// Aborts the waits of all ranks, on a stream that no wait blocks.
cudaError_t launch_abort_group(const PeerGroup& group, cudaStream_t stream);

struct AllReduce {
  const PeerGroup* group = nullptr;
  AllReduceAlgorithm algorithm = AllReduceAlgorithm::automatic;
  const Bf16* x = nullptr;  // [elements], this rank's addend
  Bf16* out = nullptr;      // [elements]; may be x
  std::int64_t elements = 0;
};
/// Sums x over all ranks.
///
///   out[i] = bf16(0 + x_0[i] + x_1[i] + ...)
///
/// shapes    x, out [elements] bf16, a multiple of 8; 16-byte aligned
/// alias     out may be x
/// numerics  f32, in rank order, from +0; one rounding: bit-equal on all ranks; NaN becomes 0x7FFF
/// errors    cudaErrorInvalidValue: ranks, sizes or alignment differ from the above. A wait that
///           aborts leaves a CollectiveFault and undefined values, and so does every later
///           collective until the group is reset
/// threads   one a rank
/// cost      one-shot: sends (n-1) * 2 bytes an element; two-shot: 4 (n-1) / n
cudaError_t launch_all_reduce(const AllReduce& reduce, cudaStream_t stream);

struct AllReduceNorm {
  const PeerGroup* group = nullptr;
  AllReduceAlgorithm algorithm = AllReduceAlgorithm::automatic;
  const Bf16* x = nullptr;   // [T, H] packed, this rank's addend
  Bf16* residual = nullptr;  // [T, H], changed in place
  std::int64_t residual_stride = 0;
  const Bf16* weight = nullptr;  // [H]
  float eps = 0.0F;
  std::int64_t rows = 0;   // T
  std::int64_t width = 0;  // H
  /// Of a cluster that exchanges a row one-shot where rows are few: 2, 4 or 8; 1: no clusters; 0:
  /// built in.
  int ctas_per_row_max = 0;
};
/// launch_all_reduce() of x, then add_rms_norm (ops/backend.h) of the sum, with the bits of the
/// two.
///
///   residual = bf16(residual + bf16(sum of x)), out = RMSNorm of it, as bf16 or FP8
///
/// shapes    x, residual [T, H] bf16 · weight [H] bf16 · out's tensors [T, H]; H a multiple of 8 up
///           to the group's width_max; rows of bf16 aligned to 16 bytes, of e4m3 to 8
/// alias     none
/// numerics  as the two; norm.cu's for aligned rows
/// errors    as launch_all_reduce()
/// threads   one a rank
/// cost      as launch_all_reduce(), and on each rank 4TH bytes of residual and the outputs
cudaError_t launch_all_reduce_norm(const RowOutputs& out,
                                   const AllReduceNorm& reduce,
                                   cudaStream_t stream);
/// Whether it takes these widths, strides and alignments.
bool all_reduce_norm_supports(const RowOutputs& out, const AllReduceNorm& reduce);

}  // namespace koho::cuda
