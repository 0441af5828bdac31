// SPDX-License-Identifier: Apache-2.0
// `koho bench throughput`: many requests through the whole engine, no server: tokens a second of
// all together, and what one of them waits.
#include <algorithm>
#include <chrono>
#include <fstream>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "app/bench_subject.h"
#include "app/command.h"
#include "base/arithmetic.h"
#include "runtime/runtime.h"

namespace koho::app {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr const char* kExample =
    R"(Prompts are random tokens and share no prefix; sampling is at temperature 1; every request runs to its last token.

Example:
  koho bench throughput --config config.json --weights synthetic --device cuda --concurrency 64 --requests 192)";

struct ThroughputOptions {
  SubjectOptions subject;
  std::string out;
  std::string commit;
  std::int32_t concurrency = 64;
  std::int32_t requests = 192;
  std::int32_t prompt = 256;
  std::int32_t generate = 256;
};

double percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const auto last = static_cast<double>(values.size() - 1);
  return values[static_cast<std::size_t>(share * last)];
}

/// A request on its way.
struct Running {
  std::shared_ptr<OutputStream> stream;
  Clock::time_point last;    // token
  std::vector<double> gaps;  // ms between tokens
  std::int64_t tokens = 0;
  bool done = false;
};

/// Reads what has come; true if there was something.
Result<bool> read(Running& running) {
  OutputEvent event;
  bool any = false;
  while (!running.done) {
    const OutputStream::Read got = running.stream->poll(event);
    if (got == OutputStream::Read::nothing) return any;
    any = true;
    if (got == OutputStream::Read::done) {
      running.done = true;
      const Summary& summary = running.stream->summary();
      if (summary.ending != Ending::completed) return summary.error;
      return any;
    }
    const Clock::time_point now = Clock::now();
    if (event.token < 0) continue;
    if (running.tokens++ > 0)
      running.gaps.push_back(std::chrono::duration<double, std::milli>(now - running.last).count());
    running.last = now;
  }
  return any;
}

Status run(const ThroughputOptions& options) {
  KOHO_TRY_ASSIGN(BenchSubject subject, open_subject(options.subject));
  const std::int64_t vocabulary = subject.config.vocab_size;
  RuntimeOptions runtime_options;
  runtime_options.device = subject.device;
  runtime_options.sequences_max = options.concurrency;
  runtime_options.context_max = options.prompt + options.generate;
  runtime_options.kv_pages =
      options.concurrency * ceil_div<std::int32_t>(runtime_options.context_max, kPageTokens);
  runtime_options.queue_max = std::max(options.requests, 1);
  runtime_options.prefix_cache = false;
  LoadedModel model;
  if (subject.loaded != nullptr) {
    model = std::move(*subject.loaded);
  } else {
    model.config = subject.config;
    model.sources = subject.sources();
  }
  KOHO_TRY_ASSIGN(const std::unique_ptr<Runtime> runtime,
                  Runtime::start(std::move(model), std::nullopt, runtime_options));
  std::printf("started in %.1f s, %d pages of cache\n", runtime->load_s(),
              runtime->sizes().kv_pages);
  std::fflush(stdout);

  std::mt19937_64 random(1);
  std::vector<Running> all(static_cast<std::size_t>(options.requests));
  const Clock::time_point begin = Clock::now();
  for (std::size_t i = 0; i < all.size(); ++i) {
    Request request;
    for (std::int32_t t = 0; t < options.prompt; ++t)
      request.prompt.push_back(
          static_cast<Token>(random() % static_cast<std::uint64_t>(vocabulary)));
    request.max_tokens = options.generate;
    request.sampling.temperature = 1.0;
    request.seed = i + 1;
    KOHO_TRY_ASSIGN(all[i].stream, runtime->engine().submit(std::move(request)));
  }
  std::size_t left = all.size();
  while (left > 0) {
    bool any = false;
    left = 0;
    for (Running& running : all) {
      KOHO_TRY_ASSIGN(const bool got, read(running));
      any = any || got;
      left += running.done ? 0 : 1;
    }
    if (!any) std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();

  std::vector<double> gaps;
  std::vector<double> first;
  std::int64_t tokens = 0;
  for (const Running& running : all) {
    gaps.insert(gaps.end(), running.gaps.begin(), running.gaps.end());
    const Timings& timings = running.stream->summary().timings;
    first.push_back(static_cast<double>(timings.prefill_us) / 1e3);
    tokens += running.tokens;
  }
  const Statistics statistics = runtime->engine().statistics();
  const double rate = static_cast<double>(tokens) / seconds;
  std::printf(
      "%d requests of %d + %d tokens, %d at once: %.2f s, %.0f generated tok/s, %.0f with prompts\n"
      "first token after admission p50 %.1f ms, p99 %.1f; between tokens p50 %.2f ms, p99 %.2f\n"
      "%llu steps, %d of %d pages free at the end\n",
      options.requests, options.prompt, options.generate, options.concurrency, seconds, rate,
      static_cast<double>(tokens + std::int64_t{options.requests} * options.prompt) / seconds,
      percentile(first, 0.5), percentile(first, 0.99), percentile(gaps, 0.5),
      percentile(gaps, 0.99), static_cast<unsigned long long>(statistics.steps),
      statistics.pages_free, statistics.pages_total);
  if (options.out.empty()) return {};
  const Json document = {{"commit", options.commit},
                         {"requests", options.requests},
                         {"concurrency", options.concurrency},
                         {"prompt", options.prompt},
                         {"generate", options.generate},
                         {"seconds", seconds},
                         {"generated_tokens_per_s", rate},
                         {"inter_token_ms_p50", percentile(gaps, 0.5)},
                         {"inter_token_ms_p99", percentile(gaps, 0.99)},
                         {"first_token_ms_p50", percentile(first, 0.5)},
                         {"steps", statistics.steps}};
  std::ofstream file(options.out);
  file << document.dump(1) << "\n";
  if (!file.good()) return make_error(ErrorCode::io_error, "cannot write {}", options.out);
  return {};
}

}  // namespace

Runner add_bench_throughput(CommandLine& command) {
  auto options = std::make_shared<ThroughputOptions>();
  add_subject_flags(command, options->subject);
  command.add_option("--concurrency", options->concurrency, "Requests that run at once")
      ->check(at_least(1))
      ->capture_default_str();
  command.add_option("--requests", options->requests, "Requests in all")
      ->check(at_least(1))
      ->capture_default_str();
  command.add_option("--prompt", options->prompt, "Tokens of a prompt")
      ->check(at_least(1))
      ->capture_default_str();
  command.add_option("--generate", options->generate, "Tokens generated by a request")
      ->check(between(2, 1 << 20))
      ->capture_default_str();
  command.add_option("--out", options->out, "A JSON file to write");
  command.add_option("--commit", options->commit, "What is measured, for the file");
  command.footer(kExample);
  return [options] { return run(*options); };
}

}  // namespace koho::app
