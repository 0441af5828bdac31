// SPDX-License-Identifier: Apache-2.0
// The lifecycle of a sequence: submission, pausing, results, end. How a step is planned:
// planning.cpp.
#include "scheduler/scheduler.h"

#include <algorithm>

#include "base/check.h"

namespace koho {
namespace {

/// A finished sequence keeps its buffers for the next one, unless they are larger than this.
constexpr std::size_t kTokensKept = 1 << 14;

}  // namespace

Scheduler::Scheduler(const Limits& limits, const std::array<std::uint64_t, 4>& seed)
    : limits_(limits),
      pool_(limits.pages, limits.partitions),
      prefix_(pool_, limits.tokens_per_page, seed),
      sequences_(static_cast<std::size_t>(limits.live_max)),
      waiting_(sequences_, limits.aging_steps),
      fair_(sequences_, limits.tokens_per_page, limits.short_tokens_max()),
      short_classes_(fair_.size_class(limits.short_tokens_max() + 1)),
      mixed_prefill_tokens_(limits.mixed_prefill_tokens_max) {
  KOHO_CHECK(validate(limits).ok());
  const auto batch_slots = static_cast<std::size_t>(limits.sequences_max);
  unused_.reserve(sequences_.size());
  for (std::int32_t index = limits.live_max - 1; index >= 0; --index) {
    at(index).id.index = index;
    unused_.push_back(index);
  }
  running_.reserve(batch_slots);
  order_.reserve(batch_slots);
  for (std::int32_t batch_slot = limits.sequences_max - 1; batch_slot >= 0; --batch_slot)
    batch_slots_.push_back(batch_slot);
  deduplicated_pages_.reserve(batch_slots);
  preempted_.reserve(sequences_.size());
  yielding_.reserve(batch_slots);
  const auto partitions = static_cast<std::size_t>(limits.partitions);
  prefilled_.resize(partitions);
  turns_.resize(partitions);
  loads_.resize(partitions);
  matches_.resize(partitions);
  for (StepBatch& batch : batches_) {
    batch.rows.reserve(batch_slots);
    batch.runs.reserve(3 * batch_slots);
    batch.run_pages.reserve(static_cast<std::size_t>(limits.page_changes_max()));
    batch.copies.reserve(batch_slots);
    batch.preempted.reserve(sequences_.size());
    batch.yielded.reserve(batch_slots);
  }
}

Result<SequenceId> Scheduler::submit(const SequenceRequest& request) {
  const std::int64_t prompt = static_cast<std::int64_t>(request.prompt.size());
  const std::int64_t length_max = prompt + request.completion_max;
  if (prompt == 0 || request.completion_max < 0)
    return make_error(ErrorCode::invalid_argument,
                      "a prompt of at least one token and max_tokens >= 0 are needed, found {} and "
                      "{}",
                      prompt, request.completion_max);
  if (length_max > limits_.context_max)
    return make_error(ErrorCode::invalid_argument,
                      "prompt ({} tokens) and max_tokens ({}) exceed the context of {} tokens",
                      prompt, request.completion_max, limits_.context_max);
  if (limits_.pages_of(static_cast<std::int32_t>(length_max)) > limits_.pages_per_partition())
    return make_error(ErrorCode::invalid_argument,
                      "prompt ({} tokens) and max_tokens ({}) need more than the {} cache pages "
                      "a sequence can have (of {} tokens)",
                      prompt, request.completion_max, limits_.pages_per_partition(),
                      limits_.tokens_per_page);
  if (request.priority < 0 || request.priority >= kPriorities)
    return make_field_error(ErrorCode::invalid_argument, "priority",
                            "{} must be in 0..{}, found {}", kPriorities - 1, request.priority);
  if (unused_.empty())
    return make_error(ErrorCode::resource_exhausted, "{} sequences are in the engine, its limit",
                      limits_.live_max);

  Sequence& sequence = at(unused_.back());
  unused_.pop_back();
  sequence.priority = request.priority;
  sequence.arrival = ++arrivals_;
  sequence.submitted_step = step_;
  sequence.salt = request.salt;
  sequence.wants_token_counts = request.wants_token_counts;
  sequence.prompt_length = static_cast<std::int32_t>(prompt);
  sequence.length_max = static_cast<std::int32_t>(length_max);
  sequence.pages.reserve(
      static_cast<std::size_t>(limits_.pages_of(static_cast<std::int32_t>(length_max))));
  sequence.fork_of = request.fork_of;
  sequence.client = request.client;
  fair_.join(sequence);
  ++live_;

  Sequence* parent = find_mutable(request.fork_of);
  KOHO_CHECK(parent == nullptr || parent->prompt_length == sequence.prompt_length);
  sequence.tokens.reserve(static_cast<std::size_t>(length_max));  // steps allocate nothing
  if (parent == nullptr) {
    sequence.tokens.assign(request.prompt.begin(), request.prompt.end());
  } else {
    // Of many forks of a long prompt each would take its memory (that nobody wrote to takes none),
    // and the time to copy it.
    if (!parent->shared_prompt)
      parent->shared_prompt =
          std::make_shared<const std::vector<Token>>(request.prompt.begin(), request.prompt.end());
    sequence.shared_prompt = parent->shared_prompt;
  }
  if (parent != nullptr && parent->computed < parent->prompt_length) {
    sequence.awaits_parent = true;
    sequence.next_fork = parent->first_fork;
    parent->first_fork = sequence.id.index;
  }
  sequence.state = SequenceState::held;
  ++held_;
  settle(sequence);
  return sequence.id;
}

void Scheduler::finish(SequenceId id) {
  Sequence* sequence = find_mutable(id);
  KOHO_CHECK(sequence != nullptr);
  release_forks(*sequence);
  if (sequence->awaits_parent) forget_fork(*sequence);
  if (sequence->state == SequenceState::running) {
    leave_running(*sequence);
  } else if (sequence->state == SequenceState::waiting) {
    end_waiting(*sequence);
  } else {
    --held_;
  }
  fair_.leave(*sequence);

  std::vector<Token> tokens = std::move(sequence->tokens);
  std::vector<PageHandle> pages = std::move(sequence->pages);
  tokens.clear();
  pages.clear();
  const SequenceId next{id.index, id.generation + 1};
  *sequence = Sequence{};
  sequence->id = next;
  if (tokens.capacity() <= kTokensKept) {
    sequence->tokens = std::move(tokens);
    sequence->pages = std::move(pages);
  }
  unused_.push_back(id.index);
  --live_;
}

void Scheduler::set_paused(SequenceId id, bool paused) {
  Sequence* sequence = find_mutable(id);
  KOHO_CHECK(sequence != nullptr);
  sequence->paused = paused;
  ++departures_;
  if (sequence->state != SequenceState::running) settle(*sequence);
}

void Scheduler::set_mixed_prefill_tokens(std::int32_t tokens) {
  mixed_prefill_tokens_ = std::clamp(tokens, 1, limits_.mixed_prefill_tokens_max);
}

const StepBatch& Scheduler::in_flight(std::int32_t index) const {
  KOHO_CHECK_LT(index, in_flight_);
  return batches_[static_cast<std::size_t>((oldest_ + index) % kStepsInFlightMax)];
}

const Sequence* Scheduler::apply(const StepRow& row, Token sampled) {
  Sequence* sequence = find_mutable(row.sequence);
  if (sequence == nullptr) return nullptr;
  --sequence->in_flight_rows;
  KOHO_CHECK_GE(sequence->in_flight_rows, 0);
  if (row.samples) {
    --sequence->in_flight_samples;
    KOHO_CHECK_LT(sequence->known(), sequence->length_max);
    sequence->tokens.push_back(sampled);
  }
  // A preempted sequence keeps the token; its pages are gone, so nothing counts as computed.
  if (sequence->state == SequenceState::running) {
    sequence->computed = row.start + row.count;
    register_pages(*sequence);
    if (sequence->computed >= sequence->prompt_length) release_forks(*sequence);
  }
  return sequence;
}

void Scheduler::retire() {
  KOHO_CHECK_GT(in_flight_, 0);
  oldest_ = (oldest_ + 1) % kStepsInFlightMax;
  --in_flight_;
}

void Scheduler::reset_device() {
  in_flight_ = 0;
  turn_carry_ = 0;
  deduplicated_pages_.clear();
  preempted_.clear();
  for (Sequence& sequence : sequences_) {
    sequence.in_flight_samples = 0;
    sequence.in_flight_rows = 0;
  }
  while (!running_.empty()) {
    Sequence& sequence = at(running_.back());
    leave_running(sequence);
    sequence.state = SequenceState::held;
    ++held_;
    settle(sequence);
  }
  prefix_.clear();
  // What was cached is to be computed again.
  for (Sequence& sequence : sequences_) {
    if (sequence.state != SequenceState::waiting) continue;
    fair_.remove(sequence);
    fair_.insert(sequence, tokens_to_compute(sequence));
  }
}

const Sequence* Scheduler::find(SequenceId id) const {
  if (id.index < 0 || id.index >= limits_.live_max) return nullptr;
  const Sequence& sequence = sequences_[static_cast<std::size_t>(id.index)];
  const bool live = sequence.state != SequenceState::unused;
  return live && sequence.id == id ? &sequence : nullptr;
}

Sequence* Scheduler::find_mutable(SequenceId id) {
  return const_cast<Sequence*>(find(id));
}

void Scheduler::leave_running(Sequence& sequence) {
  fair_.return_batch_slot(sequence);
  release_pages(sequence);
  ++departures_;
  sequence.passed_others = false;
  running_.erase(std::ranges::find(running_, sequence.id.index));
  batch_slots_.push_back(sequence.batch_slot);
  sequence.batch_slot = -1;
  sequence.planned = 0;
  sequence.computed = 0;
  sequence.registered = 0;
}

PageHandle Scheduler::take_page(std::int32_t partition) {
  PageHandle page = pool_.allocate(partition);
  if (page.page == kNoPage && prefix_.evict_oldest(partition)) page = pool_.allocate(partition);
  KOHO_CHECK_NE(page.page, kNoPage);
  return page;
}

void Scheduler::release_pages(Sequence& sequence) {
  // Last to first: idle pages then queue children before parents.
  for (std::size_t i = sequence.pages.size(); i > 0; --i) pool_.release(sequence.pages[i - 1]);
  sequence.pages.clear();
}

void Scheduler::register_pages(Sequence& sequence) {
  if (!limits_.prefix_cache) return;
  const std::int32_t page_tokens = limits_.tokens_per_page;
  while (sequence.registered < sequence.computed / page_tokens) {
    const auto i = static_cast<std::size_t>(sequence.registered);
    // The list of table changes for the device is full: this page is registered in a later step.
    if (deduplicated_pages_.size() == static_cast<std::size_t>(limits_.sequences_max)) return;
    const PageHandle own = sequence.pages[i];
    const PageId parent = i == 0 ? kNoPage : sequence.pages[i - 1].page;
    const std::span<const Token> tokens = std::span(sequence.tokens)
                                              .subspan(i * static_cast<std::size_t>(page_tokens),
                                                       static_cast<std::size_t>(page_tokens));
    const std::int32_t given = given_tokens(sequence) - sequence.registered * page_tokens;
    const PageId cached = prefix_.insert(parent, sequence.salt, tokens, given, own.page);
    if (cached != own.page) {
      sequence.pages[i] = pool_.share(cached);
      pool_.release(own);
      ++departures_;
      deduplicated_pages_.push_back({sequence.id, sequence.registered});
      ++counters_.deduplicated_pages;
    }
    ++sequence.registered;
  }
}

void Scheduler::emit_deduplicated_pages(StepBatch& batch) {
  for (const DeduplicatedPage& deduplicated : deduplicated_pages_) {
    const Sequence* sequence = find(deduplicated.sequence);
    if (sequence == nullptr || sequence->state != SequenceState::running) continue;
    const auto i = static_cast<std::size_t>(deduplicated.index);
    if (i >= sequence->pages.size()) continue;  // readmitted since, with a shorter table
    batch.runs.push_back({sequence->batch_slot, deduplicated.index, 1});
    batch.run_pages.push_back(sequence->pages[i].page);
  }
  deduplicated_pages_.clear();
}

void Scheduler::release_forks(Sequence& parent) {
  parent.shared_prompt.reset();
  while (parent.first_fork != -1) {
    Sequence& fork = at(parent.first_fork);
    parent.first_fork = fork.next_fork;
    fork.next_fork = -1;
    fork.awaits_parent = false;
    settle(fork);
  }
}

void Scheduler::forget_fork(Sequence& fork) {
  Sequence* parent = find_mutable(fork.fork_of);
  KOHO_CHECK(parent != nullptr);
  std::int32_t* link = &parent->first_fork;
  while (*link != fork.id.index) link = &at(*link).next_fork;
  *link = fork.next_fork;
  fork.awaits_parent = false;
}

void Scheduler::settle(Sequence& sequence) {
  const bool held = sequence.paused || sequence.awaits_parent;
  if (held && sequence.state == SequenceState::waiting) {
    end_waiting(sequence);
    sequence.state = SequenceState::held;
    ++held_;
  } else if (!held && sequence.state == SequenceState::held) {
    sequence.state = SequenceState::waiting;
    --held_;
    begin_waiting(sequence);
  }
}

void Scheduler::begin_waiting(Sequence& sequence) {
  waiting_.insert(sequence);
  fair_.insert(sequence, tokens_to_compute(sequence));
}

void Scheduler::end_waiting(Sequence& sequence) {
  waiting_.remove(sequence);
  fair_.remove(sequence);
}

std::int32_t Scheduler::tokens_to_compute(const Sequence& sequence) {
  if (starts_from_parent(sequence)) return 1;
  if (!limits_.prefix_cache) return sequence.known();
  prefix_.count_matches(sequence.known_tokens(), given_tokens(sequence), sequence.salt, matches_);
  return sequence.known() - std::ranges::max(matches_) * limits_.tokens_per_page;
}

}  // namespace koho
