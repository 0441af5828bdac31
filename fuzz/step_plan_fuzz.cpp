// SPDX-License-Identifier: Apache-2.0
// Step plans of a broken peer: a rank can run every plan that the reader accepts without further
// checks. Half of the inputs get a header with their length; otherwise hardly any would pass it.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/check.h"
#include "plan/step_plan.h"
#include "sampling/output_record.h"

namespace koho {
namespace {

constexpr PlanBounds kBounds{.tokens_max = 12,
                             .sequences_max = 4,
                             .pages = 10,
                             .tokens_per_page = 4,
                             .context_max = 24,
                             .vocabulary = 64,
                             .runs_max = 6,
                             .run_pages_max = 8,
                             .biases_max = 4,
                             .mask_rows_max = 2};

/// What ranks rely on, written apart from the reader.
void check_accepted(const StepPlan& plan) {
  KOHO_CHECK_LE(plan.token_ids.size(), 12U);
  KOHO_CHECK_EQ(plan.query_starts.size(), plan.batch_slots.size() + 1);
  KOHO_CHECK_EQ(static_cast<std::size_t>(plan.query_starts.back()), plan.token_ids.size());
  std::vector<int> tables(4 * 6);
  std::size_t page = 0;
  for (const PlanPageRun& run : plan.runs)
    for (std::int32_t i = 0; i < run.count; ++i)
      tables.at(static_cast<std::size_t>(run.batch_slot * 6 + run.first + i)) =
          plan.run_pages[page++];
  KOHO_CHECK_EQ(page, plan.run_pages.size());
  std::vector<int> contents(40);
  for (const PlanPageCopy& copy : plan.copies)
    std::copy_n(contents.begin() + 4 * copy.from, 4, contents.begin() + 4 * copy.to);
  std::size_t history = 0;
  for (const PlanHistory& counts : plan.histories)
    history += static_cast<std::size_t>(counts.prompt) + static_cast<std::size_t>(counts.output);
  KOHO_CHECK_EQ(history, plan.history_tokens.size());
  std::vector<std::int32_t> outputs(4 * OutputRecord::kWords);
  list_output_record_updates(
      plan, [&](std::int32_t batch_slot, std::int32_t word, std::int32_t value) {
        KOHO_CHECK(word >= 0 && word < OutputRecord::kWords);
        outputs.at(static_cast<std::size_t>(batch_slot * OutputRecord::kWords + word)) = value;
      });
  for (const PlanStops& stops : plan.stops)
    if (outputs[static_cast<std::size_t>(stops.batch_slot * OutputRecord::kWords)] == 0)
      take_token(
          outputs.data() + static_cast<std::ptrdiff_t>(stops.batch_slot) * OutputRecord::kWords,
          stops.output % 64);
  for (std::size_t t = 0; t < plan.token_ids.size(); ++t) {
    contents.at(static_cast<std::size_t>(plan.slots[t])) = plan.token_ids[t];
    KOHO_CHECK(plan.token_ids[t] < 64 && plan.token_ids[t] >= take_last_sampled(3));
    KOHO_CHECK(plan.positions[t] >= 0 && plan.positions[t] < 24);
  }
  for (std::size_t r = 0; r < plan.logit_rows.size(); ++r) {
    KOHO_CHECK_LT(static_cast<std::size_t>(plan.logit_rows[r]), plan.token_ids.size());
    const SamplingRow& row = plan.sampling[r];
    for (std::int32_t i = 0; i < row.bias_count; ++i)
      KOHO_CHECK_LT(plan.biases[static_cast<std::size_t>(row.bias_begin + i)].token, 64);
    KOHO_CHECK(row.counts_slot >= -1 && row.counts_slot < 4);
    KOHO_CHECK(row.mask_row >= -1 && row.mask_row < 2);
    KOHO_CHECK_LE(static_cast<std::size_t>(row.mask_row + 1) * 2, plan.masks.size());
  }
  for (const std::int32_t row : plan.logits_wanted)
    KOHO_CHECK_LT(static_cast<std::size_t>(row), plan.logit_rows.size());
}

void run_one(const std::uint8_t* data, std::size_t size) {
  const bool repair = size > 0 && data[0] % 2 == 0;
  std::vector<std::uint64_t> words((size + sizeof(PlanHeader)) / 8 + 1);
  std::span<std::byte> bytes = std::as_writable_bytes(std::span(words));
  std::memcpy(bytes.data(), data, size);
  std::size_t length = size;
  if (repair && size >= 17) {
    PlanCounts counts;
    std::array<std::int32_t*, 14> fields{
        &counts.tokens,     &counts.sequences,      &counts.decodes, &counts.samples,
        &counts.runs,       &counts.run_pages,      &counts.copies,  &counts.biases,
        &counts.histories,  &counts.history_tokens, &counts.stops,   &counts.stop_words,
        &counts.mask_words, &counts.logits_wanted};
    static_assert(sizeof(PlanCounts) == fields.size() * sizeof(std::int32_t));
    for (std::size_t i = 0; i < fields.size(); ++i)
      *fields[i] = data[1 + i] % (fields[i] == &counts.stop_words ? 32 : 8);
    length = plan_bytes(counts);
    words.resize(length / 8);
    bytes = std::as_writable_bytes(std::span(words));
    const Result<PlanWriter> plan = begin_plan(1, counts, (data[0] & 2U) != 0, bytes);
    KOHO_CHECK(plan.ok());
    const std::size_t body = std::min(size - 15, length - sizeof(PlanHeader));
    std::memcpy(bytes.data() + sizeof(PlanHeader), data + 15, body);
  }
  const Result<StepPlan> plan = read_plan(bytes.first(length), kBounds);
  if (plan.ok()) check_accepted(*plan);
}

}  // namespace
}  // namespace koho

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  koho::run_one(data, size);
  return 0;
}
