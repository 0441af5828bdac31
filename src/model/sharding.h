// SPDX-License-Identifier: Apache-2.0
// What each rank of a replica holds, and the collectives that combine the ranks' results. Only this
// file cuts a weight, and only this file calls a collective: all-reduce, all-gather, dispatch and
// combine. The forward pass (model/forward.cpp) names the places where they happen.
//
//                               tensor-parallel attention (tp)   data-parallel attention (dp)
//   tokens of a step            all of them                      those of the rank's own sequences
//   KV cache                    its heads of every page          whole pages of its own sequences
//   embedding, norms, router    all                              all
//   q, k, v                     its heads (rows, biases)         all
//   o                           its heads (columns): all-reduce  all
//   dense gate, up / down       its rows / columns: all-reduce   all
//   shared expert               its rows / columns: all-reduce   all
//   routed experts, EP          E / ranks experts: all-reduce    the same: dispatch, combine
//   routed experts, TP          F / ranks of each: all-reduce    the same: dispatch, combine
//   head                        its rows of V: all-gather        all
//
// EP and TP of the routed experts are `--experts whole` and `sliced` on the command line.
//
//   all-reduce  one after attention and one after the FFN of each layer: block_output is summed
//   all-gather  of the logits' columns, once a step
//   dispatch    sends each token to the ranks that hold its experts (all-to-all)
//   combine     brings their outputs back and adds them (docs/decisions/0005)
//
// Where ranks cut the columns of an FP8 weight (o, down), each quantises the activation columns
// that it holds, by their own maximum: results depend on the number of ranks (docs/model.md).
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

/// One rank of a replica, and how the replica's weights are cut.
struct Shard {
  std::int64_t rank = 0;
  std::int64_t ranks = 1;
  ExpertLayout experts = ExpertLayout::expert_parallel;
  AttentionLayout attention = AttentionLayout::tensor_parallel;

  /// How everything but the routed experts is cut: data-parallel attention cuts none of it.
  Shard of_tokens() const { return attention == AttentionLayout::data_parallel ? Shard{} : *this; }
  /// Whether ranks have tokens of their own, which meet at the routed experts only.
  bool dispatches_tokens() const {
    return attention == AttentionLayout::data_parallel && ranks > 1;
  }
};

/// A range of rows, columns or experts.
struct Range {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

/// This rank's part of `total` things, an equal number on each rank. Errors: unsupported if `ranks`
/// does not divide `total`, naming `what` and both numbers.
Result<Range> share(const Shard& shard, std::int64_t total, const char* what);

/// Checks that the model can be cut so. Errors: unsupported: `ranks` does not divide the heads, an
/// FFN width, the experts or the vocabulary; invalid_argument: no such rank. The 128 x 128 blocks
/// of block-quantised weights are checked later, by rows_of() and columns_of().
Status check_shard(const ModelConfig& config, const Shard& shard);

/// A range of a layer's rows or columns, with their scales (and bias). Errors: unsupported: the
/// range cuts through a 128 x 128 block of a block-quantised weight, or takes columns of a layer
/// that has a bias.
Result<LinearSource> rows_of(const LinearSource& source, Range rows);
Result<LinearSource> columns_of(const LinearSource& source, Range columns);

/// This rank's columns of F: rows of gate and up, columns of down.
Result<MlpSource> slice_of(const MlpSource& source, const Shard& shard);

/// The input and output of a rank's routed experts: its own tokens, or those that were dispatched
/// to it.
struct DispatchedTokens {
  TensorView out;   // [M, H] bf16: what the experts write
  Activation x;     // [M, H]
  Routing routing;  // [M, A]
};

/// The collectives of one rank's forward pass. With one rank each of them does nothing or computes
/// locally.
class Collectives {
 public:
  /// `experts`: E, of all ranks together. Requires: backend and communicator outlive this.
  Collectives(Backend& backend,
              Communicator& communicator,
              const Shard& shard,
              std::int64_t experts);

  /// Allocates room for the tokens that other ranks dispatch to this one. `tokens_max` bounds a
  /// step's tokens of all ranks together, `top_k` is A, `needs` says in which formats experts read
  /// x. Errors: resource_exhausted.
  Status allocate(std::int64_t tokens_max,
                  std::int64_t hidden,
                  std::int64_t top_k,
                  const ActivationNeeds& needs);

  /// block_output = its sum over the ranks; then add_rms_norm of ops/backend.h.
  Status all_reduce_add_norm(const Activation& out,
                             TensorView residual,
                             TensorView block_output,
                             ConstTensorView weight,
                             float eps);
  /// block_output = its sum over the ranks.
  Status all_reduce(TensorView block_output);
  /// logits [R, V] = the ranks' parts [R, V / ranks] side by side.
  Status all_gather_logits(TensorView logits, ConstTensorView part);

  /// Sends tokens to the ranks that hold their experts; `needs`: the formats of x that experts of
  /// any rank read. Without data-parallel attention tokens stay: the result is the arguments, and
  /// its out is `block_output`.
  Result<DispatchedTokens> dispatch_to_experts(const Activation& x,
                                               const Routing& routing,
                                               TensorView block_output,
                                               const ActivationNeeds& needs);
  /// The way back: adds the experts' outputs for this rank's tokens to `block_output`, which holds
  /// the shared expert's output. Does nothing where tokens stayed.
  Status combine_from_experts(TensorView block_output, const DispatchedTokens& work);

 private:
  Backend* backend_;
  Communicator* communicator_;
  bool dispatches_;
  std::int64_t experts_per_rank_;  // 0: every rank holds a slice of each

  // What other ranks dispatched to this one. M rows.
  ActivationBuffer x_;     // [M, H]
  Tensor expert_ids_;      // [M, A] i32
  Tensor expert_weights_;  // [M, A] f32
  Tensor out_;             // [M, H] bf16
};

}  // namespace koho
