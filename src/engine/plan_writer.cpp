// SPDX-License-Identifier: Apache-2.0
#include "engine/plan_writer.h"

#include <algorithm>

#include "base/check.h"

namespace koho {
namespace {

/// Index of the row's sampled token among its sequence's output tokens.
std::int32_t output_position(const Sequence& sequence, const StepRow& row) {
  return row.start + row.count - sequence.prompt_length;
}

std::int32_t bias_count(const Draw& draw, std::int32_t position) {
  const std::size_t stops = position < draw.min_tokens ? draw.stop_biases.size() : 0;
  return static_cast<std::int32_t>(draw.biases.size() + stops);
}

/// Output tokens that a matcher of stops needs to know.
std::int32_t recent_count(const Sequence& sequence) {
  return std::min(sequence.known() - sequence.prompt_length, OutputRecord::kRecentTokens);
}

void write_tokens(PlanWriter& plan,
                  const Limits& limits,
                  const Sequence& sequence,
                  const StepRow& row,
                  std::size_t first) {
  for (std::int32_t i = 0; i < row.count; ++i) {
    const std::size_t t = first + static_cast<std::size_t>(i);
    const std::int32_t position = row.start + i;
    const PageId page =
        sequence.pages[static_cast<std::size_t>(position / limits.tokens_per_page)].page;
    plan.token_ids[t] = row.takes_last ? take_last_sampled(row.batch_slot)
                                       : sequence.tokens[static_cast<std::size_t>(position)];
    plan.positions[t] = position;
    plan.slots[t] = std::int64_t{page} * limits.tokens_per_page + position % limits.tokens_per_page;
  }
}

}  // namespace

PlanBounds plan_bounds(const EngineLimits& limits) {
  const Limits& s = limits.scheduler;
  return {.tokens_max = s.step_tokens_max,
          .sequences_max = s.sequences_max,
          .pages = s.pages,
          .partitions = s.partitions,
          .tokens_per_page = s.tokens_per_page,
          .context_max = s.context_max,
          .vocabulary = limits.vocabulary,
          // A growing page, a deduplicated page and an admission of each.
          .runs_max = 3 * s.sequences_max,
          .run_pages_max = s.page_changes_max(),
          .biases_max = s.bias_entries_max,
          .mask_rows_max = s.sequences_max};
}

Result<std::size_t> write_plan(const Scheduler& scheduler,
                               const StepBatch& batch,
                               const std::function<const Draw&(const Sequence&)>& draw_of,
                               std::span<std::byte> space,
                               LateMasks& late) {
  PlanCounts counts{.tokens = batch.tokens,
                    .sequences = static_cast<std::int32_t>(batch.rows.size()),
                    .decodes = batch.decodes,
                    .samples = batch.samples,
                    .runs = static_cast<std::int32_t>(batch.runs.size()),
                    .run_pages = static_cast<std::int32_t>(batch.run_pages.size()),
                    .copies = static_cast<std::int32_t>(batch.copies.size()),
                    .history_tokens = batch.history_tokens};
  late.words = {};
  late.rows.clear();
  bool masks_are_late = false;
  for (const StepRow& row : batch.rows) {
    const Sequence& sequence = *scheduler.find(row.sequence);
    if (row.samples) {
      const Draw& draw = draw_of(sequence);
      counts.biases += bias_count(draw, output_position(sequence, row));
      counts.mask_words += static_cast<std::int32_t>(draw.mask.size());
      masks_are_late = masks_are_late || (!draw.mask.empty() && row.takes_last);
    }
    if (row.admitted && sequence.wants_history) ++counts.histories;
    if (row.admitted) {
      ++counts.stops;
      counts.stop_words +=
          recent_count(sequence) + static_cast<std::int32_t>(draw_of(sequence).stops.size());
    }
  }
  KOHO_TRY_ASSIGN(PlanWriter plan, begin_plan(batch.step, counts, masks_are_late, space));
  if (masks_are_late) late.words = plan.masks;

  std::size_t token = 0;
  std::size_t sample = 0;
  std::size_t bias = 0;
  std::size_t history = 0;
  std::size_t history_token = 0;
  std::size_t stop = 0;
  auto stop_word = plan.stop_words.begin();
  std::size_t mask_word = 0;
  plan.query_starts[0] = 0;
  for (std::size_t s = 0; s < batch.rows.size(); ++s) {
    const StepRow& row = batch.rows[s];
    const Sequence& sequence = *scheduler.find(row.sequence);
    write_tokens(plan, scheduler.limits(), sequence, row, token);
    token += static_cast<std::size_t>(row.count);
    plan.query_starts[s + 1] = static_cast<std::int32_t>(token);
    plan.context_lengths[s] = row.start + row.count;
    plan.batch_slots[s] = row.batch_slot;

    if (row.admitted && sequence.wants_history) {
      plan.histories[history++] = {row.batch_slot, sequence.prompt_length,
                                   sequence.known() - sequence.prompt_length};
      std::ranges::copy(sequence.tokens,
                        plan.history_tokens.begin() + static_cast<std::ptrdiff_t>(history_token));
      history_token += sequence.tokens.size();
    }
    const Draw& draw = draw_of(sequence);
    if (row.admitted) {
      const std::int32_t recent = recent_count(sequence);
      plan.stops[stop++] = {.batch_slot = row.batch_slot,
                            .output = sequence.known() - sequence.prompt_length,
                            .output_min = draw.min_tokens,
                            .words = static_cast<std::int32_t>(draw.stops.size())};
      stop_word = std::copy(sequence.tokens.end() - recent, sequence.tokens.end(), stop_word);
      stop_word = std::ranges::copy(draw.stops, stop_word).out;
    }
    if (!row.samples) continue;
    SamplingRow sampling = draw.row;
    sampling.output_position = output_position(sequence, row);
    sampling.counts_slot = sequence.wants_history ? row.batch_slot : -1;
    sampling.bias_begin = static_cast<std::int32_t>(bias);
    sampling.bias_count = bias_count(draw, static_cast<std::int32_t>(sampling.output_position));
    for (std::int32_t i = 0; i < sampling.bias_count; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const LogitBias& entry =
          at < draw.biases.size() ? draw.biases[at] : draw.stop_biases[at - draw.biases.size()];
      plan.biases[bias++] = entry;
    }
    if (!draw.mask.empty()) {
      sampling.mask_row = static_cast<std::int32_t>(mask_word / draw.mask.size());
      if (masks_are_late)
        late.rows.push_back(row.sequence);
      else
        std::ranges::copy(draw.mask, plan.masks.begin() + static_cast<std::ptrdiff_t>(mask_word));
      mask_word += draw.mask.size();
    }
    plan.sampling[sample] = sampling;
    plan.logit_rows[sample] = static_cast<std::int32_t>(token) - 1;
    plan.sample_batch_slots[sample] = row.batch_slot;
    ++sample;
  }
  std::ranges::transform(batch.runs, plan.runs.begin(), [](const PageRun& run) {
    return PlanPageRun{run.batch_slot, run.first, run.count};
  });
  std::ranges::copy(batch.run_pages, plan.run_pages.begin());
  std::ranges::transform(batch.copies, plan.copies.begin(), [](const PageCopy& copy) {
    return PlanPageCopy{copy.from, copy.to};
  });
  return plan_bytes(counts);
}

void write_late_masks(const Scheduler& scheduler,
                      const std::function<const Draw&(const Sequence&)>& draw_of,
                      const LateMasks& late) {
  if (late.rows.empty()) return;
  const std::size_t words = late.words.size() / late.rows.size();
  for (std::size_t row = 0; row < late.rows.size(); ++row) {
    const std::span<std::uint32_t> mask = late.words.subspan(row * words, words);
    const Sequence* sequence = scheduler.find(late.rows[row]);
    // What is sampled for a sequence that ended meanwhile nobody reads.
    const std::span<const std::uint32_t> own =
        sequence == nullptr ? std::span<const std::uint32_t>() : draw_of(*sequence).mask;
    if (own.empty())
      std::ranges::fill(mask, ~0U);
    else
      std::ranges::copy(own, mask.begin());
  }
}

}  // namespace koho
