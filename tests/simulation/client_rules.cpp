// SPDX-License-Identifier: Apache-2.0
// Who may be preempted follows from what each client held before the launch.
#include "client_rules.h"

#include <algorithm>
#include <utility>

#include "violation.h"

namespace koho::simulation {
ClientRules::ClientRules(const Scheduler& scheduler)
    : scheduler_(scheduler),
      limits_(scheduler.limits()),
      before_(static_cast<std::size_t>(limits_.live_max)),
      tallies_(static_cast<std::size_t>(limits_.live_max)) {}

void ClientRules::note_before_launch() {
  const std::uint64_t yielded = scheduler_.counters().yielded;
  if (std::exchange(yielded_, yielded) != yielded) note_reset();
  for (const Sequence& sequence : scheduler_.sequences())
    before_[static_cast<std::size_t>(sequence.id.index)] = {
        .id = sequence.id,
        .state = sequence.state,
        .paused = sequence.paused,
        .pages = static_cast<std::int32_t>(sequence.pages.size()),
        .own_pages = static_cast<std::int32_t>(
            std::ranges::count_if(sequence.pages,
                                  [this](const PageHandle& page) {
                                    return scheduler_.pool().ref_count(page.page) == 1;
                                  })),
        .tokens_to_compute = sequence.tokens_to_compute,
        .in_flight_rows = sequence.in_flight_rows};
  running_before_.assign(scheduler_.running().begin(), scheduler_.running().end());
  free_before_.clear();
  for (std::int32_t partition = 0; partition < limits_.partitions; ++partition)
    free_before_.push_back(scheduler_.pool().available(partition));
}

void ClientRules::check(const StepBatch& batch) {
  for (const SequenceId id : batch.yielded) {
    tally_of(*scheduler_.find(id)).yielded = true;
    ++yielded_;
  }
  if (!is_steady()) return;
  ran_.clear();
  holdings_.clear();
  for (const std::int32_t index : running_before_) {
    const Sequence& sequence = scheduler_.sequences()[static_cast<std::size_t>(index)];
    ran_.push_back(&sequence);
    Holding& holding = holdings_[sequence.client];
    ++holding.batch_slots;
    holding.pages += before(sequence).pages;
  }
  check_yielded(batch);
  check_preempted(batch);
}

void ClientRules::note_admitted(const Sequence& sequence, std::int32_t found) {
  Tally& tally = tally_of(sequence);
  if (std::exchange(tally.yielded, false)) tally.recomputed += sequence.known() - found;
}

void ClientRules::note_reset() {
  for (const Sequence& sequence : scheduler_.sequences())
    tallies_[static_cast<std::size_t>(sequence.id.index)] = {
        .id = sequence.id, .yielded = sequence.yielded, .recomputed = sequence.recomputed};
}

bool ClientRules::is_steady() const {
  return std::ranges::all_of(scheduler_.sequences(), [this](const Sequence& sequence) {
    const Before& was = before(sequence);
    const bool is_held = sequence.state == SequenceState::held;
    return was.id == sequence.id && was.paused == sequence.paused &&
           (was.state == SequenceState::running || (was.state == SequenceState::held) == is_held);
  });
}

bool ClientRules::gives_way(const Sequence& other,
                            const Sequence& sequence,
                            std::int32_t pages) const {
  const auto held = [this](std::uint64_t client) {
    const auto found = holdings_.find(client);
    return found == holdings_.end() ? 0 : found->second.pages;
  };
  return limits_.turn_percent < 100 && other.priority >= sequence.priority &&
         held(other.client) - before(other).pages >= 2 * (held(sequence.client) + pages);
}

const Sequence* ClientRules::least_entitled_in(std::int32_t partition) const {
  const auto turn = [this](const Sequence* sequence) {
    return std::pair(sequence->submitted_step + sequence->priority * limits_.aging_steps,
                     sequence->arrival);
  };
  const Sequence* oldest = nullptr;
  const Sequence* last = nullptr;
  for (const Sequence* sequence : ran_) {
    if (sequence->partition != partition) continue;
    if (oldest == nullptr) {
      oldest = sequence;
    } else if (last == nullptr || turn(sequence) > turn(last)) {
      last = sequence;
    }
  }
  if (last == nullptr) return oldest;
  const Sequence* chosen = last;
  for (const Sequence* sequence : ran_) {
    if (sequence->partition != partition || sequence == oldest) continue;
    if (!gives_way(*sequence, *last, 0)) continue;
    const std::int64_t more = holdings_.at(sequence->client).pages;
    // `ran_` is by arrival, so a later one is younger.
    if (chosen == last || more >= holdings_.at(chosen->client).pages) chosen = sequence;
  }
  return chosen;
}

void ClientRules::remove(const Sequence& sequence) {
  std::erase(ran_, &sequence);
  Holding& holding = holdings_[sequence.client];
  --holding.batch_slots;
  holding.pages -= before(sequence).pages;
}

/// Where those that decode find no pages the last by turn is preempted, or the youngest of the
/// client that has most of them, and twice as many even so; never the oldest beside others.
void ClientRules::check_preempted(const StepBatch& batch) {
  if (std::ranges::any_of(batch.rows, &StepRow::admitted)) return;
  for (const SequenceId id : batch.preempted) {
    const Sequence* victim = scheduler_.find(id);
    if (victim == nullptr || std::ranges::find(ran_, victim) == ran_.end()) continue;
    // What is paused gives way first.
    if (!victim->paused && std::ranges::find(batch.yielded, id) == batch.yielded.end()) {
      const Sequence* least = least_entitled_in(victim->partition);
      require(victim == least, 27, "arrival {} was preempted, and not arrival {}", victim->arrival,
              least->arrival);
    }
    remove(*victim);
  }
}

std::int32_t ClientRules::size_class(std::int32_t tokens) const {
  std::int32_t size = 0;
  for (std::int64_t most = limits_.tokens_per_page; tokens > most; most *= 2) ++size;
  return size;
}

std::vector<const Sequence*> ClientRules::find_heads() const {
  std::map<std::pair<std::uint64_t, std::int32_t>, const Sequence*> heads;
  for (const Sequence& sequence : scheduler_.sequences()) {
    if (before(sequence).state != SequenceState::waiting) continue;
    const Sequence*& head = heads[{sequence.client, sequence.priority}];
    const auto rank = [this](const Sequence& other) {
      return std::pair(size_class(before(other).tokens_to_compute), other.arrival);
    };
    if (head == nullptr || rank(sequence) < rank(*head)) head = &sequence;
  }
  std::vector<const Sequence*> found;
  for (const auto& [group, head] : heads)
    if (before(*head).in_flight_rows == 0) found.push_back(head);
  return found;
}

std::int32_t ClientRules::pages_lacking(const Sequence& sequence, std::int32_t partition) const {
  const std::int32_t all = limits_.pages_of(sequence.known());
  const std::int32_t pages = limits_.pages / limits_.partitions;
  std::int32_t growing = 0;
  bool is_shared = false;
  for (const Sequence* other : ran_) {
    if (other->partition != partition || gives_way(*other, sequence, all)) continue;
    is_shared = true;
    growing += limits_.pages_of(other->computed_goal()) > before(*other).pages ? 1 : 0;
  }
  const bool is_short =
      size_class(before(sequence).tokens_to_compute) < size_class(limits_.short_tokens_max() + 1);
  const std::int32_t reserve =
      std::min(growing, pages / 8) + (is_shared && !is_short ? pages / 32 : 0);
  return all + reserve - free_before_[static_cast<std::size_t>(partition)];
}

bool ClientRules::lacks_pages(const Sequence& claimant) const {
  for (std::int32_t partition = 0; partition < limits_.partitions; ++partition)
    if (pages_lacking(claimant, partition) <= 0) return false;
  return true;
}

bool ClientRules::may_yield(const Sequence& sequence,
                            const Sequence& claimant,
                            std::int32_t pages,
                            bool first) const {
  const bool all_ran = first && std::cmp_equal(ran_.size(), limits_.sequences_max);
  const bool lacks = lacks_pages(claimant);
  const Tally& tally = tallies_[static_cast<std::size_t>(sequence.id.index)];
  const std::int64_t recomputed = tally.id == sequence.id ? tally.recomputed : 0;
  if (!all_ran && !lacks) return false;
  if (sequence.priority < claimant.priority) return false;
  if (20 * recomputed > sequence.known() - sequence.prompt_length) return false;
  const auto claimants = holdings_.find(claimant.client);
  const std::int32_t batch_slots = claimants == holdings_.end() ? 0 : claimants->second.batch_slots;
  if (all_ran && holdings_.at(sequence.client).batch_slots < batch_slots + 2) return false;
  return !lacks || (gives_way(sequence, claimant, limits_.pages_of(claimant.known())) &&
                    before(sequence).own_pages >= pages);
}

std::vector<SequenceId> ClientRules::find_yielding(const Sequence& claimant) {
  const bool lacks = lacks_pages(claimant);
  const Sequence* best = nullptr;
  const auto weight = [&](const Sequence& sequence) {
    const Holding& holding = holdings_.at(sequence.client);
    return lacks ? holding.pages : holding.batch_slots;
  };
  for (const Sequence* sequence : ran_) {
    const std::int32_t lacking = lacks ? pages_lacking(claimant, sequence->partition) : 0;
    if (may_yield(*sequence, claimant, lacking, true) &&
        (best == nullptr || weight(*sequence) >= weight(*best)))
      best = sequence;
  }
  if (best != nullptr) return {best->id};
  for (std::int32_t partition = 0; lacks && partition < limits_.partitions; ++partition)
    if (std::vector<SequenceId> several = find_several(claimant, partition); !several.empty())
      return several;
  return {};
}

/// Each is of the client with most the youngest that may yield, as if those before it had left.
std::vector<SequenceId> ClientRules::find_several(const Sequence& claimant,
                                                  std::int32_t partition) {
  const std::map<std::uint64_t, Holding> holdings = holdings_;
  std::vector<SequenceId> several;
  std::int32_t lacking = pages_lacking(claimant, partition);
  while (lacking > 0) {
    const Sequence* best = nullptr;
    for (const Sequence* sequence : ran_)
      if (sequence->partition == partition &&
          std::ranges::find(several, sequence->id) == several.end() &&
          may_yield(*sequence, claimant, 1, several.empty()) &&
          (best == nullptr ||
           holdings_.at(sequence->client).pages >= holdings_.at(best->client).pages))
        best = sequence;
    if (best == nullptr) break;
    several.push_back(best->id);
    lacking -= before(*best).own_pages;
    --holdings_[best->client].batch_slots;
    holdings_[best->client].pages -= before(*best).pages;
  }
  holdings_ = holdings;
  return lacking <= 0 ? several : std::vector<SequenceId>();
}

/// A sequence yields to one that waits if all batch slots are taken, and its client has two more,
/// or if pages lack, and its client has twice as many even so; and not often. The youngest of the
/// client with most does, or several, where none has as many pages of its own as lack.
void ClientRules::check_yielded(const StepBatch& batch) {
  const bool nobody = limits_.turn_percent == 100 || std::ranges::any_of(ran_, &Sequence::paused);
  bool is_right = batch.yielded.empty();
  for (const Sequence* claimant : nobody ? std::vector<const Sequence*>() : find_heads()) {
    const std::vector<SequenceId> wanted = find_yielding(*claimant);
    require(wanted.empty() || !batch.yielded.empty(), 36, "arrival {} waits, and nobody yields",
            claimant->arrival);
    is_right = is_right || (!wanted.empty() && wanted == batch.yielded);
  }
  require(is_right, 36, "arrival {} yields to nobody",
          is_right ? 0 : scheduler_.find(batch.yielded.front())->arrival);
}

ClientRules::Tally& ClientRules::tally_of(const Sequence& sequence) {
  Tally& tally = tallies_[static_cast<std::size_t>(sequence.id.index)];
  if (!(tally.id == sequence.id)) tally = {.id = sequence.id};
  return tally;
}

}  // namespace koho::simulation
