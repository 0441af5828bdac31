// SPDX-License-Identifier: Apache-2.0
// What submit() refuses of a request or of the engine's limits, with the field's name.
#include "engine/request.h"

#include <limits>
#include <string_view>

#include "base/in_range.h"
#include "sampling/output_record.h"

namespace koho {
std::uint64_t choice_seed(std::uint64_t seed, std::int32_t choice) {
  if (choice == 0) return seed;
  std::uint64_t mixed = seed + 0x9e3779b97f4a7c15U * static_cast<std::uint64_t>(choice);
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9U;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebU;
  return mixed ^ (mixed >> 31);
}

Status validate(const EngineLimits& limits) {
  KOHO_TRY(validate(limits.scheduler));
  KOHO_TRY(in_range("vocabulary", limits.vocabulary, 1, 1 << 24));
  KOHO_TRY(in_range("requests_max", limits.requests_max, 1, 1 << 20));
  KOHO_TRY(in_range("choices_max", limits.choices_max, 1, limits.scheduler.live_max));
  KOHO_TRY(in_range("stop_tokens_max", limits.stop_tokens_max, 0, kStopTokensMax));
  KOHO_TRY(in_range("stop_strings_max", limits.stop_strings_max, 0, 1 << 16));
  KOHO_TRY(in_range("stop_string_bytes_max", limits.stop_string_bytes_max, 1, 1 << 20));
  // Two steps of one choice may be in flight while two more events wait.
  KOHO_TRY(in_range("stream_events_per_choice", limits.stream_events_per_choice, 4, 1 << 20));
  KOHO_TRY(in_range("logits_events_per_choice", limits.logits_events_per_choice, 4, 1 << 20));
  KOHO_TRY(in_range("step_deadline_us", limits.step_deadline_us, 1, std::int64_t{1} << 40));
  KOHO_TRY(in_range("inter_token_us_max", limits.inter_token_us_max, 0, std::int64_t{1} << 40));
  KOHO_TRY(in_range("recoveries_max", limits.recoveries_max, 0, 1 << 20));
  KOHO_TRY(in_range("failures_in_a_row_max", limits.failures_in_a_row_max, 1, 1 << 20));
  KOHO_TRY(in_range("failures_in_window_max", limits.failures_in_window_max, 0, 1 << 10));
  KOHO_TRY(in_range("failures_window_us", limits.failures_window_us, 1, std::int64_t{1} << 50));
  return in_range("faults_per_request_max", limits.faults_per_request_max, 1, 1 << 20);
}

Status validate(const Request& request, const EngineLimits& limits) {
  const std::int64_t context = limits.scheduler.context_max;
  const auto prompt = static_cast<std::int64_t>(request.prompt.size());
  if (prompt == 0) return make_error(ErrorCode::invalid_argument, "the prompt is empty");
  KOHO_TRY(in_range("the prompt's length", prompt, 1, context));
  for (const Token token : request.prompt)
    if (token < 0 || token >= limits.vocabulary)
      return make_error(ErrorCode::invalid_argument,
                        "the prompt names token {}, the vocabulary has 0..{}", token,
                        limits.vocabulary - 1);
  KOHO_TRY(in_range("max_tokens", request.max_tokens, 0, context));
  if (prompt + request.max_tokens > context)
    return make_error(ErrorCode::invalid_argument,
                      "prompt ({} tokens) and max_tokens ({}) exceed the context of {} tokens",
                      prompt, request.max_tokens, context);
  const auto length = static_cast<std::int32_t>(prompt + request.max_tokens);
  if (limits.scheduler.pages_of(length) > limits.scheduler.pages_per_partition())
    return make_error(ErrorCode::invalid_argument,
                      "prompt ({} tokens) and max_tokens ({}) need {} cache pages, a sequence can "
                      "have {}",
                      prompt, request.max_tokens, limits.scheduler.pages_of(length),
                      limits.scheduler.pages_per_partition());
  KOHO_TRY(in_range("min_tokens", request.min_tokens, 0, request.max_tokens));
  KOHO_TRY(in_range("n", request.choices, 1, request.on_demand ? 1 : limits.choices_max));
  KOHO_TRY(in_range("the number of stop tokens",
                    static_cast<std::int64_t>(request.stop_tokens.size()), 0,
                    limits.stop_tokens_max));
  for (const Token token : request.stop_tokens)
    KOHO_TRY(in_range("stop_token_ids", token, 0, limits.vocabulary - 1));
  std::size_t stop_words = 2 * request.stop_tokens.size();
  for (const std::vector<Token>& sequence : request.stop_sequences) {
    KOHO_TRY(in_range("the length of a stop sequence", static_cast<std::int64_t>(sequence.size()),
                      2, OutputRecord::kStopLengthMax));
    for (const Token token : sequence)
      KOHO_TRY(in_range("a stop sequence's token", token, 0, limits.vocabulary - 1));
    stop_words += 1 + sequence.size();
  }
  if (stop_words > OutputRecord::kStopWordsMax)
    return make_field_error(
        ErrorCode::invalid_argument, "stop_token_ids",
        "{}: {} stop tokens and {} stop sequences are too many: twice the tokens and, for "
        "each sequence, its length and one make {}, {} are the most",
        request.stop_tokens.size(), request.stop_sequences.size(), stop_words,
        OutputRecord::kStopWordsMax);
  KOHO_TRY(in_range("the number of stop strings",
                    static_cast<std::int64_t>(request.stop_strings.size()), 0,
                    limits.stop_strings_max));
  for (const std::string& stop : request.stop_strings)
    KOHO_TRY(in_range("the bytes of a stop string", static_cast<std::int64_t>(stop.size()), 1,
                      limits.stop_string_bytes_max));
  KOHO_TRY(in_range("the budget of reasoning tokens", request.reasoning_tokens_max, -1,
                    std::numeric_limits<std::int32_t>::max()));
  KOHO_TRY(in_range("the token that reasoning does not contain", request.reasoning_banned, -1,
                    limits.vocabulary - 1));
  for (const Token token : request.allowed_tokens)
    KOHO_TRY(in_range("allowed_token_ids", token, 0, limits.vocabulary - 1));
  for (const std::vector<Token>& sequence : request.banned_sequences) {
    if (sequence.empty()) return make_error(ErrorCode::invalid_argument, "a bad word is empty");
    for (const Token token : sequence)
      KOHO_TRY(in_range("a bad word's token", token, 0, limits.vocabulary - 1));
  }
  if (request.grammar != nullptr &&
      !(request.allowed_tokens.empty() && request.banned_sequences.empty()))
    return make_error(ErrorCode::invalid_argument,
                      "allowed_token_ids and bad_words do not go with a constrained answer");
  KOHO_TRY(in_range("priority", request.priority, 0, kPriorities - 1));
  KOHO_TRY(in_range("the deadline in microseconds", request.deadline_us, 0, std::int64_t{1} << 50));
  return validate(request.sampling, limits.vocabulary);
}

}  // namespace koho
