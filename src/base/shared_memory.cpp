// SPDX-License-Identifier: Apache-2.0
// memfd_create, seals, mmap.
#include "base/shared_memory.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <utility>

namespace koho {

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : descriptor_(std::move(other.descriptor_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  if (this != &other) {
    unmap();
    descriptor_ = std::move(other.descriptor_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

SharedMemory::~SharedMemory() {
  unmap();
}

void SharedMemory::unmap() {
  if (data_ != nullptr) munmap(data_, size_);
  data_ = nullptr;
  size_ = 0;
}

Result<SharedMemory> SharedMemory::create(const char* name, std::size_t bytes) {
  SharedMemory memory;
  memory.descriptor_ = Descriptor(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.descriptor_.is_open())
    return make_error(ErrorCode::resource_exhausted, "no shared memory: {}", std::strerror(errno));
  if (fcntl(memory.descriptor(), F_ADD_SEALS, F_SEAL_SHRINK) != 0)
    return make_error(ErrorCode::io_error, "shared memory cannot be sealed: {}",
                      std::strerror(errno));
  if (bytes > 0) KOHO_TRY(memory.grow(bytes));
  return memory;
}

Result<SharedMemory> SharedMemory::open(Descriptor descriptor) {
  // Only a memfd has seals.
  const int seals = fcntl(descriptor.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
    return make_error(ErrorCode::invalid_argument, "descriptor {} is no shared memory of koho",
                      descriptor.get());
  SharedMemory memory;
  memory.descriptor_ = std::move(descriptor);
  KOHO_TRY(memory.map_whole());
  return memory;
}

Status SharedMemory::grow(std::size_t bytes) {
  if (ftruncate(descriptor(), static_cast<off_t>(bytes)) != 0)
    return make_error(ErrorCode::resource_exhausted, "{} bytes of shared memory: {}", bytes,
                      std::strerror(errno));
  return map_whole();
}

Status SharedMemory::map_whole() {
  struct stat info {};
  if (fstat(descriptor(), &info) != 0)
    return make_error(ErrorCode::io_error, "shared memory has no size: {}", std::strerror(errno));
  const auto size = static_cast<std::size_t>(info.st_size);
  if (size == size_) return {};
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor(), 0);
  if (data == MAP_FAILED)
    return make_error(ErrorCode::resource_exhausted, "{} bytes of shared memory: {}", size,
                      std::strerror(errno));
  unmap();
  data_ = static_cast<std::byte*>(data);
  size_ = size;
  return {};
}

}  // namespace koho
