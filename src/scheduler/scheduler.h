// SPDX-License-Identifier: Apache-2.0
// Who runs next: continuous batching with chunked prefill, priorities, preemption, forks and
// one-step lookahead. Pure: numbers in, numbers out, no clock, no thread, no byte of cache; owns
// every sequence, the page pool and the prefix cache. Allocates on submission only.
//
// With several partitions (limits.h) a sequence is admitted to the one where it adds least: its
// pages, less those that the prefix cache holds there, on top of what the partition's sequences
// have. It stays until it ends or loses its pages; a fork goes where its parent's pages are.
//
// A step takes one token of every sequence that has one to compute (decodes), then, within the
// budget, prefill chunks of running sequences and newly admitted ones alike: a part of it by turn
// (waiting_list.h: nobody starves), the rest by fair order (fair_order.h: a short prompt waits for
// no long one, a client for no other). While the first in line lacks pages, prompts that come
// before it in fair order may pass it, for so long and with so many pages. A sequence that finds no
// page preempts a paused one of its partition, else who has the last turn, never the oldest beside
// others: that one always progresses, alone if need be, and everyone is the oldest some day. Where
// a client has twice as many pages as the last one's even without it, its youngest gives way.
//
// Batch slots and pages are shared by clients. Where few slots are free, one is kept for each
// client that waits and has fewer than whoever asks; no page is kept for the growth of those that
// give way. Where one that waits finds no slot, a step preempts for it a sequence of a client that
// has at least two more; where it finds no pages, of one that has twice as many: of the client with
// most the youngest that may yield, or several, if no single one has pages enough that nobody else
// holds. What a sequence computes again because it yielded is at most
// 5 % of what it has generated, the last time apart.
//
// Lookahead: up to two steps may be planned and not applied. Steps run on the device in the order
// of planning, so pages change hands when a step is *planned*: a page freed now may still be
// written by a step in flight, but whoever receives it next writes it in a later step. A row whose
// sequence ended meanwhile is discarded when its step is applied.
//
// Rules that hold after every call, and that tests/simulation checks: docs/simulation.md.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "kvcache/page_pool.h"
#include "kvcache/prefix_cache.h"
#include "scheduler/fair_order.h"
#include "scheduler/limits.h"
#include "scheduler/sequence.h"
#include "scheduler/step_batch.h"
#include "scheduler/waiting_list.h"

namespace koho {

inline constexpr std::int32_t kStepsInFlightMax = 2;

struct SequenceRequest {
  std::span<const Token> prompt;
  std::int32_t completion_max = 0;  // tokens to sample; 0 computes the prompt only
  std::int32_t priority = 0;        // 0 .. kPriorities-1, 0 first
  CacheSalt salt;
  std::uint64_t client = 0;         // prefill, batch slots and pages are shared by clients
  bool wants_token_counts = false;  // the device counts its tokens, for penalties
  /// A live sequence with the same prompt and salt: this one starts from its pages once the prompt
  /// is computed.
  SequenceId fork_of = kNoSequence;
};

struct SchedulerCounters {
  std::uint64_t admitted = 0;
  std::uint64_t resumed = 0;  // admitted again
  std::uint64_t preempted = 0;
  std::uint64_t yielded = 0;  // of these, for another client's sequence
  std::uint64_t forked = 0;   // started from another sequence's pages
  std::uint64_t passed = 0;   // admissions before the first in line, which lacked pages
  std::uint64_t deduplicated_pages = 0;
  std::uint64_t prefix_queried_tokens = 0;  // of admissions, as are the hits
  std::uint64_t prefix_hit_tokens = 0;
};

class Scheduler {
 public:
  /// Requires: validate(limits). `seed` is random per process (kvcache/prefix_cache.h).
  Scheduler(const Limits& limits, const std::array<std::uint64_t, 4>& seed);
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  /// Errors: invalid_argument (empty prompt, longer than the context or than all pages, priority);
  /// resource_exhausted (live_max).
  Result<SequenceId> submit(const SequenceRequest& request);
  /// Ends a sequence at any time, finished or cancelled: its pages are returned now, its rows in
  /// flight will be discarded. Requires: live.
  void finish(SequenceId id);
  /// A paused sequence gets no row, and is the first to lose its pages. Requires: live.
  void set_paused(SequenceId id, bool paused);

  /// Lowers the prefill beside decodes from limits().mixed_prefill_tokens_max, for steps planned
  /// from now on.
  void set_mixed_prefill_tokens(std::int32_t tokens);

  /// Plans the next step, or returns nullptr if no sequence can compute anything now. The batch is
  /// valid until it is retired. Requires: steps_in_flight() < kStepsInFlightMax.
  const StepBatch* plan();
  /// The step whose results come next, and the one after it. Requires: index < steps_in_flight().
  const StepBatch& in_flight(std::int32_t index) const;
  const StepBatch& oldest_in_flight() const { return in_flight(0); }
  /// Takes the result of one row of oldest_in_flight(); `sampled` counts only if the row samples.
  /// nullptr: the sequence ended meanwhile, the result is discarded. Each row exactly once.
  const Sequence* apply(const StepRow& row, Token sampled);
  /// All rows of oldest_in_flight() are applied.
  void retire();
  /// The device lost everything: drops the steps in flight, returns all pages, empties the cache
  /// and lets every running sequence wait to be computed again.
  void reset_device();

  std::int32_t steps_in_flight() const { return in_flight_; }
  /// nullptr if the sequence ended.
  const Sequence* find(SequenceId id) const;
  /// All slots, unused ones included.
  std::span<const Sequence> sequences() const { return sequences_; }
  /// Indices of the running sequences, oldest first.
  std::span<const std::int32_t> running() const { return running_; }
  std::int32_t waiting() const { return waiting_.size(); }
  /// Sequences that may not be admitted yet: paused, or forks whose parent's prompt is not
  /// computed.
  std::int32_t held() const { return held_; }
  std::int32_t live() const { return live_; }
  const PagePool& pool() const { return pool_; }
  const PrefixCache& prefix_cache() const { return prefix_; }
  const Limits& limits() const { return limits_; }
  const SchedulerCounters& counters() const { return counters_; }
  std::int64_t steps_planned() const { return step_; }

 private:
  /// This share of the batch slots, and while others run of the pages, is kept for short prompts.
  static constexpr std::int32_t kShortShare = 32;

  /// A page-table entry changed by deduplication, not yet told to the device.
  struct DeduplicatedPage {
    SequenceId sequence;
    std::int32_t index = 0;
  };

  Sequence& at(std::int32_t index) { return sequences_[static_cast<std::size_t>(index)]; }
  const Sequence& at(std::int32_t index) const {
    return sequences_[static_cast<std::size_t>(index)];
  }
  Sequence* find_mutable(SequenceId id);

  /// Preempts a sequence for one that waits of a client that has fewer batch slots, or pages, if
  /// that one finds none.
  void yield_to_other_client(StepBatch& batch);
  /// Whether somebody yields to `a` before `b`: fewer batch slots of its client, then fair order.
  bool claims_before(const Sequence& a, const Sequence& b) const;
  /// Who yields to the claimant, in `yielding_`; nobody: nobody can, or need.
  void find_yielding(Sequence& claimant);
  /// Several of the partition, if they have the pages that the claimant lacks.
  bool find_several(const Sequence& claimant, std::int32_t partition);
  /// One more of the partition, with pages of its own; or (-1) one with as many as lack.
  Sequence* next_to_yield(const Sequence& claimant, bool lacks_pages, std::int32_t partition);
  /// Pages that are free once the sequence has left.
  std::int32_t own_pages(const Sequence& sequence) const;
  void plan_decodes(StepBatch& batch);
  /// Running prefills and, if it `admits`, waiting sequences.
  void plan_prefills(StepBatch& batch, bool admits);
  /// Gives a part of the budget away by turn, to running and waiting sequences alike.
  void grant_by_turn(StepBatch& batch, bool admits);
  /// Gives the rest away by fair order.
  void grant_fairly(StepBatch& batch, bool admits);
  /// Gives it `tokens` out of `budget`, and returns what they take of it.
  std::int32_t grant(Sequence& sequence, std::int32_t tokens, std::int32_t budget);
  /// What `tokens` more of the sequence take of a budget (Limits::attention_tokens).
  std::int64_t cost_of(const Sequence& sequence, std::int32_t tokens) const;
  /// The tokens of the sequence that a budget pays for; at least a few, if any is left.
  std::int32_t paid_by(const Sequence& sequence, std::int32_t budget) const;
  /// Of the running prefills, the first by fair order that can be given more, or nullptr.
  Sequence* fairest_running(const StepBatch& batch);
  /// Whether a running sequence's next tokens are prefill, not its one decode of the step.
  bool prefills(const Sequence& sequence) const {
    return sequence.remaining() > 1 || (sequence.remaining() == 1 && in_prompt(sequence));
  }
  /// Whether its next token is one of the prompt that is never decoded.
  bool in_prompt(const Sequence& sequence) const {
    return limits_.redecodes_output && sequence.planned < sequence.prompt_length;
  }
  /// Tokens of a running sequence that one row can hold and this step does not compute yet.
  std::int32_t left_of(const Sequence& sequence) const {
    const std::int32_t left = sequence.remaining() - sequence.granted;
    if (!limits_.redecodes_output) return left;
    if (in_prompt(sequence))
      return std::min(left, sequence.prompt_length - sequence.planned - sequence.granted);
    return std::min(left, (sequence.granted == 0 ? 1 : 0) + spare_rows());
  }
  /// Rows of the step being planned beyond one for each running sequence: for output that is
  /// decoded again.
  std::int32_t spare_rows() const {
    constexpr std::int32_t kDecodesMax = 1024;  // that attention on a GPU takes as decodes
    const std::int32_t rows = std::min(limits_.sequences_max, kDecodesMax);
    return std::max(rows - static_cast<std::int32_t>(running_.size()) - rows_again_, 0);
  }
  /// Decodes output tokens again, as many as were granted and have rows.
  void plan_output_again(StepBatch& batch);
  /// The tokens of a sequence that came with its prompt, as far as the prefix cache is to tell.
  std::int32_t given_tokens(const Sequence& sequence) const {
    return limits_.redecodes_output ? sequence.prompt_length : sequence.known();
  }
  /// The part of a partition's prefill share that goes by turn in this step.
  std::int32_t turn_tokens();
  /// Admits a waiting sequence if it fits.
  bool try_admit(StepBatch& batch, Sequence& sequence);
  /// Preempts paused sequences for its batch slot; false: they do not suffice.
  bool secure_batch_slot(StepBatch& batch, const Sequence& sequence);
  /// Free batch slots that the sequence leaves to others.
  std::int32_t batch_slots_kept(const Sequence& sequence);
  /// Clients with fewer batch slots of which one waits that may fit.
  std::int32_t lighter_waiting(const Sequence& sequence);
  /// Whether one waits that may fit, of a client with fewer pages.
  bool fewer_pages_waiting(const Sequence& sequence);
  /// Whether its admission would pass the first in line: its priority is worse, or its client would
  /// have more pages then.
  bool passes(const Sequence& sequence) const;
  /// Whether it may be admitted before the first in line.
  bool may_pass(const Sequence& sequence) const;
  /// Whether batch slots and pages that are kept for short prompts are open to it.
  bool is_short(const Sequence& sequence) const {
    return fair_.size_class(sequence.tokens_to_compute) < short_classes_;
  }
  void emit_deduplicated_pages(StepBatch& batch);
  void add_row(StepBatch& batch, Sequence& sequence, std::int32_t count, bool admitted);
  std::int32_t prefill_budget(const StepBatch& batch) const;
  /// The same for a partition's sequences.
  std::int32_t prefill_budget(const StepBatch& batch, std::int32_t partition) const;

  bool admissible(const StepBatch& batch, const Sequence& sequence) const;
  bool admit(StepBatch& batch, Sequence& sequence);
  /// Chooses the partition and takes references to what is shared there; returns false, and holds
  /// nothing, if none has the pages.
  bool place(Sequence& sequence, std::int32_t& shared, PageHandle& copy_from);
  /// Whether a sequence starts from its parent's pages, and so in its partition.
  bool starts_from_parent(const Sequence& sequence) const;
  /// loads_[p] = pages of p's running sequences, less those of this sequence in p's prefix cache.
  void weigh_partitions(const Sequence& sequence);
  /// Pages that a partition lacks to admit a sequence; none if that is not positive.
  std::int32_t pages_lacking(const Sequence& sequence, std::int32_t partition) const;
  /// Takes references to what is already computed of the sequence; returns how many tokens.
  std::int32_t share_pages(Sequence& sequence, PageHandle& copy_from);
  /// Whether one that runs gives way to `sequence`, which takes `pages` more: its priority is no
  /// better, and its client has twice as many pages even so.
  bool gives_way(const Sequence& other, const Sequence& sequence, std::int32_t pages) const;
  /// Preempts until all that decode in this step have the pages for it.
  void secure_growth(const StepBatch& batch);
  /// Of those that run in the partition, and are not paused, who gives way to all others: the last
  /// by turn, or the youngest of the client with most pages if that gives way to it. Never the
  /// oldest beside others.
  Sequence& least_entitled_in(std::int32_t partition);
  /// Whether the step has a decode of a running sequence, and whether that takes a page more.
  bool decodes(const Sequence& sequence) const;
  bool grows(const Sequence& sequence) const;
  void grow(StepBatch& batch, Sequence& sequence);
  PageHandle take_page(std::int32_t partition);
  /// Preempts a paused sequence of the partition (-1: of any); false if there is none.
  bool reclaim_paused(const StepBatch& batch, std::int32_t partition);
  /// Whether the first in line was seen to lack pages.
  bool is_line_blocked() const;
  /// The first in line lacks pages in this step.
  void note_blocked_line(Sequence& first);
  void preempt(Sequence& victim);
  void leave_running(Sequence& sequence);
  void release_pages(Sequence& sequence);
  void register_pages(Sequence& sequence);
  void release_forks(Sequence& parent);
  void forget_fork(Sequence& fork);
  /// Makes a sequence that does not run held (paused, or awaiting its parent) or waiting.
  void settle(Sequence& sequence);
  void begin_waiting(Sequence& sequence);
  void end_waiting(Sequence& sequence);
  /// About how many tokens of the sequence must be computed.
  std::int32_t tokens_to_compute(const Sequence& sequence);

  Limits limits_;
  PagePool pool_;
  PrefixCache prefix_;
  std::vector<Sequence> sequences_;
  std::vector<std::int32_t> unused_;       // indices
  std::vector<std::int32_t> running_;      // indices, by arrival
  std::vector<std::int32_t> order_;        // of running_: as planning began; then of prefills
  std::vector<std::int32_t> batch_slots_;  // free ones
  bool counts_attention_ = false;          // in this step: limits_.attention_tokens
  std::int32_t prefill_share_ = 0;         // prefill tokens of a partition in this step
  std::int32_t rows_again_ = 0;  // of output decoded again in this step, beyond one a sequence
  std::int32_t granted_ = 0;     // of the prefill budget, so far in this step
  std::vector<std::int32_t> prefilled_;  // of these, by partition
  std::vector<std::int32_t> turns_;      // by partition: what is left to give away by turn
  std::int64_t turn_carry_ = 0;          // hundredths of tokens that the last steps owe to turns
  std::vector<std::int32_t> loads_;      // by partition, for a moment
  std::vector<std::int32_t> matches_;
  std::vector<Sequence*> yielding_;  // for a moment
  WaitingList waiting_;
  FairOrder fair_;
  std::int32_t short_classes_;  // size classes whose prompts the step's fair part holds whole
  std::vector<DeduplicatedPage> deduplicated_pages_;
  std::vector<SequenceId> preempted_;                 // since the last step that was planned
  std::array<StepBatch, kStepsInFlightMax> batches_;  // a ring
  std::int32_t oldest_ = 0;
  std::int32_t in_flight_ = 0;
  std::int64_t step_ = 0;
  std::uint64_t arrivals_ = 0;
  std::int32_t live_ = 0;
  std::int32_t held_ = 0;
  std::int32_t mixed_prefill_tokens_;
  /// Counts what gives pages back, sequences that left or paused and pages found twice: before the
  /// next of them, an admission that failed for want of pages is not tried again. (Matching a
  /// prompt anew each step would cost a hash a page.)
  std::uint64_t departures_ = 1;
  bool line_has_turn_ = false;    // some of this step is given away by turn
  bool line_is_blocked_ = false;  // the first in line lacks pages
  SchedulerCounters counters_;
};

}  // namespace koho
