// SPDX-License-Identifier: Apache-2.0
// The vector kernels, written once over a vector type V, which kernels_avx2.cpp and
// kernels_avx512.cpp define. Only these two files include it: everything in it has internal
// linkage, since each of them is compiled for its own instruction set.
#pragma once

#include "cpu/kernels.h"
#include "cpu/vector_attention.h"
#include "cpu/vector_gemm.h"
#include "cpu/vector_rows.h"

namespace koho::cpu {
namespace {

template <typename V>
struct VectorKernels {
  using Rows = VectorRows<V>;
  using Gemm = VectorGemm<V>;
  using Attention = VectorAttention<V>;

  static constexpr Kernels table(const char* name) {
    return {.name = name,
            .panel_bytes = Gemm::panel_bytes,
            .multiply_scratch_bytes = Gemm::multiply_scratch_bytes,
            .stage = Gemm::stage,
            .multiply = Gemm::multiply,
            .store = Gemm::store,
            .add_row = Rows::add_row,
            .norm_row = Rows::norm_row,
            .quantize_row = Rows::quantize_row,
            .silu_mul_row = Rows::silu_mul_row,
            .rotate_row = Rows::rotate_row,
            .add_weighted_row = Rows::add_weighted_row,
            .round_row = Rows::round_row,
            .attend_scratch_bytes = Attention::attend_scratch_bytes,
            .attend = Attention::attend};
  }
};

}  // namespace
}  // namespace koho::cpu
