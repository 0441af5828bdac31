// SPDX-License-Identifier: Apache-2.0
// A library for LD_PRELOAD that makes `koho worker` fail from within, as no signal from outside
// can. SIGUSR1: an illegal access. SIGUSR2: a step that never ends while the process lives and
// beats. koho starts its workers with both blocked; a thread of this library takes them. In every
// other process it does nothing.
#include "tests/processes/worker_fault.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <pthread.h>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace koho::testing {
namespace {

/// The arguments of this process.
std::vector<std::string> arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string all((std::istreambuf_iterator<char>(file)), {});
  std::vector<std::string> each;
  for (std::size_t at = 0; at < all.size();) {
    each.emplace_back(all.c_str() + at);
    at += each.back().size() + 1;
  }
  return each;
}

/// The GPU of a rank: KOHO_FAULT_DEVICES is what --devices says, or empty.
int gpu_of(int rank) {
  const char* text = std::getenv("KOHO_FAULT_DEVICES");
  std::vector<int> devices;
  for (std::string_view left = text == nullptr ? "" : text; !left.empty();) {
    const std::size_t end = std::min(left.find(','), left.size());
    devices.push_back(std::atoi(std::string(left.substr(0, end)).c_str()));
    left.remove_prefix(std::min(end + 1, left.size()));
  }
  if (devices.empty()) return rank;
  return devices.size() == 1 ? devices[0] : devices.at(static_cast<std::size_t>(rank));
}

__attribute__((constructor)) void start() {
  const std::vector<std::string> given = arguments();
  if (given.size() != 3 || given[1] != "worker") return;
  const FaultPlace place{.main_thread = pthread_self(), .gpu = gpu_of(std::atoi(given[2].c_str()))};
  std::thread([place] {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    sigaddset(&signals, SIGUSR2);
    int signal = 0;
    while (sigwait(&signals, &signal) == 0) {
      if (signal == SIGUSR1)
        access_illegally(place);
      else
        hang(place);
    }
  }).detach();
}

}  // namespace
}  // namespace koho::testing
