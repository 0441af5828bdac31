// SPDX-License-Identifier: Apache-2.0
// Matrix products of many tokens through cuBLASLt: FP8 with one scale a token and one a weight row,
// a mode that only Hopper's library has. Algorithms are chosen once for a shape and power of two of
// tokens.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>

#include <cublasLt.h>

#include "cuda/runtime.h"

namespace koho::cuda {

struct LibraryProduct {
  const void* weight = nullptr;          // [N, K] e4m3, row-major
  const float* weight_scales = nullptr;  // [N]
  const void* bias = nullptr;            // [N] bf16 or null
  const void* x = nullptr;               // [T, K] e4m3
  const float* x_scales = nullptr;       // [T]
  void* out = nullptr;                   // [T, N] bf16
  std::int64_t out_stride = 0;
  std::int64_t tokens = 0;
  std::int64_t rows = 0;     // N
  std::int64_t columns = 0;  // K
  std::int64_t x_stride = 0;
};

class MatmulLibrary {
 public:
  static Result<std::unique_ptr<MatmulLibrary>> open(const std::shared_ptr<DeviceMemory>& memory);
  ~MatmulLibrary();
  MatmulLibrary(const MatmulLibrary&) = delete;
  MatmulLibrary& operator=(const MatmulLibrary&) = delete;

  /// True if multiply() takes this shape.
  static bool takes(std::int64_t rows, std::int64_t columns);
  Status multiply(const LibraryProduct& product, cudaStream_t stream);

 private:
  using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, bool>;  // N, K, tokens, bias

  MatmulLibrary() = default;
  Result<const cublasLtMatmulAlgo_t*> algorithm(const Key& key,
                                                cublasLtMatmulDesc_t operation,
                                                cublasLtMatrixLayout_t weight,
                                                cublasLtMatrixLayout_t x,
                                                cublasLtMatrixLayout_t out);

  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
  DeviceBlock workspace_;
  std::map<Key, cublasLtMatmulAlgo_t> algorithms_;
};

}  // namespace koho::cuda
