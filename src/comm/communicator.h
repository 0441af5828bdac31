// SPDX-License-Identifier: Apache-2.0
// Collectives among the ranks of one model replica: all-reduce, the exchange of rows whose columns
// are cut, all-gather, and the all-to-all pair dispatch and combine. Only model/sharding.cpp calls
// them.
//
// For all of them: every rank calls the same operations in the same order, with equal shapes where
// the block says so. A call returns when this rank's result is complete; on a device, when it is
// enqueued, and check() tells later whether it went well. Errors: unavailable: a rank left, or
// never came; internal: the ranks disagree on the operation.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "base/arithmetic.h"
#include "base/error.h"
#include "ops/batch.h"
#include "tensor/tensor_view.h"

namespace koho {

/// What carries the collectives of GPUs: their own kernels through peer memory, or NCCL. Automatic:
/// peer memory where every GPU reaches every other.
enum class CollectiveTransport : std::uint8_t { automatic, peer, nccl };

/// The largest collectives of a replica's steps, equal on all ranks.
struct CollectiveSizes {
  std::int64_t tokens_max = 0;          // T of all ranks together, padding included
  std::int64_t hidden = 0;              // H
  std::int64_t logit_rows_max = 0;      // R
  std::int64_t logit_columns = 0;       // N of exchange_rows(); 0: not called
  std::int64_t gathered_row_bytes = 0;  // all_gather_rows(): a row of all tensors together
  std::int64_t dispatched_row_bytes =
      0;  // dispatch(): a row of all tensors together; 0: not called
};

/// Some consecutive rows.
struct RowRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// The rows of `rows` that rank `rank` owns: ceil(rows / ranks) each, fewer or none on the last.
inline RowRange owned_rows(std::int64_t rows, std::int64_t rank, std::int64_t ranks) {
  const std::int64_t each = ceil_div(rows, ranks);
  const std::int64_t first = std::min(rank * each, rows);
  return {first, std::min(each, rows - first)};
}

/// Which ranks a row is sent to: each rank that holds at least one of its ids, once.
struct RowRoutes {
  ConstTensorView ids;            // [T, A] i32; a negative one means none
  std::int64_t ids_per_rank = 0;  // rank r holds r * n .. r * n + n-1; 0: every rank holds all
  // [ranks + 1]: rank r sends row_starts[r + 1] - row_starts[r] rows. Communicators of the CPU need
  // none.
  std::span<const std::int64_t> row_starts{};
};

/// A tensor whose rows are sent: row t of `from` arrives as a row of `to`.
struct DispatchTensor {
  ConstTensorView from;  // [T, …] packed
  TensorView to;         // [M, …] packed, of the same dtype and row
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual std::int64_t rank() const = 0;
  virtual std::int64_t ranks() const = 0;

  /// Allocates what collectives of up to these sizes need; once, before the first one. Errors:
  /// resource_exhausted; unsupported: a size that this communicator lacks.
  virtual Status reserve(const CollectiveSizes& sizes) = 0;

  /// Returns once every rank has called it. For what must not happen while another rank's kernels
  /// wait for this rank: allocating, loading kernels and capturing may wait for a shared GPU.
  virtual Status meet() = 0;

  /// values = bf16(sum over the ranks)
  ///
  /// shapes    values [T, H] bf16, packed, the same on all ranks
  /// numerics  sums in f32, in rank order: bit-equal on all ranks (NCCL: in its own order)
  virtual Status all_reduce(TensorView values) = 0;

  /// all_reduce() of block_output and add_rms_norm (ops/backend.h) of the sum in one pass, with the
  /// bits of the two; block_output is unspecified afterwards. False: this communicator has no such
  /// pass for these shapes and did nothing, on all ranks alike.
  ///
  /// shapes    as add_rms_norm, the same on all ranks
  virtual Result<bool> all_reduce_add_norm(const Activation& /*out*/,
                                           TensorView /*residual*/,
                                           TensorView /*block_output*/,
                                           ConstTensorView /*weight*/,
                                           float /*eps*/) {
    return false;
  }

  /// All-to-all: each rank has some columns of all rows and gets all columns of the rows it owns.
  ///
  ///   out[i, s * N : (s + 1) * N] = rank s's part[first + i], {first, count} = owned_rows(R, …)
  ///
  /// shapes    out [count, ranks * N] f32, packed · part [R, N] f32, packed
  virtual Status exchange_rows(TensorView out, ConstTensorView part) = 0;

  /// Fills in the other ranks' rows: rows r * M … (r + 1) * M - 1 of each tensor are rank r's.
  ///
  /// shapes    each [ranks * M, …] packed; M and the rows' bytes the same on all ranks
  virtual Status all_gather_rows(std::span<const TensorView> tensors) = 0;

  /// All-to-all: sends row t of every tensor of `rows` to the ranks that `routes` names. Returns M,
  /// and arrived rows are ordered by (sending rank, row there), alike in every tensor. M is how
  /// many rows arrived; a device that cannot tell the host returns the rows of all ranks: in those
  /// that did not arrive, and for experts of other ranks, the routes' ids become -1. May run beside
  /// what is enqueued until wait_for_dispatch(), before which `rows` stay as they are.
  ///
  /// shapes    as DispatchTensor; T may differ between ranks and may be 0
  /// errors    resource_exhausted: more rows arrive than `to` has
  virtual Result<std::int64_t> dispatch(const RowRoutes& routes,
                                        std::span<const DispatchTensor> rows) = 0;
  /// What is enqueued from now on finds the rows of the latest dispatch.
  virtual Status wait_for_dispatch() = 0;

  /// The way back of the latest dispatch: returns a result for each arrived row to its sender. The
  /// ids that were dispatched must still be there.
  ///
  ///   out[t,:] = bf16(out[t,:] + bf16(sum over the ranks that row t went to of its result there))
  ///
  /// shapes    out [T, H] bf16, packed, T as dispatched · results [M, H] bf16, packed
  /// numerics  sums in f32, in rank order: the result does not depend on which rank sent the row
  ///           (NCCL: in its own order)
  virtual Status combine(TensorView out, ConstTensorView results) = 0;

  /// Whether every collective that has ended did so with all ranks. Never waits. Errors:
  /// unavailable, naming the rank and the one it waited for; device_error. Threads: any.
  virtual Status check() = 0;

  /// Makes all ranks' calls fail with `unavailable` from now on, those that wait included. Threads:
  /// any.
  virtual void give_up() = 0;
};

}  // namespace koho
