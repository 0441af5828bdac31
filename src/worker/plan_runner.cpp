// SPDX-License-Identifier: Apache-2.0
#include "worker/plan_runner.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace koho {
namespace {

template <typename T>
void append(std::vector<T>& to, std::span<const T> from) {
  to.insert(to.end(), from.begin(), from.end());
}

/// Copies this rank's rows to their indices among the `rows` of all ranks.
template <typename T>
void spread(std::vector<T>& to,
            const std::vector<T>& from,
            std::span<const std::size_t> places,
            std::size_t rows) {
  to.clear();
  if (from.empty()) return;
  const std::size_t width = from.size() / places.size();
  to.resize(rows * width);
  for (std::size_t i = 0; i < places.size(); ++i)
    std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(i * width), width,
                to.begin() + static_cast<std::ptrdiff_t>(places[i] * width));
}

}  // namespace

PlanRunner::PlanRunner(Worker& worker, const PlanBounds& bounds)
    : worker_(&worker),
      bounds_(bounds),
      first_page_(bounds.partitions == 1 ? 0
                                         : static_cast<std::int32_t>(worker.model().shard().rank) *
                                               bounds.pages_per_partition()),
      owned_(static_cast<std::size_t>(bounds.sequences_max)),
      rank_tokens_(static_cast<std::size_t>(bounds.partitions)) {
  const PlanCounts most = bounds.counts_max();
  const auto tokens = static_cast<std::size_t>(most.tokens);
  const auto sequences = static_cast<std::size_t>(most.sequences);
  token_ids_.reserve(tokens);
  positions_.reserve(tokens);
  slots_.reserve(tokens);
  query_starts_.reserve(sequences + 1);
  for (std::vector<std::int32_t>* list :
       {&context_lengths_, &batch_slots_, &logit_rows_, &sample_batch_slots_})
    list->reserve(sequences);
  sampling_.reserve(sequences);
  logits_wanted_.reserve(sequences);
  for (Unfinished& plan : unfinished_) plan.own_rows.reserve(sequences);
  page_table_updates_.reserve(static_cast<std::size_t>(2 * most.run_pages));
  output_record_updates_.reserve(2 * sequences * OutputRecord::kWords);
  page_copies_.reserve(static_cast<std::size_t>(2 * most.copies));
  counts_resets_.reserve(static_cast<std::size_t>(most.histories));
  history_tokens_.reserve(static_cast<std::size_t>(most.history_tokens));
  const auto samples = static_cast<std::size_t>(most.samples);
  output_.ids.reserve(samples);
  output_.ends.reserve(samples);
  output_.logprobs.reserve(samples);
  output_.top_ids.reserve(samples * kTopLogprobsMax);
  output_.top_logprobs.reserve(samples * kTopLogprobsMax);
}

/// Lists the updates of this rank's page tables, entry by entry. The plan's runs apply in order: of
/// two updates of one entry the later one replaces the earlier one.
void PlanRunner::list_pages(const StepPlan& plan) {
  page_table_updates_.clear();
  std::size_t next_page = 0;
  for (std::size_t r = 0; r < plan.runs.size(); ++r) {
    const PlanPageRun& run = plan.runs[r];
    const bool owned = run.count > 0 && owns(plan.run_pages[next_page]);
    if (run.count > 0) owned_[static_cast<std::size_t>(run.batch_slot)] = owned ? 1 : 0;
    if (!owned) {
      next_page += static_cast<std::size_t>(run.count);
      continue;
    }
    for (std::int32_t i = run.first; i < run.first + run.count; ++i, ++next_page) {
      bool changed_later = false;
      for (std::size_t later = r + 1; later < plan.runs.size() && !changed_later; ++later)
        changed_later = plan.runs[later].batch_slot == run.batch_slot &&
                        plan.runs[later].first <= i &&
                        i < plan.runs[later].first + plan.runs[later].count;
      if (changed_later) continue;
      page_table_updates_.push_back(worker_->page_table_index(run.batch_slot, i));
      page_table_updates_.push_back(plan.run_pages[next_page] - first_page_);
    }
  }
  page_copies_.clear();
  for (const PlanPageCopy& copy : plan.copies)
    if (owns(copy.from))
      page_copies_.insert(page_copies_.end(), {copy.from - first_page_, copy.to - first_page_});
}

/// Lists the output records of sequences that start in a batch slot of this rank. Their pages are
/// known by now, so the rank knows which are its own.
void PlanRunner::list_outputs(const StepPlan& plan) {
  output_record_updates_.clear();
  list_output_record_updates(
      plan, [this](std::int32_t batch_slot, std::int32_t word, std::int32_t value) {
        if (owned_[static_cast<std::size_t>(batch_slot)] != 0)
          output_record_updates_.insert(output_record_updates_.end(),
                                        {Worker::output_record_index(batch_slot, word), value});
      });
}

/// Lists this rank's tokens, sequences and samples, in the order of the plan.
void PlanRunner::list_tokens(const StepPlan& plan, std::vector<std::size_t>& own_rows) {
  token_ids_.clear();
  positions_.clear();
  slots_.clear();
  query_starts_.assign(1, 0);
  context_lengths_.clear();
  batch_slots_.clear();
  logit_rows_.clear();
  sample_batch_slots_.clear();
  sampling_.clear();
  logits_wanted_.clear();
  own_rows.clear();
  decodes_ = 0;
  std::ranges::fill(rank_tokens_, 0);
  const std::int64_t slots_before = std::int64_t{first_page_} * bounds_.tokens_per_page;
  std::size_t sample = 0;  // samples are in the order of their sequences, one of each at most
  for (std::size_t s = 0; s < plan.batch_slots.size(); ++s) {
    const auto begin = static_cast<std::size_t>(plan.query_starts[s]);
    const auto count = static_cast<std::size_t>(plan.query_starts[s + 1]) - begin;
    const bool samples =
        sample < plan.logit_rows.size() && plan.logit_rows[sample] == plan.query_starts[s + 1] - 1;
    const std::size_t row = samples ? sample++ : 0;
    const auto page = static_cast<std::int32_t>(plan.slots[begin] / bounds_.tokens_per_page);
    rank_tokens_[static_cast<std::size_t>(page / bounds_.pages_per_partition())] +=
        static_cast<std::int64_t>(count);
    if (!owns(page)) continue;
    append(token_ids_, plan.token_ids.subspan(begin, count));
    append(positions_, plan.positions.subspan(begin, count));
    for (const std::int64_t slot : plan.slots.subspan(begin, count))
      slots_.push_back(slot - slots_before);
    query_starts_.push_back(static_cast<std::int32_t>(token_ids_.size()));
    context_lengths_.push_back(plan.context_lengths[s]);
    batch_slots_.push_back(plan.batch_slots[s]);
    decodes_ += static_cast<std::int32_t>(s) < plan.decodes ? 1 : 0;
    if (!samples) continue;
    logit_rows_.push_back(query_starts_.back() - 1);
    sample_batch_slots_.push_back(plan.sample_batch_slots[row]);
    sampling_.push_back(plan.sampling[row]);
    if (std::ranges::binary_search(plan.logits_wanted, static_cast<std::int32_t>(row)))
      logits_wanted_.push_back(static_cast<std::int32_t>(own_rows.size()));
    own_rows.push_back(row);
  }
}

/// Lists the new sequences whose token counts begin anew and whose pages this rank holds.
void PlanRunner::list_histories(const StepPlan& plan) {
  counts_resets_.clear();
  history_tokens_.clear();
  std::size_t next_token = 0;
  for (const PlanHistory& history : plan.histories) {
    const auto count = static_cast<std::size_t>(std::int64_t{history.prompt} + history.output);
    const auto tokens = plan.history_tokens.subspan(next_token, count);
    next_token += count;
    if (owned_[static_cast<std::size_t>(history.batch_slot)] == 0) continue;
    counts_resets_.push_back({history.batch_slot, history.prompt, history.output});
    append(history_tokens_, tokens);
  }
}

Status PlanRunner::start(std::span<const std::byte> bytes) {
  KOHO_TRY_ASSIGN(const StepPlan plan, read_plan(bytes, bounds_));
  Unfinished& unfinished = unfinished_[started_ % unfinished_.size()];
  list_pages(plan);
  list_histories(plan);
  list_outputs(plan);
  list_tokens(plan, unfinished.own_rows);
  const std::size_t sequences = plan.batch_slots.size();
  const bool all_decode = sequences > 0 && std::cmp_equal(plan.decodes, sequences) &&
                          plan.logit_rows.size() == sequences;
  KOHO_TRY(worker_->enqueue_forward({.token_ids = token_ids_,
                                     .positions = positions_,
                                     .slots = slots_,
                                     .query_starts = query_starts_,
                                     .context_lengths = context_lengths_,
                                     .batch_slots = batch_slots_,
                                     .decodes = decodes_,
                                     .rank_tokens = rank_tokens_,
                                     .all_ranks_decode = all_decode,
                                     .logit_rows = logit_rows_,
                                     .sample_batch_slots = sample_batch_slots_,
                                     .sampling = sampling_,
                                     .logits_wanted = logits_wanted_,
                                     .biases = plan.biases,
                                     .masks = {},
                                     .page_table_updates = page_table_updates_,
                                     .output_record_updates = output_record_updates_,
                                     .page_copies = page_copies_,
                                     .counts_resets = counts_resets_,
                                     .history_tokens = history_tokens_}));
  awaits_masks_ = plan.late_masks;
  late_masks_ = plan.masks;
  if (!plan.late_masks) KOHO_TRY(worker_->enqueue_sampling(plan.masks));
  unfinished.step = plan.step;
  unfinished.rows = plan.logit_rows.size();
  ++started_;
  return {};
}

Status PlanRunner::take_masks() {
  KOHO_CHECK(awaits_masks_);
  awaits_masks_ = false;
  return worker_->enqueue_sampling(late_masks_);
}

Status PlanRunner::finish(StepResult& result) {
  const Unfinished& plan = unfinished_[finished_++ % unfinished_.size()];
  KOHO_TRY(worker_->finish(output_));
  result.step = plan.step;
  result.tokens.assign(plan.rows, kSampledElsewhere);
  result.ends.assign(plan.rows, RowEnd::none);
  for (std::size_t i = 0; i < plan.own_rows.size(); ++i) {
    result.tokens[plan.own_rows[i]] = output_.ids[i];
    result.ends[plan.own_rows[i]] = output_.ends[i];
  }
  spread(result.logprobs, output_.logprobs, plan.own_rows, plan.rows);
  spread(result.top_ids, output_.top_ids, plan.own_rows, plan.rows);
  spread(result.top_logprobs, output_.top_logprobs, plan.own_rows, plan.rows);
  result.logits_rows.clear();
  for (const std::int32_t row : output_.logits_rows)
    result.logits_rows.push_back(
        static_cast<std::int32_t>(plan.own_rows[static_cast<std::size_t>(row)]));
  std::swap(result.logits, output_.logits_values);
  return {};
}

Status PlanRunner::run(std::span<const std::byte> plan, StepResult& result) {
  KOHO_TRY(start(plan));
  return finish(result);
}

}  // namespace koho
