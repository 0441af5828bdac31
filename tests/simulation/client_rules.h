// SPDX-License-Identifier: Apache-2.0
// How clients must share batch slots and pages: rules 27 and 36 of docs/simulation.md, checked
// after every launch against what was before it.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "scheduler/scheduler.h"

namespace koho::simulation {

class ClientRules {
 public:
  explicit ClientRules(const Scheduler& scheduler);

  void note_before_launch();
  void check(const StepBatch& batch);
  /// A step failed, or was never launched, that admitted sequences or made some yield: from here on
  /// what the scheduler counted counts.
  void note_reset();
  /// Of the tokens that the sequence has, the first `found` need not be computed.
  void note_admitted(const Sequence& sequence, std::int32_t found);

 private:
  struct Before {
    SequenceId id;
    SequenceState state = SequenceState::unused;
    bool paused = false;
    std::int32_t pages = 0;
    std::int32_t own_pages = 0;  // that no other holds
    std::int32_t tokens_to_compute = 0;
    std::int32_t in_flight_rows = 0;
  };
  /// What a client's running sequences have.
  struct Holding {
    std::int32_t batch_slots = 0;
    std::int64_t pages = 0;
  };
  struct Tally {
    SequenceId id;
    bool yielded = false;         // and was not admitted since
    std::int64_t recomputed = 0;  // tokens, because it yielded
  };

  /// Whether the launch itself paused, resumed or ended nobody before its step was planned.
  bool is_steady() const;
  void check_preempted(const StepBatch& batch);
  void check_yielded(const StepBatch& batch);
  /// Who is to be preempted in the partition.
  const Sequence* least_entitled_in(std::int32_t partition) const;
  /// Whether a sequence that runs comes behind one of so many pages more.
  bool gives_way(const Sequence& other, const Sequence& sequence, std::int32_t pages) const;
  /// The waiting sequences that somebody may yield to: of each client and priority the shortest.
  std::vector<const Sequence*> find_heads() const;
  std::int32_t pages_lacking(const Sequence& sequence, std::int32_t partition) const;
  bool lacks_pages(const Sequence& claimant) const;
  /// Whether the sequence may yield, if `pages` of its own are enough; `first`: nobody has before.
  bool may_yield(const Sequence& sequence,
                 const Sequence& claimant,
                 std::int32_t pages,
                 bool first) const;
  /// Who is to yield: one, or several of one partition.
  std::vector<SequenceId> find_yielding(const Sequence& claimant);
  std::vector<SequenceId> find_several(const Sequence& claimant, std::int32_t partition);
  /// The sequence is out of the step: its batch slot and pages are its client's no more.
  void remove(const Sequence& sequence);
  std::int32_t size_class(std::int32_t tokens) const;
  const Before& before(const Sequence& sequence) const {
    return before_[static_cast<std::size_t>(sequence.id.index)];
  }
  Tally& tally_of(const Sequence& sequence);

  const Scheduler& scheduler_;
  const Limits& limits_;
  std::vector<const Sequence*> ran_;          // before the launch, and not removed; oldest first
  std::vector<Before> before_;                // by sequence index
  std::vector<std::int32_t> running_before_;  // indices, oldest first
  std::vector<std::int32_t> free_before_;     // by partition
  std::map<std::uint64_t, Holding> holdings_;
  std::vector<Tally> tallies_;  // by sequence index
  std::uint64_t yielded_ = 0;   // in steps that were checked
};

}  // namespace koho::simulation
