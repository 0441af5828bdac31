// SPDX-License-Identifier: Apache-2.0
#include "bench/throughput_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include <fmt/format.h>

namespace koho::bench {
namespace {

using Json = nlohmann::ordered_json;

double ratio(std::int64_t part, std::int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

void add_times(Json& report, const std::string& name, const std::vector<double>& seconds) {
  report["mean_" + name + "_ms"] = 1e3 * mean(seconds);
  report["median_" + name + "_ms"] = 1e3 * percentile(seconds, 50);
  report["std_" + name + "_ms"] = 1e3 * deviation(seconds);
  for (const int percent : {50, 90, 99})
    report[fmt::format("p{}_{}_ms", percent, name)] = 1e3 * percentile(seconds, percent);
}

std::string line(const std::string& title, const Json& value, double scale = 1.0) {
  if (value.is_number_float())
    return fmt::format("{:<40} {:<10.2f}\n", title, scale * value.get<double>());
  return fmt::format("{:<40} {:<10}\n", title, value.get<std::int64_t>());
}

}  // namespace

double mean(const std::vector<double>& values) {
  if (values.empty()) return 0.0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double deviation(const std::vector<double>& values) {
  const double middle = mean(values);
  double sum = 0.0;
  for (const double value : values) sum += (value - middle) * (value - middle);
  return values.empty() ? 0.0 : std::sqrt(sum / static_cast<double>(values.size()));
}

double percentile(std::vector<double> values, double percent) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  const double at = static_cast<double>(values.size() - 1) * percent / 100.0;
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (values[high] - values[low]) * (at - std::floor(at));
}

Json throughput_json(const ThroughputResult& result) {
  const double seconds = result.duration_s;
  Json report{
      {"duration", seconds},
      {"max_concurrency", result.concurrency},
      {"random_input_len", result.prompt_length},
      {"random_output_len", result.answer_length},
      {"completed", result.completed},
      {"total_input_tokens", result.input_tokens},
      {"total_output_tokens", result.output_tokens},
      {"request_throughput", static_cast<double>(result.completed) / seconds},
      {"output_throughput", static_cast<double>(result.output_tokens) / seconds},
      {"total_token_throughput",
       static_cast<double>(result.input_tokens + result.output_tokens) / seconds},
      {"average_batch", ratio(result.decode_rows, result.decode_steps)},
      {"largest_batch", result.largest_batch},
      {"mean_kv_cache_usage", mean(result.kv_use)},
      {"max_kv_cache_usage",
       result.kv_use.empty() ? 0.0 : *std::max_element(result.kv_use.begin(), result.kv_use.end())},
      {"prefix_cache_hit_rate", ratio(result.cached_tokens, result.prompt_tokens)},
      {"num_preemptions", result.preemptions},
      {"warm_up", fmt::format("{} requests of {} tokens before, not measured", result.concurrency,
                              result.warm_up_tokens)}};
  add_times(report, "ttft", result.ttft_s);
  add_times(report, "tpot", result.tpot_s);
  add_times(report, "itl", result.itl_s);
  add_times(report, "e2el", result.e2el_s);
  return report;
}

std::string throughput_text(const Json& report) {
  std::string text =
      fmt::format("{:=^50}\n(warm-up: {})\n", " koho bench ", report["warm_up"].get<std::string>());
  constexpr std::array<std::pair<const char*, const char*>, 11> kCounts{{
      {"Successful requests:", "completed"},
      {"Maximum request concurrency:", "max_concurrency"},
      {"Benchmark duration (s):", "duration"},
      {"Total input tokens:", "total_input_tokens"},
      {"Total generated tokens:", "total_output_tokens"},
      {"Request throughput (req/s):", "request_throughput"},
      {"Output token throughput (tok/s):", "output_throughput"},
      {"Total Token throughput (tok/s):", "total_token_throughput"},
      {"Average batch:", "average_batch"},
      {"Largest batch:", "largest_batch"},
      {"Preemptions:", "num_preemptions"},
  }};
  for (const auto& [title, key] : kCounts) text += line(title, report[key]);
  if (report["completed"] == 0)
    text +=
        "(no request was done in the time: its times below are 0; give a longer\n --duration, or a "
        "smaller --concurrency, --prompt-len or --gen-len)\n";
  text += line("KV cache usage, mean (%):", report["mean_kv_cache_usage"], 100.0);
  text += line("KV cache usage, max (%):", report["max_kv_cache_usage"], 100.0);
  text += line("Prefix cache hit rate (%):", report["prefix_cache_hit_rate"], 100.0);
  constexpr std::array<std::array<const char*, 3>, 4> kTimes{{
      {"Time to First Token", "ttft", "TTFT"},
      {"Time per Output Token (excl. 1st token)", "tpot", "TPOT"},
      {"Inter-token Latency", "itl", "ITL"},
      {"End-to-end Latency", "e2el", "E2EL"},
  }};
  for (const auto& [title, name, shown] : kTimes) {
    text += fmt::format("{:-^50}\n", title);
    for (const char* which : {"mean", "p50", "p90", "p99"})
      text += line(fmt::format("{} {} (ms):", which, shown),
                   report[fmt::format("{}_{}_ms", which, name)]);
  }
  return text + std::string(50, '=') + "\n";
}

}  // namespace koho::bench
