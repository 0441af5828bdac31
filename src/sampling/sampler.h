// SPDX-License-Identifier: Apache-2.0
// The definition of sampling, on one row of host memory: the CPU's sampler, and the reference of
// the CUDA kernels (src/cuda/sampling), which give the same distribution and, when greedy, the same
// ids. Sampler::sample in sampling/sampler.cpp has the steps in their order, which is vLLM's.
// Logprobs are those of the unmodified logits over all tokens of the tokenizer.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sampling/parameters.h"

namespace koho {

/// What one row needs beside its SamplingRow.
struct SamplerInput {
  std::span<const float> logits;       // [V]
  std::int64_t tokens = 0;             // ids >= tokens are never sampled
  std::span<const LogitBias> biases;   // this row's
  std::span<const std::int32_t> mask;  // [ceil(V/32)], or empty: all allowed
  /// [V], or empty: no penalties. Bit 31: the prompt has the token; the rest: times in the output.
  std::span<std::int32_t> counts;
};

struct SamplerOutput {
  std::int32_t id = -1;  // -1: no token is allowed, or a logit is NaN
  float logprob = 0.0F;  // if row.logprobs >= 0
  std::vector<std::int32_t> top_ids;
  std::vector<float> top_logprobs;
};

/// Samples rows of one vocabulary; owns the scratch memory. Threads: one at a time per object.
class Sampler {
 public:
  explicit Sampler(std::int64_t vocabulary);

  /// Samples one token and counts it. `out` is overwritten; its vectors keep their capacity.
  void sample(const SamplingRow& row, const SamplerInput& input, SamplerOutput& out);

 private:
  void modify(const SamplingRow& row, const SamplerInput& input);
  std::int32_t draw(const SamplingRow& row) const;
  void fill_logprobs(const SamplingRow& row, const SamplerInput& input, SamplerOutput& out);

  std::vector<float> logits_;        // modified; -infinity = out
  std::vector<float> sorted_;        // scratch of the thresholds
  std::vector<std::int32_t> order_;  // scratch of the logprobs
};

}  // namespace koho
