// SPDX-License-Identifier: Apache-2.0
// A regular file mapped read-only, and whole-file reads with a bound.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"

namespace koho {

/// A regular file, opened once and mapped read-only for the object's lifetime. Movable, not
/// copyable. Errors: not_found; io_error (permission, not a regular file, mapping refused).
/// Threads: reading the bytes is safe from any number of threads.
class MappedFile {
 public:
  static Result<MappedFile> open(const std::filesystem::path& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

 private:
  explicit MappedFile(std::filesystem::path path) : path_(std::move(path)) {}

  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// The whole file as a string. Errors: not_found; io_error; resource_exhausted above `bytes_max`.
Result<std::string> read_file(const std::filesystem::path& path, std::size_t bytes_max);

/// As read_file, of a pipe as well: the shell's <(...) and /dev/stdin.
Result<std::string> read_file_or_pipe(const std::filesystem::path& path, std::size_t bytes_max);

/// The names in a directory, sorted. (std::filesystem's iterator ends the program when memory runs
/// out.) Errors: io_error.
Result<std::vector<std::string>> file_names(const std::filesystem::path& directory);

}  // namespace koho
