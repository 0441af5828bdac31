// SPDX-License-Identifier: Apache-2.0
// One function a rule. Orders are computed here anew from what a sequence asked for.
#include "prefill_rules.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "violation.h"

namespace koho::simulation {
PrefillRules::PrefillRules(const Scheduler& scheduler, bool latency_bound)
    : scheduler_(scheduler),
      limits_(scheduler.limits()),
      latency_bound_(latency_bound),
      turns_(static_cast<std::size_t>(limits_.partitions)),
      prefilled_(static_cast<std::size_t>(limits_.partitions)) {}

void PrefillRules::check(const StepBatch& batch,
                         std::span<const SequenceId> waited,
                         std::span<const SequenceId> ran) {
  collect(batch, ran);
  // Where attention counts, who is given how many tokens follows from positions: see the
  // scheduler's own test. Output that is decoded again is given what rows are left.
  if (limits_.attention_tokens > 0 || limits_.redecodes_output) return;
  check_turns(batch);
  check_work_conserved(batch);
  check_passing(batch);
  check_worse_priority(batch);
  if (limits_.turn_percent == 100) {
    check_by_turn_only(batch, waited);
    return;
  }
  check_fair_order(batch);
  check_line(batch, waited);
}

void PrefillRules::collect(const StepBatch& batch, std::span<const SequenceId> ran) {
  wishes_.clear();
  std::ranges::fill(prefilled_, 0);
  for (std::size_t i = static_cast<std::size_t>(batch.decodes); i < batch.rows.size(); ++i) {
    const StepRow& row = batch.rows[i];
    const Sequence& sequence = *scheduler_.find(row.sequence);
    // Admitted as estimated, and then computed as found.
    const std::int32_t found = row.count + sequence.remaining() - (row.samples ? 1 : 0);
    const std::int32_t before = row.admitted ? std::min(sequence.tokens_to_compute, found) : found;
    wishes_.push_back(
        {.sequence = &sequence, .given = row.count, .before = before, .admitted = row.admitted});
    prefilled_[static_cast<std::size_t>(sequence.partition)] += row.count;
  }
  for (const std::int32_t index : scheduler_.running()) {
    const auto at = static_cast<std::size_t>(index);
    const Sequence& sequence = scheduler_.sequences()[at];
    if (sequence.last_row_step == batch.step || ran[at] != sequence.id) continue;
    if (sequence.remaining() <= 1) continue;
    wishes_.push_back({.sequence = &sequence, .before = sequence.remaining()});
  }
}

bool PrefillRules::precedes(const Sequence& a, const Sequence& b) const {
  const auto rank = [&](const Sequence& sequence) {
    return std::pair(
        sequence.submitted_step + std::int64_t{sequence.priority} * limits_.aging_steps,
        sequence.arrival);
  };
  return rank(a) < rank(b);
}

std::int32_t PrefillRules::size_class(std::int32_t tokens) const {
  std::int32_t size = 0;
  for (std::int64_t most = limits_.tokens_per_page; tokens > most; most *= 2) ++size;
  return size;
}

std::int32_t PrefillRules::budget(const StepBatch& batch) const {
  std::int32_t most = limits_.step_tokens_max - batch.decodes;
  if (limits_.prefill_tokens_max > 0) most = std::min(most, limits_.prefill_tokens_max);
  if (batch.decodes > 0) most = std::min(most, limits_.mixed_prefill_tokens_max);
  return most;
}

/// Whoever is first gets its percentage of what is prefilled beside it, but for one token.
void PrefillRules::check_turns(const StepBatch& batch) {
  const std::int32_t most = budget(batch);
  const std::int32_t parts = limits_.partitions;
  const std::int32_t share = (most + parts - 1) / parts;
  // Where the step does not hold the turns of all partitions, those first in all come first.
  if (parts > 1 && (latency_bound_ || parts * share * limits_.turn_percent / 100 + parts > most)) {
    std::ranges::fill(turns_, Turn{});
    return;
  }
  for (std::size_t p = 0; p < turns_.size(); ++p) {
    const Wish* first = nullptr;
    for (const Wish& wish : wishes_) {
      if (wish.admitted || static_cast<std::size_t>(wish.sequence->partition) != p) continue;
      if (first == nullptr || precedes(*wish.sequence, *first->sequence)) first = &wish;
    }
    Turn& turn = turns_[p];
    if (first == nullptr || !(turn.first == first->sequence->id)) turn = {};
    if (first == nullptr) continue;
    // Who was admitted may have had the turn, or have come behind one in line that did not fit.
    if (std::ranges::any_of(wishes_, [&](const Wish& wish) {
          return wish.admitted && precedes(*wish.sequence, *first->sequence);
        })) {
      turn = {};
      continue;
    }
    turn.first = first->sequence->id;
    turn.own += first->given;
    turn.all += prefilled_[p];
    if (first->sequence->remaining() <= 1) continue;  // it had all that it wanted
    require(100 * (turn.own + 1) >= turn.all * limits_.turn_percent, 13,
            "arrival {} is first, and had {} of {} prefill tokens", first->sequence->arrival,
            turn.own, turn.all);
  }
}

/// Of one client's prompts of one priority, none is computed before a shorter one but by turn:
/// `early`, of which so many tokens are left, had none of what `late` was given.
void PrefillRules::require_fair(const StepBatch& batch,
                                const Wish& late,
                                const Sequence& early,
                                std::int32_t early_tokens) const {
  const Sequence& sequence = *late.sequence;
  if (sequence.group != early.group) return;
  const bool has_turn = precedes(sequence, early);
  // By turn, and a token where only its admission told which partition's turn it was.
  std::int32_t by_turn = limits_.partitions > 1 && late.admitted ? 1 : 0;
  if (has_turn)
    by_turn =
        static_cast<std::int32_t>(std::int64_t{budget(batch)} * limits_.turn_percent / 100) + 1;
  if (late.given <= by_turn) return;
  const std::int32_t late_class = size_class(late.before - by_turn);
  require(late_class + (has_turn ? 0 : 1) <= size_class(early_tokens), 33,
          "arrival {} with {} tokens to compute was given {} before arrival {} with {}",
          sequence.arrival, late.before, late.given, early.arrival, early_tokens);
}

void PrefillRules::check_fair_order(const StepBatch& batch) const {
  for (const Wish& early : wishes_) {
    if (early.sequence->remaining() <= 1 || early.admitted) continue;
    for (const Wish& late : wishes_)
      if (late.sequence != early.sequence && late.sequence->partition == early.sequence->partition)
        require_fair(batch, late, *early.sequence, early.before);
  }
}

/// No token of the budget is left while somebody that runs has prefill to do.
void PrefillRules::check_work_conserved(const StepBatch& batch) const {
  if (latency_bound_) return;
  const std::int32_t most = budget(batch);
  const std::int32_t share = (most + limits_.partitions - 1) / limits_.partitions;
  for (const Wish& wish : wishes_) {
    if (wish.sequence->remaining() <= 1) continue;  // a decode of the next step
    require(prefilled_[static_cast<std::size_t>(wish.sequence->partition)] >= share ||
                batch.tokens - batch.decodes >= most,
            34, "arrival {} lacks {} tokens, of {} only {} were given away", wish.sequence->arrival,
            wish.sequence->remaining(), share,
            prefilled_[static_cast<std::size_t>(wish.sequence->partition)]);
  }
}

bool PrefillRules::has_room(const StepBatch& batch, const Sequence& sequence) const {
  const auto running = static_cast<std::int32_t>(scheduler_.running().size());
  const std::int32_t pages = limits_.pages_of(sequence.known()) +
                             std::min(limits_.pages / 8, running) + limits_.pages / 32;
  return limits_.partitions == 1 && batch.preempted.empty() && sequence.in_flight_rows == 0 &&
         !sequence.wants_token_counts &&
         running + limits_.sequences_max / 32 < limits_.sequences_max &&
         scheduler_.pool().available(0) >= pages &&
         static_cast<std::int32_t>(batch.run_pages.size()) + limits_.pages_of(sequence.known()) +
                 limits_.sequences_max <=
             limits_.page_changes_max();
}

bool PrefillRules::has_batch_slot(const StepBatch& batch,
                                  const Sequence& sequence,
                                  std::span<const SequenceId> waited) const {
  // Of this sequence's client as many as after the launch, of the others as before it: as many as
  // can have been kept for them.
  std::map<std::uint64_t, std::int32_t> batch_slots;
  for (const std::int32_t index : scheduler_.running())
    ++batch_slots[scheduler_.sequences()[static_cast<std::size_t>(index)].client];
  const std::int32_t own = batch_slots[sequence.client];
  for (const StepRow& row : batch.rows)
    if (row.admitted) --batch_slots[scheduler_.find(row.sequence)->client];
  std::set<std::pair<std::uint64_t, std::int32_t>> kept_for;  // client and priority
  for (const SequenceId id : waited) {
    const Sequence* other = scheduler_.find(id);
    if (other != nullptr && other->priority <= sequence.priority &&
        batch_slots[other->client] < own)
      kept_for.insert({other->client, other->priority});
  }
  const auto running = static_cast<std::int32_t>(scheduler_.running().size());
  const auto kept = static_cast<std::int32_t>(kept_for.size());
  return running + limits_.sequences_max / 32 + kept < limits_.sequences_max;
}

/// The first in line is admitted if it fits, unless its turn went to those that run before it; a
/// shorter prompt of the same client is not left waiting while a longer one is given tokens.
void PrefillRules::check_line(const StepBatch& batch, std::span<const SequenceId> waited) const {
  // One that was paused by the launch itself may have been the first in line.
  for (const SequenceId id : waited) {
    const Sequence* sequence = scheduler_.find(id);
    if (sequence != nullptr && sequence->state == SequenceState::held) return;
  }
  if (latency_bound_ || budget(batch) * std::int64_t{limits_.turn_percent} < 100) return;
  const Sequence* first = nullptr;
  for (const Sequence& sequence : scheduler_.sequences())
    if (sequence.state == SequenceState::waiting &&
        (first == nullptr || precedes(sequence, *first)))
      first = &sequence;
  if (first == nullptr || !has_room(batch, *first) || !has_batch_slot(batch, *first, waited))
    return;
  const auto waits_since_before = [&](const Sequence& sequence) {
    return sequence.state == SequenceState::waiting &&
           waited[static_cast<std::size_t>(sequence.id.index)] == sequence.id;
  };
  if (!waits_since_before(*first)) return;
  const bool others_turn = std::ranges::any_of(
      wishes_, [&](const Wish& wish) { return precedes(*wish.sequence, *first); });
  require(others_turn, 13, "arrival {} is first in line, fits, and waits", first->arrival);
  // It lacked pages when it was tried last: others would pass it.
  if (first->lacks_pages_since > 0) return;
  // One that finds no room keeps those from being admitted that need as much or more.
  std::int32_t class_end = std::numeric_limits<std::int32_t>::max();
  for (const Sequence& other : scheduler_.sequences())
    if (other.state == SequenceState::waiting &&
        !(has_room(batch, other) && has_batch_slot(batch, other, waited)))
      class_end = std::min(class_end, size_class(other.tokens_to_compute));
  for (const Sequence& early : scheduler_.sequences()) {
    if (!waits_since_before(early) || size_class(early.tokens_to_compute) >= class_end) continue;
    for (const Wish& late : wishes_) require_fair(batch, late, early, early.tokens_to_compute);
  }
}

/// Those that pass the first in line have an eighth of the pages at most when the next one does.
void PrefillRules::check_passing(const StepBatch& batch) const {
  const bool passes = std::ranges::any_of(batch.rows, [&](const StepRow& row) {
    return row.admitted && scheduler_.find(row.sequence)->passed_others;
  });
  if (!passes) return;
  require(limits_.turn_percent < 100, 35, "all is given by turn, and one was passed");
  std::size_t pages = 0;
  for (const std::int32_t index : scheduler_.running()) {
    const Sequence& sequence = scheduler_.sequences()[static_cast<std::size_t>(index)];
    if (sequence.passed_others) pages += sequence.pages.size();
  }
  require(pages <= static_cast<std::size_t>(limits_.pages / 8), 35,
          "those that passed the first in line have {} of {} pages", pages, limits_.pages);
}

/// Whoever is of a worse priority than the first in line, which lacks pages, passes it.
void PrefillRules::check_worse_priority(const StepBatch& batch) {
  const Sequence* first = nullptr;
  for (const Sequence& sequence : scheduler_.sequences())
    if (sequence.state == SequenceState::waiting &&
        (first == nullptr || precedes(sequence, *first)))
      first = &sequence;
  if (first == nullptr || !(first->id == line_.first)) {
    line_ = {};
    if (first != nullptr) line_ = {.first = first->id, .blocked_at = first->blocked_at};
    return;
  }
  if (line_.lacks_pages) {
    for (const StepRow& row : batch.rows) {
      const Sequence& sequence = *scheduler_.find(row.sequence);
      const bool is_worse = sequence.priority > first->priority && precedes(*first, sequence);
      require(!row.admitted || !is_worse || sequence.passed_others, 35,
              "arrival {}, of a worse priority, was admitted before arrival {} uncounted",
              sequence.arrival, first->arrival);
    }
  }
  line_.lacks_pages =
      line_.lacks_pages || (first->blocked_at != 0 && line_.blocked_at != first->blocked_at);
  line_.blocked_at = first->blocked_at;
}

void PrefillRules::check_by_turn_only(const StepBatch& batch,
                                      std::span<const SequenceId> waited) const {
  for (const StepRow& row : batch.rows) {
    if (!row.admitted) continue;
    const Sequence& admitted = *scheduler_.find(row.sequence);
    for (const Sequence& other : scheduler_.sequences()) {
      if (other.state != SequenceState::waiting) continue;
      if (waited[static_cast<std::size_t>(other.id.index)] != other.id) continue;
      if (std::ranges::find(batch.preempted, other.id) != batch.preempted.end()) continue;
      require(precedes(admitted, other), 13, "arrival {} was admitted before arrival {}",
              admitted.arrival, other.arrival);
    }
  }
}

}  // namespace koho::simulation
