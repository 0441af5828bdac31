// SPDX-License-Identifier: Apache-2.0
// Converts views to the pointers of kernels' parameters. Operators have checked dtype and shape.
#pragma once

#include <cstdint>

#include "cuda/kernels.h"
#include "ops/backend.h"

namespace koho::cuda {

/// The elements of a view in device memory; null if the view is empty.
template <typename T>
T* pointer(const TensorView& view) {
  return reinterpret_cast<T*>(view.data);
}
inline const Bf16* bf16(const ConstTensorView& view) {
  return reinterpret_cast<const Bf16*>(view.data);
}
inline const std::int32_t* i32(const ConstTensorView& view) {
  return reinterpret_cast<const std::int32_t*>(view.data);
}

inline RowOutputs row_outputs_of(const Activation& out) {
  RowOutputs forms;
  if (!out.values.empty()) {
    forms.values = out.values.as<Bf16>();
    forms.values_stride = out.values.stride(0);
  }
  if (!out.quantized.empty()) {
    forms.quantized = out.quantized.as<std::uint8_t>();
    forms.quantized_stride = out.quantized.stride(0);
    forms.scales = out.scales.as<float>();
  }
  if (!out.block_quantized.empty()) {
    forms.block_quantized = out.block_quantized.as<std::uint8_t>();
    forms.block_quantized_stride = out.block_quantized.stride(0);
    forms.block_scales = out.block_scales.as<float>();
    forms.block_scales_stride = out.block_scales.stride(0);
  }
  return forms;
}

}  // namespace koho::cuda
