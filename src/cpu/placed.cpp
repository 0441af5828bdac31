// SPDX-License-Identifier: Apache-2.0
#include "cpu/placed.h"

#include <algorithm>

#include "tensor/number.h"

namespace koho::cpu {
namespace {

/// A small f32 or bf16 tensor, of any alignment, as f32.
std::vector<float> upcast(const ConstTensorView& view) {
  std::vector<float> values;
  if (view.empty()) return values;
  values.reserve(static_cast<std::size_t>(view.elements()));
  const std::int64_t columns = view.shape.rank() == 2 ? view.size(1) : 1;
  for (std::int64_t row = 0; row < view.size(0); ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      const std::int64_t element =
          row * view.stride(0) + (view.shape.rank() == 2 ? column * view.stride(1) : 0);
      if (view.dtype == DType::bf16)
        values.push_back(to_float(view.as<BFloat16>()[element]));
      else
        values.push_back(view.as<float>()[element]);
    }
  }
  return values;
}

Matrix place_matrix(const LinearSource& source) {
  Matrix matrix{.weight = source.weight,
                .quant = source.quant,
                .scales = upcast(source.scale),
                .bias = upcast(source.bias)};
  if (source.quant == WeightQuant::fp8_tensor) {
    const float scale = matrix.scales[0];
    matrix.scales.assign(static_cast<std::size_t>(source.out_features()), scale);
  }
  return matrix;
}

Mlp place_mlp(const MlpSource& source) {
  return {place_matrix(source.gate), place_matrix(source.up), place_matrix(source.down)};
}

}  // namespace

void append_chunks(std::vector<RowChunk>& chunks, const Matrix& matrix, std::int64_t out) {
  for (std::int64_t first = 0; first < matrix.rows(); first += kRowsMax)
    chunks.push_back({&matrix, first, std::min(kRowsMax, matrix.rows() - first), out + first});
}

PlacedLinear::PlacedLinear(std::span<const LinearSource> blocks) {
  matrices.reserve(blocks.size());
  std::int64_t out = 0;
  for (const LinearSource& block : blocks) {
    matrices.push_back(place_matrix(block));
    append_chunks(chunks, matrices.back(), out);
    out += block.out_features();
  }
}

PlacedExperts::PlacedExperts(const ExpertsSource& source) {
  experts.reserve(source.experts.size());
  for (const MlpSource& expert : source.experts) experts.push_back(place_mlp(expert));
  if (source.shared) shared = place_mlp(*source.shared);
}

}  // namespace koho::cpu
