// SPDX-License-Identifier: Apache-2.0
// Checks and times the collectives of src/cuda/collectives on real GPUs, without gtest: ranks are
// threads or processes, on one GPU or several. Compares every bit that a rank gets with a sum in
// rank order, computed on its own GPU from the same generator, and with norm.cu's outputs of it;
// buffers start from one poison value and are compared with their guard bands. Exit code 0: no bit
// was wrong.
//
//   collectives_bench --ranks 4 --devices 0              four threads on one GPU
//   collectives_bench --ranks 2 --devices 0,1            two threads, peer access
//   collectives_bench --ranks 2 --devices 0,1 --processes  two processes, cudaIpc
//   collectives_bench --ranks 8 --devices 0 --loopback   rank 0 of eight, alone on its GPU
//   --only checks,soak,faults,link,times   parts, in this order; --out FILE  JSON lines, appended
//   --seed N   --quick  fewer cases   --rounds N  at least so many calls of the soak
#include <cstdio>
#include <cstdlib>
#include <new>
#include <signal.h>
#include <string>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "tests/cuda/collectives/rank.h"

namespace koho::cuda::collectives_bench {

namespace {

bool parse(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const auto value = [&]() -> std::string { return i + 1 < argc ? argv[++i] : ""; };
    if (name == "--processes") {
      options.processes = true;
    } else if (name == "--loopback") {
      options.loopback = true;
    } else if (name == "--quick") {
      options.quick = true;
    } else if (name == "--ranks") {
      options.ranks = std::atoi(value().c_str());
    } else if (name == "--rounds") {
      options.rounds = std::atoi(value().c_str());
    } else if (name == "--seed") {
      options.seed = static_cast<std::uint32_t>(std::atoi(value().c_str()));
    } else if (name == "--only") {
      options.only = value();
    } else if (name == "--out") {
      options.out = value();
    } else if (name == "--devices") {
      options.devices.clear();
      const std::string list = value();
      for (std::size_t at = 0; at < list.size(); ++at)
        if (list[at] >= '0' && list[at] <= '9') options.devices.push_back(list[at] - '0');
    } else {
      return false;
    }
  }
  return !(options.loopback && options.processes) &&
         (options.ranks == 2 || options.ranks == 4 || options.ranks == 8) &&
         !options.devices.empty();
}

int run_all() {
  if (!options.processes) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < options.running(); ++rank)
      threads.emplace_back([rank] { Rank(rank).run(); });
    for (std::thread& thread : threads) thread.join();
    return 0;
  }
  std::vector<pid_t> children;
  for (int rank = 0; rank < options.ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      Rank(rank).run();
      std::fflush(stdout);
      _exit(0);
    }
    children.push_back(child);
  }
  int code = 0;
  for (std::size_t left = children.size(); left > 0; --left) {
    int status = 0;
    if (wait(&status) < 0) break;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    code = 3;
    shared->failed = 1;  // the others leave their barriers
  }
  return code;
}

}  // namespace

int main_of(int argc, char** argv) {
  if (!parse(argc, argv)) {
    std::printf(
        "usage: collectives_bench --ranks 2|4|8 --devices 0[,1] [--processes|--loopback] [--quick] "
        "[--only parts] [--seed N] [--rounds N] [--out FILE]\n");
    return 2;
  }
  // All kernels are loaded before one waits for another rank, and streams of ranks that share a GPU
  // have queues of their own: a waiting kernel would otherwise block the one it waits for.
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  void* memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 2;
  shared = new (memory) Shared{};
  const double start = now_s();
  const int code = run_all();
  const long long wrong = shared->wrong.load();
  std::printf("%s: %lld wrong, %.1f s\n", code == 0 && wrong == 0 ? "PASSED" : "FAILED", wrong,
              now_s() - start);
  std::fflush(stdout);
  return code != 0 ? code : wrong != 0 ? 1 : 0;
}

}  // namespace koho::cuda::collectives_bench

int main(int argc, char** argv) {
  return koho::cuda::collectives_bench::main_of(argc, argv);
}
