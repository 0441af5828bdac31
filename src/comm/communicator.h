// SPDX-License-Identifier: Apache-2.0
// Collectives among the ranks of one model replica. Every rank calls the same operations in the
// same order with the same shapes; each call returns when this rank's result is there (on a device:
// when it is enqueued).
#pragma once

#include <cstdint>

#include "base/error.h"
#include "tensor/tensor_view.h"

namespace koho {

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual std::int64_t rank() const = 0;
  virtual std::int64_t ranks() const = 0;

  /// values = bf16(sum over the ranks, in f32, in rank order): bit-equal on all ranks.
  /// shapes: values [T, H] bf16, packed, the same on all ranks. Errors: unavailable if a rank left
  /// or never came.
  virtual Status all_reduce(TensorView values) = 0;

  /// out[:, r * N : (r+1) * N] = rank r's part.  shapes: out [T, ranks * N] f32 packed · part [T,
  /// N] f32 packed
  virtual Status all_gather_columns(TensorView out, ConstTensorView part) = 0;

  /// This rank gives up: calls of all ranks, waiting ones too, fail with `unavailable` from now on.
  /// Threads: any.
  virtual void give_up() = 0;
};

}  // namespace koho
