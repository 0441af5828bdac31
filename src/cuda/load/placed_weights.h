// SPDX-License-Identifier: Apache-2.0
// Weights as the CUDA backend keeps them: tiled, with their scales, by linear layer and by
// expert layer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cuda/device/runtime.h"
#include "cuda/gemm/gemm.h"
#include "ops/weights.h"
#include "tensor/tensor.h"

namespace koho::cuda {

/// The weight of a linear layer, or those of one projection of all experts of a layer: `count`
/// tiled weights of one shape and type, one after the other.
struct TiledWeights {
  TileType type = TileType::bf16;
  bool interleaved = false;           // gate and up rows of a SwiGLU pair
  std::int64_t count = 1;             // weights
  std::int64_t rows = 0;              // N; interleaved: F
  std::int64_t columns = 0;           // K, elements
  std::int64_t width_bytes = 0;       // of a padded row
  std::int64_t tiles = 0;             // of one matrix
  std::int64_t last_tiles = 0;        // of the last one, which may have fewer
  std::int64_t last_width_bytes = 0;  // and whose rows may be shorter
  DeviceBlock weight;
  DeviceBlock row_scales;
  DeviceBlock block_scales;
  DeviceBlock bias;

  /// The kernel's parameters for these weights, all but tokens and output.
  Gemm parameters() const;
};

struct MatrixSize {
  std::int64_t rows;
  std::int64_t columns;
};

/// Where the rows of a source go.
struct RowDestination {
  std::int64_t matrix = 0;       // its index
  std::int64_t first = 0;        // row of it
  int interleave = 0;            // 0 = no, 1 = gate rows, 2 = up rows (Repack)
  std::uint8_t* copy = nullptr;  // the rows once more, as they are; null: not wanted
};

/// A run of blocks of one storage type within a linear layer.
struct LinearSegment {
  std::int64_t first_column = 0;  // of the output
  TiledWeights weight;
  DeviceBlock rows;  // fp8 with scales a row: the weight once more, row-major [N, K], for cuBLASLt
};

struct PlacedLinear final : PlacedWeights {
  std::vector<LinearSegment> segments;
};

/// Experts of one storage type and one inner width; the last one, if it is a shared one, may be
/// narrower.
struct ExpertGroup {
  TiledWeights gate_up;
  TiledWeights down;
  std::int64_t last_ffn = 0;  // columns of the last expert's inner rows

  bool last_is_narrow() const { return last_ffn < gate_up.rows; }
};

/// An expert of a width or format of its own, as two linear layers.
struct LinearExpert {
  Linear gate_up;
  Linear down;
};

/// All experts of a layer whose experts are not stored alike, the shared one last, and the memory
/// that running them takes.
struct MixedFormatExperts {
  std::vector<LinearExpert> experts;
  bool shared = false;
  DeviceBlock scratch;  // of one expert
  Tensor y, permuted_row;
};

struct PlacedExperts final : PlacedWeights {
  std::optional<ExpertGroup> routed;
  std::int64_t total = 0;              // experts the router chooses among
  bool shared_in_routed = false;       // the shared expert is the last matrix of `routed`
  std::optional<LinearExpert> shared;  // if it is there and of another width or format
  std::unique_ptr<MixedFormatExperts> mixed_format;  // instead of all the above
};

}  // namespace koho::cuda
