// SPDX-License-Identifier: Apache-2.0
// The part of StepLoop that turns a step's results into events: tokens, text, stops, ends of
// choices and of requests.
#include <algorithm>

#include "base/check.h"
#include "engine/step_loop.h"

namespace koho {

StepLoop::CollectOutcome StepLoop::collect(std::int64_t timeout_us) {
  if (scheduler_.steps_in_flight() == 0) return CollectOutcome::nothing;
  const StepBatch& batch = scheduler_.oldest_in_flight();
  if (Status status = executor_.collect(result_, timeout_us); !status.ok()) {
    const bool slow = status.error().code == ErrorCode::deadline_exceeded;
    if (slow && clock_.now_us() - waiting_since_us_ < limits_.step_deadline_us)
      return CollectOutcome::waiting;
    lose_device(slow ? make_error(ErrorCode::deadline_exceeded,
                                  "step {} took longer than its deadline of {} ms", batch.step,
                                  limits_.step_deadline_us / 1000)
                     : status.error());
    return CollectOutcome::lost;
  }
  // A result of an earlier step: a rank answered twice, or too late.
  if (result_.step < batch.step) {
    ++counts_.results_stale;
    return CollectOutcome::waiting;
  }
  if (Status status = check_result(batch); !status.ok()) {
    lose_device(status.error());
    return CollectOutcome::lost;
  }
  apply_result(batch);
  const std::int64_t now = clock_.now_us();
  recorder_.ended(batch.step, StepRecord::Outcome::collected, now);
  if (const std::int32_t decodes = batch.decodes - batch.redecoded; decodes > 0) {
    ++counts_.decode_steps;
    counts_.decode_rows += static_cast<std::uint64_t>(decodes);
    counts_.decode_rows_max = std::max(counts_.decode_rows_max, decodes);
    latency_bound_.observe(batch.prefill_cost, now - waiting_since_us_);
    scheduler_.set_mixed_prefill_tokens(latency_bound_.prefill_tokens());
  }
  waiting_since_us_ = now;
  ++counts_.steps;
  scheduler_.retire();
  if (Status status = send_late_masks(); !status.ok()) {
    lose_device(status.error());
    return CollectOutcome::lost;
  }
  return CollectOutcome::collected;
}

Status StepLoop::send_late_masks() {
  if (late_masks_.words.empty()) return {};
  KOHO_CHECK_EQ(scheduler_.steps_in_flight(), 1);
  write_late_masks(scheduler_, draws(), late_masks_);
  late_masks_.words = {};
  return executor_.send_masks();
}

Status StepLoop::check_result(const StepBatch& batch) const {
  const auto samples = static_cast<std::size_t>(batch.samples);
  const std::size_t top = samples * StepResult::kTop;
  if (result_.step != batch.step)
    return make_error(ErrorCode::device_error, "the ranks answered step {}, step {} was expected",
                      result_.step, batch.step);
  if (result_.tokens.size() != samples)
    return make_error(ErrorCode::device_error, "step {} samples {} tokens, the ranks gave {}",
                      batch.step, samples, result_.tokens.size());
  if (result_.ends.size() != samples)
    return make_error(ErrorCode::device_error, "step {} samples {} tokens, the ranks gave {} ends",
                      batch.step, samples, result_.ends.size());
  if ((!result_.logprobs.empty() && result_.logprobs.size() != samples) ||
      (!result_.top_ids.empty() && result_.top_ids.size() != top) ||
      result_.top_logprobs.size() != result_.top_ids.size())
    return make_error(ErrorCode::device_error, "step {}: {} logprobs and {} alternatives",
                      batch.step, result_.logprobs.size(), result_.top_ids.size());
  const auto vocabulary = static_cast<std::size_t>(limits_.vocabulary);
  if (result_.logits.size() != result_.logits_rows.size() * vocabulary)
    return make_error(ErrorCode::device_error, "step {}: {} logits of {} rows of {}", batch.step,
                      result_.logits.size(), result_.logits_rows.size(), vocabulary);
  for (const Token token : result_.tokens)
    if (token < -1 || token >= limits_.vocabulary)
      return make_error(ErrorCode::device_error, "step {} sampled token {}, the vocabulary has {}",
                        batch.step, token, limits_.vocabulary);
  return {};
}

void StepLoop::apply_result(const StepBatch& batch) {
  std::int32_t samples = 0;
  counts_.computed_tokens += static_cast<std::uint64_t>(batch.tokens);
  counts_.step_tokens.add(batch.tokens);
  for (const StepRow& row : batch.rows) {
    const std::int32_t sample = row.samples ? samples++ : -1;
    if (scheduler_.find(row.sequence) == nullptr) {
      ++counts_.rows_discarded;
      continue;
    }
    const Token token = row.samples ? result_.tokens[static_cast<std::size_t>(sample)] : -1;
    const Owner owner = owners_[static_cast<std::size_t>(row.sequence.index)];
    Live& live = requests_[static_cast<std::size_t>(owner.request)];
    if (row.samples && token == -1) {
      end(live, Ending::failed,
          make_error(ErrorCode::internal, ErrorReason::numerical,
                     "numerical error: the logits at position {} hold a NaN or allow no token",
                     row.start + row.count));
      continue;
    }
    if (row.samples && result_.ends[static_cast<std::size_t>(sample)] == RowEnd::frozen) {
      end(live, Ending::failed,
          make_error(ErrorCode::internal, "the ranks ended the answer at a token that is no stop"));
      continue;
    }
    const Sequence& sequence = *scheduler_.apply(row, token);
    note_progress(live, live.choices[static_cast<std::size_t>(owner.choice)], row);
    const bool prompt_only = sequence.length_max == sequence.prompt_length &&
                             sequence.computed == sequence.prompt_length;
    if (row.samples || prompt_only) deliver(live, owner.choice, sequence, sample);
  }
}

void StepLoop::deliver(Live& live,
                       std::int32_t choice_index,
                       const Sequence& sequence,
                       std::int32_t sample) {
  const std::int64_t now = clock_.now_us();
  Choice& choice = live.choices[static_cast<std::size_t>(choice_index)];
  event_.choice = choice_index;
  event_.token = -1;
  event_.logprob = 0.0F;
  event_.top.clear();
  // Frees them: they are large, and events are reused by other requests. (`= {}` would not.)
  event_.logits = std::vector<float>();
  event_.text.clear();
  event_.stop_token = -1;
  event_.stop_string = -1;
  event_.finish = FinishReason::length;
  if (sample >= 0) {
    event_.token = sequence.tokens.back();
    if (choice.token_mask != nullptr) {
      if (Status status = choice.token_mask->accept(event_.token); !status.ok()) {
        end(live, Ending::failed, std::move(status).error());
        return;
      }
      choice.draw.mask = choice.token_mask->mask();
    }
    fill_logprobs(live, sample);
    if (live.request.logits && !fill_logits(sample)) {
      end(live, Ending::failed,
          make_error(ErrorCode::internal, "the ranks gave no logits of a token that they sampled"));
      return;
    }
    count_token(live, choice, event_.token, now);
    const bool ended = result_.ends[static_cast<std::size_t>(sample)] == RowEnd::ended;
    event_.finish = write_text(live, choice, sequence, event_.token, ended);
    if (event_.finish == FinishReason::none && choice.token_mask != nullptr) {
      if (Status status = choice.token_mask->dead_end(); !status.ok()) {
        end(live, Ending::failed, std::move(status).error());
        return;
      }
    }
  }

  const bool last = event_.finish != FinishReason::none;
  if (last) {
    count_choice(
        event_.finish == FinishReason::stop ? counts_.choices_stopped : counts_.choices_full,
        choice.completion_tokens, now - live.submitted_us);
    choice.ended = true;
    scheduler_.finish(choice.sequence);
    choice.active = false;
    --live.active_choices;
  }
  live.stream->push(event_);
  if (live.active_choices == 0) end(live, Ending::completed, {});
}

void StepLoop::count_token(Live& live, Choice& choice, Token token, std::int64_t now) {
  ++counts_.sampled_tokens;
  ++choice.completion_tokens;
  if (counts_as_reasoning(token, live.request.reasoning_begin, live.request.reasoning_end,
                          choice.reasoning))
    ++choice.reasoning_tokens;
  if (live.first_token_us < 0) live.first_token_us = now;
  if (choice.last_token_us >= 0) {
    counts_.inter_token.add(now - choice.last_token_us);
    counts_.inter_token_fine.add(now - choice.last_token_us);
  }
  choice.last_token_us = now;
  live.last_token_us = now;
}

FinishReason StepLoop::write_text(
    Live& live, Choice& choice, const Sequence& sequence, Token token, bool ended) {
  const Request& request = live.request;
  const bool is_stop_token =
      ended && std::ranges::find(request.stop_tokens, token) != request.stop_tokens.end();
  const bool complete = choice.token_mask != nullptr && choice.token_mask->complete();
  const bool full = sequence.known() == sequence.length_max;
  if (is_stop_token) event_.stop_token = token;
  const FinishReason reason = ended || complete ? FinishReason::stop
                              : full            ? FinishReason::length
                                                : FinishReason::none;
  if (!choice.decoder) return reason;

  piece_.clear();
  if (!is_stop_token || request.include_stop) choice.decoder->push(token, piece_);
  if (reason != FinishReason::none) choice.decoder->flush(piece_);
  choice.stops.feed(piece_, event_.text);
  if (choice.stops.matched()) {
    event_.stop_token = -1;
    event_.stop_string = choice.stops.match_index();
    return FinishReason::stop;
  }
  if (reason != FinishReason::none) choice.stops.flush(event_.text);
  return reason;
}

bool StepLoop::fill_logits(std::int32_t sample) {
  const auto found = std::ranges::lower_bound(result_.logits_rows, sample);
  if (found == result_.logits_rows.end() || *found != sample) return false;
  const auto first = result_.logits.begin() +
                     (found - result_.logits_rows.begin()) * std::ptrdiff_t{limits_.vocabulary};
  event_.logits.assign(first, first + limits_.vocabulary);
  return true;
}

void StepLoop::fill_logprobs(const Live& live, std::int32_t sample) {
  if (!live.request.sampling.logprobs || result_.logprobs.empty()) return;
  const auto row = static_cast<std::size_t>(sample);
  event_.logprob = result_.logprobs[row];
  if (result_.top_ids.empty()) return;
  for (std::size_t i = 0; i < static_cast<std::size_t>(*live.request.sampling.logprobs); ++i) {
    const std::size_t at = row * StepResult::kTop + i;
    event_.top.push_back({result_.top_ids[at], result_.top_logprobs[at]});
  }
}

}  // namespace koho
