// SPDX-License-Identifier: Apache-2.0
// Fills a Gemm's activation fields from an operator's Activation. Host only.
#pragma once

#include "cuda/gemm/gemm.h"
#include "ops/backend.h"

namespace koho::cuda {

/// The storage of `x` that weights of `type` multiply, and its scales (null for bf16).
struct GemmActivation {
  const TensorView* data;
  const TensorView* scales;
};
inline GemmActivation activation_for(const Activation& x, TileType type) {
  if (type == TileType::bf16) return {&x.values, nullptr};
  if (type == TileType::fp8) return {&x.quantized, &x.scales};
  return {&x.block_quantized, &x.block_scales};
}

inline void set_activation(Gemm& p, const GemmActivation& x) {
  p.x = reinterpret_cast<const std::uint8_t*>(x.data->data);
  p.x_bytes = static_cast<int>(x.data->size(1) * dtype_bytes(x.data->dtype));
  p.x_stride_bytes = x.data->stride(0) * dtype_bytes(x.data->dtype);
  if (x.scales == nullptr) return;
  p.x_scales = x.scales->as<const float>();
  if (x.scales->shape.rank() == 2) p.x_scales_stride = x.scales->stride(0);
}

/// Whether kernels can copy the rows of x 16 bytes at a time; else they are padded first.
inline bool has_aligned_rows(const Gemm& p) {
  return reinterpret_cast<std::uintptr_t>(p.x) % 16 == 0 && p.x_stride_bytes % 16 == 0;
}

}  // namespace koho::cuda
