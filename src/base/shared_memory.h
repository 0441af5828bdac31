// SPDX-License-Identifier: Apache-2.0
// Memory that processes share: an anonymous file (memfd). It has no name in the file system and
// goes with its last user, however that ends, so nothing is ever left behind.
#pragma once

#include <cstddef>
#include <span>

#include "base/descriptor.h"
#include "base/error.h"

namespace koho {

class SharedMemory {
 public:
  SharedMemory() = default;
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory();

  /// Makes zero-filled memory and maps it; `name` shows in /proc. The memory takes pages as they
  /// are written. It may grow and never shrinks, whoever tries: no reader meets a hole. 0 bytes are
  /// mapped by grow() only. Errors: resource_exhausted.
  static Result<SharedMemory> create(const char* name, std::size_t bytes);
  /// Maps what another process made; takes the descriptor over. Errors: invalid_argument (it is no
  /// shared memory); resource_exhausted.
  static Result<SharedMemory> open(Descriptor descriptor);

  /// The mapping moves. Errors: resource_exhausted.
  Status grow(std::size_t bytes);
  /// Maps all that the memory has by now; the mapping moves. Errors: resource_exhausted.
  Status map_whole();

  int descriptor() const { return descriptor_.get(); }
  std::span<std::byte> bytes() const { return {data_, size_}; }

 private:
  void unmap();

  Descriptor descriptor_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace koho
