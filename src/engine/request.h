// SPDX-License-Identifier: Apache-2.0
// What a caller asks for, and what it is told at the end. Requests are immutable once submitted.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "grammar/matcher.h"
#include "kvcache/prefix_cache.h"
#include "sampling/parameters.h"
#include "scheduler/limits.h"

namespace koho {

/// The engine's own limits; the scheduler's are inside.
struct EngineLimits {
  Limits scheduler;
  std::int32_t vocabulary = 0;     // ids that may be in prompts and outputs
  std::int32_t requests_max = 0;   // accepted and not ended
  std::int32_t choices_max = 128;  // of one request
  /// With stop_sequences at most OutputRecord::kStopWordsMax words.
  std::int32_t stop_tokens_max = kStopTokensMax;
  std::int32_t stop_strings_max = 16;
  std::int32_t stop_string_bytes_max = 1024;
  /// Events a stream holds for its reader, per choice; a full stream pauses its request.
  std::int32_t stream_events_per_choice = 64;
  std::int32_t logits_events_per_choice = 4;   // of a request that asks for logits
  std::int64_t step_deadline_us = 30'000'000;  // a step that takes longer is a hang
  /// What a step with decodes should take at most: prefill beside them is cut to fit. 0 = only
  /// scheduler.mixed_prefill_tokens_max counts.
  std::int64_t inter_token_us_max = 0;
  std::int32_t recoveries_max = 5;  // attempts in a row before the engine gives up
  /// Failed steps in a row, with no progress between them, before a request is given up. From the
  /// second on it is computed alone, so that it cannot take others with it.
  std::int32_t faults_per_request_max = 3;
  /// Device failures in a row, with no progress of anybody between them, before the engine gives
  /// up.
  std::int32_t failures_in_a_row_max = 20;
  /// Device failures within `failures_window_us` that requests survive, whatever progress there was
  /// between them; one more, and the engine gives up. 0 = any number. As many as
  /// faults_per_request_max let the request that is the cause be found first.
  std::int32_t failures_in_window_max = 0;
  std::int64_t failures_window_us = 600'000'000;
};

/// Errors: invalid_argument naming the limit.
Status validate(const EngineLimits& limits);

struct Request {
  std::vector<Token> prompt;
  SamplingParameters sampling;
  std::int32_t max_tokens = 0;  // per choice; 0 computes the prompt only
  std::int32_t min_tokens = 0;  // no stop token before so many
  std::int32_t choices = 1;     // n
  std::vector<Token> stop_tokens;
  /// Tokens that end the answer in this order, one sequence of them or another. As they come before
  /// anybody knows, they are part of the answer.
  std::vector<std::vector<Token>> stop_sequences;
  std::vector<std::string> stop_strings;
  bool include_stop = false;  // the matched stop token or string stays in the text
  bool keep_special = false;  // special tokens show in the text
  std::int32_t priority = 0;  // 0 .. kPriorities-1, 0 first
  CacheSalt salt;
  std::uint64_t client = 0;      // whose it is: clients share prefill and batch slots
  std::int64_t deadline_us = 0;  // after submission; 0 = none
  std::uint64_t seed = 0;        // used if sampling.seed is not given: random, by the caller
  /// Tokens that open and close reasoning, for usage; -1 = none.
  Token reasoning_begin = -1;
  Token reasoning_end = -1;
  bool starts_in_reasoning = false;
  /// What the answer's tokens must be; null: anything. Behind reasoning_end, if the request
  /// starts_in_reasoning. No stop token comes before it may end; where nothing may follow, the
  /// choice ends as stopped, with or without a stop token.
  std::shared_ptr<const CompiledGrammar> grammar;
  /// Of a choice that begins in reasoning: after so many tokens reasoning_end must come; -1:
  /// whenever.
  std::int32_t reasoning_tokens_max = -1;
  /// What reasoning before a grammar does not contain; -1: it may contain anything.
  Token reasoning_banned = -1;
  std::vector<Token> allowed_tokens;                 // no other is sampled; empty: any
  std::vector<std::vector<Token>> banned_sequences;  // none is completed; not with a grammar, nor
                                                     // are allowed_tokens
  bool logits = false;  // each token's event has the logits that it was sampled from
  /// The first token is sampled, every further one only when Engine::advance asks for it; in
  /// between the sequence is paused. One choice only.
  bool on_demand = false;
};

/// Everything but what depends on the engine's load. Errors: invalid_argument naming the field.
Status validate(const Request& request, const EngineLimits& limits);

/// The seed that a choice draws with: the request's own for the first, unrelated ones for the
/// others.
std::uint64_t choice_seed(std::uint64_t seed, std::int32_t choice);

/// Whether a token of a choice counts as reasoning, the tokens that open and close it included;
/// `reasons` goes from token to token and begins as starts_in_reasoning.
inline bool counts_as_reasoning(Token token, Token begin, Token end, bool& reasons) {
  if (token == begin) reasons = true;
  const bool counts = reasons;
  if (token == end) reasons = false;
  return counts;
}

/// Why a choice ended.
enum class FinishReason : std::uint8_t { none, stop, length };

/// How a request ended, all choices together.
enum class Ending : std::uint8_t { completed, cancelled, failed };

struct Usage {
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;  // of the prompt, found computed at the first admission
  std::int64_t completion_tokens = 0;
  std::int64_t reasoning_tokens = 0;  // of the completion, up to and including the closing token
};

struct Timings {
  std::int64_t queued_us = 0;   // submission to first admission
  std::int64_t prefill_us = 0;  // to the first token
  std::int64_t decode_us = 0;   // to the last token
  std::int64_t stalled_us = 0;  // of these: preempted, paused by the reader, or the device was lost
  std::int64_t total_us = 0;
  std::int32_t preemptions = 0;
};

struct Summary {
  Ending ending = Ending::completed;
  Error error;  // if failed
  Usage usage;
  Timings timings;
};

}  // namespace koho
