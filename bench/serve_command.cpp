// SPDX-License-Identifier: Apache-2.0
// `koho bench serve URL`: drives any server with OpenAI's API as `vllm bench serve` does: its
// flags, its metrics, its result files. Here are the flags, in serve_run.cpp what they do.
#include <memory>

#include "app/command.h"
#include "bench/serve_options.h"

namespace koho::app {
namespace {

constexpr const char* kExamples =
    R"(Flags, metrics and result files have vLLM's names and formulas (`vllm bench serve`). Prompts of exact
lengths need the model's tokenizer: --tokenizer DIR; without one, random prompts are of common words, and the
server's own counts are told. OPENAI_API_KEY is sent as the key.
  ttft  request to first token      itl   between two tokens of a request, all gaps together
  e2el  request to last token       tpot  (last - first token) / (tokens - 1) of a request

Examples:
  koho bench serve http://localhost:8000 --tokenizer models/tiny --num-prompts 200 --request-rate 20
  koho bench serve localhost:8000 --dataset-name sharegpt --dataset-path ShareGPT.json --max-concurrency 64
  koho bench serve localhost:8000 --backend openai-chat --dataset-name sessions --num-turns 5 --plot run.svg
  koho bench serve localhost:8000 --request-rate 8 --goodput ttft:500 tpot:50 --save-result)";

void add_traffic_flags(CommandLine& command, ServeBenchOptions& options) {
  command
      .add_option("--request-rate", options.request_rate,
                  "Requests a second; inf sends all at once")
      ->capture_default_str();
  command
      .add_option("--burstiness", options.burstiness,
                  "Shape of the gaps' gamma distribution: 1 is Poisson, below 1 burstier, above 1 "
                  "more even")
      ->check(positive())
      ->capture_default_str();
  command
      .add_option("--max-concurrency", options.max_concurrency,
                  "Largest number of requests at once; 0 = no bound")
      ->check(at_least(0));
  command.add_option("--num-warmups", options.num_warmups, "Requests before the measurement")
      ->check(at_least(0))
      ->capture_default_str();
}

void add_dataset_flags(CommandLine& command, ServeBenchOptions& options) {
  bench::DatasetOptions& dataset = options.dataset;
  const std::string group = "Dataset";
  command
      .add_option("--dataset-name", dataset.name,
                  "random, sharegpt, custom ({\"prompt\": …} a line), or sessions (several turns, "
                  "random or of a ShareGPT file)")
      ->check(one_of({"random", "sharegpt", "custom", "sessions"}))
      ->capture_default_str()
      ->group(group);
  command.add_option("--dataset-path", dataset.path, "The dataset's file, or a pipe")->group(group);
  command.add_option("--num-prompts", dataset.prompts, "Number of requests")
      ->check(at_least(1))
      ->capture_default_str()
      ->group(group);
  command.add_option("--seed", dataset.seed, "Of prompts and arrivals")->group(group);
  command.add_option("--random-input-len", dataset.random_input, "Tokens of a random prompt")
      ->check(at_least(1))
      ->capture_default_str()
      ->group(group);
  command.add_option("--random-output-len", dataset.random_output, "Tokens of its answer")
      ->check(at_least(1))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--random-range-ratio", dataset.random_range_ratio,
                  "Lengths are drawn within 1 - R and 1 + R of these")
      ->check(between(0.0, 1.0))
      ->group(group);
  command
      .add_option("--random-prefix-len", dataset.random_prefix,
                  "Tokens before them that all prompts share")
      ->check(at_least(0))
      ->group(group);
  command
      .add_option("--sharegpt-output-len", dataset.sharegpt_output,
                  "Tokens of each answer, instead of the file's")
      ->check(at_least(1))
      ->group(group);
  command
      .add_option("--custom-output-len", dataset.custom_output,
                  "Tokens of each answer; -1: output_tokens of its line")
      ->check(at_least(1, -1))
      ->capture_default_str()
      ->group(group);
  command
      .add_flag("--skip-chat-template", options.skip_chat_template,
                "Send custom prompts as they stand, which is always so: vLLM's flag")
      ->group(group);
  command.add_option("--num-turns", dataset.turns, "Turns of a session, at most")
      ->check(at_least(1))
      ->capture_default_str()
      ->group(group);
  command.add_option("--input-len", options.input_length, "The same as --random-input-len")
      ->check(at_least(1))
      ->group(group);
  command.add_option("--output-len", options.output_length, "Tokens of an answer, of any dataset")
      ->check(at_least(1))
      ->group(group);
  command.add_flag("--no-oversample", options.no_oversample, "Use no prompt of a file twice")
      ->group(group);
  command.add_flag("--disable-shuffle", options.disable_shuffle, "Keep the file's order")
      ->group(group);
}

void add_body_flags(CommandLine& command, ServeBenchOptions& options) {
  const std::string group = "Requests";
  command.add_flag("--ignore-eos", options.ignore_eos, "Answers of full length")->group(group);
  command.add_option("--temperature", options.temperature, "As the API has it")->group(group);
  command.add_option("--top-p", options.top_p, "As the API has it")->group(group);
  command.add_option("--top-k", options.top_k, "As the API has it")->group(group);
  command.add_option("--min-p", options.min_p, "As the API has it")->group(group);
  command.add_option("--repetition-penalty", options.repetition_penalty, "As the API has it")
      ->group(group);
  command.add_option("--extra-body", options.extra_body, "JSON object that every body gets")
      ->group(group);
  command.add_option("--header", options.headers, "NAME=VALUE; may be given several times")
      ->allow_extra_args(false)
      ->group(group);
}

void add_result_flags(CommandLine& command, ServeBenchOptions& options) {
  const std::string group = "Results";
  command
      .add_option("--goodput", options.goodput,
                  "Goals in ms, such as ttft:500 tpot:50 e2el:10000: how many requests a second "
                  "meet all")
      ->group(group);
  command
      .add_option("--percentile-metrics", options.percentile_metrics,
                  "Metrics that are told, also client_queue_time and e2el_including_client_queue")
      ->capture_default_str()
      ->group(group);
  command.add_option("--metric-percentiles", options.metric_percentiles, "Their percentiles")
      ->capture_default_str()
      ->group(group);
  command.add_flag("--save-result", options.save_result, "Write the result as JSON")->group(group);
  command.add_flag("--save-detailed", options.save_detailed, "With every request's own numbers")
      ->group(group);
  command.add_flag("--append-result", options.append_result, "Append it to the file")->group(group);
  command.add_option("--result-dir", options.result_dir, "Where it is written")->group(group);
  command
      .add_option("--result-filename", options.result_filename,
                  "Instead of BACKEND-RATEqps-MODEL-DATE.json")
      ->group(group);
  command.add_option("--metadata", options.metadata, "NAME=VALUE of the file; several times")
      ->group(group);
  command.add_option("--label", options.label, "Of the file")->group(group);
  command.add_option("--plot", options.plot, "Write an SVG: the requests over time")->group(group);
  command.add_flag("--disable-tqdm", options.disable_tqdm, "Show no progress")->group(group);
}

}  // namespace

Runner add_bench_serve(CommandLine& command) {
  const auto options = std::make_shared<ServeBenchOptions>();
  command.add_option("URL", options->url, "The server: http://HOST:PORT");
  command.add_option("--base-url", options->base_url, "The same");
  command.add_option("--host", options->host, "Its host, without URL")->capture_default_str();
  command.add_option("--port", options->port, "Its port, without URL")
      ->check(between(1, 65535))
      ->capture_default_str();
  command
      .add_option("--backend", options->backend,
                  "openai (or vllm): /v1/completions; openai-chat: /v1/chat/completions")
      ->check(one_of({"openai", "vllm", "openai-chat", "vllm-chat"}))
      ->capture_default_str();
  command.add_option("--endpoint", options->endpoint, "Another path of the same API");
  command.add_option("-m,--model", options->model,
                     "The model's name; left out: the server's first. A directory is a tokenizer");
  command.add_option("--served-model-name", options->served_model_name,
                     "The name in requests, where --model is a directory");
  command.add_option("--tokenizer", options->tokenizer, "Model directory, or tokenizer.json");
  add_traffic_flags(command, *options);
  add_dataset_flags(command, *options);
  add_body_flags(command, *options);
  add_result_flags(command, *options);
  command.footer(kExamples);
  return [options] { return run_serve_bench(*options); };
}

}  // namespace koho::app
