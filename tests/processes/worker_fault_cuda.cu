// SPDX-License-Identifier: Apache-2.0
// On the worker's own context: the CUDA runtime that this library has beside the worker's shares
// the GPU's primary context with it.
#include <cstdio>

#include <cuda_runtime.h>

#include "tests/processes/worker_fault.h"

namespace koho::testing {
namespace {

__global__ void write_to(int* address) {
  *address = 1;
}

/// Fills the GPU, so that no other kernel of the context finds room, and stays.
__global__ void __launch_bounds__(1024) wait_for(const volatile int* word) {
  while (*word == 0) __nanosleep(1000);
}

void tell(const char* what, cudaError_t status) {
  std::fprintf(stderr, "worker_fault: %s: %s\n", what, cudaGetErrorString(status));
}

cudaStream_t own_stream(const FaultPlace& place) {
  cudaStream_t stream = nullptr;
  if (const cudaError_t status = cudaSetDevice(place.gpu); status != cudaSuccess)
    tell("cudaSetDevice", status);
  if (const cudaError_t status = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
      status != cudaSuccess)
    tell("cudaStreamCreate", status);
  return stream;
}

}  // namespace

void access_illegally(const FaultPlace& place) {
  cudaStream_t stream = own_stream(place);
  write_to<<<1, 1, 0, stream>>>(reinterpret_cast<int*>(16));
  tell("a kernel writes to address 16", cudaStreamSynchronize(stream));
}

void hang(const FaultPlace& place) {
  cudaStream_t stream = own_stream(place);
  int* word = nullptr;
  cudaHostAlloc(&word, sizeof(int), cudaHostAllocMapped);
  if (word == nullptr) return tell("cudaHostAlloc", cudaGetLastError());
  *word = 0;
  cudaDeviceProp properties{};
  cudaGetDeviceProperties(&properties, place.gpu);
  const int blocks =
      properties.multiProcessorCount * (properties.maxThreadsPerMultiProcessor / 1024);
  wait_for<<<blocks, 1024, 0, stream>>>(word);
  tell("a kernel waits for ever", cudaGetLastError());
}

}  // namespace koho::testing
