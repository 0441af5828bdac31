// SPDX-License-Identifier: Apache-2.0
// Reads /proc/meminfo.
#include "base/host_memory.h"

#include <fstream>
#include <string>

namespace koho {

std::optional<std::int64_t> available_memory_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string word;
  while (file >> word)
    if (word == "MemAvailable:") {
      std::int64_t kib = 0;
      if (file >> kib) return kib * 1024;
    }
  return std::nullopt;
}

}  // namespace koho
