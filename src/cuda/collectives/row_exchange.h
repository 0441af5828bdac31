// SPDX-License-Identifier: Apache-2.0
// How rows of whole tensors pass between the GPUs of a group: pushed into the receivers' windows,
// then a barrier after which every rank finds what was pushed to it. For what a step does once
// (logits, sampled ids) and for dispatch and combine. Owns no memory, as all_reduce_norm.h.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "cuda/collectives/all_reduce_norm.h"

namespace koho::cuda {

constexpr int kRowTensorsMax = 7;
/// Independent barriers of a group, one for each stream that exchanges rows.
constexpr int kRowBarriers = 2;

/// Rows of a tensor on the way to a window. Addresses, strides and bytes are multiples of 4.
struct RowTensor {
  const std::uint8_t* from = nullptr;  // row 0
  std::int64_t from_stride = 0;        // bytes
  std::int64_t row_bytes = 0;
  std::int64_t to = 0;  // bytes from a receiver's base to its row 0
  std::int64_t to_stride = 0;
};

/// Which rows go where: row t of a receiver's share becomes row t - its first.
enum class RowPattern : std::uint32_t {
  all,     // every row to every receiver
  owners,  // rows q * each … to receiver q
  routed,  // to the receivers of its ids
};

struct PushRows {
  RowTensor tensors[kRowTensorsMax];
  int tensor_count = 0;
  RowPattern pattern = RowPattern::all;
  std::int64_t rows = 0;
  std::int64_t each = 0;  // owners
  // routed: [rows, choices]. The tensor whose `from` is ids arrives in every row, with -1 for what
  // the receiver does not hold; the others only where a row goes.
  const std::int32_t* ids = nullptr;
  int choices = 0;
  std::int64_t ids_per_rank = 0;                      // 0: every rank holds all
  std::uint8_t* receivers[kCollectiveRanksMax] = {};  // bases
  int receiver_count = 0;
  int first_receiver = 0;  // whom the first CTAs serve, so that ranks do not all begin with one
};
/// Copies rows into the receivers' memory; complete at the next launch_row_barrier(). Errors:
/// cudaErrorInvalidValue (a size or an alignment).
cudaError_t launch_push_rows(const PushRows& push, cudaStream_t stream);

/// Returns on the stream once every rank has come here: what any rank enqueued before is then
/// visible to all. `barrier`: 0 … kRowBarriers - 1, each on one stream of every rank. A wait that
/// times out leaves a CollectiveFault.
cudaError_t launch_row_barrier(const PeerGroup& group, int barrier, cudaStream_t stream);

/// What each rank made of the rows that were routed to it, added up for their sender.
///
///   out[t,:] = bf16(out[t,:] + bf16(sum in rank order of results_r[t,:], r a receiver of row t))
struct CombineRows {
  Bf16* out = nullptr;                                    // [rows, width]
  const std::uint8_t* results[kCollectiveRanksMax] = {};  // by rank: of this rank's row 0, bf16
  int ranks = 0;
  std::int64_t rows = 0;
  std::int64_t width = 0;  // a multiple of 8
  const std::int32_t* ids = nullptr;
  int choices = 0;
  std::int64_t ids_per_rank = 0;
};
cudaError_t launch_combine_rows(const CombineRows& combine, cudaStream_t stream);

/// Makes ids outside first … first + count - 1 -1.
cudaError_t launch_mask_ids(std::int32_t* ids,
                            std::int64_t elements,
                            std::int64_t first,
                            std::int64_t count,
                            cudaStream_t stream);

}  // namespace koho::cuda
