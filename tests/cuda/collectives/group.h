// SPDX-License-Identifier: Apache-2.0
// The ranks of collectives_bench, threads or processes: its options, what ranks share, barriers and
// output. Ends the program on the first CUDA error. Knows nothing of collectives.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include <cuda_runtime.h>

#include "cuda/collectives/all_reduce_norm.h"

namespace koho::cuda::collectives_bench {

struct Options {
  int ranks = 2;
  std::vector<int> devices = {0};
  bool processes = false;
  bool loopback = false;  // rank 0 runs alone (PeerGroup::loopback): one-shot sums are its addends
  bool quick = false;
  std::string only = "checks,soak,faults,link,times";
  std::string out;
  std::uint32_t seed = 1;
  int rounds = 0;  // of the soak; 0: as its place allows

  bool has(const char* part) const { return only.find(part) != std::string::npos; }
  /// Ranks that run: those whose addends are summed.
  int running() const { return loopback ? 1 : ranks; }
  int ranks_on_gpu() const {
    if (loopback) return 1;
    return (ranks + static_cast<int>(devices.size()) - 1) / static_cast<int>(devices.size());
  }
};

/// What ranks share, threads or processes.
struct Shared {
  std::atomic<int> arrived;
  std::atomic<int> generation;
  std::atomic<int> failed;
  std::atomic<long long> wrong;
  cudaIpcMemHandle_t handles[kCollectiveRanksMax];
  void* pointers[kCollectiveRanksMax];
  double values[kCollectiveRanksMax];
};
extern Shared* shared;
extern Options options;

double now_s();
/// Prints a message and ends the program, for all ranks.
[[noreturn]] void fail(const char* format, ...);
#define CHECK_CUDA(call)                                                                  \
  do {                                                                                    \
    const cudaError_t status_ = (call);                                                   \
    if (status_ != cudaSuccess)                                                           \
      fail("ERROR %s:%d %s: %s", __FILE__, __LINE__, #call, cudaGetErrorString(status_)); \
  } while (0)

/// Returns once all ranks have called it.
void barrier();
/// The largest and the smallest of all ranks' values; a barrier too.
double largest(int rank, double value);
double smallest(int rank, double value);
/// Writes one JSON line of `format`'s members behind those that say how the ranks are placed.
void json(const char* format, ...);

}  // namespace koho::cuda::collectives_bench
