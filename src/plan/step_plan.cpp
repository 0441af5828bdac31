// SPDX-License-Identifier: Apache-2.0
// The layout of a plan, computed from its counts by writer and reader alike, and the reader's
// checks.
#include "plan/step_plan.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/arithmetic.h"
#include "sampling/output_record.h"

namespace koho {
namespace {

constexpr std::uint32_t kMagic = 0x6f686f6b;  // "koho"
constexpr std::uint32_t kVersion = 5;
constexpr std::size_t kAlignment = 8;

/// Hands out consecutive arrays of a plan; with no memory it only counts their bytes.
template <typename Byte>
class Layout {
 public:
  explicit Layout(Byte* base) : base_(base) {}

  template <typename T>
  void place(std::span<T>& array, std::int32_t count) {
    const auto size = static_cast<std::size_t>(count);
    if (base_ != nullptr) array = {reinterpret_cast<T*>(base_ + offset_), size};
    offset_ = round_up(offset_ + size * sizeof(T), kAlignment);
  }
  std::size_t bytes() const { return offset_; }

 private:
  Byte* base_;
  std::size_t offset_ = sizeof(PlanHeader);
};

template <typename Byte>
std::size_t place_all(PlanArrays<Byte>& plan, const PlanCounts& counts, Byte* base) {
  Layout<Byte> layout(base);
  layout.place(plan.token_ids, counts.tokens);
  layout.place(plan.positions, counts.tokens);
  layout.place(plan.slots, counts.tokens);
  layout.place(plan.query_starts, counts.sequences + 1);
  layout.place(plan.context_lengths, counts.sequences);
  layout.place(plan.batch_slots, counts.sequences);
  layout.place(plan.logit_rows, counts.samples);
  layout.place(plan.sample_batch_slots, counts.samples);
  layout.place(plan.sampling, counts.samples);
  layout.place(plan.logits_wanted, counts.logits_wanted);
  layout.place(plan.biases, counts.biases);
  layout.place(plan.runs, counts.runs);
  layout.place(plan.run_pages, counts.run_pages);
  layout.place(plan.copies, counts.copies);
  layout.place(plan.histories, counts.histories);
  layout.place(plan.history_tokens, counts.history_tokens);
  layout.place(plan.stops, counts.stops);
  layout.place(plan.stop_words, counts.stop_words);
  layout.place(plan.masks, counts.mask_words);
  return layout.bytes();
}

Error broken(std::string_view what, std::int64_t index, std::int64_t found) {
  return make_error(ErrorCode::corrupt_data, "step plan: {}[{}] is {}", what, index, found);
}

Status check_counts(const PlanCounts& counts, const PlanBounds& bounds) {
  const PlanCounts most = bounds.counts_max();
  const std::array<std::pair<std::int32_t, std::int32_t>, 14> pairs{{
      {counts.tokens, most.tokens},
      {counts.sequences, most.sequences},
      {counts.decodes, counts.sequences},
      {counts.samples, counts.sequences},
      {counts.runs, most.runs},
      {counts.run_pages, most.run_pages},
      {counts.copies, most.copies},
      {counts.biases, most.biases},
      {counts.histories, most.histories},
      {counts.history_tokens, most.history_tokens},
      {counts.stops, most.stops},
      {counts.stop_words, most.stop_words},
      {counts.mask_words, most.mask_words},
      {counts.logits_wanted, counts.samples},
  }};
  for (std::size_t i = 0; i < pairs.size(); ++i)
    if (pairs[i].first < 0 || pairs[i].first > pairs[i].second)
      return broken("counts", static_cast<std::int64_t>(i), pairs[i].first);
  return {};
}

Status check_sequences(const StepPlan& plan, const PlanBounds& bounds) {
  const auto tokens = static_cast<std::int32_t>(plan.token_ids.size());
  const std::int64_t slots = std::int64_t{bounds.pages} * bounds.tokens_per_page;
  const std::int64_t slots_per_partition =
      std::int64_t{bounds.pages_per_partition()} * bounds.tokens_per_page;
  if (plan.query_starts[0] != 0) return broken("query_starts", 0, plan.query_starts[0]);
  for (std::size_t s = 0; s < plan.batch_slots.size(); ++s) {
    const auto row = static_cast<std::int64_t>(s);
    const std::int32_t begin = plan.query_starts[s];
    const std::int32_t end = plan.query_starts[s + 1];
    if (end <= begin || end > tokens) return broken("query_starts", row + 1, end);
    if (row < plan.decodes && end != begin + 1) return broken("query_starts", row + 1, end);
    const std::int32_t batch_slot = plan.batch_slots[s];
    if (batch_slot < 0 || batch_slot >= bounds.sequences_max)
      return broken("batch_slots", row, batch_slot);
    const std::int32_t context = plan.context_lengths[s];
    if (context < end - begin || context > bounds.context_max)
      return broken("context_lengths", row, context);
    for (std::int32_t t = begin; t < end; ++t) {
      const auto i = static_cast<std::size_t>(t);
      const std::int32_t id = plan.token_ids[i];
      const bool known = id >= 0 && id < bounds.vocabulary;
      if (!known && !(id == take_last_sampled(batch_slot) && end == begin + 1))
        return broken("token_ids", t, id);
      if (plan.positions[i] != context - (end - t))
        return broken("positions", t, plan.positions[i]);
      const std::int64_t slot = plan.slots[i];
      if (slot < 0 || slot >= slots ||
          slot % bounds.tokens_per_page != plan.positions[i] % bounds.tokens_per_page ||
          slot / slots_per_partition !=
              plan.slots[static_cast<std::size_t>(begin)] / slots_per_partition)
        return broken("slots", t, slot);
    }
  }
  if (plan.query_starts.back() != tokens)
    return broken("query_starts", static_cast<std::int64_t>(plan.batch_slots.size()),
                  plan.query_starts.back());
  return {};
}

Status check_samples(const StepPlan& plan, const PlanBounds& bounds) {
  const auto mask_rows =
      static_cast<std::int32_t>(plan.masks.size()) / std::max(bounds.mask_words(), 1);
  std::size_t s = 0;  // the sequence whose last token the next logit row may be
  for (std::size_t r = 0; r < plan.logit_rows.size(); ++r) {
    const auto row = static_cast<std::int64_t>(r);
    while (s < plan.batch_slots.size() && plan.query_starts[s + 1] - 1 < plan.logit_rows[r]) ++s;
    if (s == plan.batch_slots.size() || plan.query_starts[s + 1] - 1 != plan.logit_rows[r])
      return broken("logit_rows", row, plan.logit_rows[r]);
    if (plan.sample_batch_slots[r] != plan.batch_slots[s])
      return broken("sample_batch_slots", row, plan.sample_batch_slots[r]);
    ++s;
    const SamplingRow& sampling = plan.sampling[r];
    if (sampling.counts_slot < -1 || sampling.counts_slot >= bounds.sequences_max)
      return broken("sampling.counts_slot", row, sampling.counts_slot);
    if (sampling.logprobs < -1 || sampling.logprobs > kTopLogprobsMax)
      return broken("sampling.logprobs", row, sampling.logprobs);
    if (sampling.mask_row < -1 || sampling.mask_row >= mask_rows)
      return broken("sampling.mask_row", row, sampling.mask_row);
    const auto biases = static_cast<std::int32_t>(plan.biases.size());
    if (sampling.bias_begin < 0 || sampling.bias_begin > biases)
      return broken("sampling.bias_begin", row, sampling.bias_begin);
    if (sampling.bias_count < 0 || sampling.bias_count > biases - sampling.bias_begin)
      return broken("sampling.bias_count", row, sampling.bias_count);
  }
  std::int32_t above = -1;
  for (std::size_t i = 0; i < plan.logits_wanted.size(); ++i) {
    const std::int32_t row = plan.logits_wanted[i];
    if (row <= above || std::cmp_greater_equal(row, plan.logit_rows.size()))
      return broken("logits_wanted", static_cast<std::int64_t>(i), row);
    above = row;
  }
  for (std::size_t i = 0; i < plan.biases.size(); ++i)
    if (plan.biases[i].token < 0 || plan.biases[i].token >= bounds.vocabulary)
      return broken("biases.token", static_cast<std::int64_t>(i), plan.biases[i].token);
  return {};
}

Status check_pages(const StepPlan& plan, const PlanBounds& bounds) {
  const std::int32_t table = ceil_div(bounds.context_max, bounds.tokens_per_page);
  std::int64_t pages = 0;
  for (std::size_t i = 0; i < plan.runs.size(); ++i) {
    const PlanPageRun& run = plan.runs[i];
    const auto index = static_cast<std::int64_t>(i);
    if (run.batch_slot < 0 || run.batch_slot >= bounds.sequences_max)
      return broken("runs.batch_slot", index, run.batch_slot);
    if (run.first < 0 || run.first > table) return broken("runs.first", index, run.first);
    if (run.count < 0 || run.count > table - run.first)
      return broken("runs.count", index, run.count);
    pages += run.count;
  }
  if (pages != static_cast<std::int64_t>(plan.run_pages.size()))
    return broken("runs.count", static_cast<std::int64_t>(plan.runs.size()), pages);
  std::size_t begin = 0;
  for (const PlanPageRun& run : plan.runs) {
    const std::size_t end = begin + static_cast<std::size_t>(run.count);
    for (std::size_t i = begin; i < end; ++i) {
      const std::int32_t page = plan.run_pages[i];
      if (page < 0 || page >= bounds.pages ||
          page / bounds.pages_per_partition() !=
              plan.run_pages[begin] / bounds.pages_per_partition())
        return broken("run_pages", static_cast<std::int64_t>(i), page);
    }
    begin = end;
  }
  for (std::size_t i = 0; i < plan.copies.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    const PlanPageCopy& copy = plan.copies[i];
    if (copy.from < 0 || copy.from >= bounds.pages) return broken("copies.from", index, copy.from);
    if (copy.to < 0 || copy.to >= bounds.pages || copy.to == copy.from ||
        copy.to / bounds.pages_per_partition() != copy.from / bounds.pages_per_partition())
      return broken("copies.to", index, copy.to);
  }
  return {};
}

Status check_histories(const StepPlan& plan, const PlanBounds& bounds) {
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < plan.histories.size(); ++i) {
    const PlanHistory& history = plan.histories[i];
    const auto index = static_cast<std::int64_t>(i);
    if (history.batch_slot < 0 || history.batch_slot >= bounds.sequences_max)
      return broken("histories.batch_slot", index, history.batch_slot);
    if (history.prompt < 0) return broken("histories.prompt", index, history.prompt);
    if (history.output < 0) return broken("histories.output", index, history.output);
    tokens += std::int64_t{history.prompt} + history.output;
  }
  if (tokens != static_cast<std::int64_t>(plan.history_tokens.size()))
    return broken("histories.prompt", static_cast<std::int64_t>(plan.histories.size()), tokens);
  for (std::size_t i = 0; i < plan.history_tokens.size(); ++i)
    if (plan.history_tokens[i] < 0 || plan.history_tokens[i] >= bounds.vocabulary)
      return broken("history_tokens", static_cast<std::int64_t>(i), plan.history_tokens[i]);
  return {};
}

/// Whether the words are well-formed stops (length, then tokens of the vocabulary), one after
/// another.
bool are_stops(std::span<const std::int32_t> words, std::int32_t vocabulary) {
  while (!words.empty()) {
    const std::int32_t length = words.front();
    if (length < 1 || length > OutputRecord::kStopLengthMax) return false;
    const auto tokens = static_cast<std::size_t>(length);
    if (words.size() <= tokens) return false;
    for (const std::int32_t token : words.subspan(1, tokens))
      if (token < 0 || token >= vocabulary) return false;
    words = words.subspan(1 + tokens);
  }
  return true;
}

Status check_stops(const StepPlan& plan, const PlanBounds& bounds) {
  std::size_t next = 0;
  for (std::size_t i = 0; i < plan.stops.size(); ++i) {
    const PlanStops& stops = plan.stops[i];
    const auto index = static_cast<std::int64_t>(i);
    const auto has_batch_slot = [&](const PlanStops& other) {
      return other.batch_slot == stops.batch_slot;
    };
    if (stops.batch_slot < 0 || stops.batch_slot >= bounds.sequences_max ||
        std::ranges::any_of(plan.stops.first(i), has_batch_slot))
      return broken("stops.batch_slot", index, stops.batch_slot);
    if (stops.output < 0 || stops.output > bounds.context_max)
      return broken("stops.output", index, stops.output);
    if (stops.output_min < 0) return broken("stops.output_min", index, stops.output_min);
    if (stops.words < 0 || stops.words > OutputRecord::kStopWordsMax)
      return broken("stops.words", index, stops.words);
    const auto recent = static_cast<std::size_t>(stops.recent());
    const auto words = static_cast<std::size_t>(stops.words);
    if (plan.stop_words.size() - next < recent + words)
      return broken("stop_words", index, static_cast<std::int64_t>(plan.stop_words.size()));
    for (const std::int32_t token : plan.stop_words.subspan(next, recent))
      if (token < 0 || token >= bounds.vocabulary) return broken("stop_words", index, token);
    if (!are_stops(plan.stop_words.subspan(next + recent, words), bounds.vocabulary))
      return broken("stop_words", index, plan.stop_words[next + recent]);
    next += recent + words;
  }
  if (next != plan.stop_words.size())
    return broken("stop_words", static_cast<std::int64_t>(plan.stops.size()),
                  static_cast<std::int64_t>(plan.stop_words.size()));
  return {};
}

}  // namespace

PlanCounts PlanBounds::counts_max() const {
  return {.tokens = tokens_max,
          .sequences = sequences_max,
          .decodes = sequences_max,
          .samples = sequences_max,
          .runs = runs_max,
          .run_pages = run_pages_max,
          .copies = sequences_max,
          .biases = biases_max,
          .histories = sequences_max,
          .history_tokens = context_max,
          .stops = sequences_max,
          .stop_words = sequences_max * (OutputRecord::kRecentTokens + OutputRecord::kStopWordsMax),
          .mask_words = mask_rows_max * mask_words(),
          .logits_wanted = sequences_max};
}

void list_output_record_updates(
    const StepPlan& plan,
    const std::function<void(std::int32_t, std::int32_t, std::int32_t)>& set) {
  std::size_t next = 0;
  for (const PlanStops& stops : plan.stops) {
    set(stops.batch_slot, OutputRecord::kEnded, 0);
    set(stops.batch_slot, OutputRecord::kOutput, stops.output);
    set(stops.batch_slot, OutputRecord::kOutputMin, stops.output_min);
    for (std::int32_t output = stops.output - stops.recent(); output < stops.output; ++output)
      set(stops.batch_slot, OutputRecord::kRecent + output % OutputRecord::kRecentTokens,
          plan.stop_words[next++]);
    const std::int32_t end = OutputRecord::kStops + stops.words;
    for (std::int32_t word = OutputRecord::kStops; word < end; ++word)
      set(stops.batch_slot, word, plan.stop_words[next++]);
    if (end < OutputRecord::kWords) set(stops.batch_slot, end, 0);
  }
}

std::size_t plan_bytes(const PlanCounts& counts) {
  StepPlan plan;
  return place_all<const std::byte>(plan, counts, nullptr);
}

Result<PlanWriter> begin_plan(std::int64_t step,
                              const PlanCounts& counts,
                              bool late_masks,
                              std::span<std::byte> space) {
  const std::size_t bytes = plan_bytes(counts);
  if (reinterpret_cast<std::uintptr_t>(space.data()) % kAlignment != 0)
    return make_error(ErrorCode::internal, "step plan: the space is not {}-byte aligned",
                      kAlignment);
  if (bytes > space.size())
    return make_error(ErrorCode::resource_exhausted, "step plan: {} bytes needed, space for {}",
                      bytes, space.size());
  const PlanHeader header{kMagic, kVersion, bytes, step, counts, late_masks ? 1 : 0};
  std::memcpy(space.data(), &header, sizeof(header));
  PlanWriter plan;
  plan.step = step;
  plan.decodes = counts.decodes;
  plan.late_masks = late_masks;
  place_all(plan, counts, space.data());
  return plan;
}

Result<StepPlan> read_plan(std::span<const std::byte> bytes, const PlanBounds& bounds) {
  PlanHeader header;
  if (bytes.size() < sizeof(header) ||
      reinterpret_cast<std::uintptr_t>(bytes.data()) % kAlignment != 0)
    return make_error(ErrorCode::corrupt_data,
                      "step plan: {} aligned bytes at least were expected, found {}",
                      sizeof(header), bytes.size());
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != kMagic || header.version != kVersion)
    return make_error(ErrorCode::corrupt_data,
                      "step plan: magic {:#x} version {} were expected, found {:#x} and {}", kMagic,
                      kVersion, header.magic, header.version);
  KOHO_TRY(check_counts(header.counts, bounds));
  const std::size_t expected = plan_bytes(header.counts);
  if (header.bytes != expected || bytes.size() != expected)
    return make_error(ErrorCode::corrupt_data,
                      "step plan: its counts make {} bytes, its header says {}, found {}", expected,
                      header.bytes, bytes.size());
  if (header.late_masks != 0 && (header.late_masks != 1 || header.counts.mask_words == 0))
    return broken("late_masks", 0, header.late_masks);
  StepPlan plan;
  plan.step = header.step;
  plan.decodes = header.counts.decodes;
  plan.late_masks = header.late_masks != 0;
  place_all(plan, header.counts, bytes.data());
  KOHO_TRY(check_sequences(plan, bounds));
  KOHO_TRY(check_samples(plan, bounds));
  KOHO_TRY(check_pages(plan, bounds));
  KOHO_TRY(check_histories(plan, bounds));
  KOHO_TRY(check_stops(plan, bounds));
  return plan;
}

}  // namespace koho
