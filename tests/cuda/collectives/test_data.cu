// SPDX-License-Identifier: Apache-2.0
// The generator, its kernels and their launches.
#include "cuda/device/numeric.cuh"
#include "tests/cuda/collectives/test_data.h"

namespace koho::cuda::collectives_bench {

__host__ __device__ std::uint16_t bits_of(
    std::uint32_t seed, int rank, std::int64_t row, std::int64_t column, std::int64_t width) {
  const std::uint32_t kind = hash(seed * 977U + static_cast<std::uint32_t>(row)) % 24;
  const auto index = static_cast<std::uint32_t>(row * width + column);
  const std::uint32_t h =
      hash(hash(seed * 16U + static_cast<std::uint32_t>(rank + 1)) + index * 2654435761U);
  const auto sign = static_cast<std::uint16_t>(h >> 16 & 0x8000U);
  if (rank >= 0) {
    if (kind == 1 && h % 97 == 0) return static_cast<std::uint16_t>(sign | 0x7F81U | (h & 0x7FU));
    if (kind == 2) return 0xFFFFU;
    if (kind == 3 && h % 89 == 0) return static_cast<std::uint16_t>(sign | 0x7F80U);
    if (kind == 4) return static_cast<std::uint16_t>(sign | (h & 0x7FU));
    if (kind == 5) return 0x8000U;
    if (kind == 6) return 0;
    if (kind == 7) return 0x3F80U;
    if (kind == 8 && h % 61 < 8) return 0xFFFFU;
    if (h % 53 == 0) return 0x8000U;
  } else {
    if (kind == 4) return static_cast<std::uint16_t>(sign | (h & 0x7FU));
    if (kind == 5) return 0x8000U;
  }
  const std::uint32_t exponent = 118 + (h >> 8) % 12;
  return static_cast<std::uint16_t>(sign | exponent << 7 | (h & 0x7FU));
}

std::int64_t quant_blocks(std::int64_t width) {
  return (width + kQuantColumns - 1) / kQuantColumns;
}

namespace {

__global__ void generate_kernel(Bf16* to,
                                std::uint32_t seed,
                                int rank,
                                std::int64_t rows,
                                std::int64_t width,
                                std::int64_t stride) {
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < rows * width;
       i += std::int64_t{gridDim.x} * blockDim.x)
    to[i / width * stride + i % width] = bits_of(seed, rank, i / width, i % width, width);
}
__global__ void sum_kernel(
    Bf16* to, std::uint32_t seed, int ranks, std::int64_t rows, std::int64_t width) {
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < rows * width;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    float sum = 0.0F;
    for (int rank = 0; rank < ranks; ++rank)
      sum = __fadd_rn(sum, to_float(bits_of(seed, rank, i / width, i % width, width)));
    to[i] = to_bf16(sum);
  }
}
__global__ void fill_kernel(std::uint8_t* to, std::int64_t bytes, std::uint8_t value) {
  const std::uint32_t word = value * 0x01010101U;
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < bytes / 16;
       i += std::int64_t{gridDim.x} * blockDim.x)
    reinterpret_cast<uint4*>(to)[i] = make_uint4(word, word, word, word);
}
__global__ void clear_kernel(Difference* differences) {
  differences[threadIdx.x] = Difference{0, ~0ULL};
}
__global__ void compare_kernel(const std::uint8_t* a,
                               const std::uint8_t* b,
                               std::int64_t bytes,
                               Difference* difference) {
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < bytes / 4;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    if (reinterpret_cast<const std::uint32_t*>(a)[i] ==
        reinterpret_cast<const std::uint32_t*>(b)[i])
      continue;
    atomicAdd(&difference->words, 1ULL);
    atomicMin(&difference->first, static_cast<unsigned long long>(4 * i));
  }
}
__global__ void digest_kernel(const std::uint8_t* a, std::int64_t bytes, unsigned long long* to) {
  unsigned long long sum = 0;
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < bytes / 4;
       i += std::int64_t{gridDim.x} * blockDim.x)
    sum += hash(reinterpret_cast<const std::uint32_t*>(a)[i] ^
                hash(static_cast<std::uint32_t>(i) + 17U));
  atomicAdd(to, sum);
}
__global__ void delay_kernel(std::uint32_t ns) {
  std::uint64_t start;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  for (std::uint64_t now = start; now - start < ns;)
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
}
__global__ void push_kernel(uint4* to, const uint4* from, std::int64_t vectors) {
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < vectors;
       i += std::int64_t{gridDim.x} * blockDim.x)
    to[i] = from[i];
}
__global__ void ping_kernel(std::uint32_t* mine, std::uint32_t* peers, int rounds, int rank) {
  for (int i = 1; i <= rounds; ++i) {
    if (rank == 0)
      asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(peers), "r"(i) : "memory");
    std::uint32_t seen = 0;
    for (int polls = 0; polls < 4'000'000 && seen != static_cast<std::uint32_t>(i); ++polls)
      asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(mine) : "memory");
    if (rank == 1)
      asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(peers), "r"(i) : "memory");
  }
}

}  // namespace

void launch_generate(cudaStream_t stream,
                     Bf16* to,
                     std::uint32_t seed,
                     int rank,
                     std::int64_t rows,
                     std::int64_t width,
                     std::int64_t stride) {
  generate_kernel<<<264, 512, 0, stream>>>(to, seed, rank, rows, width, stride);
}
void launch_sum(cudaStream_t stream,
                Bf16* to,
                std::uint32_t seed,
                int ranks,
                std::int64_t rows,
                std::int64_t width) {
  sum_kernel<<<264, 512, 0, stream>>>(to, seed, ranks, rows, width);
}
void launch_fill(cudaStream_t stream, std::uint8_t* to, std::int64_t bytes, std::uint8_t value) {
  fill_kernel<<<132, 512, 0, stream>>>(to, bytes, value);
}
void launch_clear(cudaStream_t stream, Difference* differences) {
  clear_kernel<<<1, kDifferencesMax, 0, stream>>>(differences);
}
void launch_compare(cudaStream_t stream,
                    const std::uint8_t* a,
                    const std::uint8_t* b,
                    std::int64_t bytes,
                    Difference* difference) {
  compare_kernel<<<132, 512, 0, stream>>>(a, b, bytes, difference);
}
void launch_digest(cudaStream_t stream,
                   const std::uint8_t* a,
                   std::int64_t bytes,
                   unsigned long long* to) {
  digest_kernel<<<132, 512, 0, stream>>>(a, bytes, to);
}
void launch_delay(cudaStream_t stream, std::uint32_t ns) {
  delay_kernel<<<1, 1, 0, stream>>>(ns);
}
void launch_push(cudaStream_t stream, uint4* to, const uint4* from, std::int64_t vectors) {
  push_kernel<<<264, 1024, 0, stream>>>(to, from, vectors);
}
void launch_ping(
    cudaStream_t stream, std::uint32_t* mine, std::uint32_t* peers, int rounds, int rank) {
  ping_kernel<<<1, 1, 0, stream>>>(mine, peers, rounds, rank);
}

}  // namespace koho::cuda::collectives_bench
