// SPDX-License-Identifier: Apache-2.0
#include "cpu/thread_pool.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace koho {
namespace {

constexpr std::uint64_t kEndMask = 0xFFFFFFFFU;
// A pause is 40 to 140 cycles: some 50 us of spinning, about the gap between two operators of a
// decode step; then the processor is given back.
constexpr int kSpins = 2000;
// The threads are judged over so much time of jobs, of which two may lose so much to others.
constexpr std::int64_t kJudgedNs = 20'000'000;
constexpr std::int64_t kLostNsMost = kJudgedNs / 8;
// While threads take turns the caller looks after so much time of jobs whether it lost its core,
// less often while no other core is better.
constexpr std::int64_t kLookNsMin = 5'000'000;
constexpr std::int64_t kLookNsMax = 160'000'000;
// How the threads go on changes after so many such times in a row.
constexpr int kDisagreeing = 2;
// What several threads must gain over one, while they work together and while they take turns.
constexpr double kGainLeast = 1.1;
constexpr double kGainLeastInTurns = 1.0;
// Else the caller works alone, twice as long each time.
constexpr std::int64_t kAloneNsMin = 40'000'000;
constexpr std::int64_t kAloneNsMax = 640'000'000;
// A worker tells how much it lost every so many jobs.
constexpr int kToldJobs = 64;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads, Idle)
    : threads_(threads), shares_(std::make_unique<Share[]>(static_cast<std::size_t>(threads))) {}

// Delegates, so that the destructor waits for the threads that started if a later one fails.
ThreadPool::ThreadPool(int threads) : ThreadPool(threads, Idle{}) {
  KOHO_CHECK_GE(threads, 1);
  workers_.reserve(static_cast<std::size_t>(threads - 1));
  for (int worker = 1; worker < threads; ++worker)
    workers_.emplace_back([this, worker] { work(worker); });
}

ThreadPool::~ThreadPool() {
  stopping_.store(true);
  jobs_.fetch_add(1);
  jobs_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run_erased(std::int64_t tasks, Call call, void* context) {
  if (tasks == 0) return;
  KOHO_CHECK(tasks > 0 && static_cast<std::uint64_t>(tasks) <= kEndMask);
  const std::int64_t begin = steady_ns();
  if (begin < alone_until_ns_) {
    for (std::int64_t task = 0; task < tasks; ++task) call(context, task, 0);
    return;
  }
  call_ = call;
  context_ = context;
  tasks_ = tasks;
  done_.store(0, std::memory_order_relaxed);
  // NOTE: from the first share on, tasks may be taken: everything above is set before.
  for (std::int64_t i = 0; i < threads(); ++i) {
    const auto first = static_cast<std::uint64_t>(tasks * i / threads());
    const auto end = static_cast<std::uint64_t>(tasks * (i + 1) / threads());
    shares_[static_cast<std::size_t>(i)].untaken.store((first << 32U) | end,
                                                       std::memory_order_release);
  }
  jobs_.fetch_add(1, std::memory_order_release);
  jobs_.notify_all();
  std::int64_t own = 0;
  while (take_one(0)) ++own;
  const std::int64_t own_end = steady_ns();
  int spins = 0;
  for (std::int64_t done = done_.load(std::memory_order_acquire); done != tasks;
       done = done_.load(std::memory_order_acquire)) {
    if (++spins < kSpins)
      pause();
    else
      done_.wait(done, std::memory_order_acquire);
  }
  judge(tasks, own, own_end - begin, spins == 0 ? own_end : steady_ns(), begin);
}

void ThreadPool::judge(std::int64_t tasks,
                       std::int64_t own,
                       std::int64_t own_ns,
                       std::int64_t end,
                       std::int64_t begin) {
  if (own == 0) return;
  const bool in_turns = in_turns_.load(std::memory_order_relaxed);
  together_ns_ += end - begin;
  own_ns_ += own_ns;
  if (in_turns) look_at_core(end - begin);
  alone_ns_ += static_cast<double>(own_ns) * static_cast<double>(tasks) / static_cast<double>(own);
  if (together_ns_ < kJudgedNs) return;
  const std::int64_t own_delay = caller_delay_.ns();
  const std::int64_t workers_delay = workers_delay_ns_.load(std::memory_order_relaxed);
  const std::int64_t own_lost = own_delay - std::exchange(own_delay_ns_, own_delay);
  const std::int64_t lost =
      own_lost + workers_delay - std::exchange(worker_delay_ns_, workers_delay);
  // What the caller lost it would have lost alone, too. (Some of it may lie between the jobs.)
  const auto own_busy = static_cast<double>(own_ns_);
  const double not_counted = std::min(static_cast<double>(own_lost), own_busy / 2);
  const double gain = alone_ns_ * (1.0 - not_counted / own_busy) /
                      (static_cast<double>(together_ns_) - not_counted);
  together_ns_ = 0;
  own_ns_ = 0;
  alone_ns_ = 0.0;
  const bool useless = gain < (in_turns ? kGainLeastInTurns : kGainLeast);
  const bool contended = 2 * lost > threads_ * kLostNsMost || gain < kGainLeast;
  caller_core_.store(current_core(), std::memory_order_relaxed);
  // Together while nothing speaks against it, in turns while something does, alone where they are
  // in vain, too; each after some time that agrees, as anything may come between once.
  const bool goes_on = in_turns ? contended && !useless : !contended;
  disagreeing_ = goes_on ? 0 : disagreeing_ + 1;
  if (in_turns && goes_on) alone_for_ns_ = 0;
  if (disagreeing_ < kDisagreeing) return;
  disagreeing_ = 0;
  if (in_turns && useless) {
    alone_for_ns_ = std::clamp(2 * alone_for_ns_, kAloneNsMin, kAloneNsMax);
    alone_until_ns_ = end + alone_for_ns_;
  } else {
    in_turns_.store(!in_turns, std::memory_order_relaxed);
    looked_delay_ns_ = own_delay;
    look_ns_ = kLookNsMin;
    unlooked_ns_ = 0;
  }
}

void ThreadPool::look_at_core(std::int64_t ns) {
  unlooked_ns_ += ns;
  if (unlooked_ns_ < look_ns_) return;
  const std::int64_t delay = caller_delay_.ns();
  const std::int64_t lost = delay - std::exchange(looked_delay_ns_, delay);
  if (lost < unlooked_ns_ / 4) {
    look_ns_ = kLookNsMin;
  } else {
    // The caller takes the core of a worker, which will keep off it.
    leave_core();
    caller_core_.store(current_core(), std::memory_order_relaxed);
    look_ns_ = std::min(2 * look_ns_, kLookNsMax);
  }
  unlooked_ns_ = 0;
}

bool ThreadPool::take_from(Share& share, bool own, std::int64_t& task) {
  std::uint64_t seen = share.untaken.load(std::memory_order_acquire);
  for (;;) {
    const std::uint64_t first = seen >> 32U;
    const std::uint64_t end = seen & kEndMask;
    if (first >= end) return false;
    const std::uint64_t rest = own ? ((first + 1) << 32U) | end : seen - 1;
    if (share.untaken.compare_exchange_weak(seen, rest, std::memory_order_acq_rel)) {
      task = static_cast<std::int64_t>(own ? first : end - 1);
      return true;
    }
  }
}

bool ThreadPool::take_one(int worker) {
  std::int64_t task = 0;
  bool taken = take_from(shares_[static_cast<std::size_t>(worker)], true, task);
  for (int other = 0; !taken && other < threads(); ++other)
    taken = take_from(shares_[static_cast<std::size_t>(other)], false, task);
  if (!taken) return false;
  const std::int64_t tasks = tasks_;
  call_(context_, task, worker);
  // NOTE: after the last task's increment the caller may start the next job: nothing of this one is
  // read below.
  if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == tasks) done_.notify_all();
  return true;
}

void ThreadPool::work(int worker) {
  int spins = 0;
  int jobs_done = 0;
  RunDelay delay;
  std::int64_t told_ns = 0;  // of the delay, but for what comes when a new job wakes the worker up
  const auto tell = [&] {
    const std::int64_t now = delay.ns();
    workers_delay_ns_.fetch_add(now - std::exchange(told_ns, now), std::memory_order_relaxed);
  };
  CoreTurns turns;
  while (!stopping_.load(std::memory_order_relaxed)) {
    if (in_turns_.load(std::memory_order_relaxed))
      turns.take(caller_core_.load(std::memory_order_relaxed));
    else
      turns.end();
    const std::uint32_t jobs = jobs_.load(std::memory_order_acquire);
    if (take_one(worker)) {
      spins = 0;
    } else if (++spins < kSpins) {
      if (spins == 1 && ++jobs_done % kToldJobs == 0) tell();
      pause();
    } else {
      tell();
      jobs_.wait(jobs, std::memory_order_acquire);
      told_ns = delay.ns();
      spins = 0;
    }
  }
}

}  // namespace koho
