// SPDX-License-Identifier: Apache-2.0
#include "bench/operator_operands.h"

#include <algorithm>

#include "tensor/number.h"

namespace koho::app {
namespace {

void set(const TensorView& values, std::int64_t i, double value) {
  switch (values.dtype) {
    case DType::f8_e4m3:
      values.as<Float8E4M3>()[i] = to_e4m3(static_cast<float>(value));
      break;
    case DType::bf16:
      values.as<BFloat16>()[i] = to_bf16(static_cast<float>(value));
      break;
    case DType::f32:
      values.as<float>()[i] = static_cast<float>(value);
      break;
    case DType::i32:
      values.as<std::int32_t>()[i] = static_cast<std::int32_t>(value);
      break;
    case DType::i64:
      values.as<std::int64_t>()[i] = static_cast<std::int64_t>(value);
      break;
    default:
      values.as<std::uint8_t>()[i] = static_cast<std::uint8_t>(value);
  }
}

}  // namespace

Result<TensorView> Operands::host(DType dtype, const Shape& shape, const Draw& draw) {
  KOHO_TRY_ASSIGN(Tensor values, Tensor::host(dtype, shape));
  // A prime: rows of any width differ for many rows.
  constexpr std::int64_t kDrawn = 1'048'573;
  const TensorView view = values.view();
  const std::int64_t drawn = std::min(view.elements(), kDrawn);
  for (std::int64_t i = 0; i < drawn; ++i) set(view, i, draw());
  const std::int64_t block = drawn * dtype_bytes(dtype);
  for (std::int64_t at = block; at < view.bytes(); at += block)
    std::copy_n(view.data, std::min(block, view.bytes() - at), view.data + at);
  tensors_.push_back(std::move(values));
  return view;
}

Result<TensorView> Operands::host_bytes(DType dtype,
                                        const Shape& shape,
                                        std::span<const std::byte> bytes) {
  KOHO_TRY_ASSIGN(Tensor values, Tensor::host(dtype, shape));
  const TensorView view = values.view();
  KOHO_CHECK_EQ(view.bytes(), static_cast<std::int64_t>(bytes.size()));
  std::copy(bytes.begin(), bytes.end(), view.data);
  tensors_.push_back(std::move(values));
  return view;
}

Result<TensorView> Operands::copy(ConstTensorView values) {
  KOHO_TRY_ASSIGN(Tensor placed, site_.measured.allocate(values.dtype, values.shape, "bench"));
  const TensorView view = placed.view();
  KOHO_TRY(site_.measured.upload(view, {values.data, static_cast<std::size_t>(values.bytes())}));
  tensors_.push_back(std::move(placed));
  return view;
}

Result<Sides<TensorView>> Operands::both(TensorView values) {
  KOHO_TRY_ASSIGN(const TensorView placed, copy(values));
  return Sides<TensorView>{placed, values};
}

Result<Sides<TensorView>> Operands::input(DType dtype, const Shape& shape, const Draw& draw) {
  KOHO_TRY_ASSIGN(const TensorView values, host(dtype, shape, draw));
  return both(values);
}

Result<Sides<TensorView>> Operands::output(DType dtype, const Shape& shape) {
  Sides<TensorView> views;
  KOHO_TRY_ASSIGN(Tensor measured, site_.measured.allocate(dtype, shape, "bench"));
  KOHO_TRY_ASSIGN(Tensor reference, site_.reference.allocate(dtype, shape, "bench"));
  views = {measured.view(), reference.view()};
  tensors_.push_back(std::move(measured));
  tensors_.push_back(std::move(reference));
  return views;
}

Result<Sides<TensorView>> Operands::changing(ConstTensorView before) {
  KOHO_TRY_ASSIGN(const Sides<TensorView> views, output(before.dtype, before.shape));
  const std::span bytes(before.data, static_cast<std::size_t>(before.bytes()));
  KOHO_TRY(site_.measured.upload(views.measured, bytes));
  KOHO_TRY(site_.reference.upload(views.reference, bytes));
  return views;
}

Result<Sides<Activation>> Operands::activation(std::int64_t tokens,
                                               std::int64_t width,
                                               bool blocks) {
  KOHO_TRY_ASSIGN(const Sides<TensorView> values, input(DType::bf16, {tokens, width}, normals()));
  KOHO_TRY_ASSIGN(const Sides<TensorView> quantized,
                  input(DType::f8_e4m3, {tokens, width}, normals()));
  const Shape sizes =
      blocks ? Shape{tokens, (width + kQuantBlock - 1) / kQuantBlock} : Shape{tokens};
  KOHO_TRY_ASSIGN(const Sides<TensorView> scales, input(DType::f32, sizes, about(0.01)));
  Sides<Activation> x;
  const auto fill = [&](Activation& one, Side side) {
    one.values = values.on(side);
    (blocks ? one.block_quantized : one.quantized) = quantized.on(side);
    (blocks ? one.block_scales : one.scales) = scales.on(side);
  };
  fill(x.measured, Side::measured);
  fill(x.reference, Side::reference);
  return x;
}

Result<LinearSource> Operands::source(std::int64_t rows, std::int64_t columns, WeightQuant quant) {
  LinearSource source;
  source.quant = quant;
  const DType dtype = quant == WeightQuant::none ? DType::bf16 : DType::f8_e4m3;
  KOHO_TRY_ASSIGN(source.weight, host(dtype, {rows, columns}, normals()));
  if (quant == WeightQuant::none) return source;
  const auto blocks = [](std::int64_t size) { return (size + kQuantBlock - 1) / kQuantBlock; };
  const Shape scales = quant == WeightQuant::fp8_tensor    ? Shape{1}
                       : quant == WeightQuant::fp8_channel ? Shape{rows}
                                                           : Shape{blocks(rows), blocks(columns)};
  KOHO_TRY_ASSIGN(source.scale, host(DType::f32, scales, about(0.01)));
  return source;
}

Status Operands::reserve(const StepLimits& limits) {
  StepLimits all = limits;  // with GLM-4.7's facts on one rank, which no case exceeds
  all.experts_per_token = 8;
  all.query_heads = 96;
  all.kv_heads = 8;
  all.head_width = 128;
  KOHO_TRY(site_.measured.reserve(all));
  StepLimits few = all;
  few.tokens_max = std::min(few.tokens_max, kRowsCompared);
  few.sequences_max = std::min(few.sequences_max, kRowsCompared);
  return site_.reference.reserve(few);
}

}  // namespace koho::app
