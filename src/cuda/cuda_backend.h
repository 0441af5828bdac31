// SPDX-License-Identifier: Apache-2.0
// The NVIDIA backend as the rest of koho sees it: one function that opens a GPU. No CUDA header is
// needed to use it; where CUDA is not built, no_cuda.cpp answers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/load_progress.h"
#include "ops/backend.h"
#include "ops/synthetic_tensor.h"

namespace koho {

struct CudaOptions {
  int device = 0;
  /// Runs every kernel that has a portable form in that form, and cuBLASLt as other GPUs than
  /// Hopper's have it: what a Blackwell GPU would run.
  bool portable_only = false;
  /// Compares the fast kernels and cuBLASLt with the portable kernels before use and drops those
  /// that differ.
  bool self_test = true;
  /// One path for every number of tokens: a row's bits do not depend on whether it was decoded, nor
  /// on the chunk of a prompt it came in. Costs speed (docs/performance.md).
  bool deterministic = false;
  /// Sources whose elements are to be generated on the device instead of read; null: none. Must outlive
  /// the placing of weights.
  const SyntheticAddressMap* synthetic = nullptr;
  /// Is told how far the weights are; null: nobody. Must outlive the placing of weights.
  LoadProgress* progress = nullptr;
};

/// Whether this build has the backend.
bool cuda_is_built();

/// Opens a GPU. Errors: unsupported (no CUDA in this build; a compute capability koho has no
/// kernels for), not_found (no such device), device_error.
Result<std::unique_ptr<Backend>> make_cuda_backend(const CudaOptions& options);

/// Memory of a GPU, used or not. Errors: unsupported (no CUDA in this build), not_found (no such
/// device), device_error.
Result<std::int64_t> cuda_memory_bytes(int device);

/// What a GPU says of itself.
struct CudaProperties {
  std::string name;
  /// Of its memory, nominal: twice the clock times the bus's width; 0 if the driver does not say.
  double memory_bytes_per_second = 0.0;
};

/// Errors: as cuda_memory_bytes.
Result<CudaProperties> cuda_properties(int device);

}  // namespace koho
