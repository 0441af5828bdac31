// SPDX-License-Identifier: Apache-2.0
// Chooses how GPUs exchange data.
#include "base/log.h"
#include "cuda/backend.h"
#include "cuda/collectives/links.h"
#include "cuda/collectives/nccl_communicator.h"
#include "cuda/collectives/peer_communicator.h"
#include "cuda/cuda_backend.h"

namespace koho {

Result<std::unique_ptr<Communicator>> make_cuda_communicator(Backend& backend,
                                                             Rendezvous& rendezvous,
                                                             CollectiveTransport transport) {
  const cuda::BackendPlace place = static_cast<cuda::CudaBackend&>(backend).place_of();
  KOHO_CUDA_TRY(cudaSetDevice(place.device));
  KOHO_TRY_ASSIGN(cuda::Links links, cuda::read_links(place.device, rendezvous));
  const std::int64_t ranks = rendezvous.ranks();
  const bool peers = links.all_reachable() && (ranks == 2 || ranks == 4 || ranks == 8);
  if (transport == CollectiveTransport::peer && !links.all_reachable())
    return make_error(ErrorCode::unsupported,
                      "collectives through peer memory need every GPU to reach every other: {}. "
                      "Use --collectives nccl",
                      links.description());
  if (transport == CollectiveTransport::nccl ||
      (transport == CollectiveTransport::automatic && !peers)) {
    if (ranks > 2 && place.deterministic.value_or(false))  // of two parts there is one sum
      return make_error(
          ErrorCode::unsupported,
          "NCCL adds in an order that depends on a step's rows: --deterministic needs "
          "collectives through peer memory ({})",
          links.description());
    if (ranks > 2 && rendezvous.rank() == 0 && !place.deterministic.has_value())
      log::warning("an answer's bits depend on its batch: NCCL adds in an order of its own");
    if (rendezvous.rank() == 0 && !peers)
      log::warning("NCCL carries the collectives, which is slower in decode: {}",
                   links.description());
    return cuda::make_nccl_communicator(place, rendezvous);
  }
  return cuda::PeerCommunicator::create(place, std::move(links), rendezvous);
}

Result<std::unique_ptr<Communicator>> make_cuda_loopback_communicator(Backend& backend,
                                                                      LoopbackRendezvous& alone) {
  const cuda::BackendPlace place = static_cast<cuda::CudaBackend&>(backend).place_of();
  KOHO_CUDA_TRY(cudaSetDevice(place.device));
  KOHO_TRY_ASSIGN(cuda::Links links, cuda::read_links(place.device, alone));
  links.loopback = true;
  links.ranks_on_gpu = 1;
  return cuda::PeerCommunicator::create(place, std::move(links), alone);
}

}  // namespace koho
