// SPDX-License-Identifier: Apache-2.0
// Weights, before and after a backend has taken them. A *source* is what the checkpoint holds:
// views into its mapping, or a rank's slice of one. A *placed* weight is what a backend made of a
// source: the CPU reads the mapping in place, CUDA repacks it into tiles on the device. Only the
// backend that placed a weight can read it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tensor/tensor_view.h"

namespace koho {

inline constexpr std::int64_t kQuantBlock = 128;  // rows and columns of one scale in block FP8

/// How the elements of a weight are stored.
enum class WeightQuant : std::uint8_t {
  none,         // bf16
  fp8_channel,  // e4m3, one scale a row
  fp8_tensor,   // e4m3, one scale
  fp8_block     // e4m3, one scale for 128 x 128 elements
};

/// One linear layer of the checkpoint: y = x * weight^T (+ bias). Rows may be strided, a row's
/// elements are packed.
struct LinearSource {
  ConstTensorView weight;  // [N, K] bf16 or e4m3
  ConstTensorView scale;   // empty; [N]; [1]; [ceil(N/128), ceil(K/128)]: f32 or bf16, a multiplier
  ConstTensorView bias;    // empty; [N] bf16
  WeightQuant quant = WeightQuant::none;

  std::int64_t out_features() const { return weight.size(0); }
  std::int64_t in_features() const { return weight.size(1); }
};

/// Bytes in the checkpoint; 0 for what is absent.
inline std::int64_t bytes_of(const ConstTensorView& view) {
  return view.empty() ? 0 : view.bytes();
}
inline std::int64_t bytes_of(const LinearSource& linear) {
  return bytes_of(linear.weight) + bytes_of(linear.scale) + bytes_of(linear.bias);
}

/// down(silu(gate(x)) * up(x)): gate and up [F, H], down [H, F].
struct MlpSource {
  LinearSource gate;
  LinearSource up;
  LinearSource down;
};

inline std::int64_t bytes_of(const MlpSource& mlp) {
  return bytes_of(mlp.gate) + bytes_of(mlp.up) + bytes_of(mlp.down);
}

/// In which formats a placed weight reads its activation. A layer whose row blocks are stored in
/// different formats needs several.
struct ActivationNeeds {
  bool values = false;     // bf16
  bool per_token = false;  // e4m3 with one scale a token
  bool per_block = false;  // e4m3 with one scale for 128 columns of a token

  friend ActivationNeeds operator|(ActivationNeeds a, ActivationNeeds b) {
    return {a.values || b.values, a.per_token || b.per_token, a.per_block || b.per_block};
  }
};

/// The format of x that a weight of `quant` multiplies.
inline ActivationNeeds activation_needs(WeightQuant quant) {
  return {quant == WeightQuant::none,
          quant == WeightQuant::fp8_channel || quant == WeightQuant::fp8_tensor,
          quant == WeightQuant::fp8_block};
}

/// A weight in a backend's own layout.
class PlacedWeights {
 public:
  virtual ~PlacedWeights() = default;
};

/// A linear layer on a backend: one or more row blocks that read the same x, stacked as in vLLM's
/// merged layers (q, k, v; gate, up).
struct Linear {
  std::int64_t out_features = 0;  // N, of all blocks
  std::int64_t in_features = 0;   // K
  ActivationNeeds needs;
  std::unique_ptr<PlacedWeights> placed;
};

/// One layer's routed experts on this rank, and the shared expert or its slice, if it lives here.
struct Experts {
  std::int64_t first = 0;       // global index of the first local expert
  std::int64_t count = 0;       // local experts
  std::int64_t hidden = 0;      // H
  std::int64_t ffn = 0;         // F of a routed expert (its local slice)
  std::int64_t shared_ffn = 0;  // F of the shared expert (its local slice); 0 = none
  ActivationNeeds needs;
  std::unique_ptr<PlacedWeights> placed;
};

/// What place_experts() makes Experts of.
struct ExpertsSource {
  std::int64_t first = 0;          // global index of the first local expert
  std::int64_t total = 0;          // experts that the router chooses among; 0 = only the local ones
  std::vector<MlpSource> experts;  // the local experts, in order
  std::optional<MlpSource> shared;
};

}  // namespace koho
