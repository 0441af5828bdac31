// SPDX-License-Identifier: Apache-2.0
#include "bench/operators/operands.h"

#include <algorithm>

#include "base/arithmetic.h"
#include "tensor/number.h"

namespace koho::bench {
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
  constexpr std::int64_t kRandom = 1'048'573;
  const TensorView view = values.view();
  const std::int64_t random = std::min(view.elements(), kRandom);
  for (std::int64_t i = 0; i < random; ++i) set(view, i, draw());
  const std::int64_t block = random * dtype_bytes(dtype);
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

Result<Sides<TensorView>> Operands::input(HostTensor values, std::int64_t row_gap) {
  values_.push_back(std::move(values));
  HostTensor& kept = values_.back();
  const TensorView on_host(kept.bytes.data(), kept.dtype, kept.shape);
  if (!guarded_) return both(on_host);
  arrays_.emplace_back(site_.measured, kept, row_gap);
  return Sides<TensorView>{arrays_.back().view(), on_host};
}

Result<Sides<TensorView>> Operands::output(DType dtype, const Shape& shape, std::int64_t row_gap) {
  if (guarded_) {
    arrays_.emplace_back(site_.measured, dtype, shape, row_gap);
    return Sides<TensorView>{arrays_.back().view(), {}};
  }
  KOHO_TRY_ASSIGN(Tensor measured, site_.measured.allocate(dtype, shape, "bench"));
  KOHO_TRY_ASSIGN(Tensor reference, site_.reference->allocate(dtype, shape, "bench"));
  const Sides<TensorView> views{measured.view(), reference.view()};
  tensors_.push_back(std::move(measured));
  tensors_.push_back(std::move(reference));
  return views;
}

Result<Sides<Activation>> Operands::output_activation(std::int64_t tokens,
                                                      std::int64_t width,
                                                      const ActivationNeeds& needs) {
  Sides<Activation> out;
  const auto add = [&](auto member, DType dtype, const Shape& shape) -> Status {
    KOHO_TRY_ASSIGN(const Sides<TensorView> views, output(dtype, shape));
    out.measured.*member = views.measured;
    out.reference.*member = views.reference;
    return {};
  };
  if (needs.values) KOHO_TRY(add(&Activation::values, DType::bf16, {tokens, width}));
  if (needs.per_token) {
    KOHO_TRY(add(&Activation::quantized, DType::f8_e4m3, {tokens, width}));
    KOHO_TRY(add(&Activation::scales, DType::f32, {tokens}));
  }
  if (needs.per_block) {
    KOHO_TRY(add(&Activation::block_quantized, DType::f8_e4m3, {tokens, width}));
    KOHO_TRY(add(&Activation::block_scales, DType::f32, {tokens, ceil_div(width, kQuantBlock)}));
  }
  return out;
}

Result<Sides<TensorView>> Operands::changing(ConstTensorView before) {
  KOHO_TRY_ASSIGN(const Sides<TensorView> views, output(before.dtype, before.shape));
  if (guarded_) {
    restore(views.measured, before);
    return views;
  }
  const std::span bytes(before.data, static_cast<std::size_t>(before.bytes()));
  KOHO_TRY(site_.measured.upload(views.measured, bytes));
  KOHO_TRY(site_.reference->upload(views.reference, bytes));
  return views;
}

const DeviceArray& Operands::array_of(const TensorView& view) const {
  const auto found = std::find_if(arrays_.begin(), arrays_.end(), [&](const DeviceArray& array) {
    return array.view().data == view.data;
  });
  KOHO_CHECK(found != arrays_.end());
  return *found;
}

HostTensor Operands::get(const TensorView& view) const {
  return array_of(view).get();
}

void Operands::restore(const TensorView& view, const ConstTensorView& before) {
  DeviceArray& array = const_cast<DeviceArray&>(array_of(view));
  if (before.empty()) return array.poison();
  array.set({before.data, static_cast<std::size_t>(before.bytes())});
}

std::string Operands::guard_fault() const {
  std::string faults;
  for (const DeviceArray& array : arrays_)
    faults += array.guard_fault(to_string(array.view().shape));
  return faults;
}

Result<Sides<Activation>> Operands::activation(const SyntheticActivation& x,
                                               const ActivationNeeds& needs,
                                               std::int64_t row_gap) {
  Sides<Activation> views;
  const auto add = [&](auto member, const HostTensor& form, std::int64_t gap) -> Status {
    KOHO_TRY_ASSIGN(const Sides<TensorView> both_sides, input(form, gap));
    views.measured.*member = both_sides.measured;
    views.reference.*member = both_sides.reference;
    return {};
  };
  if (needs.values) KOHO_TRY(add(&Activation::values, x.values, row_gap));
  if (needs.per_token) {
    KOHO_TRY(add(&Activation::quantized, x.quantized, 0));
    KOHO_TRY(add(&Activation::scales, x.scales, 0));
  }
  if (needs.per_block) {
    KOHO_TRY(add(&Activation::block_quantized, x.block_quantized, 0));
    KOHO_TRY(add(&Activation::block_scales, x.block_scales, 0));
  }
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

void Operands::use(std::size_t index) {
  const auto swap = [this](Placed& placed) {
    std::swap(placed.linears, linears.measured);
    std::swap(placed.experts, experts.measured);
  };
  swap(unused_[used_]);
  used_ = index;
  swap(unused_[used_]);
}

Status Operands::on_each_tested(const std::function<Status()>& place) {
  if (!guarded_) return place();
  const std::size_t before = used_;
  for (std::size_t i = 0; i < tested_.size(); ++i) {
    use(i);
    KOHO_TRY(place());
  }
  use(before);
  return {};
}

Status Operands::place_linear(std::span<const LinearSource> blocks, std::int64_t copies) {
  KOHO_TRY(on_each_tested([&]() -> Status {
    for (std::int64_t i = 0; i < copies; ++i) {
      KOHO_TRY_ASSIGN(Linear linear, backend(Side::measured).place_linear(blocks));
      linears.measured.push_back(std::move(linear));
    }
    return {};
  }));
  if (site_.reference == nullptr) return {};
  KOHO_TRY_ASSIGN(Linear linear, site_.reference->place_linear(blocks));
  linears.reference.push_back(std::move(linear));
  return {};
}

Status Operands::place_experts(const ExpertsSource& source, std::int64_t copies) {
  KOHO_TRY(on_each_tested([&]() -> Status {
    for (std::int64_t i = 0; i < copies; ++i) {
      KOHO_TRY_ASSIGN(Experts placed, backend(Side::measured).place_experts(source));
      experts.measured.push_back(std::move(placed));
    }
    return {};
  }));
  if (site_.reference == nullptr) return {};
  KOHO_TRY_ASSIGN(Experts placed, site_.reference->place_experts(source));
  experts.reference.push_back(std::move(placed));
  return {};
}

Status Operands::reserve(const StepLimits& limits) {
  StepLimits all = limits;  // with GLM-4.7's heads and experts on one rank, which no case exceeds
  all.experts_per_token = 8;
  all.query_heads = 96;
  all.kv_heads = 8;
  all.head_width = 128;
  KOHO_TRY(on_each_tested([&] { return backend(Side::measured).reserve(all); }));
  if (site_.reference == nullptr) return {};
  StepLimits few = all;
  few.tokens_max = std::min(few.tokens_max, kRowsCompared);
  few.sequences_max = std::min(few.sequences_max, kRowsCompared);
  return site_.reference->reserve(few);
}

}  // namespace koho::bench
