// SPDX-License-Identifier: Apache-2.0
#include "cuda/collectives/links.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <unistd.h>

#include <cuda_runtime_api.h>

#include <fmt/format.h>

#include "cuda/device/runtime.h"

namespace koho::cuda {
namespace {

/// The number that a GPU has in this process; -1 if the process does not see it.
Result<int> find_gpu(const std::array<char, 16>& uuid) {
  int count = 0;
  KOHO_CUDA_TRY(cudaGetDeviceCount(&count));
  for (int device = 0; device < count; ++device) {
    cudaDeviceProp properties{};
    KOHO_CUDA_TRY(cudaGetDeviceProperties(&properties, device));
    if (std::memcmp(properties.uuid.bytes, uuid.data(), uuid.size()) == 0) return device;
  }
  return -1;
}

/// Threads reach each other's memory once their GPUs may. Between processes CUDA IPC sees to that:
/// enabling it here would make a context on the peer's GPU, some hundred MB for each other rank.
Status enable_peer(int there) {
  const cudaError_t enabled = cudaDeviceEnablePeerAccess(there, 0);
  if (enabled == cudaErrorPeerAccessAlreadyEnabled) {
    static_cast<void>(cudaGetLastError());  // not sticky: cleared
  } else if (enabled != cudaSuccess) {
    return cuda_error(enabled, "cudaDeviceEnablePeerAccess");
  }
  return {};
}

Result<LinkKind> link_to(int device, const RankPlace& peer) {
  KOHO_TRY_ASSIGN(const int there, find_gpu(peer.gpu));
  if (there == device) return LinkKind::same_gpu;
  if (there < 0) return LinkKind::none;
  int can = 0;
  KOHO_CUDA_TRY(cudaDeviceCanAccessPeer(&can, device, there));
  if (can == 0) return LinkKind::none;
  if (peer.process == getpid()) KOHO_TRY(enable_peer(there));
  // PCIe has peer access without atomics of its own.
  int atomics = 0;
  KOHO_CUDA_TRY(
      cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, device, there));
  return atomics != 0 ? LinkKind::nvlink : LinkKind::pcie;
}

}  // namespace

bool Links::all_reachable() const {
  return std::ranges::find(all, LinkKind::none) == all.end();
}

std::string Links::description() const {
  if (loopback) return fmt::format("one of {} ranks alone", places.size());
  std::set<std::array<char, 16>> gpus;
  for (const RankPlace& place : places) gpus.insert(place.gpu);
  std::string text =
      fmt::format("{} ranks on {} GPU{}", places.size(), gpus.size(), gpus.size() > 1 ? "s" : "");
  const auto has = [&](LinkKind kind) { return std::ranges::find(all, kind) != all.end(); };
  if (has(LinkKind::nvlink)) text += has(LinkKind::pcie) ? ", NVLink and PCIe" : ", NVLink";
  if (!has(LinkKind::nvlink) && has(LinkKind::pcie)) text += ", PCIe";
  std::string unreachable;
  const std::size_t ranks = places.size();
  for (std::size_t i = 0; i < all.size(); ++i)
    if (all[i] == LinkKind::none)
      unreachable +=
          fmt::format("{}{} to {} (GPU {} to {})", unreachable.empty() ? "" : ", ", i / ranks,
                      i % ranks, places[i / ranks].device, places[i % ranks].device);
  return unreachable.empty() ? text : text + "; no peer access from rank " + unreachable;
}

Result<Links> read_links(int device, Rendezvous& rendezvous) {
  cudaDeviceProp properties{};
  KOHO_CUDA_TRY(cudaGetDeviceProperties(&properties, device));
  RankPlace mine{
      .process = getpid(), .device = device, .multiprocessors = properties.multiProcessorCount};
  std::memcpy(mine.gpu.data(), properties.uuid.bytes, mine.gpu.size());
  Links links;
  KOHO_TRY_ASSIGN(links.places, all_gather_values(rendezvous, mine));
  links.multiprocessors = mine.multiprocessors;
  for (const RankPlace& place : links.places) {
    const auto here =
        std::ranges::count_if(links.places, [&](const RankPlace& p) { return p.gpu == place.gpu; });
    links.ranks_on_gpu = std::max(links.ranks_on_gpu, static_cast<std::int64_t>(here));
    links.multiprocessors = std::min(links.multiprocessors, place.multiprocessors);
    KOHO_TRY_ASSIGN(const LinkKind kind, link_to(device, place));
    links.from_here.push_back(kind);
  }
  links.all.resize(links.places.size() * links.places.size());
  KOHO_TRY(rendezvous.all_gather(std::as_bytes(std::span(links.from_here)),
                                 std::as_writable_bytes(std::span(links.all))));
  return links;
}

}  // namespace koho::cuda
