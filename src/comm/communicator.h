// SPDX-License-Identifier: Apache-2.0
// Collectives among the ranks of one model replica. Every rank calls the same operations in the
// same order; where one asks for equal shapes, with equal shapes. Each call returns when this
// rank's result is there (on a device: when it is enqueued). Errors of all: unavailable if a rank
// left or never came; internal if the ranks disagree on what they do.
#pragma once

#include <cstdint>
#include <span>

#include "base/error.h"
#include "tensor/tensor_view.h"

namespace koho {

/// Which ranks a row goes to: those that hold one of its ids, each once.
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

  /// values = bf16(sum over the ranks, in f32, in rank order): bit-equal on all ranks.
  /// shapes: values [T, H] bf16, packed, the same on all ranks.
  virtual Status all_reduce(TensorView values) = 0;

  /// out[:, r * N : (r+1) * N] = rank r's part.  shapes: out [T, ranks * N] f32 packed · part [T,
  /// N] f32 packed
  virtual Status all_gather_columns(TensorView out, ConstTensorView part) = 0;

  /// All-to-all of rows, as many for each pair of ranks as `routes` say; T may differ between ranks
  /// and be 0. What arrives is ordered by (rank it came from, row there), equally in every tensor
  /// of `rows`. Returns how many rows arrived. (A device, which cannot tell the host, may return
  /// all it has room for, with ids of -1 behind those that arrived.)
  /// Errors: resource_exhausted: more rows arrive than `to` has.
  virtual Result<std::int64_t> dispatch(const RowRoutes& routes,
                                        std::span<const DispatchTensor> rows) = 0;

  /// The way back of the latest dispatch: `results` [M, H] holds a row for each that arrived.
  ///
  ///   out[t,:] = bf16(out[t,:] + bf16(sum over the ranks that row t went to of its result there))
  ///
  /// The sum is in f32 and in rank order, so it does not depend on whose row t is.
  /// shapes: out [T, H] bf16 packed, T as dispatched · results bf16 packed
  virtual Status combine(TensorView out, ConstTensorView results) = 0;

  /// This rank gives up: calls of all ranks, waiting ones too, fail with `unavailable` from now on.
  /// Threads: any.
  virtual void give_up() = 0;
};

}  // namespace koho
