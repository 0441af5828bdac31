// SPDX-License-Identifier: Apache-2.0
// What `koho bench serve` measured of a server: vLLM's metrics under vLLM's names, as text, as JSON
// and as a picture. Arithmetic only.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace koho::bench {

/// One request as its client saw it, in seconds.
struct ServedRequest {
  bool success = false;
  double start_s = 0.0;    // when it was sent, from the run's begin
  double latency_s = 0.0;  // to the last chunk with a token
  double ttft_s = 0.0;     // to the first
  std::vector<double> itl_s{};
  std::int64_t prompt_tokens = 0;
  std::int64_t output_tokens = 0;
  double queue_s = 0.0;  // waited in the client for --max-concurrency
  std::string text{};
  std::string error{};

  /// Mean time between tokens behind the first; 0 of one token.
  double tpot_s() const {
    return output_tokens > 1 ? (latency_s - ttft_s) / static_cast<double>(output_tokens - 1) : 0.0;
  }
};

struct ServedRun {
  std::vector<ServedRequest> requests{};
  double duration_s = 0.0;
  std::map<std::string, double> goodput{};  // "ttft" and so on: most milliseconds
  std::vector<std::string> metrics{"ttft", "tpot", "itl", "e2el"};  // that are told
  std::vector<double> percentiles{99.0};
};

/// The names that `metrics` may have.
const std::vector<std::string>& served_metrics();

/// Counts, rates, and for each metric mean, median, std and percentiles in ms; with `detailed` each
/// request's own, too.
nlohmann::ordered_json served_json(const ServedRun& run, bool detailed);
/// The table that vLLM prints, made of served_json().
std::string served_text(const nlohmann::ordered_json& report, const ServedRun& run);
/// An SVG: a line a request over time, dark up to its first token.
std::string served_plot(const ServedRun& run);

}  // namespace koho::bench
