// SPDX-License-Identifier: Apache-2.0
#include "bench/latency_steps.h"

#include <algorithm>

#include "plan/step_plan.h"

namespace koho::bench {

Steps::Steps(Worker& worker,
             std::int64_t vocabulary,
             std::int64_t batch_slots,
             std::int64_t pages_each,
             std::int64_t pages)
    : worker_(worker), vocabulary_(vocabulary), pages_each_(pages_each) {
  for (std::int64_t batch_slot = 0; batch_slot < batch_slots; ++batch_slot)
    for (std::int64_t i = 0; i < (batch_slot == 0 ? pages : pages_each); ++i)
      page_table_updates_.insert(page_table_updates_.end(),
                                 {worker.page_table_index(batch_slot, i),
                                  static_cast<std::int32_t>(batch_slot * pages_each + i)});
}

Status Steps::enqueue(std::span<const Sequences> all) {
  ids_.clear();
  positions_.clear();
  slots_.clear();
  starts_.assign(1, 0);
  contexts_.clear();
  batch_slots_.clear();
  rows_.clear();
  sampling_.clear();
  std::int64_t decodes = 0;
  for (const Sequences& of : all) {
    if (of.length == 1) decodes += of.count;
    for (std::int64_t s = of.batch_slot; s < of.batch_slot + of.count; ++s) add(of, s);
  }
  const Status status = worker_.enqueue({.token_ids = ids_,
                                         .positions = positions_,
                                         .slots = slots_,
                                         .query_starts = starts_,
                                         .context_lengths = contexts_,
                                         .batch_slots = batch_slots_,
                                         .decodes = decodes,
                                         .logit_rows = rows_,
                                         .sample_batch_slots = batch_slots_,
                                         .sampling = sampling_,
                                         .biases = {},
                                         .masks = {},
                                         .page_table_updates = page_table_updates_,
                                         .output_record_updates = {},
                                         .page_copies = {}});
  page_table_updates_.clear();
  return status;
}

Status Steps::finish() {
  KOHO_TRY(worker_.finish(output_));
  for (const std::int32_t id : output_.ids)
    if (id < 0) return make_error(ErrorCode::internal, "the model's logits are not numbers");
  return {};
}

void Steps::add(const Sequences& of, std::int64_t batch_slot) {
  for (std::int64_t i = of.first; i < of.first + of.length; ++i) {
    const auto id = static_cast<std::int32_t>(random_() % static_cast<std::uint64_t>(vocabulary_));
    ids_.push_back(of.follows ? take_last_sampled(static_cast<std::int32_t>(batch_slot)) : id);
    positions_.push_back(static_cast<std::int32_t>(i));
    slots_.push_back(batch_slot * pages_each_ * kPageTokens + i);
  }
  starts_.push_back(static_cast<std::int32_t>(ids_.size()));
  contexts_.push_back(static_cast<std::int32_t>(of.first + of.length));
  batch_slots_.push_back(static_cast<std::int32_t>(batch_slot));
  rows_.push_back(static_cast<std::int32_t>(ids_.size()) - 1);
  SamplingRow row;
  row.seed = static_cast<std::uint64_t>(batch_slot) + 1;
  row.output_position = of.first + of.length;
  row.temperature = 1.0F;
  sampling_.push_back(row);
}

Status Steps::fill(std::int64_t batch_slot,
                   std::int64_t count,
                   std::int64_t context,
                   std::int64_t tokens_max) {
  const std::int64_t length = std::min(context, tokens_max);
  const std::int64_t together = std::max<std::int64_t>(tokens_max / length, 1);
  const std::int64_t end = batch_slot + count;
  for (std::int64_t s = batch_slot; s < end; s += together)
    for (std::int64_t at = 0; at < context; at += length) {
      KOHO_TRY(enqueue({.batch_slot = s,
                        .count = std::min(together, end - s),
                        .first = at,
                        .length = std::min(length, context - at)}));
      KOHO_TRY(finish());
    }
  return {};
}

}  // namespace koho::bench
