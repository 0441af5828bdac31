// SPDX-License-Identifier: Apache-2.0
#include "ops/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/arithmetic.h"
#include "ops/compare.h"

namespace koho::testing {

void quantize(const HostTensor& values,
              std::int64_t block,
              HostTensor& quantized,
              HostTensor& scales) {
  const std::int64_t rows = values.shape[0];
  const std::int64_t columns = values.shape[1];
  const std::int64_t width = block == 0 ? columns : block;
  std::int64_t scale_index = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t first = 0; first < columns; first += width) {
      const std::int64_t end = std::min(columns, first + width);
      float largest = 0.0F;
      for (std::int64_t i = first; i < end; ++i) {
        const float value = to_float(values.as<BFloat16>()[row * columns + i]);
        if (std::fabs(value) > largest) largest = std::fabs(value);
      }
      const float scale = std::max(largest / 448.0F, 1.0F / (448.0F * 512.0F));
      scales.as<float>()[scale_index++] = scale;
      for (std::int64_t i = first; i < end; ++i)
        quantized.as<Float8E4M3>()[row * columns + i] =
            to_e4m3(to_float(values.as<BFloat16>()[row * columns + i]) / scale);
    }
  }
}

RandomLinear::RandomLinear(
    Random& random, WeightQuant kind, std::int64_t n, std::int64_t k, bool with_bias)
    : rows(n), columns(k), quant(kind) {
  const std::int64_t gap = random.chance(0.3) ? random.integer(1, 70) : 0;
  const Spread spread = random.chance(0.2) ? Spread::zero_rows : Spread::normal;
  const double level = 1.0 / std::sqrt(static_cast<double>(k));
  const DType scale_dtype = random.chance(0.5) ? DType::f32 : DType::bf16;
  if (kind == WeightQuant::none)
    storage = random_values(random, DType::bf16, {n, k + gap}, spread, level);
  else
    storage =
        random_quantized(random, {n, k + gap}, random.chance(0.1) ? Spread::denormals : spread);
  if (kind == WeightQuant::fp8_channel)
    scale = random_scales(random, scale_dtype, {n}, level / 100.0);
  if (kind == WeightQuant::fp8_tensor)
    scale = random_scales(random, scale_dtype, {1}, level / 100.0);
  if (kind == WeightQuant::fp8_block)
    scale = random_scales(random, scale_dtype, {ceil_div(n, kQuantBlock), ceil_div(k, kQuantBlock)},
                          level / 100.0);
  if (with_bias) bias = random_values(random, DType::bf16, {n}, Spread::normal);
}

LinearSource RandomLinear::source() const {
  LinearSource source;
  source.weight = storage.view().slice(1, 0, columns);
  if (!scale.empty()) source.scale = scale.view();
  if (!bias.empty()) source.bias = bias.view();
  source.quant = quant;
  return source;
}

double RandomLinear::multiplier(std::int64_t n, std::int64_t k) const {
  switch (quant) {
    case WeightQuant::none:
      return 1.0;
    case WeightQuant::fp8_channel:
      return scale.at(n);
    case WeightQuant::fp8_tensor:
      return scale.at(0);
    case WeightQuant::fp8_block:
      return scale.at(n / kQuantBlock * scale.shape[1] + k / kQuantBlock);
  }
  return 0.0;
}

RandomActivation::RandomActivation(HostTensor bf16_values) : values(std::move(bf16_values)) {
  const std::int64_t tokens = values.shape[0];
  const std::int64_t blocks = ceil_div(values.shape[1], kQuantBlock);
  quantized = HostTensor(DType::f8_e4m3, values.shape);
  scales = HostTensor(DType::f32, {tokens});
  block_quantized = HostTensor(DType::f8_e4m3, values.shape);
  block_scales = HostTensor(DType::f32, {tokens, blocks});
  quantize(values, 0, quantized, scales);
  quantize(values, kQuantBlock, block_quantized, block_scales);
}

RandomActivation RandomActivation::row(std::int64_t index) const {
  return RandomActivation(row_of(values, index));
}

double RandomActivation::value(WeightQuant quant, std::int64_t t, std::int64_t k) const {
  const std::int64_t i = t * values.shape[1] + k;
  switch (quant) {
    case WeightQuant::none:
      return values.at(i);
    case WeightQuant::fp8_channel:
    case WeightQuant::fp8_tensor:
      return quantized.at(i) * scales.at(t);
    case WeightQuant::fp8_block:
      return block_quantized.at(i) * block_scales.at(t * block_scales.shape[1] + k / kQuantBlock);
  }
  return 0.0;
}

DeviceActivation::DeviceActivation(Backend& backend,
                                   const RandomActivation& source,
                                   const ActivationNeeds& needs,
                                   std::int64_t row_gap)
    : needs_(needs) {
  if (needs.values) values = DeviceArray(backend, source.values, row_gap);
  if (needs.per_token) {
    quantized = DeviceArray(backend, source.quantized);
    scales = DeviceArray(backend, source.scales);
  }
  if (needs.per_block) {
    block_quantized = DeviceArray(backend, source.block_quantized);
    block_scales = DeviceArray(backend, source.block_scales);
  }
}

DeviceActivation::DeviceActivation(Backend& backend,
                                   std::int64_t tokens,
                                   std::int64_t columns,
                                   const ActivationNeeds& needs)
    : needs_(needs) {
  if (needs.values) values = DeviceArray(backend, DType::bf16, {tokens, columns});
  if (needs.per_token) {
    quantized = DeviceArray(backend, DType::f8_e4m3, {tokens, columns});
    scales = DeviceArray(backend, DType::f32, {tokens});
  }
  if (needs.per_block) {
    block_quantized = DeviceArray(backend, DType::f8_e4m3, {tokens, columns});
    block_scales = DeviceArray(backend, DType::f32, {tokens, ceil_div(columns, kQuantBlock)});
  }
}

Activation DeviceActivation::view() const {
  return {values.view(), quantized.view(), scales.view(), block_quantized.view(),
          block_scales.view()};
}

std::string DeviceActivation::check_quantized(const std::string& name) const {
  std::string faults;
  const HostTensor written = values.get();
  if (needs_.per_token)
    faults += compare_quantized(name, written, quantized.get(), scales.get(), 0);
  if (needs_.per_block)
    faults += compare_quantized(name + ".block", written, block_quantized.get(), block_scales.get(),
                                kQuantBlock);
  return faults;
}

std::string DeviceActivation::guard_fault(const std::string& name) const {
  std::string faults;
  if (needs_.values) faults += values.guard_fault(name + ".values");
  if (needs_.per_token)
    faults += quantized.guard_fault(name + ".quantized") + scales.guard_fault(name + ".scales");
  if (needs_.per_block)
    faults += block_quantized.guard_fault(name + ".block_quantized") +
              block_scales.guard_fault(name + ".block_scales");
  return faults;
}

LinearReference linear_reference(const RandomLinear& weight,
                                 const RandomActivation& x,
                                 std::int64_t tokens) {
  LinearReference reference;
  std::vector<double> row(static_cast<std::size_t>(weight.columns));
  reference.sums.resize(static_cast<std::size_t>(tokens * weight.rows));
  reference.magnitudes.resize(reference.sums.size());
  reference.steps.resize(reference.sums.size());
  constexpr std::int64_t kInstruction = 32;
  const std::int64_t chain = weight.quant == WeightQuant::fp8_block ? 128 : 256;
  std::vector<double> inputs(static_cast<std::size_t>(tokens * weight.columns));
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t k = 0; k < weight.columns; ++k)
      inputs[static_cast<std::size_t>(t * weight.columns + k)] = x.value(weight.quant, t, k);
  for (std::int64_t n = 0; n < weight.rows; ++n) {
    for (std::int64_t k = 0; k < weight.columns; ++k)
      row[static_cast<std::size_t>(k)] = weight.code(n, k) * weight.multiplier(n, k);
    const double bias = weight.bias.empty() ? 0.0 : weight.bias.at(n);
    for (std::int64_t t = 0; t < tokens; ++t) {
      double sum = bias;
      double magnitude = std::fabs(bias);
      double steps = 0.0;
      double chained = 0.0;
      double largest = 0.0;
      for (std::int64_t k = 0; k < weight.columns; ++k) {
        const double product = inputs[static_cast<std::size_t>(t * weight.columns + k)] *
                               row[static_cast<std::size_t>(k)];
        sum += product;
        magnitude += std::fabs(product);
        if (k % chain == 0) chained = 0.0;
        if (k % kInstruction == 0) {
          steps += largest * largest;
          largest = std::fabs(chained);
        }
        chained += product;
        largest = std::max(largest, std::fabs(product));
      }
      steps += largest * largest;
      reference.sums[static_cast<std::size_t>(t * weight.rows + n)] = sum;
      reference.magnitudes[static_cast<std::size_t>(t * weight.rows + n)] = magnitude;
      reference.steps[static_cast<std::size_t>(t * weight.rows + n)] = steps;
    }
  }
  return reference;
}

HostTensor row_of(const HostTensor& tensor, std::int64_t row) {
  HostTensor one(tensor.dtype, {1, tensor.shape[1]});
  const auto bytes = one.bytes.size();
  std::memcpy(one.bytes.data(), tensor.bytes.data() + static_cast<std::size_t>(row) * bytes, bytes);
  return one;
}

std::string fault_of(const std::string& op, const Status& status) {
  return status.ok() ? std::string() : op + ": " + status.error().message + "\n";
}

}  // namespace koho::testing
