// SPDX-License-Identifier: Apache-2.0
// What must hold of scheduler, pool, cache and engine at every moment. Each rule has the number
// under which docs/simulation.md lists it. A broken rule throws Violation.
#pragma once

#include <cstdint>
#include <vector>

#include "client_rules.h"
#include "engine/step_loop.h"
#include "fake_executor.h"
#include "prefill_rules.h"
#include "violation.h"

namespace koho::simulation {

class Invariants {
 public:
  Invariants(const StepLoop& loop, const FakeExecutor& executor);

  /// The O(1) rules, after every event.
  void check_counts() const;
  /// The step just planned, then everything.
  /// Remembers who waits: when a step is launched, others may begin to (a reader that fills up ends
  /// the isolation of a suspect), too late for its plan.
  void note_before_launch();
  void check_launch(const StepBatch& batch);
  /// Everything: pages, tables, positions, contents, states.
  void sweep();
  /// After the last request ended.
  void check_drained() const;
  /// The device was lost: waiting times begin anew.
  void note_reset();

 private:
  /// What a sequence's tokens make of a cache, by position, and how long it has waited.
  struct Truth {
    SequenceId id;
    std::vector<std::uint64_t> contents;
    std::int64_t overdue_step = -1;  // must be admitted by then
  };
  struct PageUse {
    std::int32_t owners = 0;
    std::int32_t index = -1;  // in its owners' tables
  };

  /// Whether a token is output that tells (Limits::redecodes_output).
  bool is_decoded(const Sequence& sequence, std::int32_t token) const;
  void check_kind(const StepBatch& batch, std::size_t index) const;
  void check_rows(const StepBatch& batch);
  void check_batch_slots_taken(const StepBatch& batch) const;
  /// What surely suffices for its admission.
  std::int32_t pages_with_reserves(const Sequence& sequence) const;
  void check_admissions(const StepBatch& batch);
  void check_admitted(const Sequence& sequence, const StepRow& row);
  void check_shares(const StepBatch& batch);
  void check_balance(const StepBatch& batch);
  void check_sequence(const Sequence& sequence);
  void check_running(const Sequence& sequence);
  void check_waiting_time(const Sequence& sequence);
  void check_pages() const;
  Truth& truth_of(const Sequence& sequence);

  const StepLoop& loop_;
  const Scheduler& scheduler_;
  const FakeExecutor& executor_;
  const Limits& limits_;
  PrefillRules prefill_rules_;
  ClientRules client_rules_;
  std::vector<Truth> truths_;        // by sequence index
  std::vector<PageUse> uses_;        // by page
  std::vector<CacheSalt> salts_;     // by page: whose tokens were written there last
  std::vector<std::int32_t> loads_;  // by partition: pages of its sequences; prefill tokens
  std::vector<std::int8_t> batch_slots_;
  std::vector<SequenceId> waited_;    // by sequence index: who waited before the launch, or no id
  std::vector<SequenceId> ran_;       // … and who ran, not paused
  std::vector<std::size_t> to_come_;  // by request: events in flight
};

}  // namespace koho::simulation
