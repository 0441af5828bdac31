// SPDX-License-Identifier: Apache-2.0
// How the scheduler fills one step: decodes, then prefill chunks and admissions; who loses pages.
#include <algorithm>
#include <limits>
#include <utility>

#include "base/arithmetic.h"
#include "base/check.h"
#include "scheduler/scheduler.h"

namespace koho {
namespace {

/// While the first in line lacks pages, those that pass it have at most this share of the pool.
constexpr std::int32_t kPassingShare = 8;
/// So many clients that do not fit are passed over in a step: each costs a walk through all that
/// wait.
constexpr std::int32_t kPassedOverMax = 64;

void clear(StepBatch& batch, std::int64_t step) {
  batch.step = step;
  batch.rows.clear();
  batch.decodes = 0;
  batch.redecoded = 0;
  batch.tokens = 0;
  batch.prefill_cost = 0;
  batch.samples = 0;
  batch.history_tokens = 0;
  batch.runs.clear();
  batch.run_pages.clear();
  batch.copies.clear();
  batch.preempted.clear();
  batch.yielded.clear();
}

}  // namespace

const StepBatch* Scheduler::plan() {
  KOHO_CHECK_LT(in_flight_, kStepsInFlightMax);
  StepBatch& batch = batches_[static_cast<std::size_t>((oldest_ + in_flight_) % kStepsInFlightMax)];
  ++step_;
  clear(batch, step_);
  yield_to_other_client(batch);
  const std::uint64_t preempted = counters_.preempted;
  plan_decodes(batch);
  granted_ = 0;
  rows_again_ = 0;
  counts_attention_ = limits_.attention_tokens > 0 && std::ssize(running_) + waiting_.size() > 1;
  prefill_share_ = ceil_div(std::max(prefill_budget(batch), 0), limits_.partitions);
  std::ranges::fill(prefilled_, 0);
  // A step that preempted admits nobody: the preempted sequence would only take its pages back.
  plan_prefills(batch, counters_.preempted == preempted);
  batch.prefill_cost = granted_;
  if (batch.rows.empty()) {
    --step_;
    return nullptr;
  }
  emit_deduplicated_pages(batch);
  batch.preempted.swap(preempted_);
  ++in_flight_;
  return &batch;
}

bool Scheduler::decodes(const Sequence& sequence) const {
  return !sequence.paused && sequence.remaining() == 1 && !prefills(sequence);
}

void Scheduler::plan_decodes(StepBatch& batch) {
  secure_growth(batch);
  for (const std::int32_t index : running_) {
    Sequence& sequence = at(index);
    if (!decodes(sequence)) continue;
    if (grows(sequence)) grow(batch, sequence);
    add_row(batch, sequence, 1, false);
  }
  batch.decodes = static_cast<std::int32_t>(batch.rows.size());
}

std::int32_t Scheduler::prefill_budget(const StepBatch& batch) const {
  std::int32_t left = limits_.step_tokens_max - batch.decodes;
  if (limits_.prefill_tokens_max > 0) left = std::min(left, limits_.prefill_tokens_max);
  if (batch.decodes > 0) left = std::min(left, mixed_prefill_tokens_);
  return left - granted_;
}

std::int32_t Scheduler::prefill_budget(const StepBatch& batch, std::int32_t partition) const {
  return std::min(prefill_budget(batch),
                  prefill_share_ - prefilled_[static_cast<std::size_t>(partition)]);
}

void Scheduler::plan_prefills(StepBatch& batch, bool admits) {
  order_.clear();
  for (const std::int32_t index : running_)
    if (!at(index).paused && prefills(at(index))) order_.push_back(index);
  line_is_blocked_ = is_line_blocked();
  if (prefill_budget(batch) <= 0) return;
  if (order_.empty() && (!admits || waiting_.size() == 0)) return;
  std::ranges::sort(order_, [this](auto a, auto b) { return waiting_.precedes(at(a), at(b)); });
  fair_.begin_step(order_);
  grant_by_turn(batch, admits);
  // All by turn: nobody is admitted behind one that does not fit.
  grant_fairly(batch, admits && limits_.turn_percent < 100);
  if (limits_.redecodes_output) plan_output_again(batch);
  for (const std::int32_t index : order_) {
    Sequence& sequence = at(index);
    const std::int32_t tokens = std::exchange(sequence.granted, 0);
    if (tokens == 0) continue;
    fair_.charge(sequence, tokens);
    add_row(batch, sequence, tokens, sequence.last_row_step < sequence.admitted_step);
  }
}

void Scheduler::plan_output_again(StepBatch& batch) {
  rows_again_ = 0;
  for (const std::int32_t index : order_) {
    Sequence& sequence = at(index);
    if (sequence.granted == 0 || in_prompt(sequence)) continue;
    // Who was admitted after the grant may have taken a row.
    const std::int32_t granted = std::exchange(sequence.granted, 0);
    const std::int32_t tokens = std::min(granted, 1 + spare_rows());
    rows_again_ += tokens - 1;
    granted_ -= granted - tokens;
    fair_.charge(sequence, tokens);
    for (std::int32_t i = 0; i < tokens; ++i)
      add_row(batch, sequence, 1, sequence.last_row_step < sequence.admitted_step);
  }
  const auto decodes = static_cast<std::int32_t>(batch.rows.size());
  batch.redecoded = decodes - std::exchange(batch.decodes, decodes);
}

std::int32_t Scheduler::turn_tokens() {
  turn_carry_ += std::int64_t{prefill_share_} * limits_.turn_percent;
  const auto tokens = static_cast<std::int32_t>(turn_carry_ / 100);
  turn_carry_ %= 100;
  return tokens;
}

void Scheduler::grant_by_turn(StepBatch& batch, bool admits) {
  const std::int32_t each = turn_tokens();
  line_has_turn_ = each > 0;
  std::ranges::fill(turns_, each);
  std::int64_t all = std::int64_t{each} * limits_.partitions;
  const std::size_t running_prefills = order_.size();
  for (std::size_t next = 0; all > 0 && prefill_budget(batch) > 0;) {
    Sequence* chosen = next < running_prefills ? &at(order_[next]) : nullptr;
    Sequence* waiting = admits ? waiting_.first() : nullptr;
    if (waiting != nullptr && (chosen == nullptr || waiting_.precedes(*waiting, *chosen))) {
      // Strict: nobody has the turn of one that does not fit.
      admits = try_admit(batch, *waiting);
      if (!admits) continue;
      chosen = waiting;
    } else if (chosen == nullptr) {
      return;
    } else {
      ++next;
    }
    std::int32_t& turn = turns_[static_cast<std::size_t>(chosen->partition)];
    // Who is admitted has a row; if its partition's turn is over, the next one waits for a step.
    if (chosen == waiting && turn == 0) admits = false;
    const std::int32_t budget = std::min(turn, prefill_budget(batch, chosen->partition));
    const std::int32_t count =
        std::max(chosen == waiting ? 1 : 0, std::min(paid_by(*chosen, budget), left_of(*chosen)));
    const std::int32_t cost = grant(*chosen, count, budget);
    all -= std::min(turn, cost);
    turn = std::max(turn - cost, 0);
  }
}

void Scheduler::grant_fairly(StepBatch& batch, bool admits) {
  std::int32_t class_end = admits ? FairOrder::kSizeClasses : 0;
  std::int32_t passed_over = 0;
  while (prefill_budget(batch) > 0) {
    Sequence* chosen = fairest_running(batch);
    // In a step without a turn only the first in line: else a batch slot might never come to it.
    Sequence* waiting = line_has_turn_  ? fair_.first(class_end)
                        : class_end > 0 ? waiting_.first()
                                        : nullptr;
    if (waiting != nullptr &&
        (chosen == nullptr ||
         fair_.precedes(*waiting, waiting->tokens_to_compute, *chosen, left_of(*chosen)))) {
      if (!may_pass(*waiting) || !try_admit(batch, *waiting)) {
        // One that needs fewer pages may fit, or one of a client that has less.
        if (!line_has_turn_ || batch_slots_.empty() || passed_over == kPassedOverMax) {
          class_end = 0;
        } else if (lighter_waiting(*waiting) == 0 && !fewer_pages_waiting(*waiting) &&
                   (waiting->blocked_at == departures_ || !may_pass(*waiting))) {
          class_end = fair_.size_class(waiting->tokens_to_compute);
        } else {
          fair_.pass_over(*waiting);
          ++passed_over;
        }
        continue;
      }
      chosen = waiting;
    }
    if (chosen == nullptr) return;
    const std::int32_t budget = prefill_budget(batch, chosen->partition);
    std::int32_t tokens = std::min(paid_by(*chosen, budget), left_of(*chosen));
    // What was cached when it began to wait is gone: it comes by what is left indeed.
    if (chosen == waiting && fair_.size_class(tokens) > fair_.size_class(chosen->tokens_to_compute))
      tokens = 1;
    grant(*chosen, tokens, budget);
  }
}

Sequence* Scheduler::fairest_running(const StepBatch& batch) {
  Sequence* best = nullptr;
  for (const std::int32_t index : order_) {
    Sequence& sequence = at(index);
    const std::int32_t left = left_of(sequence);
    if (left <= 0 || prefill_budget(batch, sequence.partition) <= 0) continue;
    if (best == nullptr || fair_.precedes(sequence, left, *best, left_of(*best))) best = &sequence;
  }
  return best;
}

std::int64_t Scheduler::cost_of(const Sequence& sequence, std::int32_t tokens) const {
  if (!counts_attention_) return tokens;
  const std::int64_t position = sequence.planned + sequence.granted;
  return tokens * (limits_.attention_tokens + position) / limits_.attention_tokens;
}

std::int32_t Scheduler::paid_by(const Sequence& sequence, std::int32_t budget) const {
  if (!counts_attention_) return budget;
  constexpr std::int64_t kLeast = 16;  // fewer would take a step nearly as long
  const std::int64_t position = sequence.planned + sequence.granted;
  const std::int64_t tokens =
      std::int64_t{budget} * limits_.attention_tokens / (limits_.attention_tokens + position);
  return static_cast<std::int32_t>(std::min<std::int64_t>(budget, std::max(tokens, kLeast)));
}

std::int32_t Scheduler::grant(Sequence& sequence, std::int32_t tokens, std::int32_t budget) {
  // The few tokens that paid_by() gives whatever they cost take no more than its budget: what goes
  // by turn never takes the rest of the step.
  const auto cost = static_cast<std::int32_t>(
      std::max<std::int64_t>(tokens, std::min<std::int64_t>(cost_of(sequence, tokens), budget)));
  if (limits_.redecodes_output && tokens > 0 && !in_prompt(sequence))
    rows_again_ += tokens - (sequence.granted == 0 ? 1 : 0);
  sequence.granted += tokens;
  granted_ += cost;
  prefilled_[static_cast<std::size_t>(sequence.partition)] += cost;
  return cost;
}

bool Scheduler::may_pass(const Sequence& sequence) const {
  if (!line_is_blocked_ || !passes(sequence)) return true;
  if (step_ - waiting_.first()->lacks_pages_since >= limits_.aging_steps) return false;
  std::int32_t pages = limits_.pages_of(sequence.known());
  for (const std::int32_t index : running_)
    if (at(index).passed_others) pages += static_cast<std::int32_t>(at(index).pages.size());
  return pages <= limits_.pages / kPassingShare;
}

bool Scheduler::passes(const Sequence& sequence) const {
  const Sequence& first = *waiting_.first();
  if (&first == &sequence) return false;
  return sequence.priority > first.priority ||
         fair_.pages(sequence) + limits_.pages_of(sequence.known()) > fair_.pages(first);
}

bool Scheduler::try_admit(StepBatch& batch, Sequence& sequence) {
  if (!admissible(batch, sequence)) return false;
  if (!secure_batch_slot(batch, sequence)) return false;
  const bool is_first = waiting_.first() == &sequence;
  const bool passes_first = passes(sequence);
  if (!admit(batch, sequence)) return false;
  order_.push_back(sequence.id.index);
  if (is_first) {
    // Who comes first now may have been it before, too.
    line_is_blocked_ = is_line_blocked();
  } else if (line_is_blocked_ && passes_first) {
    sequence.passed_others = true;
    ++counters_.passed;
  }
  return true;
}

bool Scheduler::admissible(const StepBatch& batch, const Sequence& sequence) const {
  // Tokens still being sampled are not known yet, so the sequence could not be computed again.
  if (sequence.in_flight_rows > 0) return false;
  // What this step took from a client is not given back to it at once.
  for (const SequenceId yielded : batch.yielded)
    if (find(yielded)->client == sequence.client) return false;
  const auto changes = static_cast<std::int32_t>(batch.run_pages.size());
  if (changes + limits_.pages_of(sequence.known()) + limits_.sequences_max >
      limits_.page_changes_max())
    return false;
  if (sequence.wants_token_counts && batch.history_tokens + sequence.known() > limits_.context_max)
    return false;
  return true;
}

bool Scheduler::admit(StepBatch& batch, Sequence& sequence) {
  PageHandle copy_from;
  std::int32_t shared = 0;
  const std::int32_t before = sequence.partition;
  while (sequence.blocked_at == departures_ || !place(sequence, shared, copy_from)) {
    // The preempted sequence may have held pages that this one shares, so place() looks again.
    if (sequence.blocked_at != departures_ && reclaim_paused(batch, -1)) continue;
    sequence.blocked_at = departures_;
    if (waiting_.first() == &sequence) note_blocked_line(sequence);
    return false;
  }
  if (prefill_budget(batch, sequence.partition) <= 0) {
    // The partition with its pages has no prefill budget left in this step.
    release_pages(sequence);
    sequence.partition = before;
    return false;
  }

  const auto pages = static_cast<std::size_t>(limits_.pages_of(sequence.known()));
  if (copy_from.page != kNoPage) {
    sequence.pages.push_back(take_page(sequence.partition));
    batch.copies.push_back({copy_from.page, sequence.pages.back().page});
    ++counters_.forked;
  }
  while (sequence.pages.size() < pages) sequence.pages.push_back(take_page(sequence.partition));

  end_waiting(sequence);
  if (sequence.tokens.empty()) {
    sequence.tokens.assign(sequence.shared_prompt->begin(), sequence.shared_prompt->end());
    sequence.shared_prompt.reset();
  }
  sequence.state = SequenceState::running;
  sequence.admitted_step = step_;
  sequence.lacks_pages_since = 0;
  sequence.batch_slot = batch_slots_.back();
  batch_slots_.pop_back();
  fair_.take_batch_slot(sequence);
  if (std::exchange(sequence.yielded, false)) sequence.recomputed += sequence.known() - shared;
  sequence.planned = shared;
  sequence.computed = shared;
  sequence.registered = limits_.prefix_cache ? shared / limits_.tokens_per_page : 0;
  const auto place = std::ranges::lower_bound(
      running_, sequence.arrival, {}, [this](std::int32_t index) { return at(index).arrival; });
  running_.insert(place, sequence.id.index);
  if (sequence.wants_token_counts) batch.history_tokens += sequence.known();
  batch.runs.push_back({sequence.batch_slot, 0, static_cast<std::int32_t>(pages)});
  for (const PageHandle page : sequence.pages) batch.run_pages.push_back(page.page);

  if (sequence.admissions == 0) {
    sequence.cached_tokens = shared;
    ++counters_.admitted;
  } else {
    ++counters_.resumed;
  }
  ++sequence.admissions;
  counters_.prefix_queried_tokens += static_cast<std::uint64_t>(sequence.known());
  counters_.prefix_hit_tokens += static_cast<std::uint64_t>(shared);
  return true;
}

bool Scheduler::is_line_blocked() const {
  return waiting_.size() > 0 && waiting_.first()->lacks_pages_since > 0;
}

void Scheduler::note_blocked_line(Sequence& first) {
  line_is_blocked_ = true;
  if (first.lacks_pages_since == 0) first.lacks_pages_since = step_;
}

bool Scheduler::place(Sequence& sequence, std::int32_t& shared, PageHandle& copy_from) {
  const std::int32_t before = sequence.partition;
  const auto fits = [&](std::int32_t partition) {
    sequence.partition = partition;
    shared = share_pages(sequence, copy_from);
    if (pages_lacking(sequence, partition) <= 0) return true;
    release_pages(sequence);
    sequence.partition = before;
    return false;
  };
  if (starts_from_parent(sequence)) return fits(find(sequence.fork_of)->partition);
  weigh_partitions(sequence);
  for (std::int32_t tries = 0; tries < limits_.partitions; ++tries) {
    const auto lightest = std::ranges::min_element(loads_);
    if (fits(static_cast<std::int32_t>(lightest - loads_.begin()))) return true;
    *lightest = std::numeric_limits<std::int32_t>::max();
  }
  return false;
}

void Scheduler::weigh_partitions(const Sequence& sequence) {
  std::ranges::fill(loads_, 0);
  if (limits_.partitions == 1) return;
  for (const std::int32_t index : running_) {
    const Sequence& other = at(index);
    loads_[static_cast<std::size_t>(other.partition)] +=
        static_cast<std::int32_t>(other.pages.size());
  }
  if (!limits_.prefix_cache) return;
  prefix_.count_matches(sequence.known_tokens(), given_tokens(sequence), sequence.salt, matches_);
  for (std::size_t p = 0; p < loads_.size(); ++p) loads_[p] -= matches_[p];
}

bool Scheduler::starts_from_parent(const Sequence& sequence) const {
  const Sequence* parent = find(sequence.fork_of);
  return parent != nullptr && parent->state == SequenceState::running && sequence.admissions == 0 &&
         parent->computed >= parent->prompt_length;
}

std::int32_t Scheduler::share_pages(Sequence& sequence, PageHandle& copy_from) {
  copy_from = {};
  const std::int32_t page_tokens = limits_.tokens_per_page;
  if (starts_from_parent(sequence)) {
    const Sequence* parent = find(sequence.fork_of);
    // All of the prompt but its last token: this sequence computes that one for logits of its own.
    const std::int32_t tokens = sequence.prompt_length - 1;
    const std::int32_t full = tokens / page_tokens;
    // Shares registered pages only: registering a page later may replace it in its owner's table,
    // and would not in this sequence's.
    if (!limits_.prefix_cache || parent->registered >= full) {
      for (std::int32_t i = 0; i < full; ++i)
        sequence.pages.push_back(pool_.share(parent->pages[static_cast<std::size_t>(i)].page));
      if (tokens % page_tokens != 0) copy_from = parent->pages[static_cast<std::size_t>(full)];
      return tokens;
    }
  }
  if (!limits_.prefix_cache) return 0;
  return prefix_.match(sequence.known_tokens(), given_tokens(sequence), sequence.salt,
                       sequence.pages, sequence.partition) *
         page_tokens;
}

void Scheduler::add_row(StepBatch& batch, Sequence& sequence, std::int32_t count, bool admitted) {
  StepRow row;
  row.sequence = sequence.id;
  row.batch_slot = sequence.batch_slot;
  row.start = sequence.planned;
  row.count = count;
  row.samples = row.start + count == sequence.length() && sequence.length() < sequence.length_max;
  row.takes_last = row.start >= sequence.known();
  row.admitted = admitted;
  KOHO_CHECK(sequence.last_row_step < step_ || (limits_.redecodes_output && count == 1));
  KOHO_CHECK(!row.takes_last || count == 1);
  const std::int32_t end = row.start + count;
  KOHO_CHECK_LE(limits_.pages_of(end), static_cast<std::int32_t>(sequence.pages.size()));
  // Only pages of one owner are written.
  for (std::int32_t i = row.start / limits_.tokens_per_page; i < limits_.pages_of(end); ++i) {
    const PageHandle page = sequence.pages[static_cast<std::size_t>(i)];
    KOHO_CHECK(pool_.current(page));
    KOHO_CHECK_EQ(pool_.ref_count(page.page), 1);
  }

  batch.rows.push_back(row);
  batch.tokens += count;
  if (row.samples) {
    ++batch.samples;
    ++sequence.in_flight_samples;
  }
  ++sequence.in_flight_rows;
  sequence.planned = end;
  sequence.last_row_step = step_;
}

bool Scheduler::reclaim_paused(const StepBatch& batch, std::int32_t partition) {
  // Preempting could free a page that this step copies from.
  if (!batch.copies.empty()) return false;
  for (std::size_t i = running_.size(); i > 0; --i) {
    Sequence& sequence = at(running_[i - 1]);
    const bool here = partition == -1 || sequence.partition == partition;
    if (!sequence.paused || !here) continue;
    preempt(sequence);
    return true;
  }
  return false;
}

void Scheduler::preempt(Sequence& victim) {
  KOHO_CHECK_LT(victim.last_row_step, step_);
  leave_running(victim);
  victim.state = SequenceState::held;
  ++held_;
  settle(victim);
  preempted_.push_back(victim.id);
  ++counters_.preempted;
}

}  // namespace koho
