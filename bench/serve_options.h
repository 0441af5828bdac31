// SPDX-License-Identifier: Apache-2.0
// The flags of `koho bench serve`, with vLLM's names, as they are given.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "bench/serve_dataset.h"

namespace koho::app {

struct ServeBenchOptions {
  std::string url;
  std::string base_url;
  std::string host = "127.0.0.1";
  std::int32_t port = 8000;
  std::string backend = "openai";
  std::string endpoint;
  std::vector<std::string> headers;
  std::string model;
  std::string served_model_name;
  std::string tokenizer;
  std::string request_rate = "inf";
  double burstiness = 1.0;
  std::int64_t max_concurrency = 0;
  std::int64_t num_warmups = 0;
  std::optional<std::int64_t> input_length;   // of any dataset that draws its lengths
  std::optional<std::int64_t> output_length;  // of any dataset
  bench::DatasetOptions dataset;
  bool no_oversample = false;
  bool disable_shuffle = false;
  bool skip_chat_template = false;  // what is done anyway
  bool ignore_eos = false;
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<std::int64_t> top_k;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::string extra_body;
  std::vector<std::string> goodput;
  std::string percentile_metrics = "ttft,tpot,itl,e2el";
  std::string metric_percentiles = "99";
  bool save_result = false;
  bool save_detailed = false;
  bool append_result = false;
  std::string result_dir;
  std::string result_filename;
  std::vector<std::string> metadata;
  std::string label;
  std::string plot;
  bool disable_tqdm = false;
};

/// Runs the benchmark and prints and writes its results. Errors: invalid_argument (a flag);
/// io_error: no such server, a file; unavailable: every request failed.
Status run_serve_bench(ServeBenchOptions& options);

}  // namespace koho::app
