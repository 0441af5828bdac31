// SPDX-License-Identifier: Apache-2.0
#include "engine/rank_results.h"

#include <algorithm>
#include <string>

namespace koho {

Status first_failure(std::span<const Status> ranks) {
  const auto is_cause = [](const Status& status) {
    return !status.ok() && status.error().code != ErrorCode::unavailable;
  };
  auto failed = std::ranges::find_if(ranks, is_cause);
  if (failed == ranks.end())
    failed = std::ranges::find_if(ranks, [](const Status& status) { return !status.ok(); });
  if (failed == ranks.end()) return {};
  return Error(failed->error()).with_context("rank " + std::to_string(failed - ranks.begin()));
}

}  // namespace koho
