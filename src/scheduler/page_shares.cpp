// SPDX-License-Identifier: Apache-2.0
// How clients share pages: who gives way when a sequence that decodes finds none, and what an
// admission leaves to those that run. Why: docs/decisions/0013-fair-prefill.md.
#include <algorithm>

#include "base/check.h"
#include "scheduler/scheduler.h"

namespace koho {
namespace {

/// While others run, an admission leaves each that can outgrow its pages one to grow into, up to
/// this share of the pool: admitting into the last pages would only preempt in the next steps.
constexpr std::int32_t kGrowthShare = 8;

/// Whose client has so many times the pages of another gives way to it: clients that have about as
/// many do not take them from each other in turn.
constexpr std::int32_t kTimesMore = 2;

}  // namespace

bool Scheduler::gives_way(const Sequence& other,
                          const Sequence& sequence,
                          std::int32_t pages) const {
  if (limits_.turn_percent == 100 || other.priority < sequence.priority) return false;
  return fair_.pages(other) - std::ssize(other.pages) >=
         kTimesMore * (fair_.pages(sequence) + pages);
}

std::int32_t Scheduler::pages_lacking(const Sequence& sequence, std::int32_t partition) const {
  const std::int32_t all = limits_.pages_of(sequence.known());
  const std::int32_t needed = all - static_cast<std::int32_t>(sequence.pages.size());
  std::int32_t growing = 0;
  bool shared = false;
  for (const std::int32_t index : running_) {
    const Sequence& other = at(index);
    if (other.partition != partition || gives_way(other, sequence, all)) continue;
    shared = true;
    if (limits_.pages_of(other.computed_goal()) > static_cast<std::int32_t>(other.pages.size()))
      ++growing;
  }
  std::int32_t reserve = std::min(growing, limits_.pages_per_partition() / kGrowthShare);
  if (shared && !is_short(sequence)) reserve += limits_.pages_per_partition() / kShortShare;
  return needed + reserve - pool_.available(partition);
}

bool Scheduler::fewer_pages_waiting(const Sequence& sequence) {
  if (fair_.pages(sequence) == 0) return false;
  return std::ranges::any_of(fair_.heads(), [&](std::int32_t index) {
    const Sequence& other = at(index);
    return other.blocked_at != departures_ && fair_.pages(other) < fair_.pages(sequence);
  });
}

bool Scheduler::grows(const Sequence& sequence) const {
  return limits_.pages_of(sequence.planned + 1) > static_cast<std::int32_t>(sequence.pages.size());
}

void Scheduler::secure_growth(const StepBatch& batch) {
  std::ranges::fill(loads_, 0);
  const auto wanted = [this](const Sequence& sequence) -> std::int32_t& {
    return loads_[static_cast<std::size_t>(sequence.partition)];
  };
  for (const std::int32_t index : running_)
    if (decodes(at(index)) && grows(at(index))) ++wanted(at(index));
  for (std::int32_t partition = 0; partition < limits_.partitions; ++partition) {
    while (pool_.available(partition) < loads_[static_cast<std::size_t>(partition)]) {
      if (reclaim_paused(batch, partition)) continue;
      Sequence& victim = least_entitled_in(partition);
      if (decodes(victim) && grows(victim)) --wanted(victim);
      preempt(victim);
    }
  }
}

void Scheduler::grow(StepBatch& batch, Sequence& sequence) {
  const PageHandle page = take_page(sequence.partition);
  batch.runs.push_back({sequence.batch_slot, static_cast<std::int32_t>(sequence.pages.size()), 1});
  batch.run_pages.push_back(page.page);
  sequence.pages.push_back(page);
  fair_.take_page(sequence);
}

Sequence& Scheduler::least_entitled_in(std::int32_t partition) {
  const auto is_here = [&](std::int32_t index) { return at(index).partition == partition; };
  const auto oldest = std::ranges::find_if(running_, is_here);
  KOHO_CHECK(oldest != running_.end());
  Sequence* last = nullptr;
  for (auto next = oldest + 1; next != running_.end(); ++next)
    if (is_here(*next) && (last == nullptr || waiting_.precedes(*last, at(*next))))
      last = &at(*next);
  if (last == nullptr) return at(*oldest);
  Sequence* chosen = last;
  for (std::size_t i = running_.size(); i > 0; --i) {
    Sequence& sequence = at(running_[i - 1]);
    if (is_here(sequence.id.index) && sequence.id.index != *oldest &&
        gives_way(sequence, *last, 0) && fair_.pages(sequence) > fair_.pages(*chosen))
      chosen = &sequence;
  }
  return *chosen;
}

}  // namespace koho
