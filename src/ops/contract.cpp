// SPDX-License-Identifier: Apache-2.0
#include "ops/contract.h"

#include "base/arithmetic.h"

namespace koho {

Status Contract::tensor(std::string_view name,
                        const ConstTensorView& view,
                        DType dtype,
                        std::initializer_list<std::int64_t> sizes,
                        Layout layout) const {
  const Shape expected(sizes);
  if (view.shape != expected || view.dtype != dtype)
    return make_error(ErrorCode::invalid_argument, "{}: {} must be {} {}, found {}", op_, name,
                      dtype_name(dtype), to_string(expected), describe(view));
  if (expected.elements() == 0) return {};
  if (view.empty()) return make_error(ErrorCode::invalid_argument, "{}: {} is missing", op_, name);
  if (view.device != device_)
    return make_error(ErrorCode::invalid_argument, "{}: {} lies on another device", op_, name);
  if (layout == Layout::packed ? !view.packed() : !view.rows_packed())
    return make_error(ErrorCode::invalid_argument, "{}: {} must be packed{}", op_, name,
                      layout == Layout::packed ? "" : " along its last axis");
  return {};
}

Status Contract::optional(std::string_view name,
                          const ConstTensorView& view,
                          DType dtype,
                          std::initializer_list<std::int64_t> sizes) const {
  if (view.empty()) return {};
  return tensor(name, view, dtype, sizes);
}

Status Contract::activation(std::string_view name,
                            const Activation& activation,
                            std::int64_t tokens,
                            std::int64_t width) const {
  // The whole name is put together for the message only: a step allocates nothing.
  const auto part = [&](std::string_view of, const ConstTensorView& view, DType dtype,
                        std::initializer_list<std::int64_t> sizes, Layout layout) -> Status {
    if (tensor(of, view, dtype, sizes, layout).ok()) return {};
    return tensor(fmt::format("{}{}", name, of), view, dtype, sizes, layout);
  };
  if (!activation.values.empty())
    KOHO_TRY(part(".values", activation.values, DType::bf16, {tokens, width}, Layout::rows));
  if (!activation.quantized.empty()) {
    KOHO_TRY(
        part(".quantized", activation.quantized, DType::f8_e4m3, {tokens, width}, Layout::rows));
    KOHO_TRY(part(".scales", activation.scales, DType::f32, {tokens}, Layout::packed));
  }
  if (!activation.block_quantized.empty()) {
    KOHO_TRY(part(".block_quantized", activation.block_quantized, DType::f8_e4m3, {tokens, width},
                  Layout::rows));
    KOHO_TRY(part(".block_scales", activation.block_scales, DType::f32,
                  {tokens, ceil_div(width, kQuantBlock)}, Layout::rows));
  }
  return {};
}

Status Contract::activation(std::string_view name,
                            const Activation& activation,
                            std::int64_t tokens,
                            std::int64_t width,
                            const ActivationNeeds& needs) const {
  KOHO_TRY(this->activation(name, activation, tokens, width));
  if (tokens == 0) return {};
  const auto there = [&](bool needed, const ConstTensorView& view, std::string_view of) -> Status {
    if (!needed || !view.empty()) return {};
    return make_error(ErrorCode::invalid_argument, "{}: {}{} must be there", op_, name, of);
  };
  KOHO_TRY(there(needs.values, activation.values, ".values"));
  KOHO_TRY(there(needs.per_token, activation.quantized, ".quantized"));
  return there(needs.per_block, activation.block_quantized, ".block_quantized");
}

Status Contract::kv(const KvLayer& kv, std::int64_t kv_heads, std::int64_t width) const {
  KOHO_TRY(that(kv.k.shape.rank() == 4, "kv.k must be [N, K, 64, D]"));
  const std::int64_t pages = kv.k.size(0);
  const DType dtype = kv.k.dtype == DType::f8_e4m3 ? DType::f8_e4m3 : DType::bf16;
  KOHO_TRY(tensor("kv.k", kv.k, dtype, {pages, kv_heads, kPageTokens, width}));
  KOHO_TRY(tensor("kv.v", kv.v, dtype, {pages, kv_heads, kPageTokens, width}));
  if (dtype == DType::bf16) return {};
  KOHO_TRY(tensor("kv.k_scales", kv.k_scales, DType::f32, {pages, kv_heads, kPageTokens}));
  return tensor("kv.v_scales", kv.v_scales, DType::f32, {pages, kv_heads, kPageTokens});
}

Status Contract::that(bool holds, std::string_view expectation) const {
  if (holds) return {};
  return make_error(ErrorCode::invalid_argument, "{}: {}", op_, expectation);
}

}  // namespace koho
