// SPDX-License-Identifier: Apache-2.0
#include "tests/support/temporary_directory.h"

#include <cstdlib>
#include <fstream>
#include <string>
#include <system_error>

#include "base/check.h"

namespace koho::testing {

TemporaryDirectory::TemporaryDirectory() {
  std::string name = (std::filesystem::temp_directory_path() / "koho_test_XXXXXX").string();
  KOHO_CHECK(::mkdtemp(name.data()) != nullptr);
  path_ = name;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;  // nothing a test could do about it
  std::filesystem::remove_all(path_, ignored);
}

void write_file(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.flush();
  KOHO_CHECK(file.good());
}

}  // namespace koho::testing
