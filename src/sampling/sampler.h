// SPDX-License-Identifier: Apache-2.0
// The definition of sampling, on one row in host memory. The CUDA kernels have the same
// distribution and, when greedy, the same ids.
//
// In this order, as vLLM applies them:
//   1. ids >= tokens are out; biases are added
//   2. repetition penalty over prompt and output tokens: a positive logit is divided, a negative
//      one multiplied; then frequency_penalty * count and presence_penalty are subtracted for
//      output tokens; ids outside the mask are out
//   3. temperature 0: the largest logit, ties to the lowest id. Else logits are divided by the
//      temperature, and
//   4. min_p keeps tokens at least min_p times as likely as the likeliest
//   5. top_k keeps tokens whose logit is at least the k-th largest (ties stay)
//   6. top_p keeps the likeliest tokens whose renormalised probabilities first add up to top_p
//      (ties stay)
//   7. the token is the largest logit + Gumbel noise of (seed, output position, id) among those
//      kept (sampling/philox.h)
// Log-probabilities are those of the unmodified logits over all tokens of the tokenizer.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sampling/sampling_row.h"

namespace koho {

/// What one row needs besides its SamplingRow.
struct SamplerInput {
  std::span<const float> logits;       // [V]
  std::int64_t tokens = 0;             // ids >= tokens are never sampled
  std::span<const LogitBias> biases;   // this row's
  std::span<const std::int32_t> mask;  // [ceil(V/32)], or empty: all allowed
  // [V], or empty: no penalties. Bit 31: in the prompt; the other bits: times in the output.
  std::span<std::int32_t> counts;
};

struct SamplerOutput {
  std::int32_t id = -1;  // -1: no token is allowed, or a logit is NaN
  float logprob = 0.0F;  // if row.logprobs >= 0
  std::vector<std::int32_t> top_ids;
  std::vector<float> top_logprobs;
};

/// Draws rows of one vocabulary; owns the scratch memory. Threads: one at a time per object.
class Sampler {
 public:
  explicit Sampler(std::int64_t vocabulary);

  /// Draws one token and counts it. `out` is overwritten; its vectors keep their capacity.
  void sample(const SamplingRow& row, const SamplerInput& input, SamplerOutput& out);

 private:
  void modify(const SamplingRow& row, const SamplerInput& input);
  void keep_min_p(float min_p);
  void keep_top_k(std::int64_t top_k);
  void keep_top_p(float top_p);
  std::int32_t argmax() const;
  std::int32_t draw(const SamplingRow& row) const;
  void fill_logprobs(const SamplingRow& row, const SamplerInput& input, SamplerOutput& out);
  void drop_below(float threshold);

  std::vector<float> logits_;        // modified; -infinity = out
  std::vector<float> sorted_;        // scratch of the thresholds
  std::vector<std::int32_t> order_;  // scratch of the logprobs
};

}  // namespace koho
