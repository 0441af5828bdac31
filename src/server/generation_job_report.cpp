// SPDX-License-Identifier: Apache-2.0
// What a generation job says of itself, while it runs and when it has ended.
#include <string>
#include <utility>

#include "server/generation_job.h"

namespace koho::server {

using api::ApiError;

namespace {

/// Tokens that arrived within this time have no meaningful rate.
constexpr std::int64_t kRateUsMin = 1000;

}  // namespace

void GenerationJob::report(std::string_view finish, int status, const ApiError* error) {
  if (std::exchange(reported_, true)) return;
  core_.count_response(setup_.endpoint->path, status);
  if (answer_) {
    const chat::OutputParser::Counts counts = answer_->parser_counts();
    core_.counters().tool_calls_unknown += counts.unknown_tools;
    core_.counters().tool_calls_malformed += counts.malformed_calls;
    core_.counters().tool_calls_mended += counts.mended_calls;
    core_.counters().reasoning_unclosed += counts.unclosed_reasoning;
  }
  EndedRequest ended = summarise(finish, status, error);
  if (core_.settings().log_requests) log_request(ended);
  core_.request_log().add(std::move(ended));
  // At no time it is neither among those that run nor those that ended.
  core_.remove_job({.id = name_, .owner = owner()});
}

EndedRequest GenerationJob::summarise(std::string_view finish,
                                      int status,
                                      const ApiError* error) const {
  EndedRequest ended{.id = name_,
                     .path = setup_.endpoint->path,
                     .ended_unix_s = Core::unix_seconds(),
                     .status = status,
                     .finish = std::string(finish),
                     .failed = error != nullptr};
  if (error != nullptr) {
    ended.code = error->code;
    ended.param = shortened(error->param);
    ended.message = shortened(error->message);
  }
  ended.owner = owner();
  if (setup_.key != nullptr) ended.key = setup_.key->hash();
  // A pool thread may still be writing request_ until prepared_ is set.
  if (prepared_.load(std::memory_order_acquire)) {
    ended.user = shortened(request_.user);
    ended.prompt_tokens = request_.prompt_tokens;
  }
  if (answer_ && answer_->done() && error == nullptr) {
    const api::AnswerTotals& totals = answer_->totals();
    const Timings& timings = totals.timings;
    ended.cached_tokens = totals.usage.cached_tokens;
    ended.tokens = totals.usage.completion_tokens;
    ended.first_token_us = timings.queued_us + timings.prefill_us;
    if (timings.decode_us >= kRateUsMin) ended.tokens_per_s = totals.tokens_per_second();
  } else {
    // Without waiting for the engine's summary: report the tokens that arrived, the rest is
    // unknown.
    ended.tokens = progress_.tokens;
    const std::int64_t span_us = progress_.last_us - progress_.first_us;
    if (ended.tokens > 0) ended.first_token_us = progress_.first_us - received_us_;
    if (span_us >= kRateUsMin)
      ended.tokens_per_s =
          static_cast<double>(ended.tokens - 1) * 1e6 / static_cast<double>(span_us);
  }
  ended.total_us = core_.clock().now_us() - received_us_;
  return ended;
}

LiveRequest GenerationJob::live(std::string id) const {
  const bool prepared = prepared_.load(std::memory_order_acquire);
  LiveRequest row{.id = std::move(id),
                  .path = setup_.endpoint->path,
                  .state = prepared ? "waiting" : "reading",
                  .received_us = received_us_};
  if (prepared && request_.prompt_tokens) row.prompt_tokens = *request_.prompt_tokens;
  row.tokens = progress_.tokens;
  if (row.tokens == 0) return row;
  row.state = "answering";
  row.first_us = progress_.first_us;
  row.last_us = progress_.last_us;
  return row;
}

}  // namespace koho::server
