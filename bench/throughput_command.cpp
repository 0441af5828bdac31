// SPDX-License-Identifier: Apache-2.0
// `koho bench`: throughput and latencies of the engine under a closed loop of equal requests,
// measured where a reader would see the tokens. `run.py --bench` does the same through engine.so.
#include <algorithm>
#include <condition_variable>
#include <fstream>
#include <iostream>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "app/build_info.h"
#include "app/command.h"
#include "app/model_flags.h"
#include "app/progress_bar.h"
#include "app/rank_flags.h"
#include "base/clock.h"
#include "bench/result_file.h"
#include "bench/throughput_report.h"
#include "runtime/runtime.h"

namespace koho::app {
namespace {

constexpr const char* kExamples =
    R"(CONCURRENCY requests are always in flight; one that ends is replaced at once. Warm-up, as many short
requests, is not measured. The measurement lasts DURATION seconds and counts what was delivered in them; with
--requests it lasts until so many have ended. Prompts are random token ids. Synthetic weights need a config only.
Names and formulas are vLLM's:
  ttft  submission to first token      itl   between two tokens of a request, all gaps together
  e2el  submission to last token       tpot  (last - first token) / (tokens - 1) of a request

Examples:
  koho bench --model models/tiny --duration 10 --concurrency 16
  koho bench --config config.json --weights synthetic --device cuda --requests 192 --no-prefix-cache
  koho bench --model /models/GLM-4.5-Air-FP8 --concurrency 128 --prompt-len 1024 --gen-len 1024 --json out.json)";

constexpr std::int32_t kConcurrency = 64;

struct BenchOptions {
  ModelFlags selected;
  RankFlags spread;
  std::string json;
  std::string commit;
  double duration_s = 60.0;
  double temperature = 0.0;
  std::int32_t requests = 0;     // 0: as many as the duration has room for
  std::int32_t concurrency = 0;  // 0: kConcurrency, or the requests where those are fewer
  std::int32_t prompt_length = 256;
  std::int32_t answer_length = 256;
  std::int32_t prefix_length = 0;
  std::int32_t kv_pages = 0;
  std::int32_t prefill_chunk = 0;
  std::uint64_t seed = 0;
  bool no_prefix_cache = false;
};

/// Set by the engine when any stream has something new.
struct OutputSignal {
  std::mutex mutex;
  std::condition_variable arrived;
  bool notified = false;

  void notify() {
    {
      const std::lock_guard lock(mutex);
      notified = true;
    }
    arrived.notify_one();
  }
  void wait(std::int64_t timeout_us) {
    std::unique_lock lock(mutex);
    arrived.wait_for(lock, std::chrono::microseconds(timeout_us), [this] { return notified; });
    notified = false;
  }
};

struct InFlightRequest {
  std::shared_ptr<OutputStream> stream;
  std::int64_t submitted_us = 0;
  std::int64_t first_us = -1;
  std::int64_t last_us = -1;
  std::int64_t tokens = 0;
};

double seconds(std::int64_t us) {
  return static_cast<double>(us) / 1e6;
}

class Bench {
 public:
  Bench(Runtime& runtime, const BenchOptions& options)
      : runtime_(runtime),
        options_(options),
        draw_(options.seed),
        ids_(0,
             static_cast<Token>(runtime.text() != nullptr ? runtime.text()->tokenizer.vocab_size()
                                                          : runtime.model().config.vocab_size) -
                 1) {
    prefix_ = random_ids(options.prefix_length);
  }

  void clear_progress() { bar_.clear(); }

  Result<bench::ThroughputResult> run() {
    const std::int32_t warm_up = std::min(options_.answer_length, 16);
    KOHO_TRY(start_all(warm_up));
    KOHO_TRY(follow(/*replace=*/false, -1));
    const Statistics before = settled();
    result_ = {};
    const std::int64_t start = clock_.now_us();
    start_us_ = start;
    KOHO_TRY(start_all(options_.answer_length));
    to_start_ = options_.requests - options_.concurrency;
    KOHO_TRY(follow(
        /*replace=*/true,
        options_.requests > 0 ? -1 : start + static_cast<std::int64_t>(options_.duration_s * 1e6)));
    result_.duration_s = seconds(clock_.now_us() - start);
    note(before, settled());
    result_.warm_up_tokens = warm_up;
    for (const InFlightRequest& flight : flights_)
      if (flight.stream) runtime_.engine().cancel(flight.stream);
    return result_;
  }

 private:
  std::vector<Token> random_ids(std::int32_t count) {
    std::vector<Token> ids;
    for (std::int32_t i = 0; i < count; ++i) ids.push_back(ids_(draw_));
    return ids;
  }

  Statistics settled() {
    runtime_.engine().settle();
    return runtime_.engine().statistics();
  }

  Status start(InFlightRequest& flight, std::int32_t tokens) {
    Request request = runtime_.default_request();
    request.prompt = prefix_;
    const std::vector<Token> rest = random_ids(options_.prompt_length - options_.prefix_length);
    request.prompt.insert(request.prompt.end(), rest.begin(), rest.end());
    request.sampling = {};
    request.sampling.temperature = options_.temperature;
    request.max_tokens = tokens;
    request.stop_tokens.clear();
    flight = {};
    flight.submitted_us = clock_.now_us();
    KOHO_TRY_ASSIGN(flight.stream,
                    runtime_.engine().submit(std::move(request), [output_signal = output_signal_] {
                      output_signal->notify();
                    }));
    return {};
  }

  Status start_all(std::int32_t tokens) {
    flights_.assign(static_cast<std::size_t>(options_.concurrency), {});
    for (InFlightRequest& flight : flights_) KOHO_TRY(start(flight, tokens));
    return {};
  }

  /// Reads all streams until `end_us`, or with -1 until all have ended; those that end are replaced
  /// on the way, if so wished, as long as there are any to start.
  Status follow(bool replace, std::int64_t end_us) {
    std::int64_t look_us = clock_.now_us();
    std::size_t live = flights_.size();
    while (live > 0) {
      const std::int64_t now = clock_.now_us();
      if (end_us >= 0 && now >= end_us) return {};
      if (now >= look_us) {
        const Statistics at = runtime_.engine().statistics();
        result_.kv_use.push_back(1.0 - static_cast<double>(at.pages_free + at.pages_cached) /
                                           static_cast<double>(at.pages_total));
        look_us = now + 100'000;
        if (replace) show_progress(now, end_us);
      }
      output_signal_->wait(end_us >= 0 ? std::min<std::int64_t>(end_us - now, 100'000) : 100'000);
      for (InFlightRequest& flight : flights_) {
        if (!flight.stream) continue;
        KOHO_TRY_ASSIGN(const bool ended, read(flight));
        if (!ended) continue;
        if (replace && (end_us >= 0 || to_start_-- > 0)) {
          KOHO_TRY(start(flight, options_.answer_length));
        } else {
          flight.stream.reset();
          --live;
        }
      }
    }
    return {};
  }

  /// How far the measurement is, on standard error.
  void show_progress(std::int64_t now_us, std::int64_t end_us) {
    if (!bar_.due()) return;
    const double elapsed = seconds(now_us - start_us_);
    const double done = end_us >= 0 ? elapsed / seconds(end_us - start_us_)
                                    : static_cast<double>(result_.completed) / options_.requests;
    bar_.show(done, done > 0.0 ? elapsed * (1.0 - done) / done : -1.0,
              fmt::format("{} requests · {:.0f} tok/s", result_.completed,
                          static_cast<double>(result_.output_tokens) / elapsed));
  }

  /// Takes what a stream holds; true: its request has ended.
  Result<bool> read(InFlightRequest& flight) {
    while (true) {
      const OutputStream::Read read = flight.stream->poll(event_);
      if (read == OutputStream::Read::nothing) return false;
      const std::int64_t now = clock_.now_us();
      if (read == OutputStream::Read::done) {
        const Summary& summary = flight.stream->summary();
        if (summary.ending != Ending::completed) return summary.error;
        ++result_.completed;
        result_.e2el_s.push_back(seconds(flight.last_us - flight.submitted_us));
        if (flight.tokens > 1)
          result_.tpot_s.push_back(seconds(flight.last_us - flight.first_us) /
                                   static_cast<double>(flight.tokens - 1));
        return true;
      }
      if (flight.tokens == 0) {
        flight.first_us = now;
        result_.ttft_s.push_back(seconds(now - flight.submitted_us));
        result_.input_tokens += options_.prompt_length;
      } else {
        result_.itl_s.push_back(seconds(now - flight.last_us));
      }
      flight.last_us = now;
      ++flight.tokens;
      ++result_.output_tokens;
    }
  }

  void note(const Statistics& before, const Statistics& after) {
    const auto grown = [](std::uint64_t from, std::uint64_t to) {
      return static_cast<std::int64_t>(to - from);
    };
    result_.concurrency = options_.concurrency;
    result_.prompt_length = options_.prompt_length;
    result_.answer_length = options_.answer_length;
    result_.decode_steps = grown(before.decode_steps, after.decode_steps);
    result_.decode_rows = grown(before.decode_rows, after.decode_rows);
    result_.largest_batch = after.decode_rows_max;
    result_.preemptions = grown(before.preempted, after.preempted);
    result_.prompt_tokens = grown(before.prompt_tokens, after.prompt_tokens);
    result_.cached_tokens = grown(before.cached_tokens, after.cached_tokens);
  }

  Runtime& runtime_;
  const BenchOptions& options_;
  SteadyClock clock_;
  std::mt19937_64 draw_;
  std::uniform_int_distribution<Token> ids_;
  std::vector<Token> prefix_;
  std::shared_ptr<OutputSignal> output_signal_ =
      std::make_shared<OutputSignal>();  // streams may notify it last
  std::vector<InFlightRequest> flights_;
  std::int64_t to_start_ = 0;  // of a given number of requests
  std::int64_t start_us_ = 0;  // of the measurement
  ProgressBar bar_{"bench"};
  OutputEvent event_;
  bench::ThroughputResult result_;
};

/// What measures the same again.
std::string command_of(const BenchOptions& options) {
  std::string command = "koho bench" + model_flags(options.selected);
  const BenchOptions usual;
  if (options.requests == 0) command += fmt::format(" --duration {}", options.duration_s);
  command += flag_text("requests", options.requests, usual.requests);
  command += fmt::format(" --concurrency {} --prompt-len {} --gen-len {}", options.concurrency,
                         options.prompt_length, options.answer_length);
  command += flag_text("prefix-len", options.prefix_length, usual.prefix_length) +
             options.spread.text() + flag_text("kv-pages", options.kv_pages, usual.kv_pages) +
             flag_text("prefill-chunk", options.prefill_chunk, usual.prefill_chunk);
  if (options.no_prefix_cache) command += " --no-prefix-cache";
  command += flag_text("temperature", options.temperature, usual.temperature) +
             flag_text("seed", options.seed, usual.seed);
  return command;
}

Status run_bench(BenchOptions options) {
  if (options.concurrency == 0)
    options.concurrency =
        options.requests > 0 ? std::min(options.requests, kConcurrency) : kConcurrency;
  if (options.requests > 0 && options.requests < options.concurrency)
    return make_error(ErrorCode::invalid_argument,
                      "--requests ({}) must be at least --concurrency ({})", options.requests,
                      options.concurrency);
  if (options.prefix_length >= options.prompt_length)
    return make_error(ErrorCode::invalid_argument,
                      "--prefix-len ({}) must be less than --prompt-len ({})",
                      options.prefix_length, options.prompt_length);
  KOHO_TRY_ASSIGN(SelectedModel selected, load_selected_model(options.selected));
  RuntimeOptions runtime_options;
  options.spread.apply(runtime_options);
  runtime_options.sequences_max = options.concurrency;
  runtime_options.context_max = options.prompt_length + options.answer_length;
  runtime_options.kv_pages = options.kv_pages;
  runtime_options.prefill_chunk = options.prefill_chunk;
  runtime_options.prefix_cache = !options.no_prefix_cache;
  KOHO_TRY_ASSIGN(const std::unique_ptr<Runtime> runtime, start_runtime(selected, runtime_options));
  Bench bench(*runtime, options);
  KOHO_TRY_ASSIGN(const bench::ThroughputResult result, bench.run());
  bench.clear_progress();
  nlohmann::ordered_json report;
  for (const auto& [name, text] :
       bench::result_members({.machine = runtime->device_name(),
       .commit = options.commit.empty() ? build_info().commit : options.commit,
       .command = command_of(options),
       .more = {}}))
    report[name] = nlohmann::ordered_json::parse(text);
  report.update(bench::throughput_json(result));
  report["model_id"] = selected.name;
  report["num_ranks"] = runtime->options().ranks;
  report["load_time_s"] = runtime->load_s();
  std::cout << bench::throughput_text(report);
  if (options.json.empty()) return {};
  std::ofstream file(options.json);
  file << report.dump(2) << '\n';
  if (!file.flush())
    return make_error(ErrorCode::io_error, "{} could not be written", options.json);
  return {};
}

}  // namespace

Runner add_bench_throughput(CommandLine& command) {
  const auto options = std::make_shared<BenchOptions>();
  add_model_flags(command, options->selected);
  command.add_option("--duration", options->duration_s, "Seconds that are measured")
      ->check(between(0.1, 1e6))
      ->capture_default_str();
  command
      .add_option("--requests", options->requests,
                  "Measure until so many have ended; 0 = for the duration")
      ->check(at_least(0));
  command
      .add_option("--concurrency", options->concurrency,
                  fmt::format("Requests in flight at once; left out: {}, or the --requests where "
                              "those are fewer",
                              kConcurrency))
      ->check(between(1, 1 << 14));
  command.add_option("--prompt-len", options->prompt_length, "Tokens of a prompt")
      ->check(between(1, 1 << 24))
      ->capture_default_str();
  command.add_option("--gen-len", options->answer_length, "Tokens of an answer")
      ->check(between(1, 1 << 24))
      ->capture_default_str();
  command.add_option("--prefix-len", options->prefix_length, "Tokens that all prompts begin with")
      ->check(at_least(0))
      ->capture_default_str();
  add_rank_flags(command, options->spread);
  command.add_option("--kv-pages", options->kv_pages, "Cache pages of 64 tokens; 0 = as needed")
      ->check(at_least(0));
  command
      .add_option("--prefill-chunk", options->prefill_chunk,
                  "Prompt tokens in one step; 0 = by device")
      ->check(at_least(0));
  command.add_flag("--no-prefix-cache", options->no_prefix_cache,
                   "Compute equal beginnings of prompts again");
  command.add_option("--temperature", options->temperature, "Of the answers; 0 = greedy")
      ->check(between(0.0, 2.0))
      ->capture_default_str();
  command.add_option("--seed", options->seed, "Of the random prompts")->capture_default_str();
  command.add_option("--json", options->json, "Write the numbers there, too")->type_name("FILE");
  command.add_option("--commit", options->commit,
                     "What is measured, for the file; the build's if left out");
  command.footer(kExamples);
  return [options] { return run_bench(*options); };
}

}  // namespace koho::app
