// SPDX-License-Identifier: Apache-2.0
// Which part of every weight a rank holds, and the joins that put the parts together again. Nothing
// outside this file cuts a weight or calls a collective.
//
//   weight                      tensor-parallel ranks hold                                   joined
//   by embedding, norms, router    all of it                                                    –
//   q, k, v (rows, biases)      their heads                                                  –
//   o (columns)                 their heads                                                  sum
//   after attention dense gate, up / down       their rows / columns of the FFN width sum after the
//   FFN routed experts, whole       E / ranks experts sum after the FFN routed experts, sliced
//   every expert's rows / columns of the expert width            sum after the FFN shared expert
//   its rows / columns, in both layouts                          sum after the FFN head its rows of
//   the vocabulary                                   gather of the logits
//
// FP8 activations are quantised from a rank's own columns, so results of FP8 weights depend on the
// number of ranks.
#pragma once

#include <cstdint>

#include "base/error.h"
#include "comm/communicator.h"
#include "ops/backend.h"

namespace koho {

enum class ExpertLayout : std::uint8_t { whole, sliced };

/// One rank's place among the ranks of a replica.
struct Shard {
  std::int64_t rank = 0;
  std::int64_t ranks = 1;
  ExpertLayout experts = ExpertLayout::whole;
};

/// A range of rows, columns or experts.
struct Range {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

/// This rank's share of `total` things that `ranks` divides. Errors: unsupported, naming `what` and
/// both numbers.
Result<Range> share(const Shard& shard, std::int64_t total, const char* what);

/// Rows, or columns, of a layer with its scales (and bias). Errors: unsupported if a range cuts
/// through a block of 128 of a block-quantised weight, or columns of a layer with a bias are asked
/// for.
Result<LinearSource> rows_of(const LinearSource& source, Range rows);
Result<LinearSource> columns_of(const LinearSource& source, Range columns);

/// gate and up by rows, down by columns.
Result<MlpSource> slice_of(const MlpSource& source, const Shard& shard);

/// Puts the ranks' parts together.
class Joins {
 public:
  Joins(Backend& backend, Communicator& communicator)
      : backend_(&backend), communicator_(&communicator) {}

  /// branch = its sum over the ranks; residual += branch; out = the norm of the new residual.
  Status sum_add_norm(const Activation& out,
                      TensorView residual,
                      TensorView branch,
                      ConstTensorView weight,
                      float eps);
  /// branch = its sum over the ranks.
  Status sum(TensorView branch);
  /// logits [R, V] from this rank's part [R, V / ranks].
  Status gather_logits(TensorView logits, ConstTensorView part);

 private:
  Backend* backend_;
  Communicator* communicator_;
};

}  // namespace koho
