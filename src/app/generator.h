// SPDX-License-Identifier: Apache-2.0
// One sequence at a time on one rank: what `koho run` and `koho logits` need. Keeps its sequence's
// cache between calls, so that a chat's next turn computes only what is new.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "app/loaded_model.h"
#include "app/sampling_flags.h"
#include "base/error.h"
#include "worker/worker.h"

namespace koho::app {

/// How an answer went.
struct Answer {
  std::vector<std::int32_t> ids;  // generated, the last one included
  std::string finish_reason;      // "stop", "length" or "abort"
  std::int64_t cached_tokens = 0;
  std::int64_t prefill_tokens = 0;
  double prefill_s = 0.0;
  double decode_s = 0.0;  // of all tokens after the first

  double prefill_tokens_per_s() const;
  double decode_tokens_per_s() const;
};

/// What the machine gives.
struct GeneratorSettings {
  std::int64_t context_max = 0;  // tokens of prompt and answer
  std::int64_t chunk_max = 512;  // prompt tokens computed in one step
  std::int64_t threads = 0;      // 0 = all cores
  std::int64_t tokenizer_tokens =
      0;                    // ids from here on are never sampled; 0 = the whole vocabulary
  bool all_logits = false;  // logits of every prompt token (for `koho logits`)
};

class Generator {
 public:
  /// `model` must outlive the generator.
  static Result<Generator> create(const LoadedModel& model, const GeneratorSettings& settings);

  /// Generates after `prompt`. `take` gets every id as it comes and says whether to go on;
  /// `interrupted` ends the answer early. Errors: invalid_argument (empty prompt, ids outside the
  /// vocabulary, prompt longer than the context, parameters).
  Result<Answer> generate(std::span<const std::int32_t> prompt,
                          const SamplingFlags& flags,
                          const std::function<bool(std::int32_t)>& take,
                          const std::atomic<bool>& interrupted);

  /// Logits of every token of `ids`, chunk by chunk: `take` gets [rows, V] f32 in order.
  Status logits(std::span<const std::int32_t> ids,
                const std::function<Status(std::span<const float> rows)>& take);

  std::string backend_description() { return worker_->backend().description(); }

 private:
  Generator() = default;
  Status step(std::span<const std::int32_t> ids,
              std::int64_t position,
              std::span<const std::int32_t> logit_rows,
              std::span<const SamplingRow> sampling,
              std::span<const LogitBias> biases);
  Result<std::int64_t> prefill(std::span<const std::int32_t> prompt,
                               const SamplingRow& row,
                               std::span<const LogitBias> biases);

  const LoadedModel* model_ = nullptr;
  GeneratorSettings settings_;
  std::unique_ptr<Worker> worker_;
  std::vector<std::int32_t> cached_;      // tokens whose keys and values the pages hold
  std::vector<std::int32_t> page_table_;  // 0, 1, 2, …
  StepOutput output_;
};

}  // namespace koho::app
