// SPDX-License-Identifier: Apache-2.0
// The NCCL communicator of builds without NCCL's header.
#include "cuda/collectives/nccl_communicator.h"

namespace koho::cuda {

Result<std::unique_ptr<Communicator>> make_nccl_communicator(const BackendPlace& /*place*/,
                                                             Rendezvous& /*rendezvous*/) {
  return make_error(ErrorCode::unsupported,
                    "this build has no NCCL: configure where nccl.h is found (libnccl-dev)");
}

}  // namespace koho::cuda
