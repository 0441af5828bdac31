// SPDX-License-Identifier: Apache-2.0
// Hashes for keys and values, and the faults that the world asks for.
#include "fake_executor.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "random.h"

namespace koho::simulation {

std::uint64_t slot_content(std::uint64_t before, Token token, bool decoded) {
  return mix(before, static_cast<std::uint64_t>(token) ^ (std::uint64_t{decoded} << 63U));
}

std::uint64_t draw_hash(std::uint64_t content,
                        std::uint64_t seed,
                        std::int64_t output_position,
                        std::uint64_t history) {
  return mix(mix(content, seed), static_cast<std::uint64_t>(output_position) ^ history);
}

FakeExecutor::FakeExecutor(const PlanBounds& bounds, bool tells_decodes)
    : bounds_(bounds),
      tells_decodes_(tells_decodes),
      table_entries_((bounds.context_max + bounds.tokens_per_page - 1) / bounds.tokens_per_page) {
  for (auto& plan : plans_) plan.resize(plan_bytes(bounds.counts_max()) / 8);
  const auto batch_slots = static_cast<std::size_t>(bounds.sequences_max);
  tables_.resize(batch_slots * static_cast<std::size_t>(table_entries_));
  last_sampled_.resize(batch_slots);
  histories_.resize(batch_slots);
  outputs_.resize(batch_slots * OutputRecord::kWords);
  contents_.resize(static_cast<std::size_t>(bounds.pages) *
                   static_cast<std::size_t>(bounds.tokens_per_page));
  for (StepResult& result : results_) result.reserve(batch_slots);
  FakeExecutor::recover(0).ok();
}

std::span<std::byte> FakeExecutor::plan_space() {
  return std::as_writable_bytes(
      std::span(plans_[static_cast<std::size_t>((oldest_ + count_) % 2)]));
}

Status FakeExecutor::submit(std::size_t bytes) {
  if (std::exchange(fail_submit_, false))
    return make_error(ErrorCode::resource_exhausted, "the device is out of memory");
  if (count_ == 2) complain("a third step in flight");
  if (awaiting_) complain("a step behind one that waits for its masks");
  const Result<StepPlan> plan = read_plan(plan_space().first(bytes), bounds_);
  if (!plan.ok()) {
    complain(plan.error().message);
    return plan.error();
  }
  // Steps run in order, so running each as it is submitted is the same.
  compute_all(*plan);
  if (plan->late_masks) {
    if (count_ == 0) complain("masks are late, and no step is in flight that they follow from");
    // Clears the late masks: a row that is sampled before its mask came would allow no token.
    auto* words = const_cast<std::uint32_t*>(plan->masks.data());
    std::fill_n(words, plan->masks.size(), 0U);
    open_ = *plan;
    awaiting_ = true;
  } else {
    sample_all(*plan, results_[static_cast<std::size_t>((oldest_ + count_) % 2)]);
  }
  ++count_;
  return {};
}

Status FakeExecutor::send_masks() {
  if (std::exchange(fail_masks_, false))
    return make_error(ErrorCode::device_error, "a worker died");
  if (!awaiting_) complain("masks for a step that waits for none");
  if (count_ != 1) complain("masks before the results that they follow from");
  awaiting_ = false;
  sample_all(open_, results_[static_cast<std::size_t>(oldest_)]);
  return {};
}

Status FakeExecutor::collect(StepResult& result, std::int64_t /*timeout_us*/) {
  const Fault fault = std::exchange(fault_, Fault::none);
  if (fault == Fault::error || (poisoned_ && complete_))
    return make_error(ErrorCode::device_error, "a worker died");
  if (fault == Fault::stale) {
    result = stale_;
    return {};
  }
  if (!complete_ || count_ == 0) return make_error(ErrorCode::deadline_exceeded, "not yet");
  if (awaiting_ && count_ == 1) complain("a step is asked for whose masks did not come");
  complete_ = false;
  result = results_[static_cast<std::size_t>(oldest_)];
  stale_ = result;
  oldest_ = (oldest_ + 1) % 2;
  --count_;
  const auto pick = [&] { return fault_chance_ % result.tokens.size(); };
  if (fault == Fault::early) ++result.step;
  if (fault == Fault::wrong_count) result.tokens.push_back(0);
  if (fault == Fault::bad_token && !result.tokens.empty())
    result.tokens[pick()] = bounds_.vocabulary;
  if (fault == Fault::nan && !result.tokens.empty()) result.tokens[pick()] = -1;
  return {};
}

Status FakeExecutor::check() {
  if (count_ > 0) complain("idle ranks are asked for while they compute");
  if (std::exchange(rank_ended_, false))
    return make_error(ErrorCode::device_error, "a worker was killed");
  return {};
}

Status FakeExecutor::recover(std::int64_t /*timeout_us*/) {
  if (!recovery_.ok()) return recovery_;
  // The ranks lose everything; what stays in memory is overwritten so that nobody can use it.
  std::ranges::fill(tables_, -1);
  std::ranges::fill(last_sampled_, -1);
  std::ranges::fill(histories_, 0xdead);
  std::ranges::fill(outputs_, 1);
  std::ranges::fill(contents_, 0xdead);
  oldest_ = 0;
  count_ = 0;
  complete_ = false;
  awaiting_ = false;
  poisoned_ = false;
  rank_ended_ = false;
  fault_ = Fault::none;
  return {};
}

void FakeExecutor::set_fault(Fault fault, std::uint64_t chance) {
  fault_ = fault;
  fault_chance_ = chance;
}

std::uint64_t FakeExecutor::content(PageId page, std::int32_t offset) const {
  return contents_[static_cast<std::size_t>(page) *
                       static_cast<std::size_t>(bounds_.tokens_per_page) +
                   static_cast<std::size_t>(offset)];
}

void FakeExecutor::compute_all(const StepPlan& plan) {
  update_tables(plan);
  for (std::size_t s = 0; s < plan.batch_slots.size(); ++s) compute(plan, s);
}

void FakeExecutor::sample_all(const StepPlan& plan, StepResult& result) {
  result.step = plan.step;
  result.tokens.clear();
  result.ends.clear();
  result.logits_rows.clear();
  result.logits.clear();
  for (std::size_t r = 0; r < plan.logit_rows.size(); ++r) {
    const auto batch_slot = static_cast<std::size_t>(plan.sample_batch_slots[r]);
    std::int32_t* record = output(plan.sample_batch_slots[r]);
    if (record[OutputRecord::kEnded] != 0) {
      result.tokens.push_back(0);
      result.ends.push_back(RowEnd::frozen);
      ++frozen_rows_;
      continue;
    }
    const Token token = draw(plan, r);
    result.tokens.push_back(token);
    result.ends.push_back(take_token(record, token));
    if (std::ranges::binary_search(plan.logits_wanted, static_cast<std::int32_t>(r))) {
      // The drawn token's stands out.
      result.logits_rows.push_back(static_cast<std::int32_t>(r));
      result.logits.resize(result.logits.size() + static_cast<std::size_t>(bounds_.vocabulary));
      *(result.logits.end() - bounds_.vocabulary + token) = 1.0F;
    }
    last_sampled_[batch_slot] = token;
    poisoned_ = poisoned_ || plan.sampling[r].seed == kPoison;
    histories_[batch_slot] = slot_content(histories_[batch_slot], token);
  }
}

void FakeExecutor::update_tables(const StepPlan& plan) {
  std::size_t next = 0;
  for (const PlanPageRun& run : plan.runs)
    for (std::int32_t i = 0; i < run.count; ++i)
      tables_[static_cast<std::size_t>(run.batch_slot * table_entries_ + run.first + i)] =
          plan.run_pages[next++];
  const auto page_tokens = static_cast<std::ptrdiff_t>(bounds_.tokens_per_page);
  for (const PlanPageCopy& copy : plan.copies) {
    for (const PlanPageCopy& other : plan.copies)
      if (copy.from == other.to) complain("a page is copied from and to in one plan");
    std::copy_n(contents_.begin() + copy.from * page_tokens, page_tokens,
                contents_.begin() + copy.to * page_tokens);
  }
  list_output_record_updates(
      plan, [this](std::int32_t batch_slot, std::int32_t word, std::int32_t value) {
        output(batch_slot)[word] = value;
      });
  std::size_t token = 0;
  for (const PlanHistory& history : plan.histories) {
    std::uint64_t& hash = histories_[static_cast<std::size_t>(history.batch_slot)];
    hash = static_cast<std::uint64_t>(history.prompt);
    for (std::int32_t i = 0; i < history.prompt + history.output; ++i)
      hash = slot_content(hash, plan.history_tokens[token++]);
  }
}

void FakeExecutor::compute(const StepPlan& plan, std::size_t sequence) {
  const std::int32_t batch_slot = plan.batch_slots[sequence];
  const bool decoded = tells_decodes_ && std::cmp_less(sequence, plan.decodes);
  const auto slot_of = [&](std::int32_t position) -> std::int64_t {
    const std::int32_t page = tables_[static_cast<std::size_t>(batch_slot * table_entries_ +
                                                               position / bounds_.tokens_per_page)];
    return std::int64_t{page} * bounds_.tokens_per_page + position % bounds_.tokens_per_page;
  };
  for (std::int32_t t = plan.query_starts[sequence]; t < plan.query_starts[sequence + 1]; ++t) {
    const auto i = static_cast<std::size_t>(t);
    const std::int32_t position = plan.positions[i];
    if (slot_of(position) != plan.slots[i]) {
      complain("a slot is not where the batch slot's page table says");
      return;
    }
    std::uint64_t before = kRootContent;
    if (position > 0) {
      const std::int64_t slot = slot_of(position - 1);
      if (slot < 0) {
        complain("a page table has a hole");
        return;
      }
      before = contents_[static_cast<std::size_t>(slot)];
    }
    if (output(batch_slot)[OutputRecord::kEnded] != 0) {
      if (plan.token_ids[i] >= 0) complain("a known token for an output that has ended");
      return;
    }
    const Token id = plan.token_ids[i] >= 0 ? plan.token_ids[i]
                                            : last_sampled_[static_cast<std::size_t>(batch_slot)];
    contents_[static_cast<std::size_t>(plan.slots[i])] = slot_content(before, id, decoded);
  }
}

Token FakeExecutor::draw(const StepPlan& plan, std::size_t sample) {
  const SamplingRow& sampling = plan.sampling[sample];
  const auto row = static_cast<std::size_t>(plan.logit_rows[sample]);
  const std::uint64_t history =
      sampling.counts_slot < 0 ? 0 : histories_[static_cast<std::size_t>(sampling.counts_slot)];
  const std::uint64_t hash = draw_hash(contents_[static_cast<std::size_t>(plan.slots[row])],
                                       sampling.seed, sampling.output_position, history);
  auto token = static_cast<Token>(hash % static_cast<std::uint64_t>(bounds_.vocabulary));
  const auto banned = [&](Token candidate) {
    for (std::int32_t i = 0; i < sampling.bias_count; ++i) {
      const LogitBias& bias = plan.biases[static_cast<std::size_t>(sampling.bias_begin + i)];
      if (bias.token == candidate && std::isinf(bias.bias)) return true;
    }
    return false;
  };
  const auto allowed = [&](Token candidate) {
    if (sampling.mask_row < 0) return true;
    const auto words = static_cast<std::size_t>(bounds_.mask_words());
    const std::uint32_t word = plan.masks[static_cast<std::size_t>(sampling.mask_row) * words +
                                          static_cast<std::size_t>(candidate) / 32];
    return ((word >> (candidate % 32)) & 1U) != 0;
  };
  for (Token tried = 0; tried < bounds_.vocabulary; ++tried) {
    if (!banned(token) && allowed(token)) return token;
    token = (token + 1) % bounds_.vocabulary;
  }
  complain("a row allows no token");
  return -1;
}

void FakeExecutor::complain(std::string text) {
  if (complaint_.empty()) complaint_ = std::move(text);
}

}  // namespace koho::simulation
