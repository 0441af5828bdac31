// SPDX-License-Identifier: Apache-2.0
// How clients share batch slots: who leaves free ones to others, and who yields its own, or its
// pages. Why: docs/decisions/0013-fair-prefill.md.
#include <algorithm>

#include "scheduler/scheduler.h"

namespace koho {
namespace {

/// A sequence yields its batch slot again once it has generated so many tokens for each that it
/// computed again: a computed token costs about what a generated one does on a CPU, less on a GPU.
constexpr std::int32_t kGeneratedPerRecomputed = 20;

}  // namespace

void Scheduler::yield_to_other_client(StepBatch& batch) {
  if (limits_.turn_percent == 100) return;
  // Those that are paused give way without this: reclaim_paused().
  if (std::ranges::any_of(running_, [this](std::int32_t index) { return at(index).paused; }))
    return;
  const Sequence* claimant = nullptr;
  Sequence* chosen = nullptr;
  for (const std::int32_t index : fair_.heads()) {
    Sequence& sequence = at(index);
    if (claimant != nullptr && !claims_before(sequence, *claimant)) continue;
    Sequence* other = sequence.in_flight_rows > 0 ? nullptr : find_yielding(sequence);
    if (other == nullptr) continue;
    claimant = &sequence;
    chosen = other;
  }
  if (chosen == nullptr) return;
  preempt(*chosen);
  chosen->yielded = true;
  batch.yielded = chosen->id;
  ++counters_.yielded;
}

bool Scheduler::claims_before(const Sequence& a, const Sequence& b) const {
  const std::int32_t more = fair_.batch_slots(a) - fair_.batch_slots(b);
  return more != 0 ? more < 0 : fair_.precedes(a, a.tokens_to_compute, b, b.tokens_to_compute);
}

Sequence* Scheduler::find_yielding(Sequence& claimant) {
  bool lacks_pages = true;
  for (std::int32_t partition = 0; partition < limits_.partitions; ++partition) {
    std::int32_t& lacking = loads_[static_cast<std::size_t>(partition)];
    lacking = pages_lacking(claimant, partition);
    lacks_pages = lacks_pages && lacking > 0;
  }
  // Others may have come to give way since it was tried.
  if (!lacks_pages) claimant.blocked_at = 0;
  const bool lacks_slot = batch_slots_.empty();
  if (!lacks_pages && !lacks_slot) return nullptr;
  const std::int32_t needed = limits_.pages_of(claimant.known());
  const auto weight = [&](const Sequence& sequence) {
    return lacks_pages ? fair_.pages(sequence) : fair_.batch_slots(sequence);
  };
  Sequence* chosen = nullptr;
  for (std::size_t i = running_.size(); i > 0; --i) {
    Sequence& sequence = at(running_[i - 1]);
    const std::int32_t generated = sequence.known() - sequence.prompt_length;
    if (sequence.priority < claimant.priority) continue;
    if (kGeneratedPerRecomputed * sequence.recomputed > generated) continue;
    if (lacks_slot && fair_.batch_slots(sequence) < fair_.batch_slots(claimant) + 2) continue;
    if (chosen != nullptr && weight(sequence) <= weight(*chosen)) continue;
    const auto pages = static_cast<std::int32_t>(sequence.pages.size());
    if (lacks_pages && (pages < loads_[static_cast<std::size_t>(sequence.partition)] ||
                        !gives_way(sequence, claimant, needed)))
      continue;
    chosen = &sequence;
  }
  return chosen;
}

bool Scheduler::secure_batch_slot(StepBatch& batch, const Sequence& sequence) {
  // Anew each time: who is preempted may have been of a client that waits.
  while (static_cast<std::int32_t>(batch_slots_.size()) <= batch_slots_kept(sequence) ||
         bias_entries_ + sequence.bias_entries > limits_.bias_entries_max)
    if (!reclaim_paused(batch, -1)) return false;
  return true;
}

std::int32_t Scheduler::batch_slots_kept(const Sequence& sequence) {
  const std::int32_t kept = lighter_waiting(sequence);
  if (is_short(sequence)) return kept;
  // A client with fewer than another may take what is kept for short prompts: it was taken for it.
  const std::int32_t own = fair_.batch_slots(sequence);
  const bool has_most = std::ranges::none_of(
      running_, [&](std::int32_t index) { return fair_.batch_slots(at(index)) > own; });
  return has_most ? kept + limits_.sequences_max / kShortShare : kept;
}

std::int32_t Scheduler::lighter_waiting(const Sequence& sequence) {
  if (limits_.turn_percent == 100) return 0;
  return static_cast<std::int32_t>(std::ranges::count_if(fair_.heads(), [&](std::int32_t index) {
    const Sequence& other = at(index);
    return other.priority <= sequence.priority && other.blocked_at != departures_ &&
           fair_.batch_slots(other) < fair_.batch_slots(sequence);
  }));
}

}  // namespace koho
