// SPDX-License-Identifier: Apache-2.0
// What collectives_bench sums: a generator of bf16 numbers that host and device share, and kernels
// that generate, sum, compare and hash rows, delay a stream, and exercise the link.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

#include "cuda/kernels.h"

namespace koho::cuda::collectives_bench {

constexpr int kDifferencesMax = 64;

__host__ __device__ inline std::uint32_t hash(std::uint32_t x) {
  x ^= x >> 16;
  x *= 0x7FEB352DU;
  x ^= x >> 15;
  x *= 0x846CA68BU;
  return x ^ x >> 16;
}

/// Bits of an element of a rank's addend, or of the residual (rank -1). Kinds of rows: mostly
/// numbers of many sizes with -0 between them; also NaNs of any payload (pairs of 0xFFFF, the
/// sentinel, too), infinities of both signs, denormals, -0 alone, +0 alone, equal values.
__host__ __device__ std::uint16_t bits_of(
    std::uint32_t seed, int rank, std::int64_t row, std::int64_t column, std::int64_t width);

/// Quantisation blocks of a row.
std::int64_t quant_blocks(std::int64_t width);

struct Difference {
  unsigned long long words;
  unsigned long long first;  // byte
};

/// Rows `stride` apart of the generator's numbers of one rank.
void launch_generate(cudaStream_t stream,
                     Bf16* to,
                     std::uint32_t seed,
                     int rank,
                     std::int64_t rows,
                     std::int64_t width,
                     std::int64_t stride);
/// Packed rows of the sums over ranks, in rank order.
void launch_sum(cudaStream_t stream,
                Bf16* to,
                std::uint32_t seed,
                int ranks,
                std::int64_t rows,
                std::int64_t width);
void launch_fill(cudaStream_t stream, std::uint8_t* to, std::int64_t bytes, std::uint8_t value);
/// Clears all kDifferencesMax differences.
void launch_clear(cudaStream_t stream, Difference* differences);
void launch_compare(cudaStream_t stream,
                    const std::uint8_t* a,
                    const std::uint8_t* b,
                    std::int64_t bytes,
                    Difference* difference);
/// Adds a hash of a buffer that does not depend on the order of threads.
void launch_digest(cudaStream_t stream,
                   const std::uint8_t* a,
                   std::int64_t bytes,
                   unsigned long long* to);
/// Keeps the stream busy for `ns`.
void launch_delay(cudaStream_t stream, std::uint32_t ns);
/// Copies vectors to a peer, as fast as the link takes stores.
void launch_push(cudaStream_t stream, uint4* to, const uint4* from, std::int64_t vectors);
/// Flag round trips between rank 0 and rank 1; each has a limit of polls.
void launch_ping(
    cudaStream_t stream, std::uint32_t* mine, std::uint32_t* peers, int rounds, int rank);

}  // namespace koho::cuda::collectives_bench
