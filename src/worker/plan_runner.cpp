// SPDX-License-Identifier: Apache-2.0
#include "worker/plan_runner.h"

#include <algorithm>
#include <cstring>

#include "base/arithmetic.h"

namespace koho {

PlanRunner::PlanRunner(Worker& worker, const PlanBounds& bounds)
    : worker_(&worker),
      bounds_(bounds),
      pages_per_seat_(ceil_div(bounds.context_max, bounds.tokens_per_page)),
      page_tables_(static_cast<std::size_t>(bounds.sequences_max) *
                   static_cast<std::size_t>(pages_per_seat_)),
      last_sampled_(static_cast<std::size_t>(bounds.sequences_max)) {
  const PlanCounts most = bounds.counts_max();
  token_ids_.reserve(static_cast<std::size_t>(most.tokens));
  step_tables_.reserve(page_tables_.size());
  sampling_.reserve(static_cast<std::size_t>(most.samples));
  biases_.reserve(static_cast<std::size_t>(most.biases));
  copies_.reserve(static_cast<std::size_t>(2 * most.copies));
}

void PlanRunner::reset() {
  std::fill(page_tables_.begin(), page_tables_.end(), 0);
  std::fill(last_sampled_.begin(), last_sampled_.end(), 0);
}

/// Brings the seats' tables and counts up to date and copies pages.
Status PlanRunner::apply(const StepPlan& plan) {
  std::size_t next_page = 0;
  for (const PlanPageRun& run : plan.runs) {
    const auto begin =
        static_cast<std::size_t>(run.seat) * static_cast<std::size_t>(pages_per_seat_) +
        static_cast<std::size_t>(run.first);
    const auto count = static_cast<std::size_t>(run.count);
    std::copy_n(plan.run_pages.begin() + static_cast<std::ptrdiff_t>(next_page), count,
                page_tables_.begin() + static_cast<std::ptrdiff_t>(begin));
    next_page += count;
  }
  if (!plan.copies.empty()) {
    copies_.clear();
    for (const PlanPageCopy& copy : plan.copies)
      copies_.insert(copies_.end(), {copy.from, copy.to});
    KOHO_TRY(worker_->copy_pages(copies_));
  }
  std::size_t next_token = 0;
  for (const PlanHistory& history : plan.histories) {
    const auto prompt =
        plan.history_tokens.subspan(next_token, static_cast<std::size_t>(history.prompt));
    next_token += prompt.size();
    const auto output =
        plan.history_tokens.subspan(next_token, static_cast<std::size_t>(history.output));
    next_token += output.size();
    KOHO_TRY(worker_->start_counts(history.seat, prompt, output));
  }
  return {};
}

/// Resolves token ids and lays the page tables of the step's sequences side by side.
void PlanRunner::gather(const StepPlan& plan) {
  token_ids_.clear();
  for (const std::int32_t id : plan.token_ids)
    token_ids_.push_back(id >= 0 ? id : last_sampled_[static_cast<std::size_t>(-1 - id)]);
  const std::int32_t context =
      plan.context_lengths.empty()
          ? 0
          : *std::max_element(plan.context_lengths.begin(), plan.context_lengths.end());
  table_width_ = ceil_div(context, bounds_.tokens_per_page);
  step_tables_.clear();
  for (const std::int32_t seat : plan.seats) {
    const auto row = page_tables_.begin() + static_cast<std::ptrdiff_t>(seat) * pages_per_seat_;
    step_tables_.insert(step_tables_.end(), row, row + static_cast<std::ptrdiff_t>(table_width_));
  }
  sampling_.resize(plan.sampling.size());
  if (!sampling_.empty())
    std::memcpy(static_cast<void*>(sampling_.data()), plan.sampling.data(),
                plan.sampling.size_bytes());
  biases_.resize(plan.biases.size());
  if (!biases_.empty())
    std::memcpy(static_cast<void*>(biases_.data()), plan.biases.data(), plan.biases.size_bytes());
}

Status PlanRunner::run(std::span<const std::byte> bytes, StepResult& result) {
  KOHO_TRY_ASSIGN(const StepPlan plan, read_plan(bytes, bounds_));
  KOHO_TRY(apply(plan));
  gather(plan);
  output_.ids.clear();
  KOHO_TRY(worker_->step({.token_ids = token_ids_,
                          .positions = plan.positions,
                          .slots = plan.slots,
                          .query_starts = plan.query_starts,
                          .context_lengths = plan.context_lengths,
                          .page_tables = step_tables_,
                          .page_table_width = table_width_,
                          .decodes = plan.decodes,
                          .logit_rows = plan.logit_rows,
                          .sampling = sampling_,
                          .biases = biases_,
                          .masks = {}},
                         output_));
  for (std::size_t i = 0; i < plan.sample_seats.size(); ++i)
    last_sampled_[static_cast<std::size_t>(plan.sample_seats[i])] = std::max(output_.ids[i], 0);
  result.step = plan.step;
  result.tokens = output_.ids;
  result.logprobs = output_.logprobs;
  result.top_ids = output_.top_ids;
  result.top_logprobs = output_.top_logprobs;
  return {};
}

}  // namespace koho
