// SPDX-License-Identifier: Apache-2.0
// What `koho bench` measured, under vLLM's names, as text and as JSON.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace koho::bench {

/// Counts and seconds, as they were measured.
struct ThroughputResult {
  double duration_s = 0.0;
  std::int64_t concurrency = 0;
  std::int64_t prompt_length = 0;
  std::int64_t answer_length = 0;
  std::int64_t warm_up_tokens = 0;  // of each warm-up request
  std::int64_t completed = 0;
  std::int64_t input_tokens = 0;
  std::int64_t output_tokens = 0;
  std::int64_t decode_steps = 0;
  std::int64_t decode_rows = 0;
  std::int64_t largest_batch = 0;
  std::int64_t preemptions = 0;
  std::int64_t prompt_tokens = 0;  // of requests accepted, and those found in the cache
  std::int64_t cached_tokens = 0;
  std::vector<double> kv_use;  // shares of the pages, looked at ten times a second
  std::vector<double> ttft_s;
  std::vector<double> tpot_s;
  std::vector<double> itl_s;
  std::vector<double> e2el_s;
};

/// 0 of nothing.
double mean(const std::vector<double>& values);
/// The standard deviation of the whole, as numpy's; 0 of nothing.
double deviation(const std::vector<double>& values);
/// Linear between the two nearest ranks, as numpy's default; 0 of nothing.
double percentile(std::vector<double> values, double percent);

nlohmann::ordered_json throughput_json(const ThroughputResult& result);
std::string throughput_text(const nlohmann::ordered_json& report);

}  // namespace koho::bench
