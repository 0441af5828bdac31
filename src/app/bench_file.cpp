// SPDX-License-Identifier: Apache-2.0
#include "app/bench_file.h"

#include <ctime>
#include <fstream>

#include <fmt/chrono.h>

#include "base/log.h"

namespace koho::app {
namespace {

/// The version that the NVIDIA driver's kernel module names; empty without one.
std::string nvidia_driver() {
  std::string version;
  std::getline(std::ifstream("/sys/module/nvidia/version"), version);
  if (!version.empty()) return version;
  // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Tue …"
  std::ifstream words("/proc/driver/nvidia/version");
  for (std::string word; words >> word;)
    if (word.find_first_not_of("0123456789.") == std::string::npos &&
        word.find('.') != std::string::npos)
      return word;
  return {};
}

}  // namespace

Status write_bench_file(const std::string& path, const BenchFile& file, const std::string& rows) {
  const std::string driver = nvidia_driver();
  std::ofstream out(path);
  out << fmt::format(
      R"({{"machine": {}, "driver": {}, "commit": {}, "date": "{:%Y-%m-%d}", "command": {})",
      log::quoted(file.machine), driver.empty() ? "null" : log::quoted(driver),
      log::quoted(file.commit), fmt::gmtime(std::time(nullptr)), log::quoted(file.command));
  for (const auto& [name, value] : file.more) out << ", " << log::quoted(name) << ": " << value;
  out << ", \"rows\": [\n" << rows << "\n]}\n";
  if (!out.flush().good()) return make_error(ErrorCode::io_error, "cannot write {}", path);
  return {};
}

}  // namespace koho::app
