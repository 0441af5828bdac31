// SPDX-License-Identifier: Apache-2.0
// Where the ranks of a group run and how their GPUs reach each other: read once, at the start.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/rendezvous.h"

namespace koho::cuda {

/// An all-gather of one value a rank. Errors: as Rendezvous::all_gather.
template <typename T>
Result<std::vector<T>> all_gather_values(Rendezvous& rendezvous, const T& mine) {
  std::vector<T> all(static_cast<std::size_t>(rendezvous.ranks()));
  KOHO_TRY(rendezvous.all_gather(std::as_bytes(std::span(&mine, 1)),
                                 std::as_writable_bytes(std::span(all))));
  return all;
}

struct RankPlace {
  std::int64_t process = 0;    // its id
  std::array<char, 16> gpu{};  // the GPU's UUID
  std::int32_t device = 0;     // the GPU's number in that process
  std::int32_t multiprocessors = 0;
  friend bool operator==(const RankPlace&, const RankPlace&) = default;
};

/// How a rank's GPU reaches another rank's.
enum class LinkKind : std::uint8_t { same_gpu, nvlink, pcie, none };

struct Links {
  std::vector<RankPlace> places;     // by rank
  std::vector<LinkKind> from_here;   // this rank's to each
  std::vector<LinkKind> all;         // [ranks, ranks]: row r is rank r's
  std::int64_t ranks_on_gpu = 1;     // of the GPU with the most
  std::int32_t multiprocessors = 0;  // of the smallest GPU
  bool loopback = false;             // only this rank is there

  bool same_process(std::size_t a, std::size_t b) const {
    return places[a].process == places[b].process;
  }
  bool all_reachable() const;
  /// "4 ranks on 4 GPUs, NVLink", "2 ranks on 1 GPU"; and which ranks do not reach each other.
  std::string description() const;
};

/// Reads the links of the current GPU, number `device`, and enables peer access where it exists and
/// the peer is of this process.
/// Errors: device_error; those of the rendezvous.
Result<Links> read_links(int device, Rendezvous& rendezvous);

}  // namespace koho::cuda
