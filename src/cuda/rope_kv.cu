// SPDX-License-Identifier: Apache-2.0
// Head norms, rotation and the cache write in one pass over qkv: one warp a token and head, the
// head's row in registers and once in shared memory (partners of the rotation sit in other lanes).
// Bytes: qkv once, q once, k and v once into their pages. Bound by launch up to some 64 tokens.
#include "cuda/kernels.h"
#include "cuda/launch.cuh"
#include "cuda/numeric.cuh"
#include "cuda/ptx.cuh"

namespace koho::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kWidthMax = 256;
constexpr int kPageTokens = 64;

/// Normalises and rotates the head in `row` in place. All lanes of one warp.
__device__ void norm_rope(float* row, const RopeKv& p, const Bf16* norm, std::int64_t position) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (norm != nullptr) {
    float squares = 0.0F;
    for (int i = lane; i < p.width; i += 32) squares += row[i] * row[i];
    const float inverse = 1.0F / sqrtf(warp_sum(squares) / static_cast<float>(p.width) + p.eps);
    for (int i = lane; i < p.width; i += 32)
      row[i] = round_bf16(to_float(norm[i]) * round_bf16(row[i] * inverse));
    __syncwarp();
  }
  const int half = p.rotary / 2;
  const float* cosines = p.rope_table + position * p.rotary;
  for (int j = lane; j < half; j += 32) {
    const float c = cosines[j];
    const float s = cosines[half + j];
    const float a = row[j];
    const float b = row[j + half];
    row[j] = round_bf16(a * c - b * s);
    row[j + half] = round_bf16(b * c + a * s);
  }
  __syncwarp();
}

/// Stores the head in `row` at `place` (a token and head of the pages), as bf16 or quantised.
__device__ void store_cache(
    const float* row, void* pages, float* scales, std::int64_t place, int width) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (scales == nullptr) {
    Bf16* out = static_cast<Bf16*>(pages) + place * width;
    for (int i = lane; i < width; i += 32) out[i] = to_bf16(row[i]);
    return;
  }
  float largest = 0.0F;
  for (int i = lane; i < width; i += 32) largest = fmaxf(largest, fabsf(row[i]));
  largest = warp_max(largest);
  const float scale = largest == 0.0F ? 1.0F : largest / kE4m3Max;
  if (lane == 0) scales[place] = scale;
  std::uint8_t* out = static_cast<std::uint8_t*>(pages) + place * width;
  for (int i = lane; i < width; i += 32) out[i] = to_e4m3(row[i] / scale);
}

__global__ void __launch_bounds__(kWarps * 32) rope_kv_kernel(const RopeKv p) {
  __shared__ float rows[kWarps][kWidthMax];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int heads = p.query_heads + 2 * p.kv_heads;
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp;
  grid_begin();
  if (index >= p.tokens * heads) return;
  const std::int64_t token = index / heads;
  const int head = static_cast<int>(index % heads);
  const bool is_query = head < p.query_heads;
  const std::int64_t slot = p.slots[token];
  if (!is_query && slot < 0) return;
  float* row = rows[warp];
  const Bf16* source = p.qkv + token * p.qkv_stride + static_cast<std::int64_t>(head) * p.width;
  for (int i = lane; i < p.width; i += 32) row[i] = to_float(source[i]);
  __syncwarp();
  const std::int64_t position = p.positions[token];
  if (is_query) {
    norm_rope(row, p, p.q_norm, position);
    Bf16* out = p.q + (token * p.query_heads + head) * p.width;
    for (int i = lane; i < p.width; i += 32) out[i] = to_bf16(row[i]);
    return;
  }
  const bool is_key = head < p.query_heads + p.kv_heads;
  const int kv_head = (head - p.query_heads) % p.kv_heads;
  if (is_key) norm_rope(row, p, p.k_norm, position);
  const std::int64_t place =
      (slot / kPageTokens * p.kv_heads + kv_head) * kPageTokens + slot % kPageTokens;
  store_cache(row, is_key ? p.k : p.v, is_key ? p.k_scales : p.v_scales, place, p.width);
}

}  // namespace

cudaError_t launch_rope_kv(const RopeKv& p, cudaStream_t stream) {
  if (p.width > kWidthMax) return cudaErrorInvalidValue;
  const std::int64_t warps = p.tokens * (p.query_heads + 2 * p.kv_heads);
  return launch_kernel(
      rope_kv_kernel,
      {dim3(static_cast<unsigned>((warps + kWarps - 1) / kWarps)), dim3(kWarps * 32)}, stream, p);
}

}  // namespace koho::cuda
