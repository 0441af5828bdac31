// SPDX-License-Identifier: Apache-2.0
// One engine with its clients, ranks and clock, all limits and habits drawn from a seed. It lives
// for some thousand events and is drained.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "client.h"
#include "engine/step_loop.h"
#include "fake_executor.h"
#include "invariants.h"
#include "random.h"
#include "simulation.h"

namespace koho::simulation {

class SimulatedClock final : public Clock {
 public:
  std::int64_t now_us() const override { return now_us_; }
  void advance(std::int64_t duration_us) { now_us_ += duration_us; }

 private:
  std::int64_t now_us_ = 1;
};

class World {
 public:
  World(std::uint64_t seed, std::int32_t shrink, Report& report);

  /// Lets `events` events happen, then ends every request and checks that nothing is left.
  void run(std::int64_t events);

 private:
  enum class Action : std::uint8_t { launch, collect, read, arrive, cancel, clock, stall, count };

  /// How this world differs from the next one.
  struct Habits {
    std::array<std::int32_t, static_cast<std::size_t>(Action::count)> weights{};
    std::int32_t vocabulary = 0;
    std::int32_t families = 0;  // prompts with common beginnings
    std::int32_t prompt_max = 0;
    std::int32_t completion_max = 0;
    std::int32_t choices_max = 1;
    std::int32_t tenants = 1;
    bool text = false;
    // Per mille, 0 where the site is off in this world.
    std::int32_t submit_fails = 0;
    std::int32_t collect_fails = 0;
    std::int32_t masks_fail = 0;
    std::int32_t ranks_end = 0;  // while nothing is computed
    std::int32_t wrong_count = 0;
    std::int32_t stale = 0;
    std::int32_t early = 0;
    std::int32_t bad_token = 0;
    std::int32_t nan = 0;
    std::int32_t hangs = 0;
    std::int32_t slow = 0;
    std::int32_t deadlines = 0;
    std::int32_t clock_jumps = 0;
    std::int32_t floods = 0;  // arrivals beyond the limit
    std::int32_t poison = 0;  // requests that bring the ranks down; then nothing else does
    // Under a bound between tokens: no faults, and the clock moves by what steps take.
    bool steady = false;
    std::int64_t decode_us = 0;   // of any step
    std::int64_t prefill_us = 0;  // of each prefill token
  };
  /// An independent count of what the statistics say.
  struct Tally {
    std::uint64_t accepted = 0;
    std::uint64_t completed = 0;
    std::uint64_t cancelled = 0;
    std::uint64_t failed = 0;
    std::uint64_t prompt_tokens = 0;
    std::uint64_t read_tokens = 0;
    std::uint64_t choices = 0;  // of accepted requests
  };

  static EngineLimits draw_limits(Random& random, std::int32_t shrink);
  Habits draw_habits();
  Action draw_action();

  void act(Action action);
  void launch();
  void collect();
  /// What a step takes in a steady world.
  std::int64_t step_us(const StepBatch& batch) const;
  void check_gap(const StepBatch& batch);
  FakeExecutor::Fault draw_fault();
  void arrive();
  void draw_grammar(Request& request);
  Request draw_request();
  std::vector<Token> draw_prompt();
  void read();
  void read_some(std::size_t client, std::int32_t events);
  void finish_client(std::size_t client);
  void cancel();
  void move_clock();
  void stall();
  void recover();
  void wake_readers();
  void deliver_resumes();
  void blame_device_failure();
  void drain();
  void check_progress(bool launched);
  void check_idle_ranks();
  void check_failures();
  void check_deadlines() const;
  void check_statistics() const;
  void after_event();
  void note(std::uint64_t observed) { report_.trace = mix(report_.trace, observed); }
  std::size_t draw_client() {
    return static_cast<std::size_t>(random_.in(0, static_cast<std::int32_t>(clients_.size()) - 1));
  }

  Report& report_;
  Random random_;
  EngineLimits limits_;
  Habits habits_;
  SimulatedClock clock_;
  FakeExecutor executor_;
  StepLoop loop_;
  Invariants invariants_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<std::shared_ptr<OutputStream>> with_room_;  // their readers made room
  std::vector<std::vector<Token>> conversations_;         // of ended requests, to be continued
  OutputEvent event_;
  Tally tally_;
  std::vector<std::int64_t> failures_us_;
};

}  // namespace koho::simulation
