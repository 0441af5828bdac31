// SPDX-License-Identifier: Apache-2.0
#include "base/processors.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <sched.h>
#include <string>
#include <thread>

#include "base/mapped_file.h"
#include "base/text.h"

namespace koho {
namespace {

constexpr std::uint64_t kFileBytesMax = 1U << 20U;

/// `quota` of every `period`, in processors; 0: no limit.
int processors_of(std::optional<std::int64_t> quota, std::optional<std::int64_t> period) {
  if (!quota || !period || *quota <= 0 || *period <= 0) return 0;
  return static_cast<int>(std::clamp<std::int64_t>((*quota + *period - 1) / *period, 1, 1 << 20));
}

std::optional<std::int64_t> number_in(const std::filesystem::path& file) {
  const Result<std::string> text = read_file(file, kFileBytesMax);
  if (!text.ok()) return std::nullopt;
  return parse_integer<std::int64_t>(trimmed(*text, " \n"));
}

/// The limit of one group: cpu.max of v2 ("150000 100000", "max 100000"), or v1's two files.
int limit_of(const std::filesystem::path& group) {
  if (const Result<std::string> both = read_file(group / "cpu.max", kFileBytesMax); both.ok()) {
    const std::string_view text = trimmed(*both, " \n");
    const std::size_t space = std::min(text.find(' '), text.size());
    return processors_of(parse_integer<std::int64_t>(text.substr(0, space)),
                         parse_integer<std::int64_t>(trimmed(text.substr(space))));
  }
  return processors_of(number_in(group / "cpu.cfs_quota_us"),
                       number_in(group / "cpu.cfs_period_us"));
}

int least(int a, int b) {
  return a == 0 || b == 0 ? std::max(a, b) : std::min(a, b);
}

/// The least limit of `path` below `mount` and of all groups between. In a container the mount may
/// be that of the group itself.
int limit_along(const std::filesystem::path& mount, std::string_view path) {
  int limit = limit_of(mount);
  std::filesystem::path group = mount;
  for (const std::filesystem::path& part : std::filesystem::path(path).relative_path())
    limit = least(limit, limit_of(group /= part));
  return limit;
}

}  // namespace

int cgroup_processors(std::string_view cgroups, const std::filesystem::path& root) {
  int limit = 0;
  while (!cgroups.empty()) {
    const std::size_t end = std::min(cgroups.find('\n'), cgroups.size());
    const std::string_view line = cgroups.substr(0, end);  // "4:cpu,cpuacct:/group", "0::/group"
    cgroups.remove_prefix(std::min(end + 1, cgroups.size()));
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    const std::string_view path = line.substr(second + 1);
    const std::string controllers =
        "," + std::string(line.substr(first + 1, second - first - 1)) + ",";
    if (controllers == ",,")
      limit = least(limit, limit_along(root, path));
    else if (controllers.find(",cpu,") != std::string::npos)
      limit = least(limit, limit_along(root / "cpu", path));
  }
  return limit;
}

int available_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int count = static_cast<int>(std::thread::hardware_concurrency());
  if (sched_getaffinity(0, sizeof set, &set) == 0) count = CPU_COUNT(&set);
  const Result<std::string> cgroups = read_file("/proc/self/cgroup", kFileBytesMax);
  const int limit = cgroups.ok() ? cgroup_processors(*cgroups, "/sys/fs/cgroup") : 0;
  return std::max(1, least(count, limit));
}

}  // namespace koho
