// SPDX-License-Identifier: Apache-2.0
// Every intermediate tensor of a step in one struct, allocated once for the largest step. The
// forward pass takes the first `tokens` rows of each.
#pragma once

#include <cstdint>

#include "base/error.h"
#include "ops/backend.h"

namespace koho {

/// `tokens` packed rows of `width` at the beginning of a tensor's memory. Requires: they fit.
TensorView packed_rows(Tensor& memory, std::int64_t tokens, std::int64_t width);

/// Memory for one activation in every format that some layer reads.
class ActivationBuffer {
 public:
  static Result<ActivationBuffer> allocate(Backend& backend,
                                           std::int64_t tokens_max,
                                           std::int64_t width,
                                           const ActivationNeeds& needs);

  /// The first `tokens` rows in the formats of `needs`. Requires: allocate()'s needs had them.
  Activation view(std::int64_t tokens, const ActivationNeeds& needs) {
    return view(tokens, width_, needs);
  }
  /// `tokens` packed rows of `width`, at most that of allocate().
  Activation view(std::int64_t tokens, std::int64_t width, const ActivationNeeds& needs);

 private:
  std::int64_t width_ = 0;
  Tensor values_;           // [T, K] bf16
  Tensor quantized_;        // [T, K] e4m3
  Tensor scales_;           // [T] f32
  Tensor block_quantized_;  // [T, K] e4m3
  Tensor block_scales_;     // [T, ceil(K/128)] f32
};

/// Widths of one rank's activations, in elements.
struct ActivationWidths {
  std::int64_t hidden = 0;  // H
  std::int64_t qkv = 0;     // (Q + 2K) * D
  std::int64_t query = 0;   // Q * D
  std::int64_t ffn = 0;  // F of the widest dense layer, or of the shared expert under DP attention
  std::int64_t experts_top = 0;  // A
  std::int64_t vocabulary = 0;   // V
  std::int64_t logit_rows = 0;   // that this rank samples, of a step's R at most
  ActivationNeeds hidden_needs;  // of all layers together
  ActivationNeeds query_needs;
  ActivationNeeds ffn_needs;
  ActivationNeeds head_needs;
};

struct Activations {
  static Result<Activations> allocate(Backend& backend,
                                      const StepLimits& limits,
                                      const ActivationWidths& widths);

  Tensor residual;                    // [T, H] bf16: the residual stream
  Tensor block_output;                // [T, H] bf16: what a block adds to it
  ActivationBuffer x;                 // [T, H]: the normed input of a block
  Tensor qkv;                         // [T, (Q + 2K) * D] bf16
  Tensor q;                           // [T, Q, D] bf16: as [T, Q * D]
  ActivationBuffer attention_output;  // [T, Q * D]: attention's output
  Tensor gate_up;                     // [T, 2F] bf16
  ActivationBuffer ffn;               // [T, F]
  Tensor expert_ids;                  // [T, A] i32
  Tensor expert_weights;              // [T, A] f32
  Tensor last_residual;               // [R, H] bf16: rows whose logits are wanted
  Tensor last_block_output;           // [R, H] bf16
  ActivationBuffer last;              // [R, H]
  Tensor logits;                      // [logit_rows, V] f32
};

}  // namespace koho
