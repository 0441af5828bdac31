// SPDX-License-Identifier: Apache-2.0
#include "cpu/thread_pool.h"

#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <set>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/host_cpus.h"

namespace koho {
namespace {

using namespace std::chrono_literals;

/// The workers that had tasks of a job whose tasks take `task_time`, or on worker 1 `slow_time`.
std::set<int> workers_of(ThreadPool& pool,
                         std::chrono::microseconds task_time,
                         std::chrono::microseconds slow_time) {
  std::array<std::atomic<bool>, 2> worked{};
  pool.run(8, [&](std::int64_t /*task*/, int worker) {
    worked[static_cast<std::size_t>(worker)].store(true);
    std::this_thread::sleep_for(worker == 1 ? slow_time : task_time);
  });
  std::set<int> workers;
  for (int worker = 0; worker < 2; ++worker)
    if (worked[static_cast<std::size_t>(worker)].load()) workers.insert(worker);
  return workers;
}

TEST(ThreadPool, RunsEveryTaskOnceWhateverTheThreads) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (const std::int64_t tasks : {0, 1, 2, 7, 100}) {
      std::vector<std::atomic<int>> counts(static_cast<std::size_t>(tasks));
      pool.run(tasks, [&](std::int64_t task, int worker) {
        EXPECT_GE(worker, 0);
        EXPECT_LT(worker, threads);
        ++counts[static_cast<std::size_t>(task)];
      });
      for (const std::atomic<int>& count : counts) EXPECT_EQ(count.load(), 1);
    }
  }
}

TEST(ThreadPool, AThreadThatOnlyDelaysIsLeftOutAndTriedAgain) {
  ThreadPool pool(2);
  // As on a machine that takes worker 1 away in mid-task: with it a job takes 20 ms, without 4 ms.
  int delayed = 0;
  for (int job = 0; job < 40; ++job) delayed += workers_of(pool, 500us, 20ms).contains(1) ? 1 : 0;
  EXPECT_LT(delayed, 20);
  const auto left_out = std::chrono::steady_clock::now();
  // Later it is tried again; now it helps, so it stays, unless other processes have its core.
  for (int together = 0; together < 25;) {
    ASSERT_LT(std::chrono::steady_clock::now() - left_out, 20s);
    together = 0;
    for (int job = 0; job < 50; ++job) together += workers_of(pool, 1ms, 1ms).contains(1) ? 1 : 0;
  }
}

/// Threads that keep every core busy.
class BusyCores {
 public:
  BusyCores() {
    for (std::size_t i = 0; i < allowed_cpus().size(); ++i)
      threads_.emplace_back([this] {
        while (!done_.load()) continue;
      });
  }
  ~BusyCores() { done_.store(true); }

 private:
  std::atomic<bool> done_{false};
  std::vector<std::jthread> threads_;
};

TEST(ThreadPool, RunsEveryTaskOnceWhereOthersWantItsCores) {
  const std::vector<int> cores = allowed_cpus();
  const BusyCores busy;
  for (const int threads : {2, 5}) {
    ThreadPool pool(threads);
    const auto end = std::chrono::steady_clock::now() + 400ms;
    while (std::chrono::steady_clock::now() < end) {
      std::array<std::atomic<int>, 32> counts{};
      pool.run(std::ssize(counts), [&](std::int64_t task, int /*worker*/) {
        volatile int work = 2000;
        while (work > 0) work = work - 1;
        ++counts[static_cast<std::size_t>(task)];
      });
      for (const std::atomic<int>& count : counts) ASSERT_EQ(count.load(), 1);
    }
  }
  EXPECT_EQ(allowed_cpus(), cores);  // the caller's are as before
}

TEST(CoreSharing, AThreadKnowsWhatItLostAndKeepsOffACore) {
  const std::vector<int> cores = allowed_cpus();
  RunDelay delay;
  const std::int64_t before = delay.ns();
  if (before == 0 && !std::filesystem::exists("/proc/thread-self/schedstat")) GTEST_SKIP();
  {
    const BusyCores busy;
    const auto end = std::chrono::steady_clock::now() + 100ms;
    while (std::chrono::steady_clock::now() < end) continue;
  }
  EXPECT_GT(delay.ns() - before, 10'000'000);
  CoreTurns turns;
  turns.take(cores.front());
  EXPECT_EQ(allowed_cpus().size(), std::max<std::size_t>(cores.size() - 1, 1));
  if (cores.size() > 1) {
    EXPECT_NE(current_core(), cores.front());
  }
  turns.end();
  EXPECT_EQ(allowed_cpus(), cores);
}

}  // namespace
}  // namespace koho
