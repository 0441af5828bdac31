// SPDX-License-Identifier: Apache-2.0
// Every number that decides what the scheduler does. There is one scheduler and no subclass of it:
// deployments differ in these limits only.
#pragma once

#include <cstdint>

#include "base/error.h"

namespace koho {

inline constexpr std::int32_t kPriorities = 8;  // 0 is served first

struct Limits {
  std::int32_t tokens_per_page = 64;
  std::int32_t pages = 0;  // in the pool
  /// Of the pool: one, or one a rank where ranks hold pages of their own. A sequence's pages lie in
  /// one partition, and its tokens are computed there.
  std::int32_t partitions = 1;
  std::int32_t context_max = 0;    // tokens of one sequence, prompt and completion
  std::int32_t sequences_max = 0;  // running at once: rows of a step, batch slots on the device
  std::int32_t live_max = 0;       // running, waiting and held together
  std::int32_t step_tokens_max = 0;
  /// Prefill tokens at most in a step that also decodes: bounds the time between a running
  /// request's tokens (the engine may lower it further, engine/latency_bound.h). A step without
  /// decodes may use step_tokens_max. Each partition has an equal share of either.
  std::int32_t mixed_prefill_tokens_max = 0;
  /// Prefill tokens at most in any step, one that decodes or not; 0 = only the two above count.
  std::int32_t prefill_tokens_max = 0;
  /// So many tokens of context cost a token's attention as much as the rest of the model: a prefill
  /// token at position p counts as 1 + p / attention_tokens of the budgets, so that a chunk deep in
  /// a long prompt takes no longer than one at its beginning. 0, or where there is one request
  /// alone: each counts as one.
  std::int32_t attention_tokens = 0;
  /// Of each step's prefill so much goes by turn: by priority with ageing, then by arrival. Nobody
  /// starves. The rest goes to short prompts first, shared by clients (fair_order.h). 100: all goes
  /// by turn, and clients share neither batch slots nor pages.
  std::int32_t turn_percent = 25;
  /// A waiting sequence overtakes newcomers one priority level above it that arrive so many steps
  /// later: what keeps low priorities from starving. Also how long shorter ones may pass the first
  /// in line while it lacks pages.
  std::int32_t aging_steps = 2000;
  bool prefix_cache = true;
  /// Where decode and prefill give a token other bits, as on GPUs, and a request's are not to
  /// depend on the rest: output tokens are decoded when they are computed again, too, and pages
  /// that hold some are found for output only. False: they are computed again as a prompt is.
  bool redecodes_output = false;

  std::int32_t pages_of(std::int32_t tokens) const {
    return (tokens + tokens_per_page - 1) / tokens_per_page;
  }
  std::int32_t pages_per_partition() const { return pages / partitions; }
  /// Most prefill tokens of a partition in a step that also decodes.
  std::int32_t prefill_share_max() const;
  /// The part of a step's prefill that does not go by turn: holds a short prompt whole.
  std::int32_t short_tokens_max() const;
  std::int32_t pages_per_sequence_max() const { return pages_of(context_max); }
  /// Page-table entries one step may change: a whole new table beside a growing or deduplicated
  /// page of every other sequence.
  std::int32_t page_changes_max() const { return pages_per_sequence_max() + 2 * sequences_max; }
};

/// Errors: invalid_argument naming the limit, its range and what was found.
Status validate(const Limits& limits);

}  // namespace koho
