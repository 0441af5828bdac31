// SPDX-License-Identifier: Apache-2.0
#include "base/host_cpus.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <fstream>
#include <iterator>
#include <sched.h>
#include <string>

namespace koho {
namespace {

constexpr int kCpusMax = 8192;

/// A set of CPUs as the system takes it, of whatever size.
class CpuSet {
 public:
  CpuSet() : set_(CPU_ALLOC(kCpusMax)) { CPU_ZERO_S(bytes(), set_); }
  CpuSet(const CpuSet&) = delete;
  CpuSet& operator=(const CpuSet&) = delete;
  ~CpuSet() { CPU_FREE(set_); }

  static std::size_t bytes() { return CPU_ALLOC_SIZE(kCpusMax); }
  cpu_set_t* get() { return set_; }
  bool has(int cpu) const { return CPU_ISSET_S(static_cast<std::size_t>(cpu), bytes(), set_) != 0; }
  void add(int cpu) { CPU_SET_S(static_cast<std::size_t>(cpu), bytes(), set_); }

 private:
  cpu_set_t* set_;
};

std::string first_line(const std::filesystem::path& path) {
  std::string line;
  std::getline(std::ifstream(path), line);
  return line;
}

std::optional<int> parse_number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

std::vector<int> allowed_cpus() {
  CpuSet set;
  std::vector<int> cpus;
  if (sched_getaffinity(0, CpuSet::bytes(), set.get()) != 0) return cpus;
  for (int cpu = 0; cpu < kCpusMax; ++cpu)
    if (set.has(cpu)) cpus.push_back(cpu);
  return cpus;
}

std::vector<int> parse_cpu_list(std::string_view text) {
  std::vector<int> cpus;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    const std::string_view run = text.substr(0, comma);
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
    const std::size_t dash = run.find('-');
    const std::optional<int> first = parse_number(run.substr(0, dash));
    const std::optional<int> last =
        dash == std::string_view::npos ? first : parse_number(run.substr(dash + 1));
    if (!first || !last || *first < 0 || *last < *first || *last >= kCpusMax) return {};
    for (int cpu = *first; cpu <= *last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

std::optional<int> numa_node_of_pci(std::string_view bus_id, const std::filesystem::path& sys) {
  std::string name(bus_id);  // the system's are in lower case
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const std::optional<int> node =
      parse_number(first_line(sys / "bus" / "pci" / "devices" / name / "numa_node"));
  return node && *node >= 0 ? node : std::nullopt;  // -1: the system does not know
}

std::vector<int> cpus_of_numa_node(int node, const std::filesystem::path& sys) {
  return parse_cpu_list(first_line(sys / "devices" / "system" / "node" /
                                   ("node" + std::to_string(node)) / "cpulist"));
}

std::vector<int> share_of_cpus(std::size_t rank,
                               std::span<const std::optional<int>> nodes,
                               std::span<const std::vector<int>> cpus_of_nodes,
                               std::span<const int> allowed) {
  const auto allowed_of = [&](std::size_t of_rank) {
    std::vector<int> both;
    if (nodes[of_rank])
      std::copy_if(
          cpus_of_nodes[of_rank].begin(), cpus_of_nodes[of_rank].end(), std::back_inserter(both),
          [&](int cpu) { return std::find(allowed.begin(), allowed.end(), cpu) != allowed.end(); });
    return both;
  };
  std::vector<int> cpus = allowed_of(rank);
  std::size_t sharers = nodes.size();
  std::size_t before = rank;  // of the sharers
  if (cpus.empty()) {
    cpus.assign(allowed.begin(), allowed.end());
  } else {
    sharers = static_cast<std::size_t>(std::count(nodes.begin(), nodes.end(), nodes[rank]));
    before = static_cast<std::size_t>(
        std::count(nodes.begin(), nodes.begin() + static_cast<std::ptrdiff_t>(rank), nodes[rank]));
  }
  if (cpus.empty()) return cpus;
  const std::size_t begin = cpus.size() * before / sharers;
  const std::size_t end = std::max(cpus.size() * (before + 1) / sharers, begin + 1);
  return {cpus.begin() + static_cast<std::ptrdiff_t>(begin),
          cpus.begin() + static_cast<std::ptrdiff_t>(end)};
}

bool keep_thread_on(std::span<const int> cpus) {
  CpuSet set;
  for (const int cpu : cpus)
    if (cpu >= 0 && cpu < kCpusMax) set.add(cpu);
  return sched_setaffinity(0, CpuSet::bytes(), set.get()) == 0;
}

}  // namespace koho
