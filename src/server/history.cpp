// SPDX-License-Identifier: Apache-2.0
#include "server/history.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

namespace koho::server {
namespace {

constexpr std::int64_t kUsPerSecond = 1'000'000;

/// The fields of a sample in append()'s order.
constexpr std::string_view kFields =
    R"(["time","running","waiting","prefill","decode","kv_used","kv_cached","cached",)"
    R"("completed","cancelled","failed","ttft_p50","ttft_p95","ttft_p99","itl_p50","itl_p95",)"
    R"("itl_p99"])";

/// Counters begin anew where an engine does.
std::int64_t rise(std::uint64_t now, std::uint64_t before) {
  return now > before ? static_cast<std::int64_t>(now - before) : 0;
}

/// The prompts' tokens among those that steps computed.
std::uint64_t prefilled(const Statistics& statistics) {
  return statistics.computed_tokens - std::min(statistics.computed_tokens, statistics.decode_rows);
}

}  // namespace

bool History::is_due(std::int64_t now_us) {
  std::int64_t due = next_us_.load();
  return now_us >= due && next_us_.compare_exchange_strong(due, now_us + kUsPerSecond);
}

History::Percentiles History::percentiles(const LatencyHistogram& histogram) {
  const auto ms = [&histogram](double share) {
    const double us = histogram.percentile_us(share);
    return us < 0.0 ? -1.0F : static_cast<float>(us / 1e3);
  };
  return {.p50 = ms(0.5), .p95 = ms(0.95), .p99 = ms(0.99)};
}

History::Sample History::sample_of(const Ring& ring, const Statistics& now, std::int64_t now_us) {
  const Statistics& before = ring.before;
  const double seconds = static_cast<double>(std::max<std::int64_t>(now_us - ring.before_us, 1)) /
                         static_cast<double>(kUsPerSecond);
  const auto rate = [seconds](std::uint64_t after, std::uint64_t earlier) {
    return static_cast<float>(static_cast<double>(rise(after, earlier)) / seconds);
  };
  const std::int64_t prompt = rise(now.prompt_tokens, before.prompt_tokens);
  const std::int64_t cached = rise(now.cached_tokens, before.cached_tokens);
  const auto pages = static_cast<float>(std::max(now.pages_total, 1));
  return {
      .running = static_cast<float>(now.running),
      .waiting = static_cast<float>(now.waiting + now.held),
      .prefill_rate = rate(prefilled(now), prefilled(before)),
      .decode_rate = rate(now.sampled_tokens, before.sampled_tokens),
      .kv_used = static_cast<float>(now.pages_total - now.pages_free - now.pages_cached) / pages,
      .kv_cached = static_cast<float>(now.pages_cached) / pages,
      .cached = prompt > 0 ? std::min(static_cast<float>(cached) / static_cast<float>(prompt), 1.0F)
                           : -1.0F,
      .completed = rise(now.requests_completed, before.requests_completed),
      .cancelled = rise(now.requests_cancelled, before.requests_cancelled),
      .failed = rise(now.requests_failed, before.requests_failed),
      .first_token =
          percentiles(now.time_to_first_token_fine.since(before.time_to_first_token_fine)),
      .inter_token = percentiles(now.inter_token_fine.since(before.inter_token_fine))};
}

void History::add(const Statistics& now, std::int64_t now_us, std::int64_t unix_s) {
  constexpr std::int64_t kEarlyUs = kUsPerSecond / 4;  // a tick may come a little before
  const std::lock_guard lock(mutex_);
  for (Ring& ring : rings_) {
    const bool first = ring.before_us < 0;
    if (!first && now_us + kEarlyUs < ring.before_us + ring.period_s * kUsPerSecond) continue;
    if (!first) {
      ring.samples.push_back(sample_of(ring, now, now_us));
      ring.samples.back().unix_s = unix_s;
      if (ring.samples.size() > ring.samples_max) ring.samples.pop_front();
    }
    ring.before = now;
    ring.before_us = now_us;
  }
}

void History::append(std::string& out, const Sample& sample) {
  const Percentiles& first = sample.first_token;
  const Percentiles& inter = sample.inter_token;
  fmt::format_to(std::back_inserter(out),
                 "[{},{},{},{:.1f},{:.1f},{:.4f},{:.4f},{:.3f},{},{},{},{:.3f},{:.3f},{:.3f},"
                 "{:.3f},{:.3f},{:.3f}]",
                 sample.unix_s, sample.running, sample.waiting, sample.prefill_rate,
                 sample.decode_rate, sample.kv_used, sample.kv_cached, sample.cached,
                 sample.completed, sample.cancelled, sample.failed, first.p50, first.p95, first.p99,
                 inter.p50, inter.p95, inter.p99);
}

std::string History::json(std::int64_t period_s) const {
  const std::lock_guard lock(mutex_);
  const auto ring = std::ranges::find(rings_, period_s, &Ring::period_s);
  if (ring == rings_.end()) return {};
  std::string out = fmt::format(R"({{"period_s":{},"samples_max":{},"fields":{},"samples":[)",
                                period_s, ring->samples_max, kFields);
  for (const Sample& sample : ring->samples) {
    if (out.back() != '[') out += ',';
    append(out, sample);
  }
  return out + "]}";
}

std::string History::newest_json() const {
  const std::lock_guard lock(mutex_);
  const Ring& finest = rings_.front();
  if (finest.samples.empty()) return "null";
  std::string out;
  append(out, finest.samples.back());
  return out;
}

}  // namespace koho::server
