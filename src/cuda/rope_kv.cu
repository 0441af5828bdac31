// SPDX-License-Identifier: Apache-2.0
// Head norms, rotation and the cache write in one pass over qkv: one warp a token and head. Heads
// of 128 of which 64 rotate (GLM's) stay in registers, four neighbouring elements a lane, and are
// taken four by a warp where there are many; any other head goes through shared memory. Bytes: qkv
// once, q once, k and v once into their pages. Bound by launch up to some 64 tokens.
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

// ---- heads of 128, 64 of them rotated

constexpr int kGlmWidth = 128;
constexpr int kGlmRotary = 64;

__device__ __forceinline__ void widen_four(float (&v)[4], const uint2& raw) {
  v[0] = __uint_as_float(raw.x << 16);
  v[1] = __uint_as_float(raw.x & 0xFFFF0000U);
  v[2] = __uint_as_float(raw.y << 16);
  v[3] = __uint_as_float(raw.y & 0xFFFF0000U);
}
__device__ __forceinline__ void store_four(Bf16* to, const float (&v)[4]) {
  *reinterpret_cast<uint2*>(to) = make_uint2(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]));
}

/// A warp takes `kEach` neighbouring heads of a token, whose loads are under way together. NOTE:
/// which products are fused with which sums is written out, so that every kEach has the same bits.
template <int kEach>
__global__ void __launch_bounds__(kWarps * 32, kEach == 1 ? 1 : 4)
    rope_kv_glm_kernel(const RopeKv p) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int heads = p.query_heads + 2 * p.kv_heads;
  const int keys_end = p.query_heads + p.kv_heads;
  const auto groups = static_cast<std::uint32_t>((heads + kEach - 1) / kEach);
  const std::uint32_t index = blockIdx.x * kWarps + threadIdx.x / 32;
  const bool real = index < p.tokens * groups;
  const std::int64_t token = real ? index / groups : 0;
  const int first = static_cast<int>(index % groups) * kEach;
  const bool rotates = first < keys_end && lane < kGlmRotary / 4;
  // NOTE: the kernel before this one writes qkv and nothing else that is read here.
  const std::int64_t slot = p.slots[token];
  float4 c = make_float4(1.0F, 1.0F, 1.0F, 1.0F);
  float4 s = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
  if (rotates) {
    const float* table = p.rope_table + static_cast<std::int64_t>(p.positions[token]) * kGlmRotary;
    c = *reinterpret_cast<const float4*>(table + lane % 8 * 4);
    s = *reinterpret_cast<const float4*>(table + kGlmRotary / 2 + lane % 8 * 4);
  }
  const auto norm_of = [&](int head) {
    return head < p.query_heads ? p.q_norm : head < keys_end ? p.k_norm : nullptr;
  };
  uint2 weights[kEach] = {};
#pragma unroll
  for (int e = 0; e < kEach; ++e)
    if (norm_of(first + e) != nullptr)
      weights[e] = *reinterpret_cast<const uint2*>(norm_of(first + e) + lane * 4);
  grid_begin();
  if (!real) return;
  uint2 values[kEach] = {};
#pragma unroll
  for (int e = 0; e < kEach; ++e)
    if (first + e < heads)
      values[e] = *reinterpret_cast<const uint2*>(p.qkv + token * p.qkv_stride +
                                                  static_cast<std::int64_t>(first + e) * kGlmWidth +
                                                  lane * 4);
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int head = first + e;
    const bool is_query = head < p.query_heads;
    const bool is_key = !is_query && head < keys_end;
    if (head >= heads || (!is_query && slot < 0)) return;  // nor do those behind have a place
    float v[4];
    widen_four(v, values[e]);
    if (norm_of(head) != nullptr) {
      float weight[4];
      widen_four(weight, weights[e]);
      const float squares = warp_sum(__fadd_rn(__fmaf_rn(v[0], v[0], __fmul_rn(v[1], v[1])),
                                               __fmaf_rn(v[2], v[2], __fmul_rn(v[3], v[3]))));
      const float inverse =
          1.0F / sqrtf(__fmaf_rn(squares, 1.0F / static_cast<float>(kGlmWidth), p.eps));
#pragma unroll
      for (int i = 0; i < 4; ++i) v[i] = round_bf16(weight[i] * round_bf16(v[i] * inverse));
    }
    if (is_query || is_key) {
      const float cosine[4] = {c.x, c.y, c.z, c.w};
      const float sine[4] = {s.x, s.y, s.z, s.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float partner = __shfl_xor_sync(0xFFFFFFFFU, v[i], 8);
        const float turned = __fmul_rn(partner, sine[i]);
        if (rotates) v[i] = round_bf16(__fmaf_rn(v[i], cosine[i], lane < 8 ? -turned : turned));
      }
    }
    if (is_query) {
      store_four(p.q + (token * p.query_heads + head) * kGlmWidth + lane * 4, v);
      continue;
    }
    const int kv_head = (head - p.query_heads) % p.kv_heads;
    const std::int64_t place =
        (slot / kPageTokens * p.kv_heads + kv_head) * kPageTokens + slot % kPageTokens;
    void* pages = is_key ? p.k : p.v;
    float* scales = is_key ? p.k_scales : p.v_scales;
    if (scales == nullptr) {
      store_four(static_cast<Bf16*>(pages) + place * kGlmWidth + lane * 4, v);
      continue;
    }
    float largest = 0.0F;  // NOTE: from 0, so that a row of NaN has the scale 1
#pragma unroll
    for (int i = 0; i < 4; ++i) largest = fmaxf(largest, fabsf(v[i]));
    largest = warp_max(largest);
    const float scale = largest == 0.0F ? 1.0F : largest / kE4m3Max;
    if (lane == 0) scales[place] = scale;
    std::uint32_t codes = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      codes |= static_cast<std::uint32_t>(to_e4m3(v[i] / scale)) << (8 * i);
    *reinterpret_cast<std::uint32_t*>(static_cast<std::uint8_t*>(pages) + place * kGlmWidth +
                                      lane * 4) = codes;
  }
}

bool aligned(const void* pointer, unsigned alignment) {
  return reinterpret_cast<std::uintptr_t>(pointer) % alignment == 0;
}

/// GLM's heads in rows that can be read and written by lanes.
bool has_glm_form(const RopeKv& p) {
  return p.width == kGlmWidth && p.rotary == kGlmRotary && p.qkv_stride % 4 == 0 &&
         aligned(p.qkv, 8) && aligned(p.q, 8) && aligned(p.k, 8) && aligned(p.v, 8) &&
         aligned(p.q_norm, 8) && aligned(p.k_norm, 8) && aligned(p.rope_table, 16);
}

}  // namespace

cudaError_t launch_rope_kv(const RopeKv& p, cudaStream_t stream) {
  if (p.width > kWidthMax) return cudaErrorInvalidValue;
  const int heads = p.query_heads + 2 * p.kv_heads;
  constexpr int kMany = 4;  // heads a warp
  // What fills 132 multiprocessors with 32 warps of four heads. On an H200 7,168 heads
  // (256 tokens of 28) lost by it, 28,672 (256 of 112) won.
  constexpr std::int64_t kManyHeads = 132 * 32 * kMany;
  const bool glm = has_glm_form(p) && p.tokens * heads < INT32_MAX;
  const bool many = glm && p.tokens * heads >= kManyHeads;
  const std::int64_t warps = p.tokens * (many ? (heads + kMany - 1) / kMany : heads);
  return launch_kernel(
      many  ? rope_kv_glm_kernel<kMany>
      : glm ? rope_kv_glm_kernel<1>
            : rope_kv_kernel,
      {dim3(static_cast<unsigned>((warps + kWarps - 1) / kWarps)), dim3(kWarps * 32)}, stream, p);
}

}  // namespace koho::cuda
