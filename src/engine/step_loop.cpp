// SPDX-License-Identifier: Apache-2.0
// The part of StepLoop that takes requests in, ends them and launches steps. delivery.cpp turns
// results into events, failures.cpp recovers the device.
#include "engine/step_loop.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace koho {

StepLoop::StepLoop(const EngineLimits& limits,
                   Executor& executor,
                   const Clock& clock,
                   TextDecoderFactory decoders,
                   const std::array<std::uint64_t, 4>& seed)
    : limits_(limits),
      executor_(executor),
      clock_(clock),
      decoders_(std::move(decoders)),
      scheduler_(limits.scheduler, seed),
      latency_bound_(limits.inter_token_us_max, limits.scheduler.mixed_prefill_tokens_max),
      requests_(static_cast<std::size_t>(limits.requests_max)),
      owners_(static_cast<std::size_t>(limits.scheduler.live_max)) {
  KOHO_CHECK(validate(limits).ok());
  scheduler_.set_mixed_prefill_tokens(latency_bound_.prefill_tokens());
  for (std::int32_t index = limits.requests_max - 1; index >= 0; --index)
    free_requests_.push_back(index);
  failures_us_.assign(static_cast<std::size_t>(limits.failures_in_window_max),
                      std::numeric_limits<std::int64_t>::min() / 2);
  result_.reserve(static_cast<std::size_t>(limits.scheduler.sequences_max));
  late_masks_.rows.reserve(static_cast<std::size_t>(limits.scheduler.sequences_max));
}

void StepLoop::submit(Request request, std::shared_ptr<OutputStream> stream) {
  ++counts_.requests_accepted;
  counts_.prompt_tokens += request.prompt.size();
  if (broken_ || free_requests_.empty()) {
    refuse(request, *stream);
    return;
  }
  const std::int32_t index = free_requests_.back();
  free_requests_.pop_back();
  Live& live = requests_[static_cast<std::size_t>(index)];
  live.request = std::move(request);
  live.stream = std::move(stream);
  live.stream->request_index = index;
  live.submitted_us = clock_.now_us();
  ++live_count_;
  if (live.request.deadline_us > 0) {
    live.deadline_us = live.submitted_us + live.request.deadline_us;
    if (next_deadline_us_ == 0 || live.deadline_us < next_deadline_us_)
      next_deadline_us_ = live.deadline_us;
  }
  live.choices.resize(static_cast<std::size_t>(live.request.choices));
  for (std::int32_t choice = 0; choice < live.request.choices; ++choice) {
    if (Status status = start_choice(live, index, choice); !status.ok()) {
      end(live, Ending::failed, std::move(status).error());
      return;
    }
  }
  live.set_aside = isolating_;
  settle_pause(live);
}

void StepLoop::refuse(const Request& request, OutputStream& stream) {
  for (std::int32_t choice = 0; choice < request.choices; ++choice)
    count_choice(counts_.choices_failed, 0, 0);
  count_request(request, Ending::failed, 0);
  Summary summary;
  summary.ending = Ending::failed;
  summary.error =
      broken_ ? make_error(ErrorCode::unavailable, "the device could not be recovered")
              : make_error(ErrorCode::resource_exhausted,
                           "{} requests are in the engine, its limit", limits_.requests_max);
  summary.usage.prompt_tokens = static_cast<std::int64_t>(request.prompt.size());
  stream.close(std::move(summary));
}

Status StepLoop::start_choice(Live& live, std::int32_t request_index, std::int32_t choice_index) {
  const Request& request = live.request;
  Choice& choice = live.choices[static_cast<std::size_t>(choice_index)];
  // Where a token mask exists, it keeps stop tokens out until min_tokens; biases would be double.
  const bool has_mask = TokenMask::is_needed(request);
  const bool stops_are_biased = request.min_tokens > 0 && !has_mask;
  KOHO_TRY_ASSIGN(
      choice.sequence,
      scheduler_.submit({.prompt = request.prompt,
                         .completion_max = request.max_tokens,
                         .priority = request.priority,
                         .salt = request.salt,
                         .client = request.client,
                         .wants_token_counts = has_penalties(request.sampling),
                         .fork_of = choice_index == 0 ? kNoSequence : live.choices[0].sequence}));
  choice.active = true;
  ++live.active_choices;
  owners_[static_cast<std::size_t>(choice.sequence.index)] = {request_index, choice_index};
  choice.reasoning = request.starts_in_reasoning;
  const std::uint64_t seed =
      request.sampling.seed ? static_cast<std::uint64_t>(*request.sampling.seed) : request.seed;
  choice.draw.row = make_sampling_row(request.sampling, choice_seed(seed, choice_index), 0);
  choice.draw.min_tokens = request.min_tokens;
  choice.draw.logits = request.logits;
  for (const auto& [token, bias] : request.sampling.logit_bias)
    choice.draw.biases.push_back({token, bias});
  if (stops_are_biased)
    for (const Token token : request.stop_tokens)
      choice.draw.stop_biases.push_back({token, -std::numeric_limits<float>::infinity()});
  for (const Token token : request.stop_tokens)
    choice.draw.stops.insert(choice.draw.stops.end(), {1, token});
  for (const std::vector<Token>& sequence : request.stop_sequences) {
    choice.draw.stops.push_back(static_cast<std::int32_t>(sequence.size()));
    choice.draw.stops.insert(choice.draw.stops.end(), sequence.begin(), sequence.end());
  }
  if (has_mask) {
    KOHO_TRY_ASSIGN(choice.token_mask, TokenMask::open(request, limits_.vocabulary));
    choice.draw.mask = choice.token_mask->mask();
  }
  if (decoders_) {
    choice.decoder = decoders_(request);
    choice.stops = StopStrings(request.stop_strings, request.include_stop);
  }
  return {};
}

void StepLoop::cancel(OutputStream& stream) {
  if (stream.request_index < 0) return;
  end(requests_[static_cast<std::size_t>(stream.request_index)], Ending::cancelled, {});
}

void StepLoop::resume(OutputStream& stream) {
  if (stream.request_index < 0) return;
  Live& live = requests_[static_cast<std::size_t>(stream.request_index)];
  if (!live.reader_full) return;
  live.reader_full = false;
  settle_pause(live);
  if (isolating_ || is_suspect(live)) update_isolation();
}

void StepLoop::expire() {
  const std::int64_t now = clock_.now_us();
  if (next_deadline_us_ == 0 || now < next_deadline_us_) return;
  next_deadline_us_ = 0;
  for (Live& live : requests_) {
    if (!live.stream || live.deadline_us == 0) continue;
    if (live.deadline_us <= now) {
      end(live, Ending::failed,
          make_error(ErrorCode::deadline_exceeded, "the request's deadline of {} ms has passed",
                     live.request.deadline_us / 1000));
    } else if (next_deadline_us_ == 0 || live.deadline_us < next_deadline_us_) {
      next_deadline_us_ = live.deadline_us;
    }
  }
}

void StepLoop::end_all(const Error& error) {
  for (Live& live : requests_)
    if (live.stream) end(live, Ending::failed, error);
}

void StepLoop::end(Live& live, Ending ending, Error error) {
  const std::int64_t now = clock_.now_us();
  std::int32_t longest = 0;
  for (Choice& choice : live.choices) {
    longest = std::max(longest, choice.completion_tokens);
    // One whose start failed is not active, and has not ended either.
    if (!choice.ended)
      count_choice(ending == Ending::cancelled ? counts_.choices_cancelled : counts_.choices_failed,
                   choice.completion_tokens, now - live.submitted_us);
    if (!choice.active) continue;
    scheduler_.finish(choice.sequence);
    choice.active = false;
  }
  Summary summary = summary_of(live, ending, std::move(error), now);
  count_request(live.request, ending, longest);
  if (live.first_token_us >= 0) {
    counts_.time_to_first_token.add(live.first_token_us - live.submitted_us);
    counts_.time_to_first_token_fine.add(live.first_token_us - live.submitted_us);
    counts_.queued.add(summary.timings.queued_us);
    counts_.prefill.add(summary.timings.prefill_us);
    counts_.decode.add(summary.timings.decode_us);
    const auto decode_s = static_cast<double>(summary.timings.decode_us) / 1e6;
    counts_.inference_s.add(static_cast<double>(summary.timings.prefill_us) / 1e6 + decode_s);
    if (longest > 1) counts_.time_per_token_s.add(decode_s / (longest - 1));
  }
  const std::shared_ptr<OutputStream> stream = std::move(live.stream);
  const std::int32_t index = std::exchange(stream->request_index, -1);
  live = Live{};
  free_requests_.push_back(index);
  --live_count_;
  if (isolating_) update_isolation();
  stream->close(std::move(summary));
}

void StepLoop::count_choice(std::uint64_t& counter, std::int32_t tokens, std::int64_t total_us) {
  ++counter;
  counts_.answer_lengths.add(tokens);
  counts_.request_total.add(total_us);
}

void StepLoop::count_request(const Request& request, Ending ending, std::int32_t longest_answer) {
  counts_.requests_completed += ending == Ending::completed ? 1 : 0;
  counts_.requests_cancelled += ending == Ending::cancelled ? 1 : 0;
  counts_.requests_failed += ending == Ending::failed ? 1 : 0;
  counts_.longest_answers.add(longest_answer);
  counts_.prompt_lengths.add(static_cast<double>(request.prompt.size()));
  counts_.tokens_asked.add(request.max_tokens);
  counts_.choices_asked.add(request.choices);
}

Summary StepLoop::summary_of(const Live& live, Ending ending, Error error, std::int64_t now) const {
  Summary summary{.ending = ending, .error = std::move(error), .usage = {}, .timings = {}};
  summary.usage.prompt_tokens = static_cast<std::int64_t>(live.request.prompt.size());
  summary.usage.cached_tokens = live.cached_tokens;
  for (const Choice& choice : live.choices) {
    summary.usage.completion_tokens += choice.completion_tokens;
    summary.usage.reasoning_tokens += choice.reasoning_tokens;
    const std::int64_t current =
        choice.stalled_since_us >= 0 ? now - choice.stalled_since_us : std::int64_t{0};
    summary.timings.stalled_us = std::max(summary.timings.stalled_us, choice.stalled_us + current);
  }
  const std::int64_t admitted = live.admitted_us >= 0 ? live.admitted_us : now;
  const std::int64_t first = live.first_token_us >= 0 ? live.first_token_us : now;
  summary.timings.queued_us = admitted - live.submitted_us;
  summary.timings.prefill_us = first - admitted;
  summary.timings.decode_us = live.first_token_us >= 0 ? live.last_token_us - first : 0;
  summary.timings.total_us = now - live.submitted_us;
  summary.timings.preemptions = live.preemptions;
  return summary;
}

void StepLoop::settle_pause(Live& live) {
  const bool paused = live.reader_full || live.set_aside;
  if (paused == live.paused) return;
  const std::int64_t now = clock_.now_us();
  live.paused = paused;
  for (Choice& choice : live.choices) {
    if (!choice.active) continue;
    scheduler_.set_paused(choice.sequence, paused);
    const Sequence& sequence = *scheduler_.find(choice.sequence);
    if (paused && choice.stalled_since_us < 0 && sequence.admissions > 0) {
      choice.stalled_since_us = now;
    } else if (!paused && choice.stalled_since_us >= 0 &&
               sequence.state == SequenceState::running) {
      choice.stalled_us += now - std::exchange(choice.stalled_since_us, -1);
    }
  }
}

bool StepLoop::launch() {
  if (!device_up_ || scheduler_.steps_in_flight() == kStepsInFlightMax) return false;
  if (must_collect_first()) return false;
  const StepBatch* batch = scheduler_.plan();
  if (batch == nullptr) return false;
  const std::int64_t launched_us = clock_.now_us();  // before a rank can begin, and even end, it
  const Result<std::size_t> bytes =
      write_plan(scheduler_, *batch, draws(), executor_.plan_space(), late_masks_);
  const Status status = bytes.ok() ? executor_.submit(*bytes) : Status(bytes.error());
  note_launch(*batch, launched_us);
  if (!status.ok()) {
    lose_device(status.error());
    return false;
  }
  pause_full_streams(*batch);
  return true;
}

bool StepLoop::must_collect_first() {
  for (std::int32_t i = 0; i < scheduler_.steps_in_flight(); ++i)
    for (const StepRow& row : scheduler_.in_flight(i).rows) {
      // A row whose sequence ended is still computed, and may be what brings the ranks down.
      const Sequence* sequence = scheduler_.find(row.sequence);
      if (sequence == nullptr ? isolating_ : live_of(*sequence).set_aside) return true;
    }
  return false;
}

void StepLoop::note_launch(const StepBatch& batch, std::int64_t now) {
  if (scheduler_.steps_in_flight() == 1) waiting_since_us_ = now;
  for (const SequenceId id : batch.preempted) {
    const Sequence* sequence = scheduler_.find(id);
    if (sequence == nullptr) continue;
    Choice& choice = choice_of(*sequence);
    if (choice.stalled_since_us < 0) choice.stalled_since_us = now;
    ++live_of(*sequence).preemptions;
  }
  for (const StepRow& row : batch.rows) {
    if (!row.admitted) continue;
    const Sequence& sequence = *scheduler_.find(row.sequence);
    Live& live = live_of(sequence);
    Choice& choice = choice_of(sequence);
    if (choice.stalled_since_us >= 0)
      choice.stalled_us += now - std::exchange(choice.stalled_since_us, -1);
    if (live.admitted_us >= 0) continue;
    live.admitted_us = now;
    live.cached_tokens = sequence.cached_tokens;
    counts_.cached_tokens += static_cast<std::uint64_t>(sequence.cached_tokens);
  }
  recorder_.launched({.step = batch.step,
                      .launched_us = now,
                      .collected_us = 0,
                      .sequences = static_cast<std::int32_t>(batch.rows.size()),
                      .decodes = batch.decodes - batch.redecoded,
                      .tokens = batch.tokens,
                      .samples = batch.samples,
                      .preempted = static_cast<std::int32_t>(batch.preempted.size()),
                      .copies = static_cast<std::int32_t>(batch.copies.size()),
                      .waiting = scheduler_.waiting(),
                      .pages_free = scheduler_.pool().free(),
                      .pages_idle = scheduler_.pool().idle(),
                      .outcome = StepRecord::Outcome::in_flight});
}

void StepLoop::pause_full_streams(const StepBatch& batch) {
  for (const StepRow& row : batch.rows) {
    Live& live = live_of(*scheduler_.find(row.sequence));
    if (live.reader_full || live.room_checked_step == batch.step) continue;
    live.room_checked_step = batch.step;
    // What is in flight, and one more step.
    std::int32_t events = 0;
    for (const Choice& choice : live.choices)
      if (choice.active) events += scheduler_.find(choice.sequence)->in_flight_samples + 1;
    if (!live.stream->pause_without(static_cast<std::size_t>(events))) continue;
    live.reader_full = true;
    ++counts_.pauses;
    settle_pause(live);
    if (isolating_) update_isolation();
  }
}

Statistics StepLoop::statistics() const {
  Statistics all = counts_;
  const SchedulerCounters& scheduled = scheduler_.counters();
  all.admitted = scheduled.admitted;
  all.resumed = scheduled.resumed;
  all.preempted = scheduled.preempted;
  all.forked = scheduled.forked;
  all.prefix_queried_tokens = scheduled.prefix_queried_tokens;
  all.prefix_hit_tokens = scheduled.prefix_hit_tokens;
  all.evicted_pages = scheduler_.prefix_cache().evictions();
  all.requests_live = live_count_;
  all.running = static_cast<std::int32_t>(scheduler_.running().size());
  all.waiting = scheduler_.waiting();
  all.held = scheduler_.held();
  all.pages_total = scheduler_.pool().total();
  all.pages_free = scheduler_.pool().free();
  all.pages_cached = scheduler_.pool().idle();
  all.device_up = device_up_;
  all.broken = broken_;
  return all;
}

const OutputStream& StepLoop::stream_of(const Sequence& sequence) const {
  const Owner owner = owners_[static_cast<std::size_t>(sequence.id.index)];
  return *requests_[static_cast<std::size_t>(owner.request)].stream;
}

StepLoop::Live& StepLoop::live_of(const Sequence& sequence) {
  const Owner owner = owners_[static_cast<std::size_t>(sequence.id.index)];
  return requests_[static_cast<std::size_t>(owner.request)];
}

StepLoop::Choice& StepLoop::choice_of(const Sequence& sequence) {
  const Owner owner = owners_[static_cast<std::size_t>(sequence.id.index)];
  return requests_[static_cast<std::size_t>(owner.request)]
      .choices[static_cast<std::size_t>(owner.choice)];
}

std::function<const Draw&(const Sequence&)> StepLoop::draws() {
  return [this](const Sequence& sequence) -> const Draw& { return choice_of(sequence).draw; };
}

}  // namespace koho
