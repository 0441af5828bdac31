// SPDX-License-Identifier: Apache-2.0
// A disk that fails: calls of this program on files below one directory fail at random, or all from
// a moment on, as if the machine had stopped. The program is linked with --wrap for each call.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>

#include "tests/simulation/random.h"

namespace koho::testing {

/// Threads: any. One at a time.
class FailingDisk {
 public:
  FailingDisk(const std::filesystem::path& directory, std::uint64_t seed);
  ~FailingDisk();
  FailingDisk(const FailingDisk&) = delete;
  FailingDisk& operator=(const FailingDisk&) = delete;

  /// From now on so many of a thousand calls fail; `reads` too, or only what changes the disk.
  void fail(std::int32_t per_mille, bool reads);
  /// After so many changes none is made any more; the last one may be made in part.
  void stop_after(std::int32_t changes);
  /// All succeed again.
  void mend();

  /// What a call does: -1: as ever; else so many bytes of what it would write, then it fails.
  std::int64_t decide(const std::string& path, bool reads, std::int64_t bytes);
  std::int64_t decide(int file, bool reads, std::int64_t bytes);

 private:
  const std::string directory_;
  std::mutex mutex_;
  simulation::Random random_;
  std::int32_t per_mille_ = 0;
  bool reads_ = false;
  std::int64_t changes_left_ = -1;  // -1: no end
};

}  // namespace koho::testing
