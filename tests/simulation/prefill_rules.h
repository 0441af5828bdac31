// SPDX-License-Identifier: Apache-2.0
// How a step's prefill must be shared: rules 13, 33, 34 and 35 of docs/simulation.md, checked after
// every launch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/scheduler.h"

namespace koho::simulation {

class PrefillRules {
 public:
  explicit PrefillRules(const Scheduler& scheduler, bool latency_bound);

  /// `waited`, `ran`: by sequence index, who waited before the launch, and who ran and was not
  /// paused; kNoSequence for others.
  void check(const StepBatch& batch,
             std::span<const SequenceId> waited,
             std::span<const SequenceId> ran);

 private:
  /// A sequence with prefill to do in the step just launched.
  struct Wish {
    const Sequence* sequence = nullptr;
    std::int32_t given = 0;  // tokens of this step
    std::int32_t before =
        0;  // tokens to compute, before this step; if it was admitted: as estimated
    bool admitted = false;
  };
  /// The first in precedence of a partition, as long as it stays the same.
  struct Turn {
    SequenceId first;
    std::int64_t own = 0;  // prefill tokens
    std::int64_t all = 0;
  };

  void collect(const StepBatch& batch, std::span<const SequenceId> ran);
  void check_turns(const StepBatch& batch);
  void check_fair_order(const StepBatch& batch) const;
  void require_fair(const StepBatch& batch,
                    const Wish& late,
                    const Sequence& early,
                    std::int32_t early_tokens) const;
  void check_work_conserved(const StepBatch& batch) const;
  void check_line(const StepBatch& batch, std::span<const SequenceId> waited) const;
  void check_passing(const StepBatch& batch) const;
  void check_worse_priority(const StepBatch& batch);
  void check_by_turn_only(const StepBatch& batch, std::span<const SequenceId> waited) const;
  bool precedes(const Sequence& a, const Sequence& b) const;
  std::int32_t size_class(std::int32_t tokens) const;
  /// Most prefill tokens of the step.
  std::int32_t budget(const StepBatch& batch) const;
  /// Whether nothing but its turn can keep the sequence from being admitted.
  bool has_room(const StepBatch& batch, const Sequence& sequence) const;
  /// Nor batch slots that are kept for clients with fewer, of `waited`.
  bool has_batch_slot(const StepBatch& batch,
                      const Sequence& sequence,
                      std::span<const SequenceId> waited) const;

  const Scheduler& scheduler_;
  const Limits& limits_;
  bool latency_bound_;  // the budget beside decodes is lower, and unknown here
  /// The first in line, as long as it stays the same.
  struct Line {
    SequenceId first = kNoSequence;
    std::uint64_t blocked_at = 0;
    bool lacks_pages = false;  // or did
  };
  Line line_;
  std::vector<Wish> wishes_;
  std::vector<Turn> turns_;              // by partition
  std::vector<std::int64_t> prefilled_;  // by partition
};

}  // namespace koho::simulation
