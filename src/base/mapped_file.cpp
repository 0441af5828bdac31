// SPDX-License-Identifier: Apache-2.0
// Opening, mapping and reading regular files.
#include "base/mapped_file.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace koho {
namespace {

/// An open descriptor that closes itself.
struct Descriptor {
  int value = -1;
  Descriptor() = default;
  explicit Descriptor(int descriptor) : value(descriptor) {}
  Descriptor(Descriptor&& other) noexcept : value(std::exchange(other.value, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (value >= 0) ::close(value);
  }
};

struct OpenFile {
  Descriptor descriptor;
  std::size_t size = 0;
};

Result<OpenFile> open_regular(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a FIFO must answer, not wait for a writer.
  Descriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (descriptor.value < 0) {
    const int reason = errno;
    return make_error(
        reason == ENOENT || reason == ENOTDIR ? ErrorCode::not_found : ErrorCode::io_error,
        "cannot open {}: {}", path.string(), std::strerror(reason));
  }
  struct stat info {};
  if (::fstat(descriptor.value, &info) != 0)
    return make_error(ErrorCode::io_error, "cannot stat {}: {}", path.string(),
                      std::strerror(errno));
  if (!S_ISREG(info.st_mode))
    return make_error(ErrorCode::io_error, "{} is not a regular file", path.string());
  return OpenFile{std::move(descriptor), static_cast<std::size_t>(info.st_size)};
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  KOHO_TRY_ASSIGN(OpenFile file, open_regular(path));
  if (file.size == 0) return MappedFile(path, nullptr, 0);
  void* data = ::mmap(nullptr, file.size, PROT_READ, MAP_SHARED, file.descriptor.value, 0);
  if (data == MAP_FAILED)
    return make_error(ErrorCode::io_error, "cannot map {} ({} bytes): {}", path.string(), file.size,
                      std::strerror(errno));
  return MappedFile(path, static_cast<const std::byte*>(data), file.size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

Result<std::string> read_file(const std::filesystem::path& path, std::size_t bytes_max) {
  KOHO_TRY_ASSIGN(OpenFile file, open_regular(path));
  if (file.size > bytes_max)
    return make_error(ErrorCode::resource_exhausted, "{} has {} bytes, more than the limit of {}",
                      path.string(), file.size, bytes_max);
  std::string text(file.size, '\0');
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t got = ::read(file.descriptor.value, text.data() + done, text.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      return make_error(ErrorCode::io_error, "cannot read {}: {}", path.string(),
                        std::strerror(errno));
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  text.resize(done);
  return text;
}

}  // namespace koho
