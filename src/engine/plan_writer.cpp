// SPDX-License-Identifier: Apache-2.0
// Counts what a step's plan holds, lays it out, and fills it row by row.
// tests/simulation/mutations.py quotes lines of this file.
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

using DrawOf = std::function<const Draw&(const Sequence&)>;

/// What the plan of `batch` will hold, and whether its masks are late.
struct CountedPlan {
  PlanCounts counts;
  bool masks_are_late = false;
};

CountedPlan count_plan(const Scheduler& scheduler, const StepBatch& batch, const DrawOf& draw_of) {
  CountedPlan counted{.counts = {.tokens = batch.tokens,
                                 .sequences = static_cast<std::int32_t>(batch.rows.size()),
                                 .decodes = batch.decodes,
                                 .samples = batch.samples,
                                 .runs = static_cast<std::int32_t>(batch.runs.size()),
                                 .run_pages = static_cast<std::int32_t>(batch.run_pages.size()),
                                 .copies = static_cast<std::int32_t>(batch.copies.size()),
                                 .history_tokens = batch.history_tokens}};
  PlanCounts& counts = counted.counts;
  bool& masks_are_late = counted.masks_are_late;
  for (const StepRow& row : batch.rows) {
    const Sequence& sequence = *scheduler.find(row.sequence);
    if (row.samples) {
      const Draw& draw = draw_of(sequence);
      counts.biases += bias_count(draw, output_position(sequence, row));
      counts.mask_words += static_cast<std::int32_t>(draw.mask.size());
      counts.logits_wanted += draw.logits ? 1 : 0;
      masks_are_late = masks_are_late || (!draw.mask.empty() && row.takes_last);
    }
    if (row.admitted && sequence.wants_token_counts) ++counts.histories;
    if (row.admitted) {
      ++counts.stops;
      counts.stop_words +=
          recent_count(sequence) + static_cast<std::int32_t>(draw_of(sequence).stops.size());
    }
  }
  return counted;
}

/// Fills a plan row by row and keeps how far each of its arrays is filled.
class RowWriter {
 public:
  RowWriter(PlanWriter& plan, const Limits& limits, LateMasks& late, bool masks_are_late)
      : plan_(plan),
        limits_(limits),
        late_(late),
        masks_are_late_(masks_are_late),
        stop_word_(plan.stop_words.begin()) {
    plan_.query_starts[0] = 0;
  }

  void write(const Sequence& sequence, const StepRow& row, const Draw& draw) {
    write_tokens(sequence, row);
    plan_.query_starts[row_ + 1] = static_cast<std::int32_t>(token_);
    plan_.context_lengths[row_] = row.start + row.count;
    plan_.batch_slots[row_] = row.batch_slot;
    ++row_;
    if (row.admitted && sequence.wants_token_counts) write_history(sequence, row);
    if (row.admitted) write_stops(sequence, row, draw);
    if (row.samples) write_sampling(sequence, row, draw);
  }

 private:
  void write_tokens(const Sequence& sequence, const StepRow& row) {
    const std::int32_t page_tokens = limits_.tokens_per_page;
    for (std::int32_t i = 0; i < row.count; ++i, ++token_) {
      const std::int32_t position = row.start + i;
      const PageId page = sequence.pages[static_cast<std::size_t>(position / page_tokens)].page;
      plan_.token_ids[token_] = row.takes_last
                                    ? take_last_sampled(row.batch_slot)
                                    : sequence.tokens[static_cast<std::size_t>(position)];
      plan_.positions[token_] = position;
      plan_.slots[token_] = std::int64_t{page} * page_tokens + position % page_tokens;
    }
  }

  void write_history(const Sequence& sequence, const StepRow& row) {
    plan_.histories[history_++] = {row.batch_slot, sequence.prompt_length,
                                   sequence.known() - sequence.prompt_length};
    std::ranges::copy(sequence.tokens,
                      plan_.history_tokens.begin() + static_cast<std::ptrdiff_t>(history_token_));
    history_token_ += sequence.tokens.size();
  }

  void write_stops(const Sequence& sequence, const StepRow& row, const Draw& draw) {
    const std::int32_t recent = recent_count(sequence);
    plan_.stops[stop_++] = {.batch_slot = row.batch_slot,
                            .output = sequence.known() - sequence.prompt_length,
                            .output_min = draw.min_tokens,
                            .words = static_cast<std::int32_t>(draw.stops.size())};
    stop_word_ = std::copy(sequence.tokens.end() - recent, sequence.tokens.end(), stop_word_);
    stop_word_ = std::ranges::copy(draw.stops, stop_word_).out;
  }

  void write_sampling(const Sequence& sequence, const StepRow& row, const Draw& draw) {
    SamplingRow sampling = draw.row;
    sampling.output_position = output_position(sequence, row);
    sampling.counts_slot = sequence.wants_token_counts ? row.batch_slot : -1;
    sampling.bias_begin = static_cast<std::int32_t>(bias_);
    sampling.bias_count = bias_count(draw, static_cast<std::int32_t>(sampling.output_position));
    for (std::int32_t i = 0; i < sampling.bias_count; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const LogitBias& entry =
          at < draw.biases.size() ? draw.biases[at] : draw.stop_biases[at - draw.biases.size()];
      plan_.biases[bias_++] = entry;
    }
    if (!draw.mask.empty()) {
      sampling.mask_row = static_cast<std::int32_t>(mask_word_ / draw.mask.size());
      write_mask(row, draw);
    }
    if (draw.logits) plan_.logits_wanted[logits_wanted_++] = static_cast<std::int32_t>(sample_);
    plan_.sampling[sample_] = sampling;
    plan_.logit_rows[sample_] = static_cast<std::int32_t>(token_) - 1;
    plan_.sample_batch_slots[sample_] = row.batch_slot;
    ++sample_;
  }

  void write_mask(const StepRow& row, const Draw& draw) {
    if (masks_are_late_)
      late_.rows.push_back(row.sequence);
    else
      std::ranges::copy(draw.mask, plan_.masks.begin() + static_cast<std::ptrdiff_t>(mask_word_));
    mask_word_ += draw.mask.size();
  }

  PlanWriter& plan_;
  const Limits& limits_;
  LateMasks& late_;
  bool masks_are_late_;
  std::size_t row_ = 0;
  std::size_t token_ = 0;
  std::size_t sample_ = 0;
  std::size_t bias_ = 0;
  std::size_t logits_wanted_ = 0;
  std::size_t history_ = 0;
  std::size_t history_token_ = 0;
  std::size_t stop_ = 0;
  std::span<std::int32_t>::iterator stop_word_;
  std::size_t mask_word_ = 0;
};

void write_page_tables(PlanWriter& plan, const StepBatch& batch) {
  std::ranges::transform(batch.runs, plan.runs.begin(), [](const PageRun& run) {
    return PlanPageRun{run.batch_slot, run.first, run.count};
  });
  std::ranges::copy(batch.run_pages, plan.run_pages.begin());
  std::ranges::transform(batch.copies, plan.copies.begin(), [](const PageCopy& copy) {
    return PlanPageCopy{copy.from, copy.to};
  });
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
          .biases_max = s.sequences_max * kBiasesMax,
          .mask_rows_max = s.sequences_max};
}

Result<std::size_t> write_plan(const Scheduler& scheduler,
                               const StepBatch& batch,
                               const std::function<const Draw&(const Sequence&)>& draw_of,
                               std::span<std::byte> space,
                               LateMasks& late) {
  const CountedPlan counted = count_plan(scheduler, batch, draw_of);
  late.words = {};
  late.rows.clear();
  KOHO_TRY_ASSIGN(PlanWriter plan,
                  begin_plan(batch.step, counted.counts, counted.masks_are_late, space));
  if (counted.masks_are_late) late.words = plan.masks;

  RowWriter rows(plan, scheduler.limits(), late, counted.masks_are_late);
  for (const StepRow& row : batch.rows) {
    const Sequence& sequence = *scheduler.find(row.sequence);
    rows.write(sequence, row, draw_of(sequence));
  }
  write_page_tables(plan, batch);
  return plan_bytes(counted.counts);
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
