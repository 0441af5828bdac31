// SPDX-License-Identifier: Apache-2.0
#include "app/batch_progress.h"

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>

namespace koho::app {

void BatchProgress::show(const BatchTotals& totals, std::size_t running, const LineReader& input) {
  if (!bar_.due()) return;
  const Clock::time_point now = Clock::now();
  const double since = std::chrono::duration<double>(now - shown_).count();
  const double rate = static_cast<double>(totals.generated_tokens - generated_) / since;
  // The part of the input that was read, less what still runs.
  const auto ended = static_cast<double>(totals.answered + totals.refused);
  const double share = ended / std::max(ended + static_cast<double>(running), 1.0);
  const double done = input.bytes_total() > 0 ? share * static_cast<double>(input.bytes()) /
                                                    static_cast<double>(input.bytes_total())
                                              : -1.0;
  const double elapsed = std::chrono::duration<double>(now - begin_).count();
  bar_.show(done, done > 0.0 ? elapsed * (1.0 - done) / done : -1.0,
            fmt::format("{} answered, {} refused, {} running · {:.0f} tok/s", totals.answered,
                        totals.refused, running, rate));
  shown_ = now;
  generated_ = totals.generated_tokens;
}

void BatchProgress::finish(const BatchTotals& totals) {
  const double seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
  const auto rate = [seconds](std::int64_t tokens) {
    return static_cast<double>(tokens) / std::max(seconds, 1e-9);
  };
  bar_.clear();
  std::fprintf(
      stderr, "%s\n",
      fmt::format("koho batch: {} answered, {} refused, {} done before, in {:.3f} s without "
                  "{:.3f} s of loading\n"
                  "koho batch: {} prompt tokens ({} cached), {:.1f} tok/s; {} generated, {:.1f} "
                  "tok/s",
                  totals.answered, totals.refused, totals.skipped, seconds, load_s_,
                  totals.prompt_tokens, totals.cached_tokens, rate(totals.prompt_tokens),
                  totals.generated_tokens, rate(totals.generated_tokens))
          .c_str());
  if (totals.cut > 0)
    std::fprintf(stderr, "koho batch: %lld answers were cut (finish_reason length)\n",
                 static_cast<long long>(totals.cut));
}

}  // namespace koho::app
