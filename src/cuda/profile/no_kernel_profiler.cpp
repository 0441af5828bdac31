// SPDX-License-Identifier: Apache-2.0
// The kernel profiler of builds without CUDA or CUPTI's headers: reports that there is none.
#include "cuda/profile/kernel_profiler.h"

namespace koho {

Result<std::unique_ptr<KernelProfiler>> make_kernel_profiler() {
  return make_error(ErrorCode::unsupported,
                    "this build cannot record kernels: configure with -DKOHO_CUDA=ON where the "
                    "CUDA toolkit has cupti.h");
}

}  // namespace koho
