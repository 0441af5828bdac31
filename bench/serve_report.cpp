// SPDX-License-Identifier: Apache-2.0
// The formulas are those of vLLM's `vllm bench serve`.
#include "bench/serve_report.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "bench/throughput_report.h"

namespace koho::bench {
namespace {

using Json = nlohmann::ordered_json;

struct Metric {
  const char* name;
  const char* label;
  const char* title;
  /// Appends the request's values, in seconds.
  void (*take)(const ServedRequest& request, std::vector<double>& values);
};

constexpr Metric kMetrics[] = {
    {"ttft", "TTFT", "Time to First Token",
     [](const ServedRequest& one, std::vector<double>& values) { values.push_back(one.ttft_s); }},
    {"tpot", "TPOT", "Time per Output Token (excl. 1st token)",
     [](const ServedRequest& one, std::vector<double>& values) {
       if (one.output_tokens > 1) values.push_back(one.tpot_s());
     }},
    {"itl", "ITL", "Inter-token Latency",
     [](const ServedRequest& one, std::vector<double>& values) {
       values.insert(values.end(), one.itl_s.begin(), one.itl_s.end());
     }},
    {"e2el", "E2EL", "End-to-end Latency",
     [](const ServedRequest& one, std::vector<double>& values) {
       values.push_back(one.latency_s);
     }},
    {"client_queue_time", "Client Queue Time", "Client-side Queueing",
     [](const ServedRequest& one, std::vector<double>& values) { values.push_back(one.queue_s); }},
    {"e2el_including_client_queue", "E2EL incl. Client Queue", "Queue-inclusive End-to-end Latency",
     [](const ServedRequest& one, std::vector<double>& values) {
       values.push_back(one.latency_s + one.queue_s);
     }},
};

/// "99" or "99.9".
std::string percent_word(double percent) {
  return fmt::format("{}", percent);
}

bool is_good(const ServedRequest& one, const std::map<std::string, double>& goodput) {
  return std::ranges::all_of(goodput, [&](const auto& goal) {
    const double value_s = goal.first == "ttft"   ? one.ttft_s
                           : goal.first == "tpot" ? one.tpot_s()
                                                  : one.latency_s;
    return value_s * 1000.0 <= goal.second;
  });
}

/// The most tokens, and the most requests, in a second of the run.
std::pair<double, std::int64_t> peaks(const std::vector<const ServedRequest*>& good) {
  if (good.empty()) return {0.0, 0};
  double begin = good.front()->start_s;
  double end = begin;
  for (const ServedRequest* one : good) {
    begin = std::min(begin, one->start_s);
    end = std::max(end, one->start_s + one->latency_s);
  }
  const auto seconds = static_cast<std::size_t>(std::ceil(end - begin)) + 1;
  std::vector<double> tokens(seconds);
  std::vector<std::int64_t> requests(seconds);
  const auto second_of = [&](double at) {
    return std::min(seconds - 1, static_cast<std::size_t>(std::max(at - begin, 0.0)));
  };
  for (const ServedRequest* one : good) {
    double at = one->start_s + one->ttft_s;
    ++tokens[second_of(at)];
    for (const double gap : one->itl_s) ++tokens[second_of(at += gap)];
    const std::size_t last = second_of(one->start_s + one->latency_s);
    for (std::size_t second = second_of(one->start_s); second <= last; ++second) ++requests[second];
  }
  return {*std::ranges::max_element(tokens), *std::ranges::max_element(requests)};
}

template <typename Value>
Json list_of(const ServedRun& run, Value value) {
  Json list = Json::array();
  for (const ServedRequest& one : run.requests) list.push_back(value(one));
  return list;
}

bool is_told(const ServedRun& run, const char* name) {
  return std::ranges::find(run.metrics, name) != run.metrics.end();
}

}  // namespace

const std::vector<std::string>& served_metrics() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Metric& metric : kMetrics) all.emplace_back(metric.name);
    return all;
  }();
  return names;
}

Json served_json(const ServedRun& run, bool detailed) {
  std::vector<const ServedRequest*> good;
  std::int64_t input = 0;
  std::int64_t output = 0;
  std::int64_t goals_met = 0;
  for (const ServedRequest& one : run.requests) {
    if (!one.success) continue;
    good.push_back(&one);
    input += one.prompt_tokens;
    output += one.output_tokens;
    goals_met += is_good(one, run.goodput) ? 1 : 0;
  }
  const double seconds = std::max(run.duration_s, 1e-9);
  const auto rate = [seconds](auto count) { return static_cast<double>(count) / seconds; };
  const auto [peak_tokens, peak_requests] = peaks(good);
  Json report{{"duration", run.duration_s},
              {"completed", good.size()},
              {"failed", run.requests.size() - good.size()},
              {"total_input_tokens", input},
              {"total_output_tokens", output},
              {"request_throughput", rate(good.size())},
              {"request_goodput", run.goodput.empty() ? Json() : Json(rate(goals_met))},
              {"output_throughput", rate(output)},
              {"total_token_throughput", rate(input + output)},
              {"max_output_tokens_per_s", peak_tokens},
              {"max_concurrent_requests", peak_requests}};
  if (detailed) {
    report["input_lens"] = list_of(run, [](const ServedRequest& one) { return one.prompt_tokens; });
    report["output_lens"] =
        list_of(run, [](const ServedRequest& one) { return one.output_tokens; });
    report["ttfts"] = list_of(run, [](const ServedRequest& one) { return one.ttft_s; });
    report["itls"] = list_of(run, [](const ServedRequest& one) { return one.itl_s; });
    report["start_times"] = list_of(run, [](const ServedRequest& one) { return one.start_s; });
    report["latencies"] = list_of(run, [](const ServedRequest& one) { return one.latency_s; });
    report["queue_times"] = list_of(run, [](const ServedRequest& one) { return one.queue_s; });
    report["generated_texts"] = list_of(run, [](const ServedRequest& one) { return one.text; });
    report["errors"] = list_of(run, [](const ServedRequest& one) { return one.error; });
  }
  for (const Metric& metric : kMetrics) {
    if (!is_told(run, metric.name)) continue;
    std::vector<double> values;
    for (const ServedRequest* one : good) metric.take(*one, values);
    const std::string name = metric.name;
    report["mean_" + name + "_ms"] = mean(values) * 1000.0;
    report["median_" + name + "_ms"] = percentile(values, 50.0) * 1000.0;
    report["std_" + name + "_ms"] = deviation(values) * 1000.0;
    for (const double percent : run.percentiles)
      report["p" + percent_word(percent) + "_" + name + "_ms"] =
          percentile(values, percent) * 1000.0;
  }
  return report;
}

std::string served_text(const Json& report, const ServedRun& run) {
  std::string out = fmt::format("{:=^50}\n", " Serving Benchmark Result ");
  const auto line = [&](const std::string& label, const std::string& name) {
    const Json& value = report[name];
    out += value.is_number_integer()
               ? fmt::format("{:<40} {:<10}\n", label, value.get<std::int64_t>())
               : fmt::format("{:<40} {:<10.2f}\n", label, value.get<double>());
  };
  line("Successful requests:", "completed");
  line("Failed requests:", "failed");
  line("Benchmark duration (s):", "duration");
  line("Total input tokens:", "total_input_tokens");
  line("Total generated tokens:", "total_output_tokens");
  line("Request throughput (req/s):", "request_throughput");
  if (!run.goodput.empty()) line("Request goodput (req/s):", "request_goodput");
  line("Output token throughput (tok/s):", "output_throughput");
  line("Peak output token throughput (tok/s):", "max_output_tokens_per_s");
  line("Peak concurrent requests:", "max_concurrent_requests");
  line("Total token throughput (tok/s):", "total_token_throughput");
  for (const Metric& metric : kMetrics) {
    if (!is_told(run, metric.name)) continue;
    const std::string name = metric.name;
    out += fmt::format("{:-^50}\n", metric.title);
    line(fmt::format("Mean {} (ms):", metric.label), "mean_" + name + "_ms");
    line(fmt::format("Median {} (ms):", metric.label), "median_" + name + "_ms");
    for (const double percent : run.percentiles)
      line(fmt::format("P{} {} (ms):", percent_word(percent), metric.label),
           "p" + percent_word(percent) + "_" + name + "_ms");
  }
  return out + std::string(50, '=') + "\n";
}

std::string served_plot(const ServedRun& run) {
  constexpr double kWidth = 900.0;
  constexpr double kLeft = 50.0;
  constexpr double kBottom = 30.0;
  const double row = std::clamp(
      400.0 / static_cast<double>(std::max<std::size_t>(run.requests.size(), 1)), 0.5, 8.0);
  const double height = row * static_cast<double>(run.requests.size());
  const double scale = (kWidth - kLeft) / std::max(run.duration_s, 1e-9);
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{:.1f}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<title>Requests over time: until the first "
      "token dark, then light</title>\n",
      kWidth + 10, height + kBottom + 10);
  double y = 5.0;
  for (const ServedRequest& one : run.requests) {
    const auto bar = [&](double from_s, double length_s, const char* color) {
      out += fmt::format(
          "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\"/>\n",
          kLeft + from_s * scale, y, std::max(length_s * scale, 0.2), row * 0.8, color);
    };
    if (one.success) {
      bar(one.start_s, one.ttft_s, "#1f3a5f");
      bar(one.start_s + one.ttft_s, one.latency_s - one.ttft_s, "#7fb0e6");
    } else {
      bar(one.start_s, std::max(one.latency_s, 0.0), "#c0392b");
    }
    y += row;
  }
  for (int i = 0; i <= 5; ++i) {
    const double at = run.duration_s * i / 5.0;
    out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{:.1f} s</text>\n",
                       kLeft + at * scale, height + kBottom, at);
  }
  out += fmt::format("<text x=\"2\" y=\"{:.1f}\">{} requests</text>\n</svg>\n", 15.0,
                     run.requests.size());
  return out;
}

}  // namespace koho::bench
