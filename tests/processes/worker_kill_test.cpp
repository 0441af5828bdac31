// SPDX-License-Identifier: Apache-2.0
// Cycle after cycle a random worker process is killed or stopped under load, also while the workers
// are started anew: every answer comes, once and with its bits, and nothing is left behind.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <random>
#include <thread>

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "tests/processes/process_list.h"
#include "tests/processes/worker_engine.h"
#include "tests/support/environment.h"
#include "tests/support/patience.h"
#include "tests/support/temporary_directory.h"

namespace koho::testing {
namespace {

constexpr std::size_t kRequests = 24;

/// A sanitizer makes everything some ten times slower.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t kCyclesUsual = 25;
constexpr std::int64_t kSilenceUsMax = 2'000'000;
#else
constexpr std::size_t kCyclesUsual = 500;
constexpr std::int64_t kSilenceUsMax = 500'000;
#endif

/// Keeps asking for random requests and holds every answer against the known one.
class Clients {
 public:
  Clients(WorkerEngine& engine, const std::vector<KnownAnswer>& known, std::size_t count) {
    for (std::size_t client = 0; client < count; ++client)
      threads_.emplace_back([this, &engine, &known, client] {
        std::mt19937 random(static_cast<std::uint32_t>(client));
        while (!stopping_.load()) {
          const std::size_t index = random() % kRequests;
          const auto stream = engine.submit(index);
          if (!stream) return;
          asked.fetch_add(1);
          EXPECT_EQ(read_answer(*stream), known[index]) << "request " << index;
          answered.fetch_add(1);
        }
      });
  }
  Clients(const Clients&) = delete;
  Clients& operator=(const Clients&) = delete;
  ~Clients() { stop(); }
  void stop() {
    stopping_.store(true);
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  std::atomic<std::uint64_t> asked{0};
  std::atomic<std::uint64_t> answered{0};

 private:
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> threads_;
};

TEST(WorkerKill, NoAnswerIsLostDoubledOrChangedAndNothingIsLeft) {
  const std::size_t cycles = number_from_environment("KOHO_KILL_CYCLES", kCyclesUsual, 1);
  const TemporaryDirectory directory;
  write_worker_model(directory.path());
  std::vector<KnownAnswer> known;
  {
    const auto threads = WorkerEngine::start(directory.path(), {});
    ASSERT_NE(threads, nullptr);
    for (std::size_t index = 0; index < kRequests; ++index)
      known.push_back(read_answer(*threads->submit(index)));
  }
  const std::size_t descriptors = num_descriptors();
  // Other programs have theirs there.
  const auto shared_names = [] {
    std::vector<std::string> names = names_in("/dev/shm");
    std::erase_if(names, [](const std::string& name) { return name.find("koho") == name.npos; });
    return names;
  };
  const std::vector<std::string> shared = shared_names();
  {
    const auto engine = WorkerEngine::start(
        directory.path(), {.program = KOHO_BINARY, .silence_us_max = kSilenceUsMax});
    ASSERT_NE(engine, nullptr);
    Clients clients(*engine, known, 8);
    std::mt19937 random(7);
    std::array<std::size_t, 3> counts{};  // killed, stopped, killed during the restart
    const auto begin = std::chrono::steady_clock::now();
    for (std::size_t cycle = 0; cycle < cycles; ++cycle) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 30'000));
      // What was killed in the restart may have ended after it: then another one is under way.
      std::vector<pid_t> processes;
      ASSERT_TRUE(comes_true([&] {
        processes = engine->processes().processes();
        return processes.size() == 2 && engine->engine().statistics().device_up;
      }));
      const std::uint64_t recoveries = engine->engine().statistics().recoveries;
      const bool stops = random() % 8 == 0;
      ++counts[stops ? 1 : 0];
      kill(processes[random() % 2], stops ? SIGSTOP : SIGKILL);
      // One in five times also one of those that take their place.
      if (random() % 5 == 0) {
        ASSERT_TRUE(comes_true([&] {
          const std::vector<pid_t> next = engine->processes().processes();
          if (next.empty() || next == processes) return false;
          std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
          kill(next[random() % 2], SIGKILL);
          return true;
        }));
        ++counts[2];
      }
      ASSERT_TRUE(comes_true([&] {
        const Statistics now = engine->engine().statistics();
        return now.recoveries > recoveries && now.device_up;
      })) << "cycle "
          << cycle << ": the workers do not come back";
    }
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    clients.stop();
    EXPECT_EQ(clients.asked, clients.answered);
    engine->engine().settle();  // what ended is counted
    const Statistics end = engine->engine().statistics();
    EXPECT_EQ(end.requests_completed, clients.answered);
    EXPECT_EQ(end.requests_failed, 0U);
    EXPECT_GE(end.device_failures, cycles);
    EXPECT_GT(clients.answered, cycles / 20);
    fmt::print("{} killed, {} stopped, {} killed in a restart; {} answers; {:.1f} ms a cycle\n",
               counts[0], counts[1], counts[2], clients.answered.load(),
               1e3 * seconds / static_cast<double>(cycles));
  }
  EXPECT_TRUE(children_of(getpid()).empty()) << "a worker process is left";
  EXPECT_EQ(num_descriptors(), descriptors);
  EXPECT_EQ(num_shared_mappings(), 0U);
  EXPECT_EQ(shared_names(), shared);
}

}  // namespace
}  // namespace koho::testing
