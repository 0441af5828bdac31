// SPDX-License-Identifier: Apache-2.0
// The CUDA backend of builds without CUDA: every function reports that there is none.
#include "cuda/cuda_backend.h"

namespace koho {
namespace {

Error not_built() {
  return make_error(ErrorCode::unsupported,
                    "this build has no CUDA backend: configure with -DKOHO_CUDA=ON (CUDA 13)");
}

}  // namespace

bool cuda_is_built() {
  return false;
}

Result<std::unique_ptr<Backend>> make_cuda_backend(const CudaOptions& /*options*/) {
  return not_built();
}

Result<std::unique_ptr<Communicator>> make_cuda_communicator(Backend& /*backend*/,
                                                             Rendezvous& /*rendezvous*/,
                                                             CollectiveTransport /*transport*/) {
  return not_built();
}

Result<std::unique_ptr<Communicator>> make_cuda_loopback_communicator(
    Backend& /*backend*/, LoopbackRendezvous& /*alone*/) {
  return not_built();
}

Result<std::int64_t> cuda_memory_bytes(int /*device*/) {
  return not_built();
}

Result<CudaProperties> cuda_properties(int /*device*/) {
  return not_built();
}

}  // namespace koho
