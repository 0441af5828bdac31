// SPDX-License-Identifier: Apache-2.0
// What gemm_bench times: shapes, device memory with random operands, and graphs of many calls.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include <cublasLt.h>
#include <cuda_runtime.h>

#include "base/error.h"
#include "cuda/device/runtime.h"
#include "cuda/device/tile_type.h"
#include "cuda/gemm/decode_gemm_config.h"

namespace koho::gemm_bench {

constexpr double kReadCeiling = 4.45e12;  // bytes a second, measured on an H200 (docs/kernels)
constexpr std::int64_t kTokensMax = cuda::kUnswappedTokensMax;
constexpr std::int64_t kWorkspace = 64LL << 20;

struct Shape {
  const char* name;
  cuda::TileType type;
  int rows;
  int width;  // elements
};

/// Device memory of one shape.
struct Operands {
  cuda::DeviceBlock
      weights;  // `copies` tiled weight matrices; cuBLASLt takes the same bytes as rows
  cuda::DeviceBlock row_scales;
  cuda::DeviceBlock x;
  cuda::DeviceBlock x_scales;
  cuda::DeviceBlock out;
  cuda::DeviceBlock workspace;
  std::int64_t copies = 0;
  std::int64_t matrix_bytes = 0;
};
/// With room for `tokens_max` token rows. Errors: resource_exhausted, device_error.
Result<Operands> make_operands(const std::shared_ptr<cuda::DeviceMemory>& memory,
                               const Shape& shape,
                               std::int64_t tokens_max);
Status copy_to(const cuda::DeviceBlock& block, const void* data, std::size_t bytes);

/// Calls in a graph, and how long the card rests before it. Long GEMMs start from rest and end
/// before the card lowers its clock to its power limit (docs/kernels/hopper.md).
struct Timing {
  std::int64_t calls;
  std::chrono::milliseconds rest;
};
Timing timing_of(const Operands& o);

/// Microseconds of one call: the median of replays of a graph of many, which use the `copies` in
/// turn.
Result<double> time_calls(cudaStream_t stream,
                          std::int64_t copies,
                          const Timing& timing,
                          const std::function<Status(std::int64_t copy)>& call);

/// Microseconds of cuBLASLt's GEMM with scalar scales, its best algorithm; 0: it has none.
struct CublasLtTimes {
  double koho = 0.0;         // timed in turn with the next one
  double accumulated = 0.0;  // sums are promoted to f32 on the way, as in koho's kernels
  double fast = 0.0;         // fast accumulation
};
/// `koho` times the configuration of koho that is compared. NOTE: in turn with the best algorithm,
/// since the best of several readings is less than one, and clocks fall under the power limit.
Result<CublasLtTimes> time_cublaslt(cudaStream_t stream,
                                    cublasLtHandle_t handle,
                                    const Operands& o,
                                    const Shape& shape,
                                    int tokens,
                                    const std::function<Result<double>()>& koho);

}  // namespace koho::gemm_bench
