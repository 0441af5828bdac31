// SPDX-License-Identifier: Apache-2.0
// The launcher that generates synthetic weights (ops/synthetic_tensor.h).
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

namespace koho::cuda {

struct SyntheticWeights {
  void* out = nullptr;  // [rows, columns], packed
  std::uint64_t key = 0;
  std::int64_t first = 0;       // element of the tensor that out[0, 0] is
  std::int64_t row_stride = 0;  // of the tensor, in elements
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  float factor = 0.0F;
  float offset = 0.0F;
  int element_bytes = 1;  // 1: e4m3, 2: bf16
};
cudaError_t launch_synthetic_weights(const SyntheticWeights& parameters, cudaStream_t stream);

}  // namespace koho::cuda
