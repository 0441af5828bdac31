// SPDX-License-Identifier: Apache-2.0
// Attention for any shape: a warp a token row and query head walks the context token by token. It
// defines what the fast kernels compute, and runs for shapes that these lack
// (attention_supports_mma()).
#include "cuda/device/launch.cuh"
#include "cuda/device/numeric.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/kernels.h"

namespace koho::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kPerLane = kHeadWidthMax / 32;
constexpr int kPage = 64;

template <typename Element>
__device__ __forceinline__ float element(const void* data, std::int64_t index) {
  if constexpr (sizeof(Element) == 1)
    return from_e4m3(static_cast<const std::uint8_t*>(data)[index]);
  else
    return to_float(static_cast<const Bf16*>(data)[index]);
}

template <typename Element>
__global__ void __launch_bounds__(kWarps * 32) attention_reference_kernel(const Attention p) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t index =
      static_cast<std::int64_t>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  pdl_begin();
  if (index >= p.tokens * p.query_heads) return;
  const std::int64_t token = index / p.query_heads;
  const int head = static_cast<int>(index % p.query_heads);
  int sequence = 0;
  while (sequence < p.sequences && token >= p.query_starts[sequence + 1]) ++sequence;
  Bf16* out = p.out + index * p.width;
  if (sequence == p.sequences || p.context_lengths[sequence] == 0) {  // padding
    for (int i = lane; i < p.width; i += 32) out[i] = 0;
    return;
  }
  const int kv_head = head / (p.query_heads / p.kv_heads);
  const std::int32_t* pages = p.page_tables + sequence * p.page_tables_stride;
  const float scale = 1.0F / sqrtf(static_cast<float>(p.width));
  float q[kPerLane];
  float sum[kPerLane];
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    const int i = j * 32 + lane;
    q[j] = i < p.width ? to_float(p.q[index * p.width + i]) : 0.0F;
    sum[j] = 0.0F;
  }
  float largest = -INFINITY;
  float total = 0.0F;
  const int last = p.positions[token];
  for (int at = 0; at <= last; ++at) {
    const std::int64_t place =
        (static_cast<std::int64_t>(pages[at / kPage]) * p.kv_heads + kv_head) * kPage + at % kPage;
    float score = 0.0F;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j)
      if (j * 32 + lane < p.width)
        score += q[j] * element<Element>(p.k, place * p.width + j * 32 + lane);
    score = warp_sum(score) * scale;
    if (p.k_scales != nullptr) score *= p.k_scales[place];
    const float before = largest;
    largest = fmaxf(largest, score);
    const float keep = expf(before - largest);
    const float weight = expf(score - largest);
    total = total * keep + weight;
    const float value_scale = p.v_scales != nullptr ? weight * p.v_scales[place] : weight;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j)
      if (j * 32 + lane < p.width)
        sum[j] =
            sum[j] * keep + value_scale * element<Element>(p.v, place * p.width + j * 32 + lane);
  }
#pragma unroll
  for (int j = 0; j < kPerLane; ++j)
    if (j * 32 + lane < p.width) out[j * 32 + lane] = to_bf16(sum[j] / total);
}

}  // namespace

cudaError_t launch_attention_reference(const Attention& p, cudaStream_t stream) {
  if (p.width > kHeadWidthMax) return cudaErrorInvalidValue;
  const std::int64_t warps = p.tokens * p.query_heads;
  const LaunchShape shape{dim3(static_cast<unsigned>((warps + kWarps - 1) / kWarps)),
                          dim3(kWarps * 32)};
  return p.k_scales != nullptr
             ? launch_kernel(attention_reference_kernel<std::uint8_t>, shape, stream, p)
             : launch_kernel(attention_reference_kernel<Bf16>, shape, stream, p);
}

const void* kernel_of::attention_reference() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
