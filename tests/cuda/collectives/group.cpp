// SPDX-License-Identifier: Apache-2.0
// Barriers, values and output that ranks share.
#include "tests/cuda/collectives/group.h"

#include <algorithm>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <sched.h>
#include <unistd.h>

namespace koho::cuda::collectives_bench {

Shared* shared;
Options options;

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
[[noreturn]] void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vprintf(format, arguments);
  va_end(arguments);
  std::printf("\n");
  std::fflush(stdout);
  shared->failed = 1;
  _exit(3);
}

void barrier() {
  const int generation = shared->generation.load();
  if (shared->arrived.fetch_add(1) == options.running() - 1) {
    shared->arrived = 0;
    shared->generation.fetch_add(1);
    return;
  }
  const double start = now_s();
  while (shared->generation.load() == generation) {
    sched_yield();
    if (shared->failed.load() != 0) _exit(4);
    if (now_s() - start > 60) fail("ERROR a rank did not come to a barrier");
  }
}
double largest(int rank, double value) {
  shared->values[rank] = value;
  barrier();
  double most = shared->values[0];
  for (int i = 1; i < options.running(); ++i) most = std::max(most, shared->values[i]);
  barrier();
  return most;
}
double smallest(int rank, double value) {
  return -largest(rank, -value);
}

void json(const char* format, ...) {
  char line[1024];
  const char* placed = options.loopback             ? "loopback"
                       : options.processes          ? "processes"
                       : options.devices.size() > 1 ? "threads"
                                                    : "one_gpu";
  int length = std::snprintf(line, sizeof line, "{\"ranks\":%d,\"gpus\":%d,\"as\":\"%s\",",
                             options.ranks, static_cast<int>(options.devices.size()), placed);
  va_list arguments;
  va_start(arguments, format);
  length += std::vsnprintf(line + length, sizeof line - static_cast<std::size_t>(length), format,
                           arguments);
  va_end(arguments);
  if (options.out.empty()) {
    std::printf("%s}\n", line);
  } else {  // for people
    for (const char* c = line + 1; *c != 0; ++c)
      if (*c != '"') std::putchar(*c);
    std::putchar('\n');
  }
  std::fflush(stdout);
  if (options.out.empty()) return;
  if (FILE* file = std::fopen(options.out.c_str(), "a")) {
    std::fprintf(file, "%s}\n", line);
    std::fclose(file);
  }
}

}  // namespace koho::cuda::collectives_bench
