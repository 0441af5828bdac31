// SPDX-License-Identifier: Apache-2.0
// How a row changes its logits before any threshold: biases, then penalties, then the token mask,
// in the order of sampling/sampler.h. Bitmaps tell which tokens have a bias or a count, so that
// kernels read biases and counts of few tokens.
#pragma once

#include "cuda/sampling/sample.cuh"

namespace koho::cuda {

constexpr int kBiasedTokens = 128;  // that one word of LogitsProcessor::biased covers

/// Changes a lane's group of a block where the block lies in shared memory, or four tokens, or one,
/// in registers.
struct LogitsProcessor {
  const SamplingRow* row;
  const LogitBias* biases;
  const std::uint32_t* biased;   // a bit for four tokens from `first` on: has a bias; or null
  const std::int32_t* mask;      // or null
  const std::int32_t* counts;    // or null
  const std::uint16_t* nonzero;  // which counts are not 0: 16 bits a group
  float temperature;
  int first;
  bool plain;  // nothing but temperature changes the row

  /// The members of this lane's group that have a count.
  __device__ __forceinline__ std::uint32_t counted(int block) const {
    return counts == nullptr ? 0U : nonzero[race_group(block + lane_token(0))];
  }
  /// The count of the first of them.
  __device__ __forceinline__ std::int32_t first_count(int block, std::uint32_t counted) const {
    return counted == 0 ? 0 : counts[block + lane_token(__ffs(static_cast<int>(counted)) - 1)];
  }

  /// Applies biases and penalties to this lane's group of the block at `values`. `count`:
  /// first_count().
  __device__ __forceinline__ void change(float* values,
                                         int block,
                                         std::uint32_t counted,
                                         std::int32_t count) const {
    if (has_bias(block)) {
#pragma unroll 1
      for (int i = 0; i < row->bias_count; ++i) {
        const int at = biases[i].token - block;
        if (at >= 0 && at < kBlockTokens && at / 4 % 32 == static_cast<int>(threadIdx.x) % 32)
          values[at] += biases[i].bias;
      }
    }
#pragma unroll 1
    for (bool first_of_them = true; counted != 0; counted &= counted - 1) {
      const int at = lane_token(__ffs(static_cast<int>(counted)) - 1);
      values[at] = apply_penalties(values[at], first_of_them ? count : counts[block + at]);
      first_of_them = false;
    }
  }
  /// Four tokens from `id` on after biases and penalties. `counted`: vector_counted().
  __device__ __forceinline__ float4 changed(float4 v, int id, std::uint32_t counted) const {
    std::uint32_t members = counted | (vector_has_bias(id) ? 0xFU : 0U);
#pragma unroll 1
    for (; members != 0; members &= members - 1) {
      const int j = __ffs(static_cast<int>(members)) - 1;
      const float value = j == 0 ? v.x : j == 1 ? v.y : j == 2 ? v.z : v.w;
      const bool counts_it = (counted >> j & 1U) != 0;
      const float now = apply_penalties(with_bias(value, id + j), counts_it ? counts[id + j] : 0);
      v = make_float4(j == 0 ? now : v.x, j == 1 ? now : v.y, j == 2 ? now : v.z,
                      j == 3 ? now : v.w);
    }
    return v;
  }
  /// Which of four tokens from `id` on have a count.
  __device__ __forceinline__ std::uint32_t vector_counted(int id) const {
    return counts == nullptr ? 0U
                             : std::uint32_t{nonzero[race_group(id)]} >> race_member(id) & 0xFU;
  }
  /// A token's logit, whose count is `entry`, after bias and penalties.
  __device__ __forceinline__ float changed(float logit, int id, std::int32_t entry) const {
    return apply_penalties(with_bias(logit, id), entry);
  }
  __device__ __forceinline__ std::int32_t entry(int id) const {
    return counts == nullptr ? 0 : counts[id];
  }
  __device__ __forceinline__ bool allows(int id) const {
    return mask == nullptr ||
           (static_cast<std::uint32_t>(mask[id / 32]) >> (static_cast<unsigned>(id) % 32) & 1U) !=
               0;
  }
  /// One token's logit after biases, penalties and mask.
  __device__ __forceinline__ float logit(const float* logits, int id) const {
    return allows(id) ? changed(logits[id], id, entry(id)) : kMaskedLogit;
  }
  /// The members of this lane's group of a block, in bits, that a bias or a count may change.
  __device__ __forceinline__ std::uint32_t changes(int block) const {
    std::uint32_t members = counted(block);
    if (biased != nullptr)
#pragma unroll
      for (int i = 0; i < kGroupVectors; ++i)
        if ((biased[(block - first) / kBiasedTokens + i] >> (threadIdx.x % 32) & 1U) != 0)
          members |= 0xFU << (4 * i);
    return members;
  }
  /// Whether a token from `id` to `id` + 3 has a bias.
  __device__ __forceinline__ bool vector_has_bias(int id) const {
    return biased != nullptr && (biased[(id - first) / kBiasedTokens] >> (id / 4 % 32) & 1U) != 0;
  }
  /// Whether penalties may make a logit larger.
  __device__ __forceinline__ bool raises() const {
    return counts != nullptr && (row->repetition_penalty < 1.0F || row->frequency_penalty < 0.0F ||
                                 row->presence_penalty < 0.0F);
  }
  /// The mask of four tokens from `id` on.
  __device__ __forceinline__ float4 masked(const float4& v, int id) const {
    const std::uint32_t allowed =
        static_cast<std::uint32_t>(mask[id / 32]) >> (static_cast<unsigned>(id) % 32);
    return make_float4(
        (allowed & 1U) != 0 ? v.x : kMaskedLogit, (allowed & 2U) != 0 ? v.y : kMaskedLogit,
        (allowed & 4U) != 0 ? v.z : kMaskedLogit, (allowed & 8U) != 0 ? v.w : kMaskedLogit);
  }
  __device__ __forceinline__ float apply_temperature(float logit) const {
    return temperature > 0.0F && temperature != 1.0F ? logit / temperature : logit;
  }

 private:
  __device__ __forceinline__ int lane_token(int member) const {
    return block_token(static_cast<int>(threadIdx.x) % 32, member);
  }
  /// Whether a token of this lane's group has a bias.
  __device__ __forceinline__ bool has_bias(int block) const {
    if (biased == nullptr) return false;
    std::uint32_t words = 0;
#pragma unroll
    for (int i = 0; i < kGroupVectors; ++i) words |= biased[(block - first) / kBiasedTokens + i];
    return (words >> (threadIdx.x % 32) & 1U) != 0;
  }
  __device__ __forceinline__ float with_bias(float logit, int id) const {
    if (vector_has_bias(id))
#pragma unroll 1
      for (int i = 0; i < row->bias_count; ++i)
        if (biases[i].token == id) logit += biases[i].bias;
    return logit;
  }
  __device__ __forceinline__ float apply_penalties(float logit, std::int32_t entry) const {
    if (entry == 0) return logit;
    const float repetition = row->repetition_penalty;
    if (repetition != 1.0F) logit = logit > 0.0F ? logit / repetition : logit * repetition;
    const std::int32_t times = entry & ~static_cast<std::int32_t>(kPromptBit);
    if (times > 0)
      logit -= static_cast<float>(times) * row->frequency_penalty + row->presence_penalty;
    return logit;
  }
};
static_assert(kVectorStep == kBiasedTokens);

/// Sets the bits of `biased` for tokens first .. first + count - 1 that have a bias, and gathers
/// what changes the row's logits. `first` and `count` are multiples of 512. All threads.
__device__ __forceinline__ LogitsProcessor make_logits_processor(
    const Sample& p, const RowView& view, std::uint32_t* biased, int first, int count) {
  const SamplingRow& row = view.row;
  const std::int32_t* mask = row.mask_row >= 0 ? p.masks + static_cast<std::int64_t>(row.mask_row) *
                                                               ((p.vocabulary + 31) / 32)
                                               : nullptr;
  const LogitBias* biases = p.biases + row.bias_begin;
  if (row.bias_count > 0) {
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < count / kBiasedTokens; i += kSampleThreads)
      biased[i] = 0;
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < row.bias_count; i += kSampleThreads) {
      const int token = biases[i].token - first;
      if (token >= 0 && token < count)
        atomicOr(&biased[token / kBiasedTokens], 1U << (token / 4 % 32));
    }
    __syncthreads();
  }
  return {&row,
          biases,
          row.bias_count > 0 ? biased : nullptr,
          mask,
          view.counts,
          view.nonzero,
          row.temperature,
          first,
          row.bias_count == 0 && mask == nullptr && view.counts == nullptr};
}

}  // namespace koho::cuda
