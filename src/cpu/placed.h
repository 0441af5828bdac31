// SPDX-License-Identifier: Apache-2.0
// Placed weights of the CPU backend: views into the checkpoint's mapping, and small tables that it
// makes once at load: scales and biases upcast to f32, and the row chunks that threads take.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cpu/kernels.h"
#include "ops/weights.h"

namespace koho::cpu {

/// One weight matrix in the mapping.
struct Matrix {
  ConstTensorView weight;  // [N, K], rows may be strided
  WeightQuant quant = WeightQuant::none;
  std::vector<float> scales;  // [N]; [ceil(N/128), ceil(K/128)] for blocks; empty for bf16
  std::vector<float> bias;    // [N] or empty

  std::int64_t rows() const { return weight.size(0); }
  std::int64_t columns() const { return weight.size(1); }
  std::int64_t row_bytes() const { return weight.stride(0) * dtype_bytes(weight.dtype); }
  bool block_scales() const { return quant == WeightQuant::fp8_block; }
  Format format() const {
    return weight.dtype == DType::bf16  ? Format::bf16
           : weight.dtype == DType::f32 ? Format::f32
                                        : Format::e4m3;
  }
};

/// A thread's unit of work: rows first..first+rows-1 of a matrix, which give the result's columns
/// from `out` on.
struct RowChunk {
  const Matrix* matrix = nullptr;
  std::int64_t first = 0;
  std::int64_t rows = 0;
  std::int64_t out = 0;

  const std::byte* weight() const { return matrix->weight.data + first * matrix->row_bytes(); }
};

class PlacedLinear final : public PlacedWeights {
 public:
  explicit PlacedLinear(std::span<const LinearSource> blocks);
  PlacedLinear(const PlacedLinear&) = delete;
  PlacedLinear& operator=(const PlacedLinear&) = delete;

  std::vector<Matrix> matrices;
  std::vector<RowChunk> chunks;
};

/// The three matrices of one expert.
struct Mlp {
  Matrix gate;  // [F, H]
  Matrix up;    // [F, H]
  Matrix down;  // [H, F]
  std::int64_t ffn() const { return gate.rows(); }
};

class PlacedExperts final : public PlacedWeights {
 public:
  explicit PlacedExperts(const ExpertsSource& source);

  std::vector<Mlp> experts;
  std::optional<Mlp> shared;
};

/// Appends the chunks of `matrix`, whose rows give the result's columns from `out` on.
void append_chunks(std::vector<RowChunk>& chunks, const Matrix& matrix, std::int64_t out);

}  // namespace koho::cpu
