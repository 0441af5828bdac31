// SPDX-License-Identifier: Apache-2.0
// Copies of whole rows: embedding, gathered rows, cache pages, the token-count table. One block a
// row (a page's K or V, a range of tokens); 16 bytes a thread where rows are aligned. Bound by
// memory or launch.
#include <cstddef>

#include "cuda/device/launch.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/kernels.h"
#include "sampling/philox.h"

namespace koho::cuda {
namespace {

constexpr int kThreads = 256;

/// Copies `width` bf16 elements. The whole block.
__device__ void copy_row(Bf16* out, const Bf16* x, std::int64_t width) {
  const bool aligned =
      ((reinterpret_cast<std::uintptr_t>(out) | reinterpret_cast<std::uintptr_t>(x)) & 15U) == 0 &&
      width % 8 == 0;
  if (aligned) {
    for (std::int64_t i = threadIdx.x; i < width / 8; i += kThreads)
      reinterpret_cast<uint4*>(out)[i] = reinterpret_cast<const uint4*>(x)[i];
  } else {
    for (std::int64_t i = threadIdx.x; i < width; i += kThreads) out[i] = x[i];
  }
}

/// NOTE: an id outside the table would read foreign memory, so the kernel clamps it; the contract
/// forbids such ids and the engine checks them before.
__global__ void gather_kernel(Bf16* out,
                              const Bf16* x,
                              std::int64_t x_stride,
                              const std::int32_t* rows_wanted,
                              std::int64_t width,
                              std::int64_t x_rows) {
  pdl_begin();
  std::int64_t row = rows_wanted[blockIdx.x];
  row = row < 0 ? 0 : row >= x_rows ? x_rows - 1 : row;
  copy_row(out + blockIdx.x * width, x + row * x_stride, width);
}

__global__ void copy_pages_kernel(const PageCopy copy) {
  pdl_begin();
  const std::int64_t from = copy.pairs[2 * blockIdx.x];
  const std::int64_t to = copy.pairs[2 * blockIdx.x + 1];
  std::uint8_t* pages = blockIdx.y == 0 ? copy.k : copy.v;
  const auto* source = reinterpret_cast<const std::uint32_t*>(pages + from * copy.page_bytes);
  auto* destination = reinterpret_cast<std::uint32_t*>(pages + to * copy.page_bytes);
  for (std::int64_t i = threadIdx.x; i < copy.page_bytes / 4; i += kThreads)
    destination[i] = source[i];
  float* scales = blockIdx.y == 0 ? copy.k_scales : copy.v_scales;
  if (scales == nullptr) return;
  for (std::int64_t i = threadIdx.x; i < copy.page_scales; i += kThreads)
    scales[to * copy.page_scales + i] = scales[from * copy.page_scales + i];
}

__global__ void clear_counts_kernel(const CountReset reset) {
  pdl_begin();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < reset.vocabulary) reset.entries[i] = 0;
  if (i < reset.nonzero_words) reset.nonzero[i] = 0;
}

__global__ void count_kernel(const CountReset reset) {
  pdl_begin();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const auto set_nonzero = [&](std::int32_t id) {
    atomicOr(reset.nonzero + race_bitmap_word(id), static_cast<std::int32_t>(race_bitmap_bit(id)));
  };
  if (i < reset.prompt_count) {
    const std::int32_t id = reset.prompt[i];
    if (id >= 0 && id < reset.vocabulary) {
      atomicOr(reset.entries + id, static_cast<int>(0x80000000U));
      set_nonzero(id);
    }
  }
  if (i < reset.output_count) {
    const std::int32_t id = reset.output[i];
    if (id >= 0 && id < reset.vocabulary) {
      atomicAdd(reset.entries + id, 1);
      set_nonzero(id);
    }
  }
}

__global__ void count_sampled_kernel(const CountSampled count) {
  pdl_begin();
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row >= count.row_count) return;
  const std::int64_t slot = count.rows[row].counts_slot;
  const std::int32_t id = count.ids[row];
  // NOTE: an id is within the vocabulary by contract; one that is not would touch foreign memory.
  if (slot < 0 || slot >= count.slots || id < 0 || id >= count.vocabulary) return;
  ++count.entries[slot * count.vocabulary + id];
  count.nonzero[slot * count.nonzero_words + race_bitmap_word(id)] |=
      static_cast<std::int32_t>(race_bitmap_bit(id));
}

unsigned blocks_for(std::int64_t count) {
  return static_cast<unsigned>((count + kThreads - 1) / kThreads);
}

}  // namespace

cudaError_t launch_gather_rows(const GatherRows& p, cudaStream_t stream) {
  return launch_kernel(gather_kernel, {dim3(static_cast<unsigned>(p.rows)), dim3(kThreads)}, stream,
                       p.out, p.x, p.x_stride, p.indices, p.width, p.x_rows);
}

cudaError_t launch_copy_pages(const PageCopy& copy, cudaStream_t stream) {
  return launch_kernel(copy_pages_kernel,
                       {dim3(static_cast<unsigned>(copy.count), 2), dim3(kThreads)}, stream, copy);
}

cudaError_t launch_reset_counts(const CountReset& reset, cudaStream_t stream) {
  const std::int64_t words =
      reset.vocabulary > reset.nonzero_words ? reset.vocabulary : reset.nonzero_words;
  const cudaError_t cleared =
      launch_kernel(clear_counts_kernel, {dim3(blocks_for(words)), dim3(kThreads)}, stream, reset);
  const std::int64_t most =
      reset.prompt_count > reset.output_count ? reset.prompt_count : reset.output_count;
  if (cleared != cudaSuccess || most == 0) return cleared;
  return launch_kernel(count_kernel, {dim3(blocks_for(most)), dim3(kThreads)}, stream, reset);
}

cudaError_t launch_count_sampled(const CountSampled& count, cudaStream_t stream) {
  return launch_kernel(count_sampled_kernel, {dim3(blocks_for(count.row_count)), dim3(kThreads)},
                       stream, count);
}

const void* kernel_of::gather_copy() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
