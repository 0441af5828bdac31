// SPDX-License-Identifier: Apache-2.0
// Puts weight rows, as the checkpoint has them, into tiles (tiled_layout.h), once at load. One
// thread a 16-byte chunk; the padding columns become zero. Bound by memory.
#include "cuda/device/launch.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/gemm/tiled_layout.h"
#include "cuda/kernels.h"
#include "cuda/load/repack.h"

namespace koho::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void repack_kernel(const Repack p) {
  pdl_begin();
  const std::int64_t chunks = p.width_bytes / kTileChunk;
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= p.rows * chunks) return;
  // Neighbouring threads take neighbouring rows, which lie side by side in a tile.
  const std::int64_t group = index / (kTileRows * chunks) * kTileRows;
  const std::int64_t rows = min(p.rows - group, static_cast<std::int64_t>(kTileRows));
  const std::int64_t inside = index - group * chunks;
  const std::int64_t row = group + inside % rows;
  const std::int64_t k = inside / rows * kTileChunk;
  const std::int64_t placed =
      p.interleave == 0 ? p.first_row + row : p.first_row + interleaved_row(row, p.interleave == 2);
  const std::uint8_t* source = p.source + row * p.source_stride_bytes + k;
  std::uint8_t* destination = p.tiles + tile_offset(p.width_bytes, placed, k);
  if (k + kTileChunk <= p.row_bytes && reinterpret_cast<std::uintptr_t>(source) % 16 == 0) {
    *reinterpret_cast<uint4*>(destination) = *reinterpret_cast<const uint4*>(source);
  } else {
    for (int i = 0; i < kTileChunk; ++i) destination[i] = k + i < p.row_bytes ? source[i] : 0;
  }
}

}  // namespace

cudaError_t launch_repack(const Repack& p, cudaStream_t stream) {
  const std::int64_t threads = p.rows * (p.width_bytes / kTileChunk);
  if (threads == 0) return cudaSuccess;
  return launch_kernel(
      repack_kernel,
      {dim3(static_cast<unsigned>((threads + kThreads - 1) / kThreads)), dim3(kThreads)}, stream,
      p);
}

const void* kernel_of::repack() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
