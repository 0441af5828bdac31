// SPDX-License-Identifier: Apache-2.0
// Which part of every weight a rank holds, and the collectives that put the parts together again. Nothing
// outside this file cuts a weight or calls a collective.
//
//   weight                        tensor-parallel attention       data-parallel attention
//   embedding, norms, router      all of it                       all of it
//   q, k, v (rows, biases)        its heads                       all of it
//   o (columns)                   its heads; sum                  all of it
//   dense gate, up / down         its rows / columns of F; sum    all of it
//   routed experts, whole         E / ranks experts; sum          E / ranks experts; exchange
//   routed experts, sliced        its F / ranks of each; sum      its F / ranks of each; exchange
//   shared expert                 its rows / columns of F; sum    all of it
//   head                          its rows of V; gather           all of it
//   tokens of a step              all                             those of its sequences
//   cache                         its heads of every page         whole pages of its sequences
//
// sum: an all-reduce after attention and after the FFN. gather: of the logits. exchange: each token
// goes to the ranks that hold its experts, their sums come back (docs/decisions/0005).
//
// FP8 activations are quantised from the columns that a rank holds: where columns of an FP8 weight
// are cut (o, down), the quantised values, so the results, depend on the number of ranks (docs/model.md).
#pragma once

#include <cstdint>

#include "base/error.h"
#include "comm/communicator.h"
#include "model/activations.h"
#include "model/config.h"
#include "ops/backend.h"

namespace koho {

enum class ExpertLayout : std::uint8_t { expert_parallel, tensor_parallel };
enum class AttentionLayout : std::uint8_t { tensor_parallel, data_parallel };

/// One rank's place among the ranks of a replica.
struct Shard {
  std::int64_t rank = 0;
  std::int64_t ranks = 1;
  ExpertLayout experts = ExpertLayout::expert_parallel;
  AttentionLayout attention = AttentionLayout::tensor_parallel;

  /// How everything but the routed experts is cut: not at all under data-parallel attention.
  Shard of_tokens() const { return attention == AttentionLayout::data_parallel ? Shard{} : *this; }
  /// Ranks have tokens of their own and meet at the experts only.
  bool dispatches_tokens() const {
    return attention == AttentionLayout::data_parallel && ranks > 1;
  }
};

/// A range of rows, columns or experts.
struct Range {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

/// This rank's share of `total` things that `ranks` divides. Errors: unsupported, naming `what` and
/// both numbers.
Result<Range> share(const Shard& shard, std::int64_t total, const char* what);

/// Whether a model can be cut so. Errors: unsupported: heads, FFN widths, experts or the vocabulary
/// do not come out even; invalid_argument: a rank that is not there. (Blocks of block-quantised
/// weights are looked at when they are cut.)
Status check_shard(const ModelConfig& config, const Shard& shard);

/// Rows, or columns, of a layer with its scales (and bias). Errors: unsupported if a range cuts
/// through a block of 128 of a block-quantised weight, or columns of a layer with a bias are asked
/// for.
Result<LinearSource> rows_of(const LinearSource& source, Range rows);
Result<LinearSource> columns_of(const LinearSource& source, Range columns);

/// gate and up by rows, down by columns.
Result<MlpSource> slice_of(const MlpSource& source, const Shard& shard);

/// What a rank's experts work on: its own tokens, or those that were dispatched to it.
struct DispatchedTokens {
  TensorView out;  // [M, H] bf16
  Activation x;    // [M, H]
  Routing routing;
};

/// Puts the ranks' parts together.
class Collectives {
 public:
  /// `experts` of the model, of all ranks. Requires: both outlive this.
  Collectives(Backend& backend,
              Communicator& communicator,
              const Shard& shard,
              std::int64_t experts);

  /// Room for the tokens that other ranks send. `tokens_max` bounds a step's tokens of all ranks
  /// together; `top_k` experts a token, which read x as `needs` says. Errors: resource_exhausted.
  Status allocate(std::int64_t tokens_max,
                  std::int64_t hidden,
                  std::int64_t top_k,
                  const ActivationNeeds& needs);

  /// block_output = its sum over the ranks; residual += block_output; out = the norm of the new residual.
  Status all_reduce_add_norm(const Activation& out,
                             TensorView residual,
                             TensorView block_output,
                             ConstTensorView weight,
                             float eps);
  /// block_output = its sum over the ranks.
  Status all_reduce(TensorView block_output);
  /// logits [R, V] from this rank's part [R, V / ranks].
  Status all_gather_logits(TensorView logits, ConstTensorView part);

  /// Sends tokens to the ranks that hold their experts. `needs`: the forms of x that experts of any
  /// rank read. The result's out is `block_output` where tokens stay.
  Result<DispatchedTokens> dispatch_to_experts(const Activation& x,
                                               const Routing& routing,
                                               TensorView block_output,
                                               const ActivationNeeds& needs);
  /// The way back: adds what other ranks' experts made of this rank's tokens to `block_output`, which
  /// holds the shared expert's output. Where tokens stayed there is nothing to do.
  Status combine_from_experts(TensorView block_output, const DispatchedTokens& work);

 private:
  Backend* backend_;
  Communicator* communicator_;
  bool dispatches_;
  std::int64_t experts_per_rank_;  // 0: every rank holds a slice of each

  // What arrives, with an exchange.
  ActivationBuffer x_;     // [M, H]
  Tensor expert_ids_;      // [M, A] i32
  Tensor expert_weights_;  // [M, A] f32
  Tensor out_;             // [M, H] bf16
};

}  // namespace koho
