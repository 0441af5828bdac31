// SPDX-License-Identifier: Apache-2.0
#include "worker/plan_runner.h"

namespace koho {

PlanRunner::PlanRunner(Worker& worker, const PlanBounds& bounds)
    : worker_(&worker), bounds_(bounds) {
  const PlanCounts most = bounds.counts_max();
  page_places_.reserve(static_cast<std::size_t>(2 * most.run_pages));
  page_copies_.reserve(static_cast<std::size_t>(2 * most.copies));
}

/// The changes of page tables, place by place. Runs apply in order: of two changes of one place the
/// last one counts, and takes the place of the first.
void PlanRunner::list_pages(const StepPlan& plan) {
  page_places_.clear();
  std::size_t next_page = 0;
  for (std::size_t r = 0; r < plan.runs.size(); ++r) {
    const PlanPageRun& run = plan.runs[r];
    for (std::int32_t i = run.first; i < run.first + run.count; ++i, ++next_page) {
      bool changed_later = false;
      for (std::size_t later = r + 1; later < plan.runs.size() && !changed_later; ++later)
        changed_later = plan.runs[later].seat == run.seat && plan.runs[later].first <= i &&
                        i < plan.runs[later].first + plan.runs[later].count;
      if (changed_later) continue;
      page_places_.push_back(worker_->page_place(run.seat, i));
      page_places_.push_back(plan.run_pages[next_page]);
    }
  }
  page_copies_.clear();
  for (const PlanPageCopy& copy : plan.copies)
    page_copies_.insert(page_copies_.end(), {copy.from, copy.to});
}

Status PlanRunner::start(std::span<const std::byte> bytes) {
  KOHO_TRY_ASSIGN(const StepPlan plan, read_plan(bytes, bounds_));
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
  list_pages(plan);
  KOHO_TRY(worker_->enqueue({.token_ids = plan.token_ids,
                             .positions = plan.positions,
                             .slots = plan.slots,
                             .query_starts = plan.query_starts,
                             .context_lengths = plan.context_lengths,
                             .seats = plan.seats,
                             .decodes = plan.decodes,
                             .logit_rows = plan.logit_rows,
                             .sample_seats = plan.sample_seats,
                             .sampling = plan.sampling,
                             .biases = plan.biases,
                             .masks = {},
                             .page_places = page_places_,
                             .page_copies = page_copies_}));
  steps_[started_++ % steps_.size()] = plan.step;
  return {};
}

Status PlanRunner::finish(StepResult& result) {
  result.step = steps_[finished_++ % steps_.size()];
  KOHO_TRY(worker_->finish(output_));
  result.tokens = output_.ids;
  result.logprobs = output_.logprobs;
  result.top_ids = output_.top_ids;
  result.top_logprobs = output_.top_logprobs;
  return {};
}

Status PlanRunner::run(std::span<const std::byte> plan, StepResult& result) {
  KOHO_TRY(start(plan));
  return finish(result);
}

}  // namespace koho
