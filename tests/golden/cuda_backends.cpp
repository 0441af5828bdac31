// SPDX-License-Identifier: Apache-2.0
// The CUDA backend in three modes: portable kernels, with
// cuBLASLt, and as it serves. None without a GPU.
#include "cuda/cuda_backend.h"
#include "tests/golden/backends.h"

namespace koho::testing {

std::vector<GoldenBackend> golden_backends() {
  const Result<std::unique_ptr<Backend>> probe = make_cuda_backend({.self_test = false});
  if (!probe.ok() && probe.error().code == ErrorCode::not_found) return {};
  // Anything else than a missing GPU fails when the machine is opened.
  return {{"portable", false, [] { return make_cuda_backend({.portable_only = true}); }},
          {"cublaslt", false, [] { return make_cuda_backend({.deterministic = false}); }},
          {"cuda", true, [] { return make_cuda_backend({}); }}};
}

}  // namespace koho::testing
