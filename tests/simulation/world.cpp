// SPDX-License-Identifier: Apache-2.0
// What happens in a world: launches, landings and their faults, readers, the clock, the end.
#include "world.h"

#include <algorithm>

#include <fmt/core.h>

namespace koho::simulation {
namespace {

void require(bool holds, int rule, std::string_view text) {
  if (!holds) throw Violation(rule, std::string(text));
}

bool is_live(const Sequence& sequence) {
  return sequence.state != SequenceState::unused;
}

}  // namespace

World::World(std::uint64_t seed, std::int32_t shrink, Report& report)
    : report_(report),
      random_(seed),
      limits_(draw_limits(random_, shrink)),
      habits_(draw_habits()),
      executor_(plan_bounds(limits_), limits_.scheduler.redecodes_output),
      loop_(limits_,
            executor_,
            clock_,
            habits_.text
                ? TextDecoderFactory([](const Request&) { return std::make_unique<FakeDecoder>(); })
                : TextDecoderFactory(),
            {seed, 1, 2, 3}),
      invariants_(loop_, executor_) {
  ++report_.worlds;
  if (limits_.scheduler.partitions > 1) ++report_.partitioned_worlds;
}

void World::run(std::int64_t events) {
  const std::int64_t last = report_.events + events;
  while (report_.events < last && !loop_.broken()) act(draw_action());
  drain();
}

World::Action World::draw_action() {
  std::int32_t total = 0;
  for (const std::int32_t weight : habits_.weights) total += weight;
  std::int32_t choice = random_.in(0, total - 1);
  std::size_t action = 0;
  while (choice >= habits_.weights[action]) choice -= habits_.weights[action++];
  return static_cast<Action>(action);
}

void World::act(Action action) {
  if (!loop_.device_up() && random_.chance(300)) recover();
  switch (action) {
    case Action::launch:
      launch();
      break;
    case Action::collect:
      collect();
      break;
    case Action::read:
      read();
      break;
    case Action::arrive:
      arrive();
      break;
    case Action::cancel:
      cancel();
      break;
    case Action::clock:
      move_clock();
      break;
    default:
      stall();
      break;
  }
  if (random_.chance(700)) deliver_resumes();
  after_event();
}

void World::after_event() {
  ++report_.events;
  check_failures();
  invariants_.check_counts();
  require(loop_.live_requests() <= static_cast<std::int32_t>(clients_.size()), 8,
          "a request is live that no client has");
}

void World::launch() {
  loop_.expire();
  check_deadlines();
  const bool fails = random_.chance(habits_.submit_fails);
  executor_.fail_next_submit(fails);
  invariants_.note_before_launch();
  const bool launched = loop_.launch();
  executor_.fail_next_submit(false);
  note(launched ? 1 : 0);
  if (!launched) {
    if (fails && !loop_.device_up()) blame_device_failure();
    check_progress(launched);
    check_idle_ranks();
    return;
  }
  const StepBatch& batch = loop_.scheduler().in_flight(loop_.steps_in_flight() - 1);
  note(static_cast<std::uint64_t>(batch.tokens));
  ++report_.steps;
  report_.late_masks += executor_.awaits_masks() ? 1 : 0;
  invariants_.check_launch(batch);
  check_gap(batch);
  invariants_.sweep();
}

std::int64_t World::step_us(const StepBatch& batch) const {
  return habits_.decode_us + habits_.prefill_us * batch.prefill_cost;
}

void World::check_gap(const StepBatch& batch) {
  if (!habits_.steady || batch.decodes == batch.redecoded) return;
  // Steps with the least prefill are exempt from the bound.
  if (batch.prefill_cost <= LatencyBound::kTokensLeast) return;
  ++report_.bounded_steps;
  require(step_us(batch) <= limits_.inter_token_us_max, 31,
          "a step beyond the time between tokens");
}

void World::check_progress(bool launched) {
  if (launched || !loop_.device_up() || loop_.steps_in_flight() > 0) return;
  // Nothing runs and nothing could be launched: every sequence must wait for its reader.
  for (const Sequence& sequence : loop_.scheduler().sequences()) {
    if (!is_live(sequence)) continue;
    require(sequence.paused || sequence.awaits_parent, 12, "a sequence could run and does not");
  }
}

void World::check_idle_ranks() {
  if (!loop_.device_up() || loop_.steps_in_flight() > 0) return;
  const bool ends = random_.chance(habits_.ranks_end);
  if (ends) executor_.end_a_rank();
  require(loop_.check_device() == !ends && loop_.device_up() == !ends, 24,
          "an idle rank's end is not noticed");
  if (ends) blame_device_failure();
}

/// The device fails at most so often in any window of time, or the engine has given up.
void World::check_failures() {
  if (loop_.statistics().device_failures == failures_us_.size()) return;
  failures_us_.push_back(clock_.now_us());
  require(loop_.statistics().device_failures == failures_us_.size(), 20, "failures of the device");
  const auto most = static_cast<std::size_t>(limits_.failures_in_window_max);
  if (most == 0 || failures_us_.size() <= most) return;
  const std::int64_t first = failures_us_[failures_us_.size() - 1 - most];
  if (clock_.now_us() - first < limits_.failures_window_us)
    require(loop_.broken(), 32, "the engine goes on after too many failures");
}

void World::collect() {
  if (loop_.steps_in_flight() == 0) return;
  clock_.advance(habits_.steady ? step_us(loop_.scheduler().oldest_in_flight())
                                : random_.in(1, 20000));
  if (random_.chance(habits_.slow)) {
    const StepLoop::CollectOutcome outcome = loop_.collect(0);
    note(static_cast<std::uint64_t>(outcome));
    if (outcome == StepLoop::CollectOutcome::lost) blame_device_failure();
    return;
  }
  if (random_.chance(habits_.hangs)) {
    clock_.advance(limits_.step_deadline_us);
  } else {
    executor_.complete_oldest();
  }
  const FakeExecutor::Fault fault = draw_fault();
  executor_.set_fault(fault, random_.next());
  const std::uint64_t failed_before = loop_.statistics().requests_failed;
  executor_.fail_next_masks(random_.chance(habits_.masks_fail));
  const StepLoop::CollectOutcome outcome = loop_.collect(0);
  executor_.fail_next_masks(false);
  note(static_cast<std::uint64_t>(outcome));
  if (outcome == StepLoop::CollectOutcome::lost) blame_device_failure();
  if (fault == FakeExecutor::Fault::nan && outcome == StepLoop::CollectOutcome::collected)
    require(loop_.statistics().requests_failed <= failed_before + 1, 25,
            "one row's numerical error ended more than its request");
  if (fault == FakeExecutor::Fault::wrong_count || fault == FakeExecutor::Fault::early)
    require(outcome != StepLoop::CollectOutcome::collected, 22, "a wrong answer was accepted");
  invariants_.sweep();
  check_statistics();
}

FakeExecutor::Fault World::draw_fault() {
  using Fault = FakeExecutor::Fault;
  Fault fault = Fault::none;
  if (random_.chance(habits_.collect_fails)) fault = Fault::error;
  if (random_.chance(habits_.wrong_count)) fault = Fault::wrong_count;
  if (random_.chance(habits_.early)) fault = Fault::early;
  if (random_.chance(habits_.bad_token)) fault = Fault::bad_token;
  if (fault == Fault::none && random_.chance(habits_.stale)) fault = Fault::stale;
  if (fault == Fault::none && random_.chance(habits_.nan)) {
    fault = Fault::nan;
    for (const StepRow& row : loop_.scheduler().oldest_in_flight().rows) {
      const Sequence* sequence = loop_.scheduler().find(row.sequence);
      if (sequence == nullptr) continue;
      for (const auto& client : clients_)
        if (client->stream.get() == &loop_.stream_of(*sequence)) client->may_fail = true;
    }
  }
  return fault;
}

/// After another loss of the device: some requests may have failed, the others are computed again.
void World::blame_device_failure() {
  invariants_.note_reset();
  // A request that brings the device down is found before it takes another with it.
  if (habits_.poison > 0 && limits_.faults_per_request_max >= 3 && !loop_.broken()) return;
  for (const auto& client : clients_) client->may_fail = true;
}

void World::recover() {
  const std::int32_t kind = random_.in(0, 9);
  if (kind < 3) executor_.set_recovery(make_error(ErrorCode::deadline_exceeded, "loading"));
  if (kind == 3) executor_.set_recovery(make_error(ErrorCode::device_error, "no device"));
  if (kind > 3) executor_.set_recovery({});
  const bool up = loop_.recover(0);
  if (loop_.broken()) blame_device_failure();
  executor_.set_recovery({});
  note(up ? 2 : 3);
  require(up == (kind > 3) || loop_.broken(), 24, "recovery and device disagree");
  after_event();
}

void World::read() {
  if (clients_.empty()) return;
  const std::size_t client = draw_client();
  if (!clients_[client]->asleep) read_some(client, random_.in(1, 8));
}

void World::read_some(std::size_t index, std::int32_t events) {
  Client& client = *clients_[index];
  require(client.stream->size() <= client.stream->capacity(), 17, "a stream beyond its capacity");
  for (std::int32_t i = 0; i < events; ++i) {
    const OutputStream::Read read = client.stream->poll(event_);
    if (read == OutputStream::Read::nothing) return;
    if (read == OutputStream::Read::done) {
      finish_client(index);
      return;
    }
    if (client.cancelled) {
      require(client.unread_at_cancel > 0, 9, "an event after the cancel");
      --client.unread_at_cancel;
    }
    const std::string wrong = client.check(event_);
    require(wrong.empty(), 15, wrong);
    note(static_cast<std::uint64_t>(event_.token));
    ++report_.tokens;
  }
}

void World::finish_client(std::size_t index) {
  Client& client = *clients_[index];
  const Summary& summary = client.stream->summary();
  const std::string wrong = client.check_end(summary);
  require(wrong.empty(), 8, wrong);
  if (summary.ending == Ending::failed && summary.error.code == ErrorCode::deadline_exceeded)
    require(client.request().deadline_us > 0 &&
                summary.timings.total_us >= client.request().deadline_us,
            19, "a deadline fired before it was due");
  note(static_cast<std::uint64_t>(summary.ending));
  tally_.completed += summary.ending == Ending::completed ? 1 : 0;
  tally_.cancelled += summary.ending == Ending::cancelled ? 1 : 0;
  tally_.failed += summary.ending == Ending::failed ? 1 : 0;
  report_.stop_sequences += client.stop_sequences();
  tally_.read_tokens += static_cast<std::uint64_t>(client.tokens_read());
  if (summary.ending == Ending::completed && conversations_.size() < 16)
    conversations_.push_back(client.conversation());
  std::erase_if(with_room_, [&](const auto& stream) { return stream == client.stream; });
  std::swap(clients_[index], clients_.back());
  clients_.pop_back();
}

void World::cancel() {
  if (clients_.empty()) return;
  std::size_t chosen = draw_client();
  // Often a request that brings the ranks down: the failure of its step in flight must blame
  // nobody.
  if (habits_.poison > 0 && random_.chance(500))
    for (std::size_t i = 0; i < clients_.size(); ++i)
      if (clients_[i]->request().sampling.seed == static_cast<std::int64_t>(kPoison)) chosen = i;
  Client& client = *clients_[chosen];
  if (client.cancelled || client.stream->closed()) return;
  const std::int32_t live = loop_.live_requests();
  client.cancelled = true;
  client.unread_at_cancel = client.stream->size();
  loop_.cancel(*client.stream);
  require(client.stream->closed() && loop_.live_requests() == live - 1, 9,
          "a cancelled request lives on");
  ++report_.cancelled;
  // Its pages are back before the next step is planned.
  invariants_.sweep();
}

void World::move_clock() {
  std::int64_t step =
      random_.chance(habits_.clock_jumps) ? std::int64_t{3'600'000'000} : random_.in(1, 500'000);
  // Now and then exactly to a deadline.
  if (habits_.deadlines > 0 && !clients_.empty() && random_.chance(500)) {
    const Client& client = *clients_[draw_client()];
    const std::int64_t left =
        client.submitted_us + client.request().deadline_us - 1 - clock_.now_us();
    if (client.request().deadline_us > 0 && left > 0) step = left;
  }
  clock_.advance(step);
  loop_.expire();
  check_deadlines();
  invariants_.sweep();
}

void World::check_deadlines() const {
  for (const auto& client : clients_) {
    const std::int64_t deadline = client->request().deadline_us;
    require(deadline == 0 || client->stream->closed() ||
                client->submitted_us + deadline > clock_.now_us(),
            19, "a deadline did not fire");
  }
}

void World::stall() {
  if (clients_.empty()) return;
  Client& client = *clients_[draw_client()];
  client.asleep = !client.asleep;
}

void World::deliver_resumes() {
  for (const auto& stream : with_room_) loop_.resume(*stream);
  with_room_.clear();
}

void World::wake_readers() {
  for (const auto& client : clients_) client->asleep = false;
}

void World::check_statistics() const {
  const Statistics statistics = loop_.statistics();
  require(statistics.requests_accepted == tally_.accepted, 20, "accepted requests");
  require(statistics.prompt_tokens == tally_.prompt_tokens, 20, "prompt tokens");
  const std::uint64_t ended =
      statistics.requests_completed + statistics.requests_cancelled + statistics.requests_failed;
  require(ended + static_cast<std::uint64_t>(statistics.requests_live) == tally_.accepted, 20,
          "requests ended and live are not those accepted");
  require(statistics.choices_asked.count == ended && statistics.prompt_lengths.count == ended &&
              statistics.tokens_asked.count == ended && statistics.longest_answers.count == ended,
          20, "histograms of requests do not count those that ended");
  const std::uint64_t choices = statistics.choices_stopped + statistics.choices_full +
                                statistics.choices_cancelled + statistics.choices_failed;
  require(statistics.answer_lengths.count == choices && statistics.request_total.count == choices,
          20, "histograms of choices do not count those that ended");
}

void World::drain() {
  wake_readers();
  // Some worlds end at once, others let their requests finish.
  if (random_.chance(300)) {
    for (const auto& client : clients_) client->may_fail = true;
    loop_.end_all(make_error(ErrorCode::unavailable, "shutting down"));
  }
  habits_.submit_fails = habits_.collect_fails = habits_.wrong_count = habits_.early = 0;
  habits_.masks_fail = habits_.ranks_end = habits_.bad_token = habits_.hangs = habits_.nan =
      habits_.stale = habits_.slow = 0;
  std::uint64_t computed = 0;
  std::int32_t idle_turns = 0;
  while (!clients_.empty()) {
    const Statistics now = loop_.statistics();
    const std::uint64_t progress =
        now.computed_tokens + now.recoveries + tally_.completed + tally_.cancelled + tally_.failed;
    idle_turns = progress == computed ? idle_turns + 1 : 0;
    computed = progress;
    require(idle_turns < 1000, 12, "the requests never end");
    if (!loop_.device_up() && !loop_.broken()) recover();
    launch();
    collect();
    for (std::size_t i = clients_.size(); i > 0; --i)
      if (i <= clients_.size()) read_some(i - 1, 1000);
    deliver_resumes();
    after_event();
  }
  while (loop_.steps_in_flight() > 0) collect();
  invariants_.check_drained();
  check_statistics();
  const Statistics statistics = loop_.statistics();
  require(statistics.requests_completed == tally_.completed &&
              statistics.requests_cancelled == tally_.cancelled &&
              statistics.requests_failed == tally_.failed &&
              statistics.sampled_tokens == tally_.read_tokens,
          20, "requests ended or tokens sampled");
  require(statistics.request_total.count == tally_.choices &&
              statistics.choices_asked.sum == static_cast<double>(tally_.choices) &&
              statistics.answer_lengths.sum == static_cast<double>(statistics.sampled_tokens) &&
              statistics.prompt_lengths.sum == static_cast<double>(statistics.prompt_tokens),
          20, "histograms do not add up to what was asked for and sampled");
  report_.preempted += static_cast<std::int64_t>(statistics.preempted);
  report_.forked += static_cast<std::int64_t>(statistics.forked);
  report_.deduplicated +=
      static_cast<std::int64_t>(loop_.scheduler().counters().deduplicated_pages);
  report_.evicted += static_cast<std::int64_t>(statistics.evicted_pages);
  report_.hit_tokens += static_cast<std::int64_t>(statistics.prefix_hit_tokens);
  report_.discarded += static_cast<std::int64_t>(statistics.rows_discarded);
  report_.device_failures += static_cast<std::int64_t>(statistics.device_failures);
  report_.pauses += static_cast<std::int64_t>(statistics.pauses);
  report_.frozen_rows += executor_.frozen_rows();
  report_.failed += static_cast<std::int64_t>(statistics.requests_failed);
}

}  // namespace koho::simulation
