// SPDX-License-Identifier: Apache-2.0
// Short requests beside long prompts, and beside long answers of another client, in simulated
// time: how long they wait for their first token, and what that costs the long ones. Steps take
// what they compute, and two are in flight, as in the engine. turn_percent 100, the order of
// arrival, is what is compared with.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <deque>
#include <map>
#include <vector>

#include <gtest/gtest.h>

#include "random.h"
#include "scheduler/scheduler.h"

namespace koho::simulation {
namespace {

struct Load {
  const char* name;
  std::int32_t chunk;  // prefill tokens of a step
  std::int32_t pages;
  std::int32_t context;
  std::int32_t longs;
  std::int32_t long_prompt;  // and an eighth more or less
  std::int32_t long_answer;
  std::int32_t long_clients;
  std::int32_t batch_slots = 64;
  std::int32_t shorts_max = 1'000'000;
  std::int32_t short_answer = 16;
  std::uint64_t short_client = 99;
  std::int32_t short_prompt = 0;  // at most; 0: a sixteenth of a chunk
};

// 6 KB of text on a CPU; 100 thousand tokens on a GPU whose cache holds 130 thousand, or all.
constexpr Load kLoads[] = {
    {"4 of 6 KB, one client", 512, 4096, 4096, 4, 1600, 64, 1},
    {"16 of 6 KB, one client", 512, 4096, 4096, 16, 1600, 64, 1},
    {"64 of 6 KB, one client", 512, 4096, 4096, 64, 1600, 64, 1},
    {"64 of 6 KB, 8 clients", 512, 4096, 4096, 64, 1600, 64, 8},
    {"4 of 100k, pages for one", 8192, 2048, 131072, 4, 100'000, 64, 1},
    {"16 of 100k, pages for one", 8192, 2048, 131072, 16, 100'000, 64, 1},
    {"64 of 100k, pages for one", 8192, 2048, 131072, 64, 100'000, 64, 1},
    {"64 of 100k, pages for all", 8192, 131072, 131072, 64, 100'000, 64, 4},
};

// Answers that take all batch slots or all pages for a thousand steps, as many waiting, and short
// requests.
constexpr Load kAnswerLoads[] = {
    {"64 batch slots", 512, 8192, 4096, 128, 100, 2000, 1, 64, 80},
    {"64 batch slots, few pages", 512, 1500, 4096, 128, 100, 2000, 1, 64, 80},
    {"a third of these pages", 512, 500, 4096, 128, 100, 2000, 1, 64, 300},
    {"a third, four clients", 512, 500, 4096, 128, 100, 2000, 4, 64, 300},
    {"a third, for longer", 512, 500, 4096, 128, 100, 2000, 1, 64, 200, 300},
    {"32 of 20k, pages for 6", 8192, 2048, 32768, 32, 20'000, 1500, 1, 64, 150},
    {"256 batch slots", 8192, 32768, 4096, 512, 100, 2000, 1, 256, 200},
    {"prompts of 16 to 32 pages", 8192, 1024, 4096, 512, 100, 500, 1, 256, 100, 16, 99, 2000},
    {"64 batch slots, four clients", 512, 8192, 4096, 128, 100, 2000, 4, 64, 100},
};

struct Outcome {
  double seconds = 0;          // until all have ended
  double first_token_p99 = 0;  // of short requests, beyond their own prefill, in largest steps
  double first_token_max = 0;
  double long_tokens_per_s = 0;  // of long prompts, until the last has its first token
  std::int64_t shorts = 0;
  std::int32_t preempted = 0;
  std::int32_t shorts_preempted = 0;
  std::int64_t yielded = 0;
};

class Replay {
 public:
  Replay(const Load& load, std::int32_t turn_percent)
      : load_(load), scheduler_(limits_of(load, turn_percent), {1, 2, 3, 4}) {
    for (std::int32_t i = 0; i < load.longs; ++i)
      submit(load.long_prompt + random_.in(-load.long_prompt / 8, load.long_prompt / 8),
             load.long_answer, static_cast<std::uint64_t>(1 + i % load.long_clients), true);
  }

  Outcome run() {
    double next_short = 1.5 * step_us(load_.chunk, 0);
    while (scheduler_.live() > 0) {
      while (scheduler_.steps_in_flight() < kStepsInFlightMax && scheduler_.plan() != nullptr)
        starts_.push_back(now_);
      const StepBatch& batch = scheduler_.oldest_in_flight();
      const double end =
          std::max(free_, starts_.front()) + step_us(batch.tokens - batch.decodes, batch.decodes);
      if (next_short < end && (longs_waiting_ > 0 || load_.shorts_max < Load().shorts_max) &&
          shorts_ < load_.shorts_max) {
        ++shorts_;
        // Who comes while a step runs is planned when that step has ended.
        arrivals_.push_back(next_short);
        next_short += -std::log((random_.in(1, 1000) - 0.5) / 1000.0) * kShortEverySteps *
                      step_us(load_.chunk, 0);
        continue;
      }
      largest_ = std::max(largest_, end - std::max(free_, starts_.front()));
      free_ = now_ = end;
      starts_.pop_front();
      collect(batch);
      for (; !arrivals_.empty(); arrivals_.pop_front())
        submit(short_prompt(), load_.short_answer, load_.short_client, false);
    }
    Outcome outcome;
    outcome.shorts = static_cast<std::int64_t>(waits_.size());
    std::ranges::sort(waits_);
    if (!waits_.empty()) {
      outcome.first_token_p99 = waits_[(waits_.size() * 99 - 1) / 100] / largest_;
      outcome.first_token_max = waits_.back() / largest_;
    }
    outcome.seconds = now_ * 1e-6;
    outcome.yielded = static_cast<std::int64_t>(scheduler_.counters().yielded);
    outcome.long_tokens_per_s = long_tokens_ / longs_begun_ * 1e6;
    outcome.preempted = static_cast<std::int32_t>(scheduler_.counters().preempted);
    outcome.shorts_preempted = shorts_preempted_;
    return outcome;
  }

 private:
  static constexpr double kShortEverySteps = 2.0;  // on average

  static Limits limits_of(const Load& load, std::int32_t turn_percent) {
    Limits limits;
    limits.pages = load.pages;
    limits.context_max = load.context;
    limits.sequences_max = load.batch_slots;
    limits.live_max = 1152;
    limits.step_tokens_max = load.batch_slots + load.chunk;
    limits.mixed_prefill_tokens_max = load.chunk;
    limits.prefill_tokens_max = load.chunk;
    limits.turn_percent = turn_percent;
    return limits;
  }
  /// A chunk takes twenty times what a step of decodes does.
  double step_us(std::int32_t prefill, std::int32_t decodes) const {
    return 10'000.0 + 100.0 * decodes + 190'000.0 * prefill / load_.chunk;
  }
  std::int32_t short_prompt() {
    return load_.short_prompt > 0 ? random_.in(load_.short_prompt / 2, load_.short_prompt)
                                  : random_.in(8, load_.chunk / 16);
  }
  void submit(std::int32_t prompt, std::int32_t answer, std::uint64_t client, bool is_long) {
    std::vector<Token> tokens(static_cast<std::size_t>(prompt));
    for (Token& token : tokens) token = random_.in(0, 100'000);
    SequenceRequest request;
    request.prompt = tokens;
    request.completion_max = answer;
    request.client = client;
    const SequenceId id = *scheduler_.submit(request);
    live_[id.index] = {arrivals_.empty() ? 0.0 : arrivals_.front(), prompt, is_long};
    if (!is_long) return;
    ++longs_waiting_;
    long_tokens_ += prompt;
  }
  void collect(const StepBatch& batch) {
    for (const StepRow& row : batch.rows) {
      const Sequence* sequence = scheduler_.apply(row, random_.in(0, 100'000));
      if (sequence == nullptr) continue;
      Live& live = live_[row.sequence.index];
      if (row.admitted && sequence->admissions > 1 && !live.is_long) ++shorts_preempted_;
      if (row.samples && sequence->known() == sequence->prompt_length + 1) {
        if (live.is_long) {
          --longs_waiting_;
          longs_begun_ = now_;
        } else {
          const double own = 190'000.0 * live.prompt / load_.chunk;
          waits_.push_back(now_ - live.arrived - own);
        }
      }
      if (sequence->known() == sequence->length_max) scheduler_.finish(row.sequence);
    }
    scheduler_.retire();
  }

  struct Live {
    double arrived = 0;
    std::int32_t prompt = 0;
    bool is_long = false;
  };
  const Load& load_;
  Random random_{7};
  Scheduler scheduler_;
  std::deque<double> starts_;
  std::deque<double> arrivals_;
  std::map<std::int32_t, Live> live_;
  std::vector<double> waits_;
  double now_ = 0;
  double free_ = 0;     // when the device is
  double largest_ = 0;  // step
  double long_tokens_ = 0;
  double longs_begun_ = 0;  // when the last had its first token
  std::int32_t longs_waiting_ = 0;
  std::int32_t shorts_ = 0;
  std::int32_t shorts_preempted_ = 0;
};

TEST(FairPrefill, ShortRequestsWaitForNoLongPromptAndCostThemLittle) {
  for (const Load& load : kLoads) {
    const Outcome fair = Replay(load, Limits().turn_percent).run();
    const Outcome by_turn = Replay(load, 100).run();
    std::printf(
        "%-26s first token of %4lld short: p99 %5.2f, max %5.2f steps; by turn p99 %7.2f; "
        "long prompts %.3f of their speed; %d preempted\n",
        load.name, static_cast<long long>(fair.shorts), fair.first_token_p99, fair.first_token_max,
        by_turn.first_token_p99, fair.long_tokens_per_s / by_turn.long_tokens_per_s,
        fair.preempted);
    EXPECT_GE(fair.shorts, 4) << load.name;
    EXPECT_LE(fair.first_token_p99, 3.0) << load.name;
    EXPECT_GT(by_turn.first_token_p99, 5.0) << load.name << ": the test shows nothing";
    EXPECT_GE(fair.long_tokens_per_s, 0.95 * by_turn.long_tokens_per_s) << load.name;
  }
}

TEST(FairPrefill, ShortRequestsWaitForNoLongAnswerOfAnotherClient) {
  for (const Load& load : kAnswerLoads) {
    Load one_client = load;
    one_client.short_client = 1;
    const Outcome shared = Replay(load, Limits().turn_percent).run();
    const Outcome alone = Replay(one_client, Limits().turn_percent).run();
    const Outcome by_turn = Replay(load, 100).run();
    std::printf(
        "%-28s first token of %4lld short: p99 %5.2f, max %5.2f steps; of the same client p99 "
        "%7.2f; by turn p99 %7.2f; %.3f and %.3f of the speed; %lld yielded, %d preempted, %d of "
        "them short\n",
        load.name, static_cast<long long>(shared.shorts), shared.first_token_p99,
        shared.first_token_max, alone.first_token_p99, by_turn.first_token_p99,
        alone.seconds / shared.seconds, by_turn.seconds / shared.seconds,
        static_cast<long long>(shared.yielded), shared.preempted, shared.shorts_preempted);
    EXPECT_EQ(shared.shorts, load.shorts_max) << load.name;
    EXPECT_LE(shared.first_token_p99, 3.0) << load.name;
    EXPECT_EQ(shared.shorts_preempted, 0) << load.name;
    EXPECT_GT(by_turn.first_token_p99, 100.0) << load.name << ": the test shows nothing";
    EXPECT_GE(alone.seconds / shared.seconds, 0.95) << load.name;
    EXPECT_GE(by_turn.seconds / shared.seconds, 0.95) << load.name;
  }
}

}  // namespace
}  // namespace koho::simulation
