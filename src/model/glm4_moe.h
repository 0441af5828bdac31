// SPDX-License-Identifier: Apache-2.0
// The glm4_moe model on one rank: its placed weights, its activations, its cache and the forward
// pass. There is one forward pass for every backend and any number of ranks. docs/model.md tells
// the mathematics, model/sharding.h what a rank holds. It refuses to schedule: which tokens a step
// has and which pages they use come with the batch.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "comm/communicator.h"
#include "model/activations.h"
#include "model/config.h"
#include "model/kv_cache.h"
#include "model/sharding.h"
#include "model/weights.h"
#include "ops/backend.h"

namespace koho {

/// Placed weights of one layer.
struct LayerWeights {
  Tensor input_norm;           // [H] bf16
  Linear qkv;                  // [(Q + 2K) * D, H]
  Tensor q_norm;               // [D] bf16, or empty
  Tensor k_norm;               // [D] bf16, or empty
  Linear o;                    // [H, Q * D]
  Tensor post_attention_norm;  // [H] bf16

  struct Mlp {
    Linear gate_up;  // [2F, H]
    Linear down;     // [H, F]
  };
  struct Moe {
    Tensor router;               // [E, H] bf16 or f32
    Tensor correction_bias;      // [E] f32
    Experts experts;             // with the shared expert, unless `shared` has it
    std::optional<Mlp> shared;   // under data-parallel attention
    ActivationNeeds dispatched;  // the formats of x that experts of any rank read
  };
  std::optional<Mlp> mlp;  // exactly one of the two
  std::optional<Moe> moe;
};

/// What load needs to know beside config and weights.
struct LoadSettings {
  Shard shard;
  StepLimits limits;          // of all ranks together; load fills in the model's facts
  std::int64_t kv_pages = 0;  // pages of 64 tokens on this rank
  DType kv_dtype = DType::bf16;
};

/// The logits of the rows that a rank samples: all of a step's R, or its part of them where ranks
/// cut the vocabulary.
struct SampledLogits {
  TensorView values;  // [count, V] f32: rows `first` … of the R
  std::int64_t first = 0;
};

class Glm4Moe {
 public:
  /// Places this rank's part of the weights and allocates everything that a step needs. Requires:
  /// `backend`, `communicator` and the memory behind `sources` outlive the model. Errors:
  /// unsupported (a size that the ranks do not divide), resource_exhausted.
  static Result<Glm4Moe> load(const ModelConfig& config,
                              const ModelSources& sources,
                              const LoadSettings& settings,
                              Backend& backend,
                              Communicator& communicator);

  /// Runs one step: stores the keys and values of the batch's tokens and returns the logits of
  /// batch.logit_rows, those that this rank samples. They are valid until the next step.
  ///
  /// errors    invalid_argument: the batch exceeds the limits
  Result<SampledLogits> forward(const Batch& batch);

  /// The latest step's logits, if its R was `rows`.
  SampledLogits logits(std::int64_t rows) {
    const RowRange own = collectives_.sampled_rows(rows);
    return {activations_.logits.view().first(own.count), own.first};
  }
  Collectives& collectives() { return collectives_; }

  /// What the latest MoE layer's router chose for the first `tokens` tokens, [T, A]. Requires: the
  /// model has an MoE layer.
  ConstTensorView chosen_experts(std::int64_t tokens) {
    return activations_.expert_ids.view().first(tokens);
  }

  KvCache& kv_cache() { return kv_cache_; }
  const Shard& shard() const { return shard_; }
  const ModelConfig& config() const { return config_; }

 private:
  Glm4Moe(const ModelConfig& config,
          const Shard& shard,
          Backend& backend,
          Communicator& communicator);

  Status check_limits(const Batch& batch) const;
  Status attention_block(std::size_t layer,
                         const Batch& batch,
                         const Activation& x,
                         TensorView block_output);
  Status mlp_block(const LayerWeights::Mlp& mlp, const Activation& x, TensorView block_output);
  Status moe_block(const LayerWeights::Moe& moe,
                   const Batch& batch,
                   const Activation& x,
                   TensorView block_output);
  Result<SampledLogits> head(const Batch& batch, TensorView residual, TensorView block_output);

  ActivationNeeds block_needs(const LayerWeights& layer) const;  // what its MLP or MoE block reads
  ActivationNeeds dispatched_needs() const;                      // of all layers together
  ActivationWidths widths() const;

  ModelConfig config_;
  Shard shard_;
  Backend* backend_;
  Collectives collectives_;
  HeadShape heads_;  // on this rank
  RouterSettings router_;
  float eps_ = 0.0F;

  Tensor embedding_;   // [V, H] bf16
  Tensor rope_table_;  // [positions, 2, rotary/2] f32
  std::vector<LayerWeights> layers_;
  Tensor final_norm_;  // [H] bf16
  Linear head_;        // [V, H], or this rank's rows
  StepLimits limits_;
  Activations activations_;
  Tensor logits_shard_;  // [R, V / ranks] f32, if ranks cut the vocabulary
  KvCache kv_cache_;
};

}  // namespace koho
