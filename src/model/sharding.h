// SPDX-License-Identifier: Apache-2.0
// What each rank of a replica holds, and the collectives that combine the ranks' results. Only this
// file cuts a weight, and only this file calls a collective: all-reduce, exchange, all-gather,
// dispatch and combine. The forward pass (model/forward.cpp) names the places where they happen.
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
//   head                        its rows of V: row exchange      all
//
// EP and TP of the routed experts are `--experts whole` and `sliced` on the command line.
//
//   all-reduce  one after attention and one after the FFN of each layer: block_output is summed
//   exchange    gives each rank the whole logits of the rows that it samples, once a step
//   all-gather  of what the ranks sampled, once a step (docs/decisions/0012)
//   dispatch    sends each token to the ranks that hold its experts (all-to-all)
//   combine     brings their outputs back and adds them (docs/decisions/0005)
//
// Where ranks cut the columns of an FP8 weight (o, down), each quantises the activation columns
// that it holds, by their own maximum: results depend on the number of ranks (docs/model.md).
#pragma once

#include <cstdint>
#include <span>

#include "base/arithmetic.h"
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

  /// The largest step, of all ranks together.
  struct Room {
    std::int64_t tokens_max = 0;
    std::int64_t hidden = 0;          // H
    std::int64_t top_k = 0;           // A
    ActivationNeeds needs;            // the formats in which experts of any rank read x
    std::int64_t logit_rows_max = 0;  // R
    std::int64_t logit_columns = 0;   // V / ranks, if ranks cut the vocabulary, else 0
  };
  /// Allocates what the communicator needs, and room for the tokens that other ranks dispatch to
  /// this one. All ranks call it together. Errors: resource_exhausted; those of the communicator.
  Status allocate(const Room& room);

  /// block_output = its sum over the ranks; then add_rms_norm of ops/backend.h. block_output is
  /// unspecified afterwards.
  Status all_reduce_add_norm(const Activation& out,
                             TensorView residual,
                             TensorView block_output,
                             ConstTensorView weight,
                             float eps);
  /// The rows of R that this rank samples: a part of them where ranks cut the vocabulary.
  RowRange sampled_rows(std::int64_t rows) const {
    return cuts_vocabulary_ ? owned_rows(rows, communicator_->rank(), communicator_->ranks())
                            : RowRange{0, rows};
  }
  /// The ranks among which a step's sampled rows are divided.
  std::int64_t sampling_ranks() const { return cuts_vocabulary_ ? communicator_->ranks() : 1; }
  /// Rows that arrays of R sampled rows are padded to: a multiple of the ranks that share them.
  std::int64_t padded_sampled_rows(std::int64_t rows) const {
    return round_up(rows, sampling_ranks());
  }
  /// Whole logits of the rows that this rank samples: logits [count, V] from every rank's part
  /// [R, V / ranks].
  Status exchange_logits(TensorView logits, ConstTensorView part);
  /// Fills in what the other ranks sampled: each tensor has padded_sampled_rows() rows. Does
  /// nothing where a rank samples all its rows.
  Status gather_sampled(std::span<const TensorView> tensors);

  /// Sends tokens to the ranks that hold their experts; `needs`: the formats of x that experts of
  /// any rank read, `row_starts`: Batch::row_starts. Without data-parallel attention tokens stay:
  /// the result is the arguments, and its out is `block_output`. Runs beside what is enqueued until
  /// wait_for_dispatch().
  Result<DispatchedTokens> dispatch_to_experts(const Activation& x,
                                               const Routing& routing,
                                               TensorView block_output,
                                               const ActivationNeeds& needs,
                                               std::span<const std::int64_t> row_starts);
  Status wait_for_dispatch();
  /// The way back: adds the experts' outputs for this rank's tokens to `block_output`, which holds
  /// the shared expert's output. Does nothing where tokens stayed.
  Status combine_from_experts(TensorView block_output, const DispatchedTokens& work);

 private:
  Backend* backend_;
  Communicator* communicator_;
  bool dispatches_;
  bool cuts_vocabulary_;
  std::int64_t experts_per_rank_;  // 0: every rank holds a slice of each

  // What other ranks dispatched to this one. M rows.
  ActivationBuffer x_;     // [M, H]
  Tensor expert_ids_;      // [M, A] i32
  Tensor expert_weights_;  // [M, A] f32
  Tensor out_;             // [M, H] bf16
};

}  // namespace koho
