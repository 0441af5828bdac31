// SPDX-License-Identifier: Apache-2.0
// StepPlan: everything the ranks need to know about one step, as flat arrays behind a fixed header
// in one piece of memory (later a ring that processes share). Plain data only. The layout follows
// from the counts in the header; a reader trusts none of it and checks every length and every
// number before the first use (read_plan), so a broken writer gives an error, never a wild read.
//
// A *batch slot* is a sequence's place in the tables that the ranks keep between steps: its page
// table, the token it sampled last, its token counts for penalties. A batch slot's page table
// changes only by the runs of a plan.
//
// Pages are numbered over all ranks. Where each rank holds a partition of them (data-parallel
// attention), a plan is still one and the same for all: a sequence's slots say whose it is.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <type_traits>

#include "base/error.h"
#include "sampling/output_record.h"
#include "sampling/parameters.h"

namespace koho {

/// Instead of a token id: "the token that this batch slot sampled last", which the host does not
/// know yet (one-step lookahead).
constexpr std::int32_t take_last_sampled(std::int32_t batch_slot) {
  return -1 - batch_slot;
}

/// `count` entries of a batch slot's page table from `first` on; the pages follow in run_pages.
/// Runs are applied in order, before anything else of the step.
struct PlanPageRun {
  std::int32_t batch_slot = 0;
  std::int32_t first = 0;
  std::int32_t count = 0;
};

/// A whole page, copied before the step's tokens are stored. No page is both source and target in
/// one plan.
struct PlanPageCopy {
  std::int32_t from = 0;
  std::int32_t to = 0;
};

/// The token counts of a batch slot begin anew: `prompt` tokens, then `output` tokens of
/// history_tokens.
struct PlanHistory {
  std::int32_t batch_slot = 0;
  std::int32_t prompt = 0;
  std::int32_t output = 0;
};

/// A sequence takes a batch slot, which one of a plan's sequences does at most: its output has
/// `output` tokens so far and ends with one of its stops; one of several tokens ends behind
/// `output_min` others (sampling/output_record.h). The last recent() tokens of the output stand in
/// stop_words, then `words` words of stops.
struct PlanStops {
  std::int32_t batch_slot = 0;
  std::int32_t output = 0;
  std::int32_t output_min = 0;
  std::int32_t words = 0;

  std::int32_t recent() const { return std::min(output, OutputRecord::kRecentTokens); }
};

/// How many elements each array has.
struct PlanCounts {
  std::int32_t tokens = 0;     // T
  std::int32_t sequences = 0;  // S
  std::int32_t decodes = 0;    // the first `decodes` sequences have one token each
  std::int32_t samples = 0;    // R
  std::int32_t runs = 0;
  std::int32_t run_pages = 0;
  std::int32_t copies = 0;
  std::int32_t biases = 0;
  std::int32_t histories = 0;
  std::int32_t history_tokens = 0;
  std::int32_t stops = 0;
  std::int32_t stop_words = 0;
  std::int32_t mask_words = 0;  // of all masks together
  std::int32_t logits_wanted = 0;

  bool operator==(const PlanCounts&) const = default;
};

struct PlanHeader {
  std::uint32_t magic = 0;
  std::uint32_t version = 0;
  std::uint64_t bytes = 0;  // of the whole plan
  std::int64_t step = 0;
  PlanCounts counts;
  std::int32_t late_masks = 0;  // 1: the masks are written after the plan was handed over
};
static_assert(std::is_trivially_copyable_v<PlanHeader> && sizeof(PlanHeader) == 88);

/// The arrays of a plan: writable (Byte = std::byte) or not (const std::byte).
template <typename Byte>
struct PlanArrays {
  template <typename T>
  using Array = std::span<std::conditional_t<std::is_const_v<Byte>, const T, T>>;

  std::int64_t step = 0;
  std::int32_t decodes = 0;
  bool late_masks = false;  // nothing is in `masks` yet (engine/executor.h)

  Array<std::int32_t> token_ids;           // [T] id, or take_last_sampled(batch slot)
  Array<std::int32_t> positions;           // [T] place in the sequence
  Array<std::int64_t> slots;               // [T] page * tokens_per_page + offset
  Array<std::int32_t> query_starts;        // [S+1] sequence s owns tokens query_starts[s] ..
  Array<std::int32_t> context_lengths;     // [S] tokens in the cache once this step's are stored
  Array<std::int32_t> batch_slots;         // [S]
  Array<std::int32_t> logit_rows;          // [R] ascending; each the last token of a sequence
  Array<std::int32_t> sample_batch_slots;  // [R] whose last sampled token this becomes
  Array<SamplingRow> sampling;             // [R]
  Array<std::int32_t> logits_wanted;       // ascending: the rows of R whose logits come back
  Array<LogitBias> biases;                 // ranges are named by the sampling rows
  Array<PlanPageRun> runs;
  Array<std::int32_t> run_pages;
  Array<PlanPageCopy> copies;
  Array<PlanHistory> histories;
  Array<std::int32_t> history_tokens;
  Array<PlanStops> stops;
  Array<std::int32_t> stop_words;
  Array<std::uint32_t> masks;  // [M, mask_words()] bit t % 32 of word t / 32: token t is allowed;
                               // rows are named by the sampling rows
};
using PlanWriter = PlanArrays<std::byte>;
using StepPlan = PlanArrays<const std::byte>;

/// Calls set(batch slot, word, value) for every word of every OutputRecord that the plan's stops
/// change.
void list_output_record_updates(
    const StepPlan& plan, const std::function<void(std::int32_t, std::int32_t, std::int32_t)>& set);

/// What a reader holds a plan against.
struct PlanBounds {
  std::int32_t tokens_max = 0;
  std::int32_t sequences_max = 0;  // also the number of batch slots
  std::int32_t pages = 0;
  std::int32_t partitions = 1;  // equal runs of pages; a sequence's pages lie in one
  std::int32_t tokens_per_page = 0;
  std::int32_t context_max = 0;
  std::int32_t vocabulary = 0;
  std::int32_t runs_max = 0;
  std::int32_t run_pages_max = 0;
  std::int32_t biases_max = 0;
  std::int32_t mask_rows_max = 0;  // sampled rows that have a mask

  std::int32_t mask_words() const { return (vocabulary + 31) / 32; }  // of one row
  std::int32_t pages_per_partition() const { return pages / partitions; }
  /// The counts no plan exceeds.
  PlanCounts counts_max() const;
};

/// Bytes of a plan with these counts.
std::size_t plan_bytes(const PlanCounts& counts);

/// Writes the header and returns the arrays, to be filled by the caller, the masks later if
/// `late_masks`. Errors: resource_exhausted if `space` is too small; internal if it is not 8-byte
/// aligned.
Result<PlanWriter> begin_plan(std::int64_t step,
                              const PlanCounts& counts,
                              bool late_masks,
                              std::span<std::byte> space);

/// Checks a plan against itself and against `bounds`; what the masks hold needs no check and is not
/// looked at. The views live as long as `bytes`.
/// Errors: corrupt_data naming the array, the place and what was found.
Result<StepPlan> read_plan(std::span<const std::byte> bytes, const PlanBounds& bounds);

}  // namespace koho
