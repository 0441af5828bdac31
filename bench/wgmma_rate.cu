// SPDX-License-Identifier: Apache-2.0
// The rate of wgmma alone: every warpgroup multiplies operands that stay in shared memory, nothing
// else moves. What a card gives a GEMM or attention at most, from rest and at its power limit. That
// depends on the values: random ones, normally distributed, and zeros.
//
//   wgmma_rate    prints TFLOP/s: of the first 15 ms after rest, and of the last half of 2 s
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include "cuda/device/ptx.cuh"
#include "cuda/device/wgmma.cuh"

namespace koho::cuda {
namespace {

constexpr int kStages = 4;
constexpr int kRowBytes = 128;    // of K, swizzled
constexpr int kGroups = 2;        // warpgroups, 64 rows each
constexpr int kStepBytes = 32;    // of K that one wgmma multiplies
constexpr int kSets = 8;          // of operands: multiprocessors have different ones
constexpr int kTurns = 4000;      // of a launch, some milliseconds
constexpr double kSeconds = 2.0;  // of launches one behind the other

template <int kN>
struct Plan {
  static constexpr int kRows = kGroups * 64;
  static constexpr int kStage = (kRows + kN) * kRowBytes;
  static constexpr int kOperands = kStages * kStage;
  static constexpr int kShared = kOperands + 1024;  // room to align
};

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  std::exit(1);
}

/// kChain false: sums of 256 bytes of K start fresh and are added in f32, as FP8 GEMMs here do.
template <TileType kType, int kN, bool kChain>
__global__ void __launch_bounds__(kGroups * 128)
    rate_kernel(const uint4* operands, float* out, int turns) {
  extern __shared__ std::uint8_t raw[];
  const std::uint32_t pad = (1024U - shared_address(raw) % 1024U) % 1024U;
  auto* shared = reinterpret_cast<uint4*>(raw + pad);
  constexpr int kPieces = Plan<kN>::kOperands / 16;
  const uint4* mine = operands + static_cast<int>(blockIdx.x % kSets) * kPieces;
  for (int i = static_cast<int>(threadIdx.x); i < kPieces; i += kGroups * 128) shared[i] = mine[i];
  fence_proxy_async_shared();
  __syncthreads();
  const std::uint32_t base = shared_address(shared);
  const std::uint32_t group = threadIdx.x / 128;
  float sums[kN / 2] = {};
  float totals[kChain ? 1 : kN / 2] = {};
  for (int turn = 0; turn < turns; ++turn) {
    wgmma_fence();
#pragma unroll
    for (std::uint32_t stage = 0; stage < kStages; ++stage) {
      const std::uint32_t at = base + stage * Plan<kN>::kStage;
      const std::uint64_t rows = swizzle128_descriptor(at + group * 64 * kRowBytes);
      const std::uint64_t columns = swizzle128_descriptor(at + Plan<kN>::kRows * kRowBytes);
#pragma unroll
      for (std::uint32_t k = 0; k < kRowBytes; k += kStepBytes)
        wgmma<kType, kN>(sums, advance_descriptor(rows, k), advance_descriptor(columns, k),
                         kChain || stage % 2 > 0 || k > 0 ? 1 : 0);
      if (kChain || stage % 2 == 0) continue;
      wgmma_commit_group();
      wgmma_wait_group<0>();
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) totals[kChain ? 0 : i] += sums[i];
      wgmma_fence();
    }
    wgmma_commit_group();
    wgmma_wait_group<0>();
  }
  float sum = totals[0];
  for (const float value : sums) sum += value;
  for (const float value : totals) sum += value;
  if (sum == 1.5F) out[threadIdx.x] = sum;  // so that nothing is left out
}

template <TileType kType, int kN, bool kChain>
void measure(const char* name, const std::vector<std::uint8_t>& values, int multiprocessors) {
  uint4* operands = nullptr;
  float* out = nullptr;
  check(cudaMalloc(&operands, values.size()), "cudaMalloc");
  check(cudaMalloc(&out, kGroups * 128 * sizeof(float)), "cudaMalloc");
  check(cudaMemcpy(operands, values.data(), values.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
  const auto kernel = rate_kernel<kType, kN, kChain>;
  check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Plan<kN>::kShared),
      "shared memory");
  const auto launch = [&](int turns) {
    kernel<<<multiprocessors, kGroups * 128, Plan<kN>::kShared>>>(operands, out, turns);
  };
  launch(1);
  check(cudaDeviceSynchronize(), "the first launch");
  const timespec rest{0, 800'000'000};
  nanosleep(&rest, nullptr);
  constexpr double kWidth = kRowBytes / (kType == TileType::bf16 ? 2 : 1);
  const double operations =
      2.0 * multiprocessors * Plan<kN>::kRows * kN * kWidth * kStages * kTurns;
  const double nominal = kType == TileType::bf16 ? 0.6e15 : 1.2e15;
  const int launches = static_cast<int>(kSeconds * nominal / operations);
  std::vector<cudaEvent_t> events(static_cast<std::size_t>(launches) + 1);
  for (cudaEvent_t& event : events) check(cudaEventCreate(&event), "cudaEventCreate");
  check(cudaEventRecord(events[0]), "cudaEventRecord");
  for (int i = 0; i < launches; ++i) {
    launch(kTurns);
    check(cudaEventRecord(events[static_cast<std::size_t>(i) + 1]), "cudaEventRecord");
  }
  check(cudaDeviceSynchronize(), "the launches");
  const auto rate = [&](int from, int to) {
    float ms = 0.0F;
    check(cudaEventElapsedTime(&ms, events[static_cast<std::size_t>(from)],
                               events[static_cast<std::size_t>(to)]),
          "cudaEventElapsedTime");
    return operations * (to - from) / static_cast<double>(ms) / 1e9;
  };
  std::printf("%-52s %5.0f %5.0f\n", name, rate(0, 3), rate(launches / 2, launches));
  for (cudaEvent_t event : events) check(cudaEventDestroy(event), "cudaEventDestroy");
  check(cudaFree(operands), "cudaFree");
  check(cudaFree(out), "cudaFree");
}

int run() {
  cudaDeviceProp device{};
  check(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  if (device.major != 9 || device.minor != 0) {
    std::fprintf(stderr, "wgmma needs compute capability 9.0\n");
    return 1;
  }
  constexpr std::size_t kBytes = std::size_t{kSets} * Plan<192>::kOperands;
  std::vector<std::uint8_t> e4m3(kBytes);
  std::vector<std::uint8_t> bf16(kBytes);
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  for (std::uint8_t& value : e4m3)
    value = __nv_cvt_float_to_fp8(100.0F * normal(random), __NV_SATFINITE, __NV_E4M3);
  for (std::size_t i = 0; i < kBytes; i += 2) {
    const __nv_bfloat16 value = __float2bfloat16(normal(random));
    std::memcpy(&bf16[i], &value, 2);
  }
  std::printf("%s, %d multiprocessors; TFLOP/s from rest, at the end\n", device.name,
              device.multiProcessorCount);
  const int all = device.multiProcessorCount;
  measure<TileType::fp8, 192, true>("e4m3 m64n192k32, one chain", e4m3, all);
  measure<TileType::fp8, 192, true>("e4m3 m64n192k32, one chain, zeros",
                                    std::vector<std::uint8_t>(kBytes), all);
  measure<TileType::fp8, 192, false>("e4m3 m64n192k32, added in f32 every 256 bytes", e4m3, all);
  measure<TileType::fp8, 128, false>("e4m3 m64n128k32, added in f32 every 256 bytes", e4m3, all);
  measure<TileType::bf16, 128, true>("bf16 m64n128k16, one chain", bf16, all);
  return 0;
}

}  // namespace
}  // namespace koho::cuda

int main() {
  return koho::cuda::run();
}
