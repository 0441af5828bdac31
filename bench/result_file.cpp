// SPDX-License-Identifier: Apache-2.0
#include "bench/result_file.h"

#include <ctime>
#include <fstream>

#include <fmt/chrono.h>

#include "base/log.h"

namespace koho::bench {
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

std::vector<std::pair<std::string, std::string>> result_members(const ResultFile& file) {
  const std::string driver = nvidia_driver();
  std::vector<std::pair<std::string, std::string>> members{
      {"machine", log::quoted(file.machine)},
      {"driver", driver.empty() ? "null" : log::quoted(driver)},
      {"commit", log::quoted(file.commit)},
      {"date", fmt::format("\"{:%Y-%m-%d}\"", fmt::gmtime(std::time(nullptr)))},
      {"command", log::quoted(file.command)}};
  members.insert(members.end(), file.more.begin(), file.more.end());
  return members;
}

Status write_result_file(const std::string& path, const ResultFile& file, const std::string& rows) {
  std::ofstream out(path);
  out << '{';
  for (const auto& [name, value] : result_members(file))
    out << log::quoted(name) << ": " << value << ", ";
  out << "\"rows\": [\n" << rows << "\n]}\n";
  if (!out.flush().good()) return make_error(ErrorCode::io_error, "cannot write {}", path);
  return {};
}

}  // namespace koho::bench
