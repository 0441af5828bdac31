// SPDX-License-Identifier: Apache-2.0
// Where the ranks of a replica meet on the host before their first collective.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"

namespace koho {

/// An all-gather of a few bytes on the host: CUDA IPC handles, an NCCL id, sizes, readiness.
///
/// Threads: a rank's calls come from one thread at a time; give_up() from any.
class Rendezvous {
 public:
  static constexpr std::size_t kBytesMax = 1024;  // a rank's part

  virtual ~Rendezvous() = default;

  virtual std::int64_t rank() const = 0;
  virtual std::int64_t ranks() const = 0;

  /// all [ranks * mine.size()]: every rank's bytes in rank order. All ranks call it in the same
  /// order with equal sizes. Errors: unavailable (a rank left, or none came within the time
  /// limit); internal (sizes differ); invalid_argument (`mine` is longer than kBytesMax, or `all`
  /// is not ranks * mine.size() bytes), which the others do not see.
  virtual Status all_gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;

  /// Makes the waits of all ranks fail from now on. Threads: any.
  virtual void give_up() = 0;
};

}  // namespace koho
