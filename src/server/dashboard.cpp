// SPDX-License-Identifier: Apache-2.0
#include "server/dashboard.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <map>
#include <span>

#include <fmt/format.h>

#include "base/json_writer.h"
#include "base/version.h"
#include "server/metrics_page.h"

namespace koho::server {
namespace {

constexpr std::size_t kStepsShown = 120;

/// Counts from the first bucket that is not empty to the last; `first` is its number.
void append_histogram(std::string& out,
                      std::string_view name,
                      const Histogram& histogram,
                      const LatencyHistogram& fine) {
  std::size_t first = 0;
  std::size_t end = fine.counts.size();
  while (first < end && fine.counts[first] == 0) ++first;
  while (end > first && fine.counts[end - 1] == 0) --end;
  const auto ms = [&fine](double share) { return std::max(fine.percentile_us(share) / 1e3, -1.0); };
  fmt::format_to(std::back_inserter(out),
                 R"(,"{}":{{"first":{},"counts":[{}],"count":{},"sum_ms":{:.3f},"percentiles_ms":)"
                 R"([{:.3f},{:.3f},{:.3f}]}})",
                 name, first, fmt::join(std::span(fine.counts).subspan(first, end - first), ","),
                 histogram.count, histogram.sum_us / 1e3, ms(0.5), ms(0.95), ms(0.99));
}

void append_steps(std::string& out, const Engine& engine) {
  const std::vector<StepRecord> all = engine.recent_steps();
  const std::span<const StepRecord> shown = std::span(all).last(std::min(all.size(), kStepsShown));
  out += R"(,"steps":[)";
  for (const StepRecord& step : shown) {
    if (out.back() != '[') out += ',';
    const bool running = step.outcome == StepRecord::Outcome::in_flight;
    fmt::format_to(std::back_inserter(out), "[{},{},{},{},{},{}]", step.step, step.launched_us,
                   running ? 0 : step.collected_us - step.launched_us, step.decodes, step.tokens,
                   step.waiting);
  }
  out += ']';
}

}  // namespace

Response dashboard_answer() {
  Response response{.content_type = "text/html; charset=utf-8"};
  response.body = dashboard_page();
  // The page is one file: the browser must load nothing else into it, nor it into another page.
  response.fields.emplace_back("Content-Security-Policy", dashboard_policy());
  response.fields.emplace_back("X-Content-Type-Options", "nosniff");
  response.fields.emplace_back("Referrer-Policy", "no-referrer");
  return response;
}

std::string dashboard_status(const Core& core) {
  return fmt::format(R"({{"needs_key":{},"version":"{}","readiness":{}}})",
                     !core.api_keys()->empty(), kVersion, core.readiness_json());
}

std::string dashboard_history(const Core& core, std::string_view period) {
  std::int64_t period_s = 0;
  const auto [end, error] = std::from_chars(period.begin(), period.end(), period_s);
  return error == std::errc() && end == period.end() ? core.history().json(period_s)
                                                     : std::string();
}

std::string dashboard_requests(const Core& core, const ApiKey* key) {
  constexpr std::size_t kLiveRowsMax = 200;
  const std::string owner = owner_of(key);
  const std::vector<LiveRequest> live = core.live_requests(owner, kLiveRowsMax);
  std::vector<EndedRequest> ended = core.request_log().rows();  // and those that end meanwhile
  if (key != nullptr)
    std::erase_if(ended, [&](const EndedRequest& row) { return row.owner != owner; });
  return requests_json(live, ended, core.clock().now_us());
}

std::string dashboard_event(const Core& core) {
  const ServedModel& serving = *core.serving();
  const Statistics now = serving.engine.statistics();
  const std::map<std::string, std::array<std::uint64_t, 4>> answers = core.responses();
  std::array<std::uint64_t, 4> by_class{};
  for (const api::GenerationEndpoint& endpoint : api::generation_endpoints()) {
    const auto found = answers.find(std::string(endpoint.path));
    for (std::size_t i = 0; found != answers.end() && i < by_class.size(); ++i)
      by_class[i] += found->second[i];
  }
  std::string out = R"(retry: 1000
data: {"model":)";
  append_json_string(out, serving.model.names.front());
  fmt::format_to(
      std::back_inserter(out),
      R"(,"time_us":{},"uptime_s":{:.1f},"context_max":{},"sequences_max":{},"running":{},)"
      R"("waiting":{},"held":{},"requests":{},"completed":{},"cancelled":{},"failed":{},)"
      R"("connections":{},"prompt_tokens":{},"cached_tokens":{},"sampled_tokens":{},)"
      R"("computed_tokens":{},"steps_total":{},"preempted":{},"kv_usage":{:.6f},"pages":{},)"
      R"("pages_free":{},"pages_cached":{},"tokens_per_page":{},"evicted_pages":{},)"
      R"("device_up":{},"client_errors":{},"server_errors":{})",
      core.clock().now_us(), static_cast<double>(core.uptime_us()) / 1e6,
      serving.model.context_max(), serving.model.limits.scheduler.sequences_max, now.running,
      now.waiting, now.held, now.requests_live, now.requests_completed, now.requests_cancelled,
      now.requests_failed, core.counters().connections_live.load(), now.prompt_tokens,
      now.cached_tokens, now.sampled_tokens, now.computed_tokens, now.steps, now.preempted,
      kv_usage(now), now.pages_total, now.pages_free, now.pages_cached,
      serving.model.limits.scheduler.tokens_per_page, now.evicted_pages, now.device_up, by_class[2],
      by_class[3]);
  append_histogram(out, "ttft", now.time_to_first_token, now.time_to_first_token_fine);
  append_histogram(out, "inter_token", now.inter_token, now.inter_token_fine);
  out += R"(,"sample":)" + core.history().newest_json();
  append_steps(out, serving.engine);
  out += "}\n\n";
  return out;
}

}  // namespace koho::server
