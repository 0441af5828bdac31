// SPDX-License-Identifier: Apache-2.0
// The host's time for a step and for a token: the step loop (scheduler, plan, delivery, text) over
// ranks that answer at once with what they are told. Measures the engine, not a model.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "base/clock.h"
#include "bench/paced_executor.h"
#include "engine/step_loop.h"
#include "runtime/detokenizing_decoder.h"
#include "tokenizer/tokenizer.h"

namespace {

using namespace koho;
using namespace koho::bench;

struct Case {
  std::int32_t sequences = 1;
  bool all_features = false;  // logprobs, a stop string, penalties, biases
};

/// Microseconds of a decode step with all sequences running.
double decode_step_us(const Case& c, const Tokenizer& tokenizer, std::int64_t steps) {
  EngineLimits limits;
  Limits& s = limits.scheduler;
  s.context_max = 8192;
  s.pages = c.sequences * s.pages_per_sequence_max();
  s.sequences_max = c.sequences;
  s.live_max = 2 * c.sequences;
  s.step_tokens_max = c.sequences + 8192;
  s.mixed_prefill_tokens_max = 8192;
  limits.vocabulary = tokenizer.vocab_size();
  limits.requests_max = c.sequences;
  limits.choices_max = 1;
  PacedExecutor executor(plan_bounds(limits), 4000);
  const SteadyClock clock;
  StepLoop loop(limits, executor, clock, detokenizing_decoders(tokenizer), {1, 2, 3, 4});
  std::vector<std::shared_ptr<OutputStream>> streams;
  for (std::int32_t i = 0; i < c.sequences; ++i) {
    Request request;
    request.prompt.assign(200, i);
    request.max_tokens = static_cast<std::int32_t>(steps) + 100;
    request.stop_tokens = {4001, 4002, 4003};
    if (c.all_features) {
      request.sampling.logprobs = 20;
      request.sampling.repetition_penalty = 1.1;
      request.sampling.logit_bias = {{1, 1.0F}, {2, 1.0F}};
      request.stop_strings = {"never said, ever", "nor this one"};
    }
    streams.push_back(std::make_shared<OutputStream>(
        64, 20, std::function<void()>(), [&loop](OutputStream& room) { loop.resume(room); }));
    loop.submit(std::move(request), streams.back());
  }
  OutputEvent event;
  const auto run = [&](std::int64_t count) {
    const auto begin = std::chrono::steady_clock::now();
    for (std::int64_t i = 0; i < count; ++i) {
      loop.launch();
      loop.launch();
      loop.collect(0);
      for (const auto& stream : streams)
        while (stream->poll(event) == OutputStream::Read::event) continue;
    }
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
               .count() /
           static_cast<double>(count);
  };
  run(64);
  double best = 1e9;
  constexpr std::int64_t kRounds = 5;
  for (std::int64_t round = 0; round < kRounds; ++round)
    best = std::min(best, run(steps / kRounds));
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "engine_bench TOKENIZER.json\n");
    return 2;
  }
  const Result<Tokenizer> tokenizer = Tokenizer::load(argv[1]);
  if (!tokenizer.ok()) {
    fmt::print(stderr, "{}\n", tokenizer.error().message);
    return 1;
  }
  fmt::print("sequences  features  us/step  us/token   (best of 5 rounds of 1,000 decode steps)\n");
  for (const bool all : {false, true}) {
    for (const std::int32_t sequences : {1, 4, 16, 64, 256}) {
      const double us =
          decode_step_us({.sequences = sequences, .all_features = all}, *tokenizer, 5000);
      fmt::print("{:9}  {:8}  {:7.1f}  {:8.2f}\n", sequences, all ? "all" : "plain", us,
                 us / sequences);
    }
  }
  return 0;
}
