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
/// Who has so many batch slots more than another yields one to it.
constexpr std::int32_t kSlotsMore = 2;
/// So many clients that wait are looked at in a step, for whether others yield to them: looking
/// costs a walk through all that run.
constexpr std::ptrdiff_t kClaimantsMax = 32;

}  // namespace

void Scheduler::yield_to_other_client(StepBatch& batch) {
  if (limits_.turn_percent == 100) return;
  // Those that are paused give way without this: reclaim_paused().
  if (std::ranges::any_of(running_, [this](std::int32_t index) { return at(index).paused; }))
    return;
  std::int32_t most = 0;  // batch slots of a client
  for (const std::int32_t index : running_) most = std::max(most, fair_.batch_slots(at(index)));
  const auto claims = [&](std::int32_t index) {
    return at(index).in_flight_rows == 0 &&
           (!batch_slots_.empty() || most >= fair_.batch_slots(at(index)) + kSlotsMore);
  };
  const std::span<std::int32_t> heads = fair_.heads();
  const auto end = std::partition(heads.begin(), heads.end(), claims);
  const auto claimants_end = heads.begin() + std::min(kClaimantsMax, end - heads.begin());
  std::partial_sort(heads.begin(), claimants_end, end,
                    [this](auto a, auto b) { return claims_before(at(a), at(b)); });
  yielding_.clear();
  for (auto claimant = heads.begin(); claimant != claimants_end && yielding_.empty(); ++claimant)
    find_yielding(at(*claimant));
  for (Sequence* const sequence : yielding_) {
    preempt(*sequence);
    sequence->yielded = true;
    batch.yielded.push_back(sequence->id);
    ++counters_.yielded;
  }
}

bool Scheduler::claims_before(const Sequence& a, const Sequence& b) const {
  const std::int32_t more = fair_.batch_slots(a) - fair_.batch_slots(b);
  return more != 0 ? more < 0 : fair_.precedes(a, a.tokens_to_compute, b, b.tokens_to_compute);
}

void Scheduler::find_yielding(Sequence& claimant) {
  yielding_.clear();
  bool lacks_pages = true;
  for (std::int32_t partition = 0; partition < limits_.partitions; ++partition) {
    std::int32_t& lacking = loads_[static_cast<std::size_t>(partition)];
    lacking = pages_lacking(claimant, partition);
    lacks_pages = lacks_pages && lacking > 0;
  }
  // Others may have come to give way since it was tried.
  if (!lacks_pages) claimant.blocked_at = 0;
  if (!lacks_pages && !batch_slots_.empty()) return;
  if (Sequence* const one = next_to_yield(claimant, lacks_pages, -1); one != nullptr) {
    yielding_.push_back(one);
    return;
  }
  for (std::int32_t partition = 0; lacks_pages && partition < limits_.partitions; ++partition)
    if (find_several(claimant, partition)) return;
}

bool Scheduler::find_several(const Sequence& claimant, std::int32_t partition) {
  std::int32_t lacking = loads_[static_cast<std::size_t>(partition)];
  while (lacking > 0) {
    Sequence* const next = next_to_yield(claimant, true, partition);
    if (next == nullptr) break;
    lacking -= own_pages(*next);
    yielding_.push_back(next);
    // As if it had left, for a moment.
    next->yielded = true;
    fair_.return_batch_slot(*next);
  }
  for (Sequence* const one : yielding_) {
    one->yielded = false;
    fair_.take_batch_slot(*one);
  }
  if (lacking > 0) yielding_.clear();
  return lacking <= 0;
}

Sequence* Scheduler::next_to_yield(const Sequence& claimant,
                                   bool lacks_pages,
                                   std::int32_t partition) {
  const bool lacks_slot = batch_slots_.empty() && yielding_.empty();
  const std::int32_t needed = limits_.pages_of(claimant.known());
  const auto weight = [&](const Sequence& sequence) {
    return lacks_pages ? fair_.pages(sequence) : fair_.batch_slots(sequence);
  };
  Sequence* chosen = nullptr;
  for (std::size_t i = running_.size(); i > 0; --i) {
    Sequence& sequence = at(running_[i - 1]);
    const std::int32_t generated = sequence.known() - sequence.prompt_length;
    if (partition >= 0 && sequence.partition != partition) continue;
    if (sequence.yielded || sequence.priority < claimant.priority) continue;
    if (kGeneratedPerRecomputed * sequence.recomputed > generated) continue;
    if (lacks_slot && fair_.batch_slots(sequence) < fair_.batch_slots(claimant) + kSlotsMore)
      continue;
    if (chosen != nullptr && weight(sequence) <= weight(*chosen)) continue;
    const std::int32_t wanted =
        partition >= 0 ? 1 : loads_[static_cast<std::size_t>(sequence.partition)];
    if (lacks_pages && (own_pages(sequence) < wanted || !gives_way(sequence, claimant, needed)))
      continue;
    chosen = &sequence;
  }
  return chosen;
}

std::int32_t Scheduler::own_pages(const Sequence& sequence) const {
  // Whoever holds a page of another holds those before it, too.
  const auto own = std::ranges::partition_point(
      sequence.pages, [this](const PageHandle& page) { return pool_.ref_count(page.page) > 1; });
  return static_cast<std::int32_t>(sequence.pages.end() - own);
}

bool Scheduler::secure_batch_slot(StepBatch& batch, const Sequence& sequence) {
  // Anew each time: who is preempted may have been of a client that waits.
  while (static_cast<std::int32_t>(batch_slots_.size()) <= batch_slots_kept(sequence))
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
  if (limits_.turn_percent == 100 || fair_.batch_slots(sequence) == 0) return 0;
  return static_cast<std::int32_t>(std::ranges::count_if(fair_.heads(), [&](std::int32_t index) {
    const Sequence& other = at(index);
    return other.priority <= sequence.priority && other.blocked_at != departures_ &&
           fair_.batch_slots(other) < fair_.batch_slots(sequence);
  }));
}

}  // namespace koho
