// SPDX-License-Identifier: Apache-2.0
// The range of each limit.
#include "scheduler/limits.h"

#include <algorithm>

#include "base/arithmetic.h"
#include "base/in_range.h"

namespace koho {

std::int32_t Limits::prefill_share_max() const {
  std::int32_t most = mixed_prefill_tokens_max;
  if (prefill_tokens_max > 0) most = std::min(most, prefill_tokens_max);
  return ceil_div(most, partitions);
}

std::int32_t Limits::short_tokens_max() const {
  return static_cast<std::int32_t>(std::int64_t{prefill_share_max()} * (100 - turn_percent) / 100);
}

Status validate(const Limits& limits) {
  KOHO_TRY(in_range("tokens_per_page", limits.tokens_per_page, 1, 1 << 16));
  KOHO_TRY(in_range("pages", limits.pages, 1, (1 << 30) / limits.tokens_per_page));
  KOHO_TRY(in_range("partitions", limits.partitions, 1, 64));
  if (limits.pages % limits.partitions != 0)
    return make_error(ErrorCode::invalid_argument,
                      "pages must be a multiple of the {} partitions, found {}", limits.partitions,
                      limits.pages);
  KOHO_TRY(in_range("context_max", limits.context_max, 1, 1 << 24));
  KOHO_TRY(in_range("sequences_max", limits.sequences_max, 1, 1 << 14));
  KOHO_TRY(in_range("live_max", limits.live_max, 1, 1 << 20));
  // One token beside the decodes, so that a full batch cannot stop every prefill.
  KOHO_TRY(in_range("step_tokens_max", limits.step_tokens_max, limits.sequences_max + 1, 1 << 24));
  KOHO_TRY(in_range("mixed_prefill_tokens_max", limits.mixed_prefill_tokens_max, 1,
                    limits.step_tokens_max));
  KOHO_TRY(in_range("prefill_tokens_max", limits.prefill_tokens_max, 0, limits.step_tokens_max));
  KOHO_TRY(in_range("attention_tokens", limits.attention_tokens, 0, 1 << 24));
  KOHO_TRY(in_range("turn_percent", limits.turn_percent, 1, 100));
  return in_range("aging_steps", limits.aging_steps, 1, 1 << 30);
}

}  // namespace koho
