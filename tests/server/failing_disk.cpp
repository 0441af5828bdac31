// SPDX-License-Identifier: Apache-2.0
#include "failing_disk.h"

#include <array>
#include <cerrno>
#include <cstdarg>
#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>
#include <utility>

namespace koho::testing {
namespace {

std::atomic<FailingDisk*> g_disk{nullptr};

/// The end of a write that failed in part: the next one of this thread fails.
thread_local bool g_next_write_fails = false;

bool fails(const auto& file, bool reads) {
  FailingDisk* const disk = g_disk.load();
  if (disk == nullptr || disk->decide(file, reads, 0) < 0) return false;
  errno = reads ? EIO : ENOSPC;
  return true;
}

}  // namespace

FailingDisk::FailingDisk(const std::filesystem::path& directory, std::uint64_t seed)
    : directory_(directory.string() + "/"), random_(seed) {
  g_disk = this;
}

FailingDisk::~FailingDisk() {
  g_disk = nullptr;
}

void FailingDisk::fail(std::int32_t per_mille, bool reads) {
  const std::lock_guard lock(mutex_);
  per_mille_ = per_mille;
  reads_ = reads;
}

void FailingDisk::stop_after(std::int32_t changes) {
  const std::lock_guard lock(mutex_);
  changes_left_ = changes;
}

void FailingDisk::mend() {
  const std::lock_guard lock(mutex_);
  per_mille_ = 0;
  changes_left_ = -1;
}

std::int64_t FailingDisk::decide(const std::string& path, bool reads, std::int64_t bytes) {
  if (!path.starts_with(directory_)) return -1;
  const std::lock_guard lock(mutex_);
  const auto part = [&] {
    return static_cast<std::int64_t>(random_.next() % static_cast<std::uint64_t>(bytes + 1));
  };
  if (!reads && changes_left_ >= 0) {
    if (changes_left_ == 0) return 0;
    if (--changes_left_ == 0) return part();
  }
  if (reads && !reads_) return -1;
  return random_.chance(per_mille_) ? part() : -1;
}

std::int64_t FailingDisk::decide(int file, bool reads, std::int64_t bytes) {
  std::array<char, 512> path{};
  const std::string link = "/proc/self/fd/" + std::to_string(file);
  const ssize_t length = ::readlink(link.c_str(), path.data(), path.size());
  return length < 0
             ? -1
             : decide(std::string(path.data(), static_cast<std::size_t>(length)), reads, bytes);
}

// What the linker puts in the place of each call. NOLINTBEGIN(bugprone-reserved-identifier)
extern "C" {

int __real_open(const char* path, int flags, ...);
ssize_t __real_read(int file, void* bytes, std::size_t size);
ssize_t __real_write(int file, const void* bytes, std::size_t size);
int __real_ftruncate(int file, off_t size);
int __real_fsync(int file);
int __real_rename(const char* from, const char* to);
int __real_unlink(const char* path);

int __wrap_open(const char* path, int flags, ...) {
  mode_t mode = 0;
  if ((flags & O_CREAT) != 0) {
    va_list list;
    va_start(list, flags);
    mode = va_arg(list, mode_t);
    va_end(list);
  }
  if (fails(std::string(path), (flags & O_CREAT) == 0)) return -1;
  return __real_open(path, flags, mode);
}

ssize_t __wrap_read(int file, void* bytes, std::size_t size) {
  return fails(file, true) ? -1 : __real_read(file, bytes, size);
}

ssize_t __wrap_write(int file, const void* bytes, std::size_t size) {
  FailingDisk* const disk = g_disk.load();
  if (disk == nullptr) return __real_write(file, bytes, size);
  const std::int64_t part = std::exchange(g_next_write_fails, false)
                                ? 0
                                : disk->decide(file, false, static_cast<std::int64_t>(size));
  if (part < 0) return __real_write(file, bytes, size);
  g_next_write_fails = part > 0;
  if (part > 0) return __real_write(file, bytes, static_cast<std::size_t>(part));
  errno = ENOSPC;
  return -1;
}

int __wrap_ftruncate(int file, off_t size) {
  return fails(file, false) ? -1 : __real_ftruncate(file, size);
}

int __wrap_fsync(int file) {
  return fails(file, false) ? -1 : __real_fsync(file);
}

int __wrap_rename(const char* from, const char* to) {
  return fails(std::string(from), false) ? -1 : __real_rename(from, to);
}

int __wrap_unlink(const char* path) {
  return fails(std::string(path), false) ? -1 : __real_unlink(path);
}

}  // extern "C"
// NOLINTEND(bugprone-reserved-identifier)

}  // namespace koho::testing
