// SPDX-License-Identifier: Apache-2.0
#include "grammar/grammar_speed.h"

#include <algorithm>
#include <bit>
#include <ctime>
#include <memory>
#include <span>
#include <vector>

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

}  // namespace

std::int64_t thread_us() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * 1'000'000 + now.tv_nsec / 1000;
}

Status check_speed(const CompiledGrammar& grammar, std::size_t words, const GrammarLimits& limits) {
  constexpr int kTokens = 32;
  constexpr int kFew = 8;  // fewer slow steps say little
  const std::int64_t mean_us_max = limits.step_us_max / 5;
  KOHO_TRY_ASSIGN(const std::unique_ptr<Matcher> matcher, grammar.start());
  std::vector<std::uint32_t> mask(words);
  KOHO_TRY(matcher->fill_mask(mask));
  std::uint64_t random = 1;
  const std::int64_t begin = thread_us();
  for (int i = 1; i <= kTokens; ++i) {
    const std::int32_t token = random_token(mask, random);
    if (token < 0) break;
    Status status = matcher->accept(token);
    if (status.ok()) status = matcher->fill_mask(mask);
    const bool beyond = !status.ok() && status.error().code == ErrorCode::resource_exhausted;
    if (!status.ok() && !beyond) break;
    const std::int64_t spent = thread_us() - begin;
    if (beyond || (i >= kFew && spent > std::max(i, kTokens / 2) * mean_us_max))
      return refused(kGrammarTooComplex,
                     fmt::format("a token takes {:.1f} ms of processor time, mostly for "
                                 "repetitions with large bounds: give bounds only as minLength and "
                                 "maxLength, or at the end of a pattern that is alone, as in "
                                 "^[a-z]{{1,200}}$, or leave them out",
                                 static_cast<double>(spent) / i / 1000));
  }
  return {};
}

}  // namespace koho
