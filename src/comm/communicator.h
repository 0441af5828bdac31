// SPDX-License-Identifier: Apache-2.0
// Collectives among the ranks of one model replica: all-reduce, all-gather, and the all-to-all pair
// dispatch and combine. Only model/sharding.cpp calls them.
//
// For all of them: every rank calls the same operations in the same order, with equal shapes where
// the block says so. A call returns when this rank's result is complete; on a device, when it is
// enqueued. Errors: unavailable: a rank left, or never came; internal: the ranks disagree on the
// operation.
#pragma once

#include <cstdint>
#include <span>

#include "base/error.h"
#include "tensor/tensor_view.h"

namespace koho {

/// Which ranks a row is sent to: each rank that holds at least one of its ids, once.
struct RowRoutes {
  ConstTensorView ids;            // [T, A] i32; a negative one means none
  std::int64_t ids_per_rank = 0;  // rank r holds r * n .. r * n + n-1; 0: every rank holds all
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

  /// values = bf16(sum over the ranks)
  ///
  /// shapes    values [T, H] bf16, packed, the same on all ranks
  /// numerics  sums in f32, in rank order: bit-equal on all ranks
  virtual Status all_reduce(TensorView values) = 0;

  /// out[:, r * N : (r + 1) * N] = rank r's part
  ///
  /// shapes    out [T, ranks * N] f32, packed · part [T, N] f32, packed
  virtual Status all_gather_columns(TensorView out, ConstTensorView part) = 0;

  /// All-to-all: sends row t of every tensor of `rows` to the ranks that `routes` names. Returns
  /// how many rows arrived, M. Arrived rows are ordered by (sending rank, row there), alike in
  /// every tensor. A device that cannot tell the host may return all rows it has room for, with ids
  /// of -1 behind those that arrived.
  ///
  /// shapes    as DispatchTensor; T may differ between ranks and may be 0
  /// errors    resource_exhausted: more rows arrive than `to` has
  virtual Result<std::int64_t> dispatch(const RowRoutes& routes,
                                        std::span<const DispatchTensor> rows) = 0;

  /// The way back of the latest dispatch: returns a result for each arrived row to its sender.
  ///
  ///   out[t,:] = bf16(out[t,:] + bf16(sum over the ranks that row t went to of its result there))
  ///
  /// shapes    out [T, H] bf16, packed, T as dispatched · results [M, H] bf16, packed
  /// numerics  sums in f32, in rank order: the result does not depend on which rank sent the row
  virtual Status combine(TensorView out, ConstTensorView results) = 0;

  /// Makes all ranks' calls fail with `unavailable` from now on, those that wait included. Threads:
  /// any.
  virtual void give_up() = 0;
};

}  // namespace koho
