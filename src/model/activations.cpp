// SPDX-License-Identifier: Apache-2.0
#include "model/activations.h"

#include "base/arithmetic.h"

namespace koho {

TensorView packed_rows(Tensor& memory, std::int64_t tokens, std::int64_t width) {
  const TensorView all = memory.view();
  KOHO_CHECK_LE(tokens * width, all.elements());
  return TensorView(all.data, all.dtype, {tokens, width}, all.device);
}

Result<ActivationBuffer> ActivationBuffer::allocate(Backend& backend,
                                                    std::int64_t tokens_max,
                                                    std::int64_t width,
                                                    const ActivationNeeds& needs) {
  ActivationBuffer buffer;
  buffer.width_ = width;
  const Shape elements{tokens_max, width};
  if (needs.values) {
    KOHO_TRY_ASSIGN(buffer.values_, backend.allocate(DType::bf16, elements, "activations"));
  }
  if (needs.per_token) {
    KOHO_TRY_ASSIGN(buffer.quantized_,
                    backend.allocate(DType::f8_e4m3, elements, "quantised activations"));
    KOHO_TRY_ASSIGN(buffer.scales_,
                    backend.allocate(DType::f32, {tokens_max}, "activation scales"));
  }
  if (needs.per_block) {
    const Shape blocks{tokens_max, ceil_div(width, kQuantBlock)};
    KOHO_TRY_ASSIGN(buffer.block_quantized_,
                    backend.allocate(DType::f8_e4m3, elements, "quantised activations"));
    KOHO_TRY_ASSIGN(buffer.block_scales_,
                    backend.allocate(DType::f32, blocks, "activation scales"));
  }
  return buffer;
}

Activation ActivationBuffer::view(std::int64_t tokens,
                                  std::int64_t width,
                                  const ActivationNeeds& needs) {
  Activation activation;
  if (needs.values) activation.values = packed_rows(values_, tokens, width);
  if (needs.per_token) {
    activation.quantized = packed_rows(quantized_, tokens, width);
    activation.scales = scales_.view().first(tokens);
  }
  if (needs.per_block) {
    activation.block_quantized = packed_rows(block_quantized_, tokens, width);
    activation.block_scales = packed_rows(block_scales_, tokens, ceil_div(width, kQuantBlock));
  }
  return activation;
}

Result<Activations> Activations::allocate(Backend& backend,
                                          const StepLimits& limits,
                                          const ActivationWidths& widths) {
  Activations a;
  const std::int64_t tokens = limits.tokens_max;
  const std::int64_t rows = limits.logit_rows_max;
  auto tensor = [&backend](DType dtype, Shape shape) {
    return backend.allocate(dtype, shape, "activations");
  };
  KOHO_TRY_ASSIGN(a.residual, tensor(DType::bf16, {tokens, widths.hidden}));
  KOHO_TRY_ASSIGN(a.block_output, tensor(DType::bf16, {tokens, widths.hidden}));
  KOHO_TRY_ASSIGN(a.x,
                  ActivationBuffer::allocate(backend, tokens, widths.hidden, widths.hidden_needs));
  KOHO_TRY_ASSIGN(a.qkv, tensor(DType::bf16, {tokens, widths.qkv}));
  KOHO_TRY_ASSIGN(a.q, tensor(DType::bf16, {tokens, widths.query}));
  KOHO_TRY_ASSIGN(a.attention_output,
                  ActivationBuffer::allocate(backend, tokens, widths.query, widths.query_needs));
  if (widths.ffn > 0) {
    KOHO_TRY_ASSIGN(a.gate_up, tensor(DType::bf16, {tokens, 2 * widths.ffn}));
    KOHO_TRY_ASSIGN(a.ffn,
                    ActivationBuffer::allocate(backend, tokens, widths.ffn, widths.ffn_needs));
  }
  if (widths.experts_top > 0) {
    KOHO_TRY_ASSIGN(a.expert_ids, tensor(DType::i32, {tokens, widths.experts_top}));
    KOHO_TRY_ASSIGN(a.expert_weights, tensor(DType::f32, {tokens, widths.experts_top}));
  }
  KOHO_TRY_ASSIGN(a.last_residual, tensor(DType::bf16, {rows, widths.hidden}));
  KOHO_TRY_ASSIGN(a.last_block_output, tensor(DType::bf16, {rows, widths.hidden}));
  KOHO_TRY_ASSIGN(a.last,
                  ActivationBuffer::allocate(backend, rows, widths.hidden, widths.head_needs));
  KOHO_TRY_ASSIGN(a.logits, tensor(DType::f32, {widths.logit_rows, widths.vocabulary}));
  return a;
}

}  // namespace koho
