// SPDX-License-Identifier: Apache-2.0
// The communicator over NCCL: for GPUs without access to each other's memory, and to compare with.
// Without NCCL's header no_nccl.cpp answers; the library itself is opened when it is first needed.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "comm/rendezvous.h"
#include "cuda/backend.h"

namespace koho::cuda {

/// Enters the group. NCCL sums in an order of its own, in bf16 between GPUs: ranks have equal bits,
/// which are not those of PeerCommunicator. Errors: unsupported (no NCCL in this build or on this
/// machine, or a group that NCCL refuses, such as two ranks on one GPU); device_error; those of the
/// rendezvous.
Result<std::unique_ptr<Communicator>> make_nccl_communicator(const BackendPlace& place,
                                                             Rendezvous& rendezvous);

}  // namespace koho::cuda
