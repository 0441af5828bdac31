// SPDX-License-Identifier: Apache-2.0
// What `koho bench serve` does: flags to requests, requests to results.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "app/progress_bar.h"
#include "base/text.h"
#include "bench/serve_client.h"
#include "bench/serve_dataset.h"
#include "bench/serve_options.h"
#include "bench/serve_report.h"

namespace koho::app {
namespace {

using Json = nlohmann::ordered_json;
using bench::PlannedRequest;
using bench::Prompt;
using bench::ServedRun;

/// What the flags come to.
struct Plan {
  bench::ClientSettings client;
  double rate = std::numeric_limits<double>::infinity();
  std::string model;  // as requests name it
  bool chat = false;
  Json extra = Json::object();                                // members of every body
  std::vector<std::pair<std::string, std::string>> metadata;  // members of the result file
  ServedRun told;                                             // its goals, metrics and percentiles
};

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  for (const std::string_view part : split(text, ','))
    if (const std::string_view word = trimmed(part); !word.empty()) words.emplace_back(word);
  return words;
}

std::optional<double> number_of(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || end != text.c_str() + text.size() || std::isnan(value)) return std::nullopt;
  return value;
}

/// "NAME=VALUE" apart. Errors: invalid_argument.
Result<std::pair<std::string, std::string>> pair_of(const char* flag, const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0)
    return make_error(ErrorCode::invalid_argument, "{}: expected NAME=VALUE, found \"{}\"", flag,
                      text);
  return std::pair(std::string(trimmed(std::string_view(text).substr(0, equals))),
                   std::string(trimmed(std::string_view(text).substr(equals + 1))));
}

Status read_goals(const ServeBenchOptions& options, ServedRun& told) {
  for (const std::string& goal : options.goodput) {
    const std::size_t colon = goal.find(':');
    const std::string name = goal.substr(0, colon);
    const std::optional<double> most =
        colon == std::string::npos ? std::nullopt : number_of(goal.substr(colon + 1));
    if (!most || *most < 0.0 || (name != "ttft" && name != "tpot" && name != "e2el"))
      return make_error(ErrorCode::invalid_argument,
                        "--goodput: expected ttft, tpot or e2el with milliseconds, such as "
                        "ttft:500, found \"{}\"",
                        goal);
    told.goodput[name] = *most;
  }
  told.metrics = words_of(options.percentile_metrics);
  for (const std::string& metric : told.metrics)
    if (std::ranges::find(bench::served_metrics(), metric) == bench::served_metrics().end())
      return make_error(ErrorCode::invalid_argument,
                        "--percentile-metrics: expected some of {}, "
                        "found \"{}\"",
                        fmt::join(bench::served_metrics(), ","), metric);
  told.percentiles.clear();
  for (const std::string& word : words_of(options.metric_percentiles)) {
    const std::optional<double> percent = number_of(word);
    if (!percent || *percent < 0.0 || *percent > 100.0)
      return make_error(ErrorCode::invalid_argument,
                        "--metric-percentiles: expected numbers within 0..100, found \"{}\"", word);
    told.percentiles.push_back(*percent);
  }
  return {};
}

Status read_extra(const ServeBenchOptions& options, Json& extra) {
  if (options.ignore_eos) extra["ignore_eos"] = true;
  if (options.temperature) extra["temperature"] = *options.temperature;
  if (options.top_p) extra["top_p"] = *options.top_p;
  if (options.top_k) extra["top_k"] = *options.top_k;
  if (options.min_p) extra["min_p"] = *options.min_p;
  if (options.repetition_penalty) extra["repetition_penalty"] = *options.repetition_penalty;
  if (options.extra_body.empty()) return {};
  const Json more = Json::parse(options.extra_body, nullptr, false);
  if (!more.is_object())
    return make_error(ErrorCode::invalid_argument, "--extra-body: expected a JSON object");
  extra.update(more);
  return {};
}

Result<Plan> make_plan(const ServeBenchOptions& options) {
  Plan plan;
  const std::string url = !options.url.empty() ? options.url
                          : !options.base_url.empty()
                              ? options.base_url
                              : fmt::format("http://{}:{}", options.host, options.port);
  if (std::filesystem::is_directory(url))
    return make_error(ErrorCode::invalid_argument,
                      "{} is a directory: serve it (koho serve {}) and give the server's URL here; "
                      "koho bench {} measures it without a server",
                      url, url, url);
  KOHO_TRY_ASSIGN(plan.client.server, bench::parse_server_url(url));
  plan.chat = options.backend == "openai-chat" || options.backend == "vllm-chat";
  plan.client.path = !options.endpoint.empty() ? options.endpoint
                     : plan.chat               ? "/v1/chat/completions"
                                               : "/v1/completions";
  if (plan.client.path.front() != '/') plan.client.path.insert(0, "/");
  plan.client.concurrency = options.max_concurrency;
  if (const char* key = std::getenv("OPENAI_API_KEY"))
    plan.client.fields["Authorization"] = fmt::format("Bearer {}", key);
  for (const std::string& header : options.headers) {
    KOHO_TRY_ASSIGN(auto field, pair_of("--header", header));
    plan.client.fields[field.first] = field.second;
  }
  const std::optional<double> rate = number_of(options.request_rate);
  if (!rate || *rate <= 0.0)
    return make_error(ErrorCode::invalid_argument,
                      "--request-rate: expected requests a second above 0, or inf, found \"{}\"",
                      options.request_rate);
  plan.rate = *rate;
  if (options.dataset.name == "sessions" && !plan.chat)
    return make_error(ErrorCode::invalid_argument,
                      "--dataset-name sessions needs --backend openai-chat: turns are chats");
  KOHO_TRY(read_goals(options, plan.told));
  KOHO_TRY(read_extra(options, plan.extra));
  for (const std::string& item : options.metadata) {
    KOHO_TRY_ASSIGN(auto pair, pair_of("--metadata", item));
    plan.metadata.push_back(std::move(pair));
  }
  return plan;
}

/// The name of the server's first model.
Result<std::string> first_model(const bench::ClientSettings& client) {
  KOHO_TRY_ASSIGN(const bench::HttpAnswer answer,
                  bench::get(client.server, "/v1/models", client.fields));
  const Json json = Json::parse(answer.body, nullptr, false);
  if (answer.status != 200 || !json.is_object() || !json.contains("data") ||
      !json["data"].is_array() || json["data"].empty() || !json["data"][0].is_object() ||
      !json["data"][0].contains("id") || !json["data"][0]["id"].is_string())
    return make_error(ErrorCode::unavailable, "GET /v1/models: HTTP {}: {}", answer.status,
                      answer.body.substr(0, 300));
  return json["data"][0]["id"].get<std::string>();
}

/// The tokenizer of a directory, where it has one.
Result<std::optional<Tokenizer>> tokenizer_of(const ServeBenchOptions& options) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  for (const std::string& directory : {options.tokenizer, options.model}) {
    if (directory.empty()) continue;
    const fs::path file = fs::is_directory(directory, ignored)
                              ? fs::path(directory) / "tokenizer.json"
                              : fs::path(directory);
    if (fs::is_regular_file(file, ignored)) {
      KOHO_TRY_ASSIGN(Tokenizer loaded, Tokenizer::load(file));
      return std::optional<Tokenizer>(std::move(loaded));
    }
    if (directory == options.tokenizer)
      return make_error(ErrorCode::not_found, "--tokenizer {}: there is no {}", directory,
                        file.string());
  }
  return std::optional<Tokenizer>();
}

std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// The body of a request, with the session's answers so far.
std::string body_of(const Plan& plan,
                    const Prompt& prompt,
                    const std::vector<std::string>& answers) {
  Json body{{"model", plan.model}};
  if (plan.chat) {
    Json messages = Json::array();
    for (std::size_t i = 0; i <= prompt.turn; ++i) {
      if (i > 0) messages.push_back({{"role", "assistant"}, {"content", answers[i - 1]}});
      messages.push_back({{"role", "user"}, {"content", (*prompt.turns)[i]}});
    }
    body["messages"] = std::move(messages);
    body["max_completion_tokens"] = prompt.output_tokens;
  } else {
    body["prompt"] = (*prompt.turns)[prompt.turn];
    body["max_tokens"] = prompt.output_tokens;
  }
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  body.update(plan.extra);
  return text_of(body);
}

/// When the requests are due: gaps of a gamma distribution, brought to the rate's exact mean, as
/// vLLM does. Later turns of a session have no time.
void set_times(std::vector<PlannedRequest>& requests,
               double rate,
               double burstiness,
               std::uint64_t seed) {
  if (std::isinf(rate)) return;
  std::mt19937_64 draw(seed);
  std::gamma_distribution<double> gap(burstiness, 1.0 / (rate * burstiness));
  double at_s = 0.0;
  double count = 0.0;
  for (PlannedRequest& one : requests) {
    if (one.follows >= 0) continue;
    one.at_s = at_s += std::isinf(burstiness) ? 1.0 / rate : gap(draw);
    count += 1.0;
  }
  if (at_s <= 0.0) return;
  for (PlannedRequest& one : requests) one.at_s *= count / rate / at_s;
}

/// Members before the results, as vLLM's files have them.
Json described(const ServeBenchOptions& options, const Plan& plan, const std::string& date) {
  const std::string& tokenizer = options.tokenizer.empty() ? options.model : options.tokenizer;
  Json head{{"date", date},
            {"endpoint_type", options.backend},
            {"backend", options.backend},
            {"label", options.label.empty() ? Json() : Json(options.label)},
            {"model_id", options.model.empty() ? plan.model : options.model},
            {"tokenizer_id", tokenizer.empty() ? Json() : Json(tokenizer)},
            {"num_prompts", options.dataset.prompts}};
  for (const auto& [name, value] : plan.metadata) head[name] = value;
  head["request_rate"] = std::isinf(plan.rate) ? Json("inf") : Json(plan.rate);
  head["burstiness"] = options.burstiness;
  head["max_concurrency"] = options.max_concurrency > 0 ? Json(options.max_concurrency) : Json();
  return head;
}

Status write_text(const std::string& path, const std::string& text, bool append) {
  std::ofstream file(path, append ? std::ios::app : std::ios::trunc);
  file << text << '\n';
  file.close();
  if (!file) return make_error(ErrorCode::io_error, "{} could not be written", path);
  return {};
}

/// As vLLM names it: BACKEND-RATEqps-concurrencyN-MODEL-DATE.json.
std::string result_path(const ServeBenchOptions& options,
                        const Plan& plan,
                        const std::string& date) {
  std::string name = options.result_filename;
  if (name.empty()) {
    const std::string model = std::filesystem::path(plan.model).filename();
    name = fmt::format(
        "{}-{}qps{}-{}-{}.json", options.label.empty() ? options.backend : options.label, plan.rate,
        options.max_concurrency > 0 ? fmt::format("-concurrency{}", options.max_concurrency)
                                    : std::string(),
        model, date);
  }
  return options.result_dir.empty() ? name
                                    : (std::filesystem::path(options.result_dir) / name).string();
}

Result<ServedRun> run(const bench::ClientSettings& client,
                      const std::vector<PlannedRequest>& requests,
                      const char* title,
                      bool quiet) {
  ProgressBar bar(title);
  const auto begin = std::chrono::steady_clock::now();
  return bench::run_requests(client, requests, [&](std::int64_t over) {
    if (quiet || !bar.due()) return;
    const double share =
        static_cast<double>(over) / static_cast<double>(std::max<std::size_t>(requests.size(), 1));
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    bar.show(share, share > 0.0 ? seconds * (1.0 - share) / share : -1.0,
             fmt::format("{} of {} requests, {:.1f}/s", over, requests.size(),
                         static_cast<double>(over) / std::max(seconds, 1e-9)));
  });
}

}  // namespace

Status run_serve_bench(ServeBenchOptions& options) {
  KOHO_TRY_ASSIGN(Plan plan, make_plan(options));
  KOHO_TRY_ASSIGN(const std::optional<Tokenizer> tokenizer, tokenizer_of(options));
  plan.model = options.served_model_name;
  if (plan.model.empty() && !options.model.empty() && !std::filesystem::exists(options.model))
    plan.model = options.model;
  if (plan.model.empty()) {
    KOHO_TRY_ASSIGN(plan.model, first_model(plan.client));
  }
  bench::DatasetOptions& dataset = options.dataset;
  dataset.oversample = !options.no_oversample;
  dataset.shuffle = !options.disable_shuffle;
  if (options.input_length) dataset.random_input = *options.input_length;
  if (options.output_length) {
    dataset.random_output = *options.output_length;
    dataset.custom_output = *options.output_length;
    dataset.sharegpt_output = *options.output_length;
  }
  KOHO_TRY_ASSIGN(const std::vector<Prompt> prompts,
                  bench::make_prompts(dataset, tokenizer ? &*tokenizer : nullptr));
  std::vector<PlannedRequest> requests;
  for (const Prompt& prompt : prompts)
    requests.push_back({.prompt_tokens = prompt.tokens,
                        .body =
                            [&plan, &prompt](const std::vector<std::string>& answers) {
                              return body_of(plan, prompt, answers);
                            },
                        .follows = prompt.follows});
  set_times(requests, plan.rate, options.burstiness, dataset.seed);
  // Any answer says that a server is there.
  KOHO_TRY(bench::get(plan.client.server, "/v1/models", plan.client.fields));
  if (options.num_warmups > 0) {
    std::vector<PlannedRequest> warm(static_cast<std::size_t>(options.num_warmups),
                                     requests.front());
    for (PlannedRequest& one : warm) one.at_s = 0.0;
    KOHO_TRY(run(plan.client, warm, "warm-up", options.disable_tqdm));
  }
  KOHO_TRY_ASSIGN(ServedRun measured, run(plan.client, requests, "requests", options.disable_tqdm));
  plan.told.requests = std::move(measured.requests);
  plan.told.duration_s = measured.duration_s;
  const Json report = bench::served_json(plan.told, options.save_detailed);
  std::cout << bench::served_text(report, plan.told) << std::flush;
  const std::string date = fmt::format("{:%Y%m%d-%H%M%S}", fmt::localtime(std::time(nullptr)));
  if (options.save_result || options.append_result) {
    Json file = described(options, plan, date);
    file.update(report);
    KOHO_TRY(write_text(result_path(options, plan, date), text_of(file), options.append_result));
  }
  if (!options.plot.empty())
    KOHO_TRY(write_text(options.plot, bench::served_plot(plan.told), false));
  std::int64_t failed = 0;
  std::string why;
  for (const bench::ServedRequest& one : plan.told.requests) {
    failed += one.success ? 0 : 1;
    if (why.empty()) why = one.error;
  }
  if (failed == std::ssize(plan.told.requests))
    return make_error(ErrorCode::unavailable, "every request failed: {}", why);
  if (failed > 0) std::cerr << "koho bench serve: a request failed: " << why << '\n';
  return {};
}

}  // namespace koho::app
