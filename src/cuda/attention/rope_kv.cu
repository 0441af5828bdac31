// SPDX-License-Identifier: Apache-2.0
// qk_norm_rope_store_kv: RMSNorm of q and k heads, rotary embedding, and the write of K and V into
// their pages, in one pass over qkv.
//
//   kernels  rope_kv_glm_kernel: heads of 128 of which 64 rotate (GLM's) stay in registers, eight
//            elements a lane, half a warp a head; two or four heads in turn where there are many.
//            rope_kv_kernel: any other head, a warp each, through shared memory
//   types    qkv and q are bf16, or (RopeKvQuantized) e4m3 values with scales: these become bf16 in
//            registers and e4m3 again at the end. Pages are bf16 or e4m3 in either case
//   bytes    qkv once, q once, k and v once into their pages; bound by launch to some 64 tokens
//
// Measured times and what was tried: docs/kernels/rows.md.
#include <type_traits>

#include "cuda/device/launch.cuh"
#include "cuda/device/numeric.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/kernels.h"

namespace koho::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kPageTokens = 64;

/// Whether qkv and q are e4m3 values.
template <typename Parameters>
constexpr bool has_quantized = std::is_same_v<Parameters, RopeKvQuantized>;

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

/// Stores the head in `row` at `place` (a token and head of the pages, or of q) as bf16, or as e4m3
/// values if there are `scales`.
__device__ void store_head(
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

/// Up to this many tokens the next kernel may start at once: decode attention, which looks up its
/// pages and loads keys and values meanwhile, and needs longer for that than this kernel for all.
constexpr std::int64_t kReleaseAtOnceTokens = 64;

__device__ __forceinline__ void release_at_once(std::int64_t tokens) {
  if (tokens <= kReleaseAtOnceTokens) launch_dependent_grids();
}
__device__ __forceinline__ void wait_and_release(std::int64_t tokens) {
  wait_on_dependent_grids();
  if (tokens > kReleaseAtOnceTokens) launch_dependent_grids();
}

template <typename Parameters>
__global__ void __launch_bounds__(kWarps * 32) rope_kv_kernel(const Parameters p) {
  constexpr bool kFp8 = has_quantized<Parameters>;
  __shared__ float rows[kWarps][kHeadWidthMax];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int heads = p.query_heads + 2 * p.kv_heads;
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp;
  pdl_begin();
  if (index >= p.tokens * heads) return;
  const std::int64_t token = index / heads;
  const int head = static_cast<int>(index % heads);
  const bool is_query = head < p.query_heads;
  const std::int64_t slot = p.slots[token];
  if (!is_query && slot < 0) return;
  float* row = rows[warp];
  if constexpr (kFp8) {
    const std::uint8_t* source =
        p.qkv_quantized + token * p.qkv_stride + static_cast<std::int64_t>(head) * p.width;
    const float scale = p.qkv_scales[token];
    for (int i = lane; i < p.width; i += 32) row[i] = round_bf16(from_e4m3(source[i]) * scale);
  } else {
    const Bf16* source = p.qkv + token * p.qkv_stride + static_cast<std::int64_t>(head) * p.width;
    for (int i = lane; i < p.width; i += 32) row[i] = to_float(source[i]);
  }
  __syncwarp();
  const std::int64_t position = p.positions[token];
  if (is_query) {
    norm_rope(row, p, p.q_norm, position);
    if constexpr (kFp8) {
      store_head(row, p.q_quantized, p.q_scales, token * p.query_heads + head, p.width);
    } else {
      Bf16* out = p.q + (token * p.query_heads + head) * p.width;
      for (int i = lane; i < p.width; i += 32) out[i] = to_bf16(row[i]);
    }
    return;
  }
  const bool is_key = head < p.query_heads + p.kv_heads;
  const int kv_head = (head - p.query_heads) % p.kv_heads;
  if (is_key) norm_rope(row, p, p.k_norm, position);
  const std::int64_t place =
      (slot / kPageTokens * p.kv_heads + kv_head) * kPageTokens + slot % kPageTokens;
  store_head(row, is_key ? p.k : p.v, is_key ? p.k_scales : p.v_scales, place, p.width);
}

// ---- heads of 128, 64 of them rotated

constexpr int kGlmWidth = 128;
constexpr int kGlmRotary = 64;
constexpr int kGlmLanes = 16;                        // of a head, eight elements each
constexpr int kGlmGroups = kWarps * 32 / kGlmLanes;  // of a block

/// A lane's eight elements of a head: four adjacent ones and four more, in lanes 0..7 of 16 the
/// rotation's partners of the former. Pairs of bf16.
struct HeadFragment {
  uint2 low, high;
};

/// `place`, through a shuffle. NOTE: the shuffle pins the computation here, before the wait for the
/// previous kernel; the compiler would move it to its first use, after the wait.
__device__ __forceinline__ std::int64_t made(std::int64_t place) {
  return __shfl_sync(0xFFFFFFFFU, place, static_cast<int>(threadIdx.x) % 32);
}

/// Where a lane's elements lie in a head.
struct Places {
  int low, high;
};

__device__ __forceinline__ Places places_of(int lane) {
  constexpr int kHalf = kGlmRotary / 2;
  return lane < kHalf / 4 ? Places{lane * 4, lane * 4 + kHalf} : Places{lane * 8, lane * 8 + 4};
}
__device__ __forceinline__ HeadFragment load_fragment(const Bf16* head, const Places& at) {
  return {*reinterpret_cast<const uint2*>(head + at.low),
          *reinterpret_cast<const uint2*>(head + at.high)};
}
/// e4m3 values: four in low.x, four in high.x, until dequantize().
__device__ __forceinline__ HeadFragment load_quantized(const std::uint8_t* head, const Places& at) {
  return {make_uint2(*reinterpret_cast<const std::uint32_t*>(head + at.low), 0U),
          make_uint2(*reinterpret_cast<const std::uint32_t*>(head + at.high), 0U)};
}
/// v = bf16(e4m3 value * scale).
__device__ __forceinline__ void dequantize(float (&v)[4], std::uint32_t quantized, float scale) {
  std::uint32_t low;
  std::uint32_t high;
  e4m3_to_f16(quantized, low, high);
  const float2 a = __half22float2(reinterpret_cast<const __half2&>(low));
  const float2 b = __half22float2(reinterpret_cast<const __half2&>(high));
  v[0] = round_bf16(a.x * scale);
  v[1] = round_bf16(a.y * scale);
  v[2] = round_bf16(b.x * scale);
  v[3] = round_bf16(b.y * scale);
}
__device__ __forceinline__ void store_fragment(Bf16* head,
                                               const Places& at,
                                               const HeadFragment& piece) {
  *reinterpret_cast<uint2*>(head + at.low) = piece.low;
  *reinterpret_cast<uint2*>(head + at.high) = piece.high;
}
__device__ __forceinline__ void upcast(float (&v)[4], const uint2& pairs) {
  v[0] = __uint_as_float(pairs.x << 16);
  v[1] = __uint_as_float(pairs.x & 0xFFFF0000U);
  v[2] = __uint_as_float(pairs.y << 16);
  v[3] = __uint_as_float(pairs.y & 0xFFFF0000U);
}
__device__ __forceinline__ uint2 narrow(const float (&v)[4]) {
  return make_uint2(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]));
}
__device__ __forceinline__ float squares_of(const float (&v)[4]) {
  return __fadd_rn(__fmaf_rn(v[0], v[0], __fmul_rn(v[1], v[1])),
                   __fmaf_rn(v[2], v[2], __fmul_rn(v[3], v[3])));
}
template <typename Combine>
__device__ __forceinline__ float of_16_lanes(float value, const Combine& combine) {
#pragma unroll
  for (int distance = 8; distance > 0; distance /= 2)
    value = combine(value, __shfl_xor_sync(0xFFFFFFFFU, value, distance));
  return value;
}

/// bf16(weight * bf16(v * inverse)). One multiplication of bf16 pairs rounds as f32 multiplication
/// and a rounding would: two bf16 multiply exactly in f32.
__device__ __forceinline__ uint2 normed(const float (&v)[4], float inverse, const uint2& weight) {
  const uint2 scaled = make_uint2(pack_bf16(v[0] * inverse, v[1] * inverse),
                                  pack_bf16(v[2] * inverse, v[3] * inverse));
  return make_uint2(multiply_bf16(scaled.x, weight.x), multiply_bf16(scaled.y, weight.y));
}

__device__ __forceinline__ void rotate(HeadFragment& piece,
                                       const float4& cosine,
                                       const float4& sine) {
  const float c[4] = {cosine.x, cosine.y, cosine.z, cosine.w};
  const float s[4] = {sine.x, sine.y, sine.z, sine.w};
  float a[4];
  float b[4];
  upcast(a, piece.low);
  upcast(b, piece.high);
  float rotated_a[4];
  float rotated_b[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    rotated_a[i] = __fmaf_rn(a[i], c[i], -__fmul_rn(b[i], s[i]));
    rotated_b[i] = __fmaf_rn(b[i], c[i], __fmul_rn(a[i], s[i]));
  }
  piece = {narrow(rotated_a), narrow(rotated_b)};
}

__device__ __forceinline__ float largest_of(const float (&v)[4]) {
  return fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
}
/// e4m3 values of bf16 numbers. NOTE: it divides where the scale or its inverse is no normal
/// number.
struct Quantizer {
  Divisor divisor;
  bool fast;

  __device__ __forceinline__ explicit Quantizer(float scale)
      : divisor(scale), fast(scale > 0x1p-120F && scale < 0x1p120F) {}
  __device__ __forceinline__ std::uint32_t quantized_of(const float (&v)[4]) const {
    if (!fast) [[unlikely]]
      return pack_e4m3(v[0] / divisor.scale, v[1] / divisor.scale, v[2] / divisor.scale,
                       v[3] / divisor.scale);
    return pack_e4m3(divisor.quotient(v[0]), divisor.quotient(v[1]), divisor.quotient(v[2]),
                     divisor.quotient(v[3]));
  }
};

template <typename Parameters>
__device__ __forceinline__ float* scales_of(const Parameters& p, bool is_query, bool is_key) {
  if constexpr (has_quantized<Parameters>)
    if (is_query) return p.q_scales;
  return is_key ? p.k_scales : p.v_scales;
}

/// 16 lanes take `kEach` adjacent heads of a token, whose loads are in flight together. Of what it
/// reads the previous kernel writes qkv alone. NOTE: every fused multiply-add is written out, so
/// that every kEach has the same bits, and e4m3 values are those of the bf16 values.
template <typename Parameters, int kEach>
__global__ void __launch_bounds__(kWarps * 32) rope_kv_glm_kernel(const Parameters p) {
  constexpr bool kFp8 = has_quantized<Parameters>;
  const int lane = static_cast<int>(threadIdx.x) % kGlmLanes;
  const Places at = places_of(lane);
  const int heads = p.query_heads + 2 * p.kv_heads;
  const int keys_end = p.query_heads + p.kv_heads;
  release_at_once(p.tokens);
  const auto groups = static_cast<std::uint32_t>((heads + kEach - 1) / kEach);
  const std::uint32_t index = blockIdx.x * kGlmGroups + threadIdx.x / kGlmLanes;
  const bool real = index < p.tokens * groups;
  const std::uint32_t token_index = index / groups;
  const std::int64_t token = real ? token_index : 0;
  const int first = static_cast<int>(index - token_index * groups) * kEach;
  const std::int64_t source =
      made(token * p.qkv_stride + static_cast<std::int64_t>(first) * kGlmWidth);
  const bool rotates = lane < kGlmRotary / 8;
  const std::int64_t slot = p.slots[token];
  const std::int64_t in_pages =
      made(slot / kPageTokens * p.kv_heads * kPageTokens + slot % kPageTokens);
  float4 cosine;
  float4 sine;
  if (rotates) {
    const float* table = p.rope_table + static_cast<std::int64_t>(p.positions[token]) * kGlmRotary;
    cosine = *reinterpret_cast<const float4*>(table + lane * 4);
    sine = *reinterpret_cast<const float4*>(table + kGlmRotary / 2 + lane * 4);
  }
  HeadFragment query_weight{};
  HeadFragment key_weight{};
  if (p.q_norm != nullptr) query_weight = load_fragment(p.q_norm, at);
  if (p.k_norm != nullptr) key_weight = load_fragment(p.k_norm, at);
  wait_and_release(p.tokens);
  HeadFragment pieces[kEach] = {};
#pragma unroll
  for (int e = 0; e < kEach; ++e)
    if (real && first + e < heads) {
      if constexpr (kFp8)
        pieces[e] = load_quantized(p.qkv_quantized + source + e * kGlmWidth, at);
      else
        pieces[e] = load_fragment(p.qkv + source + e * kGlmWidth, at);
    }
  float row_scale = 0.0F;
  if constexpr (kFp8)
    if (real) row_scale = p.qkv_scales[token];
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int head = first + e;
    const bool is_query = head < p.query_heads;
    const bool is_key = !is_query && head < keys_end;
    HeadFragment& piece = pieces[e];
    float low[4];
    float high[4];
    if constexpr (kFp8) {
      dequantize(low, piece.low.x, row_scale);
      dequantize(high, piece.high.x, row_scale);
    } else {
      upcast(low, piece.low);
      upcast(high, piece.high);
    }
    // All lanes come here: the two halves of a warp may hold heads of different kinds.
    const float squares = of_16_lanes(__fadd_rn(squares_of(low), squares_of(high)),
                                      [](float a, float b) { return __fadd_rn(a, b); });
    if ((is_query ? p.q_norm : is_key ? p.k_norm : nullptr) != nullptr) {
      const float inverse =
          1.0F / sqrtf(__fmaf_rn(squares, 1.0F / static_cast<float>(kGlmWidth), p.eps));
      const auto of_kind = [is_query](const uint2& query, const uint2& key) {
        return make_uint2(is_query ? query.x : key.x, is_query ? query.y : key.y);
      };
      const HeadFragment weight = {of_kind(query_weight.low, key_weight.low),
                                   of_kind(query_weight.high, key_weight.high)};
      piece = {normed(low, inverse, weight.low), normed(high, inverse, weight.high)};
    } else if constexpr (kFp8) {
      piece = {narrow(low), narrow(high)};
    }
    if (rotates && (is_query || is_key)) rotate(piece, cosine, sine);
    const bool present = real && head < heads;
    if (!kFp8 && is_query && present)
      store_fragment(p.q + (token * p.query_heads + head) * kGlmWidth, at, piece);
    const bool stored = present && !is_query && slot >= 0;
    const int kv_head = head - (is_key ? p.query_heads : keys_end);
    std::int64_t place = in_pages + kv_head * kPageTokens;
    void* pages = is_key ? p.k : p.v;
    if (p.k_scales == nullptr) {
      if (stored) store_fragment(static_cast<Bf16*>(pages) + place * kGlmWidth, at, piece);
      if constexpr (!kFp8) continue;
    }
    upcast(low, piece.low);
    upcast(high, piece.high);
    // NOTE: fmaxf leaves NaN out, so that a row of NaN has the scale 1.
    const float largest = of_16_lanes(fmaxf(0.0F, fmaxf(largest_of(low), largest_of(high))),
                                      [](float a, float b) { return fmaxf(a, b); });
    bool stores_fp8 = stored;
    if constexpr (kFp8) {
      stores_fp8 = is_query ? present : stored && p.k_scales != nullptr;
      if (is_query) place = token * p.query_heads + head;
      if (is_query) pages = p.q_quantized;
    }
    if (!stores_fp8) continue;
    const float scale = largest == 0.0F ? 1.0F : largest / kE4m3Max;
    if (lane == 0) scales_of(p, is_query, is_key)[place] = scale;
    std::uint8_t* quantized = static_cast<std::uint8_t*>(pages) + place * kGlmWidth;
    const Quantizer quantizer(scale);
    *reinterpret_cast<std::uint32_t*>(quantized + at.low) = quantizer.quantized_of(low);
    *reinterpret_cast<std::uint32_t*>(quantized + at.high) = quantizer.quantized_of(high);
  }
}

bool aligned(const void* pointer, unsigned alignment) {
  return reinterpret_cast<std::uintptr_t>(pointer) % alignment == 0;
}

/// GLM's heads, in rows aligned for a lane's vectors.
bool has_glm_heads(const RopeKv& p) {
  return p.width == kGlmWidth && p.rotary == kGlmRotary && p.qkv_stride % 4 == 0 &&
         aligned(p.qkv, 8) && aligned(p.q, 8) && aligned(p.k, 8) && aligned(p.v, 8) &&
         aligned(p.q_norm, 8) && aligned(p.k_norm, 8) && aligned(p.rope_table, 16);
}
bool has_glm_heads(const RopeKvQuantized& p) {
  return has_glm_heads(static_cast<const RopeKv&>(p)) && aligned(p.qkv_quantized, 4) &&
         aligned(p.q_quantized, 4);
}

template <typename Parameters>
cudaError_t launch(const Parameters& p, cudaStream_t stream) {
  if (p.width > kHeadWidthMax || p.multiprocessors < 1) return cudaErrorInvalidValue;
  const int heads = p.query_heads + 2 * p.kv_heads;
  const bool glm = has_glm_heads(p) && p.tokens * heads < INT32_MAX;
  // As many heads in turn as leave 64 groups of lanes for each SM.
  const std::int64_t a_group = p.tokens * heads / (std::int64_t{p.multiprocessors} * 64);
  const int each = !glm || a_group < 2 ? 1 : a_group < 4 ? 2 : 4;
  const std::int64_t groups = p.tokens * ((heads + each - 1) / each);
  const int block = glm ? kGlmGroups : kWarps;
  return launch_kernel(
      !glm        ? rope_kv_kernel<Parameters>
      : each == 1 ? rope_kv_glm_kernel<Parameters, 1>
      : each == 2 ? rope_kv_glm_kernel<Parameters, 2>
                  : rope_kv_glm_kernel<Parameters, 4>,
      {dim3(static_cast<unsigned>((groups + block - 1) / block)), dim3(kWarps * 32)}, stream, p);
}

}  // namespace

cudaError_t launch_rope_kv(const RopeKv& p, cudaStream_t stream) {
  return launch(p, stream);
}
cudaError_t launch_rope_kv(const RopeKvQuantized& p, cudaStream_t stream) {
  return launch(p, stream);
}

const void* kernel_of::rope_kv() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
