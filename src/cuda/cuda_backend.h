// SPDX-License-Identifier: Apache-2.0
// The CUDA backend as the rest of koho sees it: functions that open a GPU and report what it is. No
// CUDA header is needed to use it. In a build without CUDA no_cuda.cpp implements it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/load_progress.h"
#include "comm/communicator.h"
#include "comm/loopback_rank.h"
#include "comm/rendezvous.h"
#include "ops/backend.h"
#include "ops/synthetic_tensor.h"

namespace koho {

struct CudaOptions {
  int device = 0;
  /// The GPUs of all ranks on this host, by rank, and this one's place: they divide the host's CPUs
  /// while weights are loaded. Empty: this one is alone.
  std::vector<int> rank_devices{};
  std::size_t rank = 0;
  /// Uses none of Hopper's own kernels, and cuBLASLt without row and column scales: what another
  /// GPU, such as Blackwell, runs.
  bool portable_only = false;
  /// Compares the fast kernels and cuBLASLt with the portable kernels before use and drops those
  /// that differ.
  bool self_test = true;
  /// A token row has the same bits whether it is decoded or part of a prompt, and in whatever
  /// chunk: no cuBLASLt, whose sums are its own. Nothing: where koho's kernels for prompts are
  /// about as fast, which is Hopper.
  std::optional<bool> deterministic{};
  /// Sources whose elements are to be generated on the device instead of read; null: none. Must
  /// outlive the placing of weights.
  const SyntheticAddressMap* synthetic = nullptr;
  /// Receives the progress of loading weights; may be null. Must outlive the placing of weights.
  LoadProgress* progress = nullptr;
};

/// Whether this build has the backend.
bool cuda_is_built();

/// Opens a GPU. Errors: unsupported (no CUDA in this build; a compute capability koho has no
/// kernels for), not_found (no such device), device_error.
Result<std::unique_ptr<Backend>> make_cuda_backend(const CudaOptions& options);

/// The communicator of a rank whose backend is make_cuda_backend()'s. All ranks call it together.
/// Requires: both outlive the communicator. Errors: unsupported (the transport, with the links that
/// lack peer access; NCCL for a backend that is to be deterministic; no CUDA in this build);
/// device_error; those of the rendezvous.
Result<std::unique_ptr<Communicator>> make_cuda_communicator(Backend& backend,
                                                             Rendezvous& rendezvous,
                                                             CollectiveTransport transport);

/// The same for a rank whose other ranks are not there (comm/loopback_rank.h): the kernels of GPUs
/// with peer access, which send to this GPU's own memory. Errors: unsupported (a number of ranks);
/// device_error.
Result<std::unique_ptr<Communicator>> make_cuda_loopback_communicator(Backend& backend,
                                                                      LoopbackRendezvous& alone);

/// Memory of a GPU, used or not. Errors: unsupported (no CUDA in this build), not_found (no such
/// device), device_error.
Result<std::int64_t> cuda_memory_bytes(int device);

/// What a GPU says of itself.
struct CudaProperties {
  std::string name;
  /// Of its memory, nominal: twice the clock times the bus's width; 0 if the driver does not say.
  double memory_bytes_per_second = 0.0;
  int compute_capability = 0;  // 90 is Hopper
};

/// Errors: as cuda_memory_bytes.
Result<CudaProperties> cuda_properties(int device);

}  // namespace koho
