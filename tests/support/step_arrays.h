// SPDX-License-Identifier: Apache-2.0
// Steps for tests that run a worker themselves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "worker/worker.h"

namespace koho::testing {

/// Some prompts as one step's arrays, each with a batch slot and pages of its own.
struct StepArrays {
  std::vector<std::int32_t> token_ids, positions, query_starts{0}, context_lengths, batch_slots;
  std::vector<std::int32_t> logit_rows, page_table_updates;
  std::vector<std::int64_t> slots;

  StepArrays(const Worker& worker, std::span<const std::vector<std::int32_t>* const> prompts) {
    std::int32_t next_page = 0;
    for (const std::vector<std::int32_t>* prompt : prompts) {
      const auto batch_slot = static_cast<std::int32_t>(batch_slots.size());
      for (std::size_t i = 0; i < prompt->size(); ++i) {
        const auto position = static_cast<std::int32_t>(i);
        if (position % kPageTokens == 0) {
          page_table_updates.push_back(worker.page_table_index(batch_slot, position / kPageTokens));
          page_table_updates.push_back(next_page++);
        }
        token_ids.push_back((*prompt)[i]);
        positions.push_back(position);
        slots.push_back((next_page - 1) * kPageTokens + position % kPageTokens);
        logit_rows.push_back(static_cast<std::int32_t>(logit_rows.size()));
      }
      query_starts.push_back(static_cast<std::int32_t>(token_ids.size()));
      context_lengths.push_back(static_cast<std::int32_t>(prompt->size()));
      batch_slots.push_back(batch_slot);
    }
  }

  StepInput input() const {
    StepInput step;
    step.token_ids = token_ids;
    step.positions = positions;
    step.slots = slots;
    step.query_starts = query_starts;
    step.context_lengths = context_lengths;
    step.batch_slots = batch_slots;
    step.logit_rows = logit_rows;
    step.page_table_updates = page_table_updates;
    return step;
  }
};

}  // namespace koho::testing
