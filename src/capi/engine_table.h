// SPDX-License-Identifier: Apache-2.0
// The engines of this process by handle: the C ABI's one process-wide object, because a handle is a
// number that has to be looked up somewhere.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "base/error.h"
#include "capi/handle.h"

namespace koho::capi {

class Instance;

/// Threads: any.
class EngineTable {
 public:
  constexpr EngineTable() = default;

  /// Errors: resource_exhausted (kEnginesMax engines), unavailable (a child of fork).
  Result<std::uintptr_t> insert(std::shared_ptr<Instance> instance);
  /// Errors: invalid_argument (no such engine), unavailable (a child of fork).
  Result<std::shared_ptr<Instance>> find(std::uintptr_t handle);
  /// As find; the handle is no longer valid.
  Result<std::shared_ptr<Instance>> take(std::uintptr_t handle);
  /// A number that no other handle of this process has (of the last 2^32).
  std::uint32_t next_generation() { return ++generation_; }

 private:
  struct Slot {
    std::uint32_t generation = 0;
    std::shared_ptr<Instance> instance;
  };

  Status check_process() const;
  Result<Slot*> slot(std::uintptr_t handle);

  std::mutex mutex_;
  std::array<Slot, kEnginesMax> slots_{};
  std::atomic<std::uint32_t> generation_{0};
  std::atomic<std::int64_t> process_{0};  // whose threads the engines have; 0: none yet
};

/// The table. Never destroyed: a program may end with engines that are still at work.
EngineTable& engines();

}  // namespace koho::capi
