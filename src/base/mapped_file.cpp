// SPDX-License-Identifier: Apache-2.0
// Opening, mapping and reading regular files.
#include "base/mapped_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <fstream>
#include <memory>
#include <sys/mman.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "base/descriptor.h"

namespace koho {
namespace {

struct OpenFile {
  Descriptor descriptor;
  std::size_t size = 0;
};

Result<OpenFile> open_regular(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a FIFO must answer, not wait for a writer.
  Descriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!descriptor.is_open()) {
    const int reason = errno;
    return make_error(
        reason == ENOENT || reason == ENOTDIR ? ErrorCode::not_found : ErrorCode::io_error,
        "cannot open {}: {}", path.string(), std::strerror(reason));
  }
  struct stat info {};
  if (::fstat(descriptor.get(), &info) != 0)
    return make_error(ErrorCode::io_error, "cannot stat {}: {}", path.string(),
                      std::strerror(errno));
  if (!S_ISREG(info.st_mode))
    return make_error(ErrorCode::io_error, "{} is not a regular file", path.string());
  return OpenFile{std::move(descriptor), static_cast<std::size_t>(info.st_size)};
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  KOHO_TRY_ASSIGN(OpenFile file, open_regular(path));
  // Made before the mapping, which it then owns: copying the path may fail.
  MappedFile mapped(path);
  if (file.size == 0) return mapped;
  void* data = ::mmap(nullptr, file.size, PROT_READ, MAP_SHARED, file.descriptor.get(), 0);
  if (data == MAP_FAILED)
    return make_error(ErrorCode::io_error, "cannot map {} ({} bytes): {}", path.string(), file.size,
                      std::strerror(errno));
  mapped.data_ = static_cast<const std::byte*>(data);
  mapped.size_ = file.size;
  return mapped;
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
    const ssize_t got = ::read(file.descriptor.get(), text.data() + done, text.size() - done);
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

Result<std::string> read_file_or_pipe(const std::filesystem::path& path, std::size_t bytes_max) {
  std::error_code ignored;  // what is not there is reported when it is opened
  if (!std::filesystem::is_fifo(path, ignored)) return read_file(path, bytes_max);
  std::ifstream pipe(path, std::ios::binary);  // whose size nobody knows before
  std::string text;
  std::array<char, 1U << 16U> piece{};
  while (pipe.read(piece.data(), piece.size()) || pipe.gcount() > 0) {
    text.append(piece.data(), static_cast<std::size_t>(pipe.gcount()));
    if (text.size() > bytes_max)
      return make_error(ErrorCode::resource_exhausted, "{} has more bytes than the limit of {}",
                        path.string(), bytes_max);
  }
  if (!pipe.eof()) return make_error(ErrorCode::io_error, "cannot read {}", path.string());
  return text;
}

Result<std::vector<std::string>> file_names(const std::filesystem::path& directory) {
  struct Close {
    void operator()(DIR* listing) const { ::closedir(listing); }
  };
  const std::unique_ptr<DIR, Close> listing(::opendir(directory.c_str()));
  if (!listing)
    return make_error(ErrorCode::io_error, "cannot list {}: {}", directory.string(),
                      std::strerror(errno));
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(listing.get())) names.emplace_back(entry->d_name);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace koho
