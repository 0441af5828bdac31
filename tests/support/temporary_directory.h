// SPDX-License-Identifier: Apache-2.0
// A directory that goes with its object, and files in it.
#pragma once

#include <filesystem>
#include <string_view>

namespace koho::testing {

class TemporaryDirectory {
 public:
  TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory();

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// Aborts the test program if the disk refuses.
void write_file(const std::filesystem::path& path, std::string_view bytes);

}  // namespace koho::testing
