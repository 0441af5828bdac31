// SPDX-License-Identifier: Apache-2.0
#include "bench/operators/synthetic.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>

#include "base/arithmetic.h"
#include "tensor/number.h"

namespace koho::bench {
namespace {

/// Each `block` of the numbers times a scale of its own, of `scales` from element `first` on.
void scale_blocks(std::span<double> numbers,
                  const HostTensor& scales,
                  std::int64_t first,
                  std::int64_t block) {
  const std::int64_t size = std::ssize(numbers);
  for (std::int64_t begin = 0; begin < size; begin += block) {
    const double scale = scales.at(first + begin / block);
    for (std::int64_t i = begin; i < std::min(size, begin + block); ++i)
      numbers[static_cast<std::size_t>(i)] *= scale;
  }
}

}  // namespace

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

SyntheticLinear::SyntheticLinear(
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

LinearSource SyntheticLinear::source() const {
  LinearSource source;
  source.weight = storage.view().slice(1, 0, columns);
  if (!scale.empty()) source.scale = scale.view();
  if (!bias.empty()) source.bias = bias.view();
  source.quant = quant;
  return source;
}

std::vector<double> SyntheticLinear::row(std::int64_t n) const {
  std::vector<double> values(static_cast<std::size_t>(columns));
  storage.read(n * storage.shape[1], values);
  switch (quant) {
    case WeightQuant::none:
      break;
    case WeightQuant::fp8_channel:
      scale_blocks(values, scale, n, columns);
      break;
    case WeightQuant::fp8_tensor:
      scale_blocks(values, scale, 0, columns);
      break;
    case WeightQuant::fp8_block:
      scale_blocks(values, scale, n / kQuantBlock * scale.shape[1], kQuantBlock);
      break;
  }
  return values;
}

SyntheticActivation::SyntheticActivation(HostTensor bf16_values) : values(std::move(bf16_values)) {
  const std::int64_t tokens = values.shape[0];
  const std::int64_t blocks = ceil_div(values.shape[1], kQuantBlock);
  quantized = HostTensor(DType::f8_e4m3, values.shape);
  scales = HostTensor(DType::f32, {tokens});
  block_quantized = HostTensor(DType::f8_e4m3, values.shape);
  block_scales = HostTensor(DType::f32, {tokens, blocks});
  quantize(values, 0, quantized, scales);
  quantize(values, kQuantBlock, block_quantized, block_scales);
}

SyntheticActivation SyntheticActivation::row(std::int64_t index) const {
  return SyntheticActivation(row_of(values, index));
}

SyntheticActivation SyntheticActivation::rows(const std::vector<std::int64_t>& indices) const {
  return SyntheticActivation(rows_of(values, indices));
}

std::vector<double> SyntheticActivation::seen(WeightQuant quant, std::int64_t t) const {
  const std::int64_t columns = values.shape[1];
  std::vector<double> row(static_cast<std::size_t>(columns));
  switch (quant) {
    case WeightQuant::none:
      values.read(t * columns, row);
      break;
    case WeightQuant::fp8_channel:
    case WeightQuant::fp8_tensor:
      quantized.read(t * columns, row);
      scale_blocks(row, scales, t, columns);
      break;
    case WeightQuant::fp8_block:
      block_quantized.read(t * columns, row);
      scale_blocks(row, block_scales, t * block_scales.shape[1], kQuantBlock);
      break;
  }
  return row;
}

HostTensor row_of(const HostTensor& tensor, std::int64_t row) {
  return rows_of(tensor, {row});
}

HostTensor rows_of(const HostTensor& tensor, const std::vector<std::int64_t>& rows) {
  const auto count = static_cast<std::int64_t>(rows.size());
  std::vector<std::int64_t> sizes{count};
  for (int axis = 1; axis < tensor.shape.rank(); ++axis) sizes.push_back(tensor.shape[axis]);
  HostTensor chosen(tensor.dtype, Shape(std::span<const std::int64_t>(sizes)));
  const std::size_t bytes = rows.empty() ? 0 : chosen.bytes.size() / rows.size();
  for (std::size_t i = 0; i < rows.size(); ++i)
    std::memcpy(chosen.bytes.data() + i * bytes,
                tensor.bytes.data() + static_cast<std::size_t>(rows[i]) * bytes, bytes);
  return chosen;
}

void copy_row(const HostTensor& from, std::int64_t row, HostTensor& to) {
  const std::size_t bytes = from.bytes.size() / static_cast<std::size_t>(from.shape[0]);
  std::memcpy(to.bytes.data() + static_cast<std::size_t>(row) * bytes,
              from.bytes.data() + static_cast<std::size_t>(row) * bytes, bytes);
}

}  // namespace koho::bench
