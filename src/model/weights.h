// SPDX-License-Identifier: Apache-2.0
// THE table of a glm4_moe model's tensors: name, shape and dtypes of each, for any config, dense
// and MoE layers, the MTP layer. resolve_weights() meets it with a checkpoint and gives every
// weight as a view; missing, extra and misshapen tensors are errors. Each linear layer's own
// tensors decide how it is quantised, not config.json: layers of one model may differ.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "model/config.h"
#include "ops/weights.h"
#include "tensor/tensor_view.h"

namespace koho {

struct AttentionSources {
  LinearSource q;          // [Q * D, H], bias [Q * D] if attention_bias
  LinearSource k;          // [K * D, H], bias
  LinearSource v;          // [K * D, H], bias
  LinearSource o;          // [H, Q * D]
  ConstTensorView q_norm;  // [D] bf16, or empty without use_qk_norm
  ConstTensorView k_norm;  // [D] bf16, or empty
};

struct MoeSources {
  ConstTensorView router;           // [E, H] bf16 or f32
  ConstTensorView correction_bias;  // [E] f32
  std::vector<MlpSource> experts;   // E of width F
  MlpSource shared;
};

struct LayerSources {
  ConstTensorView input_norm;  // [H] bf16
  AttentionSources attention;
  ConstTensorView post_attention_norm;  // [H] bf16
  std::optional<MlpSource> mlp;         // exactly one of the two
  std::optional<MoeSources> moe;
};

/// The layer that drafts the token after next.
struct MtpSources {
  ConstTensorView embedding_norm;  // enorm [H] bf16
  ConstTensorView hidden_norm;     // hnorm [H] bf16
  LinearSource projection;         // eh_proj [H, 2H]: embedding first
  LayerSources layer;
  ConstTensorView final_norm;  // shared_head.norm [H] bf16
  ConstTensorView embedding;   // [V, H] bf16: its own, or the model's
  LinearSource head;           // [V, H]: its own, or the model's
};

/// All weights of a model, borrowed from the checkpoint.
struct ModelSources {
  ConstTensorView embedding;  // [V, H] bf16
  std::vector<LayerSources> layers;
  ConstTensorView final_norm;  // [H] bf16
  LinearSource lm_head;        // [V, H]
  std::optional<MtpSources> mtp;
};

/// What kind of weight a row of the table is, and so which dtypes it may have.
enum class WeightRole : std::uint8_t {
  vector,          // bf16: norms
  embedding,       // bf16
  linear,          // bf16, or e4m3 with a scale
  router,          // bf16 or f32
  correction_bias  // f32; bf16 is widened
};

/// One row of the table.
struct ExpectedWeight {
  std::string name;  // "model.layers.0.self_attn.q_proj.weight"
  WeightRole role = WeightRole::vector;
  Shape shape;
  bool bias = false;      // a linear with a bias [N] beside it
  bool optional = false;  // own embedding and head of the MTP layer
  bool routed = false;    // of a routed expert

  /// Elements with the bias, without scales.
  std::int64_t parameters() const { return shape.elements() + (bias ? shape[0] : 0); }
};

/// The table for `config`, in the order of the model; the MTP layer's rows last, if asked for.
std::vector<ExpectedWeight> expected_weights(const ModelConfig& config, bool with_mtp);

/// A source of weights other than a checkpoint: gives each row of the table its weight.
class WeightSupplier {
 public:
  virtual ~WeightSupplier() = default;
  virtual ConstTensorView tensor(const ExpectedWeight& row) = 0;
  /// With its scale, and a bias if the row has one.
  virtual LinearSource linear(const ExpectedWeight& row) = 0;
};

/// All weights of `config` but the MTP layer's, in the order of the table.
ModelSources supplied_weights(const ModelConfig& config, WeightSupplier& supplier);

/// A checkpoint's weights and what was found.
struct ResolvedWeights {
  ModelSources sources;
  std::array<std::int64_t, 4> linears{};  // linear layers by WeightQuant
  std::vector<std::string> warnings;      // what differs from config.json without harm
};

/// Looks every row of the table up in the checkpoint. Takes the MTP layer if its enorm is there;
/// without enorm its other tensors stay unused. Every view lies in the mapping, or in a copy that
/// `checkpoint` holds and counts (misaligned tensors, a bf16 correction bias). Errors:
/// corrupt_data: missing, extra and misshapen tensors, each with file, expected and found (the
/// first ten, then a count); unsupported: a quantisation that koho does not have.
Result<ResolvedWeights> resolve_weights(const ModelConfig& config, Checkpoint& checkpoint);

}  // namespace koho
