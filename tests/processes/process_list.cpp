// SPDX-License-Identifier: Apache-2.0
#include "tests/processes/process_list.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace koho::testing {
namespace {

namespace fs = std::filesystem;

/// State and parent of /proc/N/stat; '?' if there is no such process.
std::pair<char, pid_t> stat_of(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  // A process that ends meanwhile is a read that fails, which this takes without an exception.
  std::ostringstream whole;
  whole << file.rdbuf();
  const std::string text = whole.str();
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return {'?', 0};
  std::istringstream rest(text.substr(name_end + 1));
  char state = '?';
  pid_t parent = 0;
  rest >> state >> parent;
  return {state, parent};
}

bool is_alive(char state) {
  return state != '?' && state != 'Z' && state != 'X';
}

}  // namespace

std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> found;
  std::error_code error;
  for (fs::directory_iterator entry("/proc", error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const auto process = static_cast<pid_t>(std::stol(name));
    const auto [state, its_parent] = stat_of(process);
    if (its_parent == parent && is_alive(state)) found.push_back(process);
  }
  return found;
}

bool lives(pid_t process) {
  return is_alive(stat_of(process).first);
}

bool all_end(const std::vector<pid_t>& processes) {
  return std::ranges::none_of(processes, lives);
}

std::size_t num_descriptors() {
  return names_in("/proc/self/fd").size() - 1;  // one is of the listing
}

std::size_t num_shared_mappings() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);)
    if (line.find("memfd:koho") != std::string::npos) ++count;
  return count;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error))
    names.push_back(entry->path().filename().string());
  return names;
}

}  // namespace koho::testing
