// SPDX-License-Identifier: Apache-2.0
// What worker_fault.cpp does to a worker: worker_fault_cpu.cpp or worker_fault_cuda.cu.
#pragma once

#include <pthread.h>

namespace koho::testing {

struct FaultPlace {
  pthread_t main_thread;  // runs the rank's steps
  int gpu = 0;
};

/// The worker's process on the CPU, its CUDA context on a GPU is lost.
void access_illegally(const FaultPlace& place);
/// No step ends any more, the process' other threads run.
void hang(const FaultPlace& place);

}  // namespace koho::testing
