// SPDX-License-Identifier: Apache-2.0
#include "bench/load_gpu_memory.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <string>

#include <fmt/core.h>

namespace koho::bench {
namespace {

/// What `nvidia-smi --query-…` says; "" if it is not there.
std::string ask(std::string_view query) {
  const std::string command =
      fmt::format("nvidia-smi --query-{} --format=csv,noheader,nounits 2>/dev/null", query);
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return {};
  std::string text;
  std::array<char, 4096> buffer;
  std::size_t bytes = 0;
  while ((bytes = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0)
    text.append(buffer.data(), bytes);
  return pclose(pipe) == 0 ? text : std::string();
}

/// Takes the first line off.
std::string_view next_line(std::string_view& lines) {
  const std::size_t end = std::min(lines.find('\n'), lines.size());
  const std::string_view line = lines.substr(0, end);
  lines.remove_prefix(std::min(end + 1, lines.size()));
  return line;
}

/// Nothing for words as "[N/A]".
std::optional<std::int64_t> number_in(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

}  // namespace

std::optional<std::int64_t> mib_of(std::span<const pid_t> processes, std::string_view lines) {
  std::optional<std::int64_t> sum;
  while (!lines.empty()) {
    const std::string_view line = next_line(lines);
    const std::size_t comma = std::min(line.find(','), line.size());
    const std::optional<std::int64_t> process = number_in(line.substr(0, comma));
    const std::optional<std::int64_t> mib =
        number_in(line.substr(std::min(comma + 1, line.size())));
    if (!process || !mib || std::ranges::find(processes, *process) == processes.end()) continue;
    sum = sum.value_or(0) + *mib;
  }
  return sum;
}

std::optional<GpuMemory> gpu_memory_of(std::span<const pid_t> processes) {
  if (const auto mib = mib_of(processes, ask("compute-apps=pid,used_memory")))
    return GpuMemory{*mib, true};
  const std::string all = ask("gpu=memory.used");
  std::optional<GpuMemory> memory;
  for (std::string_view lines = all; !lines.empty();) {
    const std::optional<std::int64_t> mib = number_in(next_line(lines));
    if (mib) memory = GpuMemory{(memory ? memory->mib : 0) + *mib, false};
  }
  return memory;
}

}  // namespace koho::bench
