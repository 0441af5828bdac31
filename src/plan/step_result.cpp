// SPDX-License-Identifier: Apache-2.0
// Makes one result of the ranks' results: compares them where every rank samples every row, and
// collects the rows where each rank samples its own.
#include "plan/step_result.h"

#include <algorithm>
#include <utility>

namespace koho {
namespace {

/// Copies row `row` from `from` to `to`, if `from` has rows at all; gives `to` the size of `from`.
template <typename T>
void take_row(std::vector<T>& to, const std::vector<T>& from, std::size_t row, std::size_t rows) {
  if (from.empty()) return;
  const std::size_t width = from.size() / rows;
  to.resize(from.size());
  std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(row * width), width,
              to.begin() + static_cast<std::ptrdiff_t>(row * width));
}

/// Puts the ranks' logits together, in the order of their rows. Errors: internal: two ranks have a
/// row's, or they have none of one length.
Status merge_logits(std::span<StepResult> ranks, StepResult& first) {
  const bool alone = std::ranges::all_of(
      ranks.subspan(1), [](const StepResult& other) { return other.logits_rows.empty(); });
  if (alone) return {};
  struct Part {
    std::int32_t row = 0;
    std::span<const float> logits;
  };
  std::vector<Part> parts;
  for (const StepResult& rank : ranks) {
    if (rank.logits_rows.empty()) continue;
    const std::size_t width = rank.logits.size() / rank.logits_rows.size();
    for (std::size_t i = 0; i < rank.logits_rows.size(); ++i)
      parts.push_back({rank.logits_rows[i], std::span(rank.logits).subspan(i * width, width)});
  }
  std::ranges::sort(parts, {}, &Part::row);
  std::vector<std::int32_t> rows;
  std::vector<float> logits;
  for (const Part& part : parts) {
    if (part.logits.size() != parts[0].logits.size() || (!rows.empty() && rows.back() == part.row))
      return make_error(ErrorCode::internal,
                        "the ranks disagree on the logits of row {} of step {}", part.row,
                        first.step);
    rows.push_back(part.row);
    logits.insert(logits.end(), part.logits.begin(), part.logits.end());
  }
  first.logits_rows.swap(rows);
  first.logits.swap(logits);
  return {};
}

Status same_step(const StepResult& first, const StepResult& other, std::size_t rank) {
  if (other.step == first.step && other.tokens.size() == first.tokens.size() &&
      other.ends.size() == first.ends.size())
    return {};
  return make_error(ErrorCode::internal,
                    "rank {} answers step {} with {} tokens, rank 0 step {} with {}", rank,
                    other.step, other.tokens.size(), first.step, first.tokens.size());
}

}  // namespace

Status merge_results(std::span<StepResult> ranks, RowOwners owners, StepResult& result) {
  StepResult& first = ranks[0];
  const std::size_t rows = first.tokens.size();
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    const StepResult& other = ranks[rank];
    KOHO_TRY(same_step(first, other, rank));
    for (std::size_t row = 0; row < rows; ++row) {
      if (owners == RowOwners::all_ranks) {
        if (other.tokens[row] == first.tokens[row] && other.ends[row] == first.ends[row]) continue;
        if (other.tokens[row] == first.tokens[row])
          return make_error(ErrorCode::internal,
                            "the ranks diverge: rank {} and rank 0 differ in whether token {} ends "
                            "row {} of step {}",
                            rank, first.tokens[row], row, first.step);
        return make_error(ErrorCode::internal,
                          "the ranks diverge: rank {} sampled token {} in row {} of step {}, rank "
                          "0 token {}",
                          rank, other.tokens[row], row, first.step, first.tokens[row]);
      }
      if (other.tokens[row] == kSampledElsewhere) continue;
      if (first.tokens[row] != kSampledElsewhere)
        return make_error(ErrorCode::internal, "row {} of step {} was sampled by rank {}, too", row,
                          first.step, rank);
      first.tokens[row] = other.tokens[row];
      first.ends[row] = other.ends[row];
      take_row(first.logprobs, other.logprobs, row, rows);
      take_row(first.top_ids, other.top_ids, row, rows);
      take_row(first.top_logprobs, other.top_logprobs, row, rows);
    }
  }
  const auto missing = std::ranges::find(first.tokens, kSampledElsewhere);
  if (missing != first.tokens.end())
    return make_error(ErrorCode::internal, "row {} of step {} was sampled by no rank",
                      missing - first.tokens.begin(), first.step);
  KOHO_TRY(merge_logits(ranks, first));
  std::swap(result, first);
  return {};
}

}  // namespace koho
