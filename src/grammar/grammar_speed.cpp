// SPDX-License-Identifier: Apache-2.0
#include "grammar/grammar_speed.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "grammar/constraint.h"

namespace koho {
namespace {

/// A token of `mask`, the first one behind a random place; -1: there is none.
std::int32_t random_token(std::span<const std::uint32_t> mask, std::uint64_t& random) {
  random = random * 6364136223846793005ULL + 1442695040888963407ULL;
  const std::size_t begin = (random >> 33U) % mask.size();
  for (std::size_t i = 0; i < mask.size(); ++i) {
    const std::size_t word = (begin + i) % mask.size();
    if (mask[word] != 0) return static_cast<std::int32_t>(word * 32) + std::countr_zero(mask[word]);
  }
  return -1;
}

bool is_beyond_a_step(const Error& error) {
  return error.code == ErrorCode::resource_exhausted;
}

Error too_slow(double token_ms) {
  return refused(kGrammarTooComplex,
                 fmt::format("a token takes {:.1f} ms of processor time, mostly for repetitions "
                             "with large bounds: give bounds only as minLength and maxLength, or "
                             "at the end of a pattern that is alone, as in ^[a-z]{{1,200}}$, or "
                             "leave them out",
                             token_ms));
}

}  // namespace

Status try_out(const CompiledGrammar& grammar,
               std::size_t words,
               const GrammarLimits& limits,
               std::int64_t end_ns) {
  constexpr int kTokens = 32;
  constexpr int kFew = 8;  // fewer slow steps say little
  const std::int64_t mean_us_max = limits.step_us_max / 10;
  const double step_ms_max = static_cast<double>(limits.step_us_max) / 1000;
  Result<std::unique_ptr<Matcher>> started = grammar.start();
  if (!started.ok() && is_beyond_a_step(started.error())) return too_slow(step_ms_max);
  KOHO_TRY_ASSIGN(const std::unique_ptr<Matcher> matcher, std::move(started));
  std::vector<std::uint32_t> mask(words);
  Status first = matcher->fill_mask(mask);
  if (!first.ok() && is_beyond_a_step(first.error())) return too_slow(step_ms_max);
  KOHO_TRY(std::move(first));
  if (!matcher->can_end() &&
      std::ranges::all_of(mask, [](std::uint32_t word) { return word == 0; }))
    return refused(kUnsatisfiableSchema, "no text satisfies the constraint");
  std::uint64_t random = 1;
  const std::int64_t begin = thread_ns();
  for (int i = 1; i <= kTokens; ++i) {
    const std::int32_t token = random_token(mask, random);
    if (token < 0) break;
    Status status = matcher->accept(token);
    if (status.ok()) status = matcher->fill_mask(mask);
    const bool beyond = !status.ok() && is_beyond_a_step(status.error());
    if (!status.ok() && !beyond) break;
    const std::int64_t spent = (thread_ns() - begin) / 1000;
    if (beyond || (i >= kFew && spent > std::max(i, kTokens / 2) * mean_us_max))
      return too_slow(static_cast<double>(spent) / i / 1000);
    if (thread_ns() > end_ns)
      return refused(kGrammarTooComplex,
                     fmt::format("compiling the grammar and its first tokens take more than {} ms",
                                 limits.compile_us_max / 1000));
  }
  return {};
}

}  // namespace koho
