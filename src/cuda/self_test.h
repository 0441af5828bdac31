// SPDX-License-Identifier: Apache-2.0
// The start-up self-test: Hopper's matrix and attention kernels, and cuBLASLt, against the portable
// kernels on random data. What differs beyond rounding is not used and the log says so; the engine
// runs on.
#pragma once

#include <cstdint>
#include <vector>

#include "base/error.h"
#include "cuda/device/runtime.h"
#include "cuda/gemm/gemm.h"

namespace koho::cuda {

class CudaBackend;

/// Of a backend that is being opened. Each test says whether its kernels may be used. Errors:
/// resource_exhausted, device_error.
class SelfTest {
 public:
  explicit SelfTest(CudaBackend& backend) : backend_(backend) {}

  /// Hopper's matrix kernels but the next one's.
  Result<bool> gemm();
  /// That of experts' second matrix.
  Result<bool> experts_down();
  /// Prompts' attention on wgmma, over pages of e4m3 values or of bf16.
  Result<bool> attention(bool quantized);
  /// The backend's library.
  Result<bool> cublaslt();

 private:
  struct Output;
  struct MatrixCase;

  Result<MatrixCase> make_case(TileType type);
  Result<bool> decode_forms(const MatrixCase& of);
  Result<bool> one_matrix(const MatrixCase& of);
  Result<bool> unswapped_configs(const MatrixCase& of);
  Result<bool> prompts_experts(const MatrixCase& of);
  Result<bool> prompts_matrix(const MatrixCase& of);

  template <typename T>
  Result<DeviceBlock> send(const std::vector<T>& values);
  Result<DeviceBlock> room(std::int64_t bytes);
  Status run_portable(const Gemm& p);
  /// What `launch` leaves where there was no number before.
  template <typename Launch>
  Result<std::vector<float>> results_of(const Output& out, const Launch& launch);
  /// How far `fast` is from `portable`, by the size of what the latter gives; endless if it gives a
  /// NaN. Both enqueue a kernel that writes `out`.
  template <typename Portable, typename Fast>
  Result<double> distance(const Output& out, const Portable& portable, const Fast& fast);
  /// Whether `launch` does what the portable matrix kernel does with `shape`.
  template <typename Launch>
  Result<bool> equal(const char* kernel,
                     const MatrixCase& of,
                     const Gemm& shape,
                     const Launch& launch);

  CudaBackend& backend_;
};

}  // namespace koho::cuda
