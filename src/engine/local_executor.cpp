// SPDX-License-Identifier: Apache-2.0
// One thread a rank. The engine's thread writes a plan into a step buffer and counts it as
// submitted; each rank takes the steps in order and leaves its result in the buffer; collect()
// waits until all have.
#include "engine/local_executor.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "comm/thread_rendezvous.h"
#include "scheduler/scheduler.h"
#include "worker/device.h"
#include "worker/plan_runner.h"

namespace koho {
namespace {

// How long a rank waits for the others inside a step. A step of a large prompt on a busy CPU may
// take minutes.
constexpr std::chrono::minutes kRankTimeout{10};

constexpr auto kStepsMax = static_cast<std::size_t>(kStepsInFlightMax);

/// One plan's memory, and each rank's result of it.
struct StepBuffer {
  std::vector<std::uint64_t> words;  // 8-byte aligned
  std::size_t bytes = 0;
  std::vector<Status> statuses;     // by rank
  std::vector<StepResult> results;  // by rank
  std::int64_t ranks_done = 0;

  std::span<std::byte> space() { return std::as_writable_bytes(std::span(words)); }
};

/// One rank: its worker and what it remembers of the batch slots.
struct Rank {
  std::unique_ptr<Worker> worker;
  std::unique_ptr<PlanRunner> runner;
  std::thread thread;
};

/// The error of the rank that failed first. The others report `unavailable`, because its
/// collectives ended.
Status first_failure(const std::vector<Status>& statuses) {
  const auto is_cause = [](const Status& status) {
    return !status.ok() && status.error().code != ErrorCode::unavailable;
  };
  auto failed = std::ranges::find_if(statuses, is_cause);
  if (failed == statuses.end())
    failed = std::ranges::find_if(statuses, [](const Status& status) { return !status.ok(); });
  if (failed == statuses.end()) return {};
  return Error(failed->error()).with_context("rank " + std::to_string(failed - statuses.begin()));
}

Status validate(const LocalExecutorSettings& settings) {
  const Shard& shard = settings.worker.load.shard;
  const std::int64_t partitions =
      shard.attention == AttentionLayout::data_parallel ? settings.ranks : 1;
  if (settings.ranks < 1)
    return make_error(ErrorCode::invalid_argument, "at least one rank is needed, found {}",
                      settings.ranks);
  if (settings.bounds.partitions == partitions) return {};
  return make_error(ErrorCode::invalid_argument,
                    "the pages are in {} partitions; {} ranks hold them in {}",
                    settings.bounds.partitions, settings.ranks, partitions);
}

}  // namespace

/// The running ranks and the step buffers between them and the engine. Steps are numbered from 0;
/// step n uses step buffer n % kStepsMax.
class LocalExecutor::Ranks {
 public:
  static Result<std::unique_ptr<Ranks>> start(const ModelConfig& config,
                                              const ModelSources& sources,
                                              const LocalExecutorSettings& settings) {
    KOHO_TRY(validate(settings));
    auto ranks = std::unique_ptr<Ranks>(new Ranks());
    ranks->owners_ = settings.bounds.partitions > 1 ? RowOwners::one_rank : RowOwners::all_ranks;
    const std::size_t bytes = plan_bytes(settings.bounds.counts_max());
    for (StepBuffer& step_buffer : ranks->step_buffers_) {
      step_buffer.words.resize((bytes + 7) / 8);
      step_buffer.statuses.resize(static_cast<std::size_t>(settings.ranks));
      step_buffer.results.resize(static_cast<std::size_t>(settings.ranks));
      for (StepResult& result : step_buffer.results)
        result.reserve(static_cast<std::size_t>(settings.bounds.sequences_max));
    }
    ranks->meeting_ = make_thread_rendezvous(settings.ranks, kRankTimeout);
    ranks->ranks_.resize(static_cast<std::size_t>(settings.ranks));
    // Side by side: ranks meet while they load and warm up.
    std::vector<Status> statuses(ranks->ranks_.size());
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < ranks->ranks_.size(); ++rank)
      threads.emplace_back([&, rank] {
        statuses[rank] = ranks->create(rank, config, sources, settings);
        if (!statuses[rank].ok()) ranks->meeting_[rank]->give_up();
      });
    for (std::thread& thread : threads) thread.join();
    KOHO_TRY(first_failure(statuses));
    for (std::size_t rank = 0; rank < ranks->ranks_.size(); ++rank)
      ranks->ranks_[rank].thread = std::thread([&self = *ranks, rank] { self.work(rank); });
    return ranks;
  }

  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;
  ~Ranks() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      // A rank may be waiting inside a collective for one that is gone.
      if (submitted_ > collected_)
        for (Rank& rank : ranks_) rank.worker->abort_collectives();
    }
    changed_.notify_all();
    for (Rank& rank : ranks_)
      if (rank.thread.joinable()) rank.thread.join();
  }

  std::span<std::byte> plan_space() { return step_buffer(submitted_).space(); }

  Status submit(std::size_t bytes) {
    {
      const std::lock_guard lock(mutex_);
      KOHO_CHECK_LT(submitted_ - collected_, kStepsMax);
      StepBuffer& next = step_buffer(submitted_);
      next.bytes = bytes;
      next.ranks_done = 0;
      ++submitted_;
    }
    changed_.notify_all();
    return {};
  }

  Status send_masks() {
    {
      const std::lock_guard lock(mutex_);
      masked_ = submitted_;
    }
    changed_.notify_all();
    return {};
  }

  Status collect(StepResult& result, std::int64_t timeout_us) {
    std::unique_lock lock(mutex_);
    KOHO_CHECK_LT(collected_, submitted_);
    StepBuffer& oldest = step_buffer(collected_);
    const auto all = static_cast<std::int64_t>(ranks_.size());
    if (!changed_.wait_for(lock, std::chrono::microseconds(timeout_us),
                           [&] { return oldest.ranks_done == all; }))
      return Error{ErrorCode::deadline_exceeded, "still running"};  // short: allocates nothing
    ++collected_;
    KOHO_TRY(first_failure(oldest.statuses));
    return merge_results(oldest.results, owners_, result);
  }

 private:
  Ranks() = default;

  Status create(std::size_t rank,
                const ModelConfig& config,
                const ModelSources& sources,
                const LocalExecutorSettings& settings) {
    const auto number = static_cast<std::int64_t>(rank);
    WorkerSettings worker = settings.worker;
    worker.load.shard.rank = number;
    worker.load.shard.ranks = settings.ranks;
    worker.load.kv_pages = settings.bounds.pages_per_partition();
    KOHO_TRY_ASSIGN(std::unique_ptr<Backend> backend, settings.make_backend(number));
    const auto communicate = settings.make_communicator
                                 ? settings.make_communicator
                                 : [](Backend& of, Rendezvous& meeting) {
                                     return make_communicator(DeviceOptions{}, of, meeting);
                                   };
    KOHO_TRY_ASSIGN(std::unique_ptr<Communicator> communicator,
                    communicate(*backend, *meeting_[rank]));
    KOHO_TRY_ASSIGN(Worker made, Worker::create(config, sources, worker, std::move(backend),
                                                std::move(communicator)));
    ranks_[rank].worker = std::make_unique<Worker>(std::move(made));
    ranks_[rank].runner = std::make_unique<PlanRunner>(*ranks_[rank].worker, settings.bounds);
    return {};
  }

  StepBuffer& step_buffer(std::size_t step) { return step_buffers_[step % kStepsMax]; }

  enum class Move : std::uint8_t { stop, start, take_masks, finish };

  /// What a rank does next. It starts a step as soon as the step is submitted, also while the one
  /// before still runs, so that a GPU goes on without waiting for the host.
  Move next_move(Rank& self, std::size_t started, std::size_t finished) {
    constexpr std::chrono::microseconds kPoll{50};
    std::unique_lock lock(mutex_);
    if (self.runner->awaits_masks()) {
      // The masks depend on the results of the step before: finish that first.
      if (started - finished > 1) return Move::finish;
      changed_.wait(lock, [&] { return stopping_ || masked_ == started; });
      return stopping_ ? Move::stop : Move::take_masks;
    }
    const auto comes = [&] { return stopping_ || submitted_ > started; };
    if (started == finished) changed_.wait(lock, comes);
    // At most kStepsMax steps are in flight, so with that many started there is nothing to wait
    // for.
    while (!comes() && started - finished < kStepsMax && !self.runner->finishes_at_once())
      changed_.wait_for(lock, kPoll, comes);
    return stopping_ ? Move::stop : submitted_ > started ? Move::start : Move::finish;
  }

  void work(std::size_t rank) {
    Rank& self = ranks_[rank];
    std::size_t started = 0;
    std::size_t finished = 0;
    while (true) {
      const Move move = next_move(self, started, finished);
      if (move == Move::stop) {
        // No rank frees what another may still write to.
        static_cast<void>(self.worker->backend().synchronize());
        return;
      }
      if (move == Move::start) ++started;
      StepBuffer& mine = step_buffer(move == Move::finish ? finished : started - 1);
      Status& status = mine.statuses[rank];
      if (move != Move::finish) {
        status = move == Move::start ? self.runner->start(mine.space().first(mine.bytes))
                                     : self.runner->take_masks();
        if (!status.ok()) self.worker->abort_collectives();
        if (self.runner->awaits_masks()) continue;
        // On the CPU a step is done when start() returns, so its results go out now. A GPU first
        // gets its next step.
        const bool unfinished = status.ok() && !self.runner->finishes_at_once();
        if (unfinished || started - finished > 1) continue;
      }
      if (status.ok()) status = self.runner->finish(mine.results[rank]);
      if (!status.ok()) self.worker->abort_collectives();
      ++finished;
      {
        const std::lock_guard lock(mutex_);
        ++mine.ranks_done;
      }
      changed_.notify_all();
    }
  }

  std::vector<std::unique_ptr<Rendezvous>> meeting_;  // by rank; before the ranks that use it
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::size_t submitted_ = 0;  // steps
  std::size_t collected_ = 0;
  std::size_t masked_ = 0;  // the steps up to here have late masks, if any
  std::array<StepBuffer, kStepsMax> step_buffers_;
  std::vector<Rank> ranks_;
  RowOwners owners_ = RowOwners::all_ranks;
};

LocalExecutor::LocalExecutor(const ModelConfig& config,
                             const ModelSources& sources,
                             LocalExecutorSettings settings)
    : config_(config), sources_(&sources), settings_(std::move(settings)) {}

LocalExecutor::~LocalExecutor() = default;

Result<std::unique_ptr<LocalExecutor>> LocalExecutor::create(const ModelConfig& config,
                                                             const ModelSources& sources,
                                                             LocalExecutorSettings settings) {
  auto executor =
      std::unique_ptr<LocalExecutor>(new LocalExecutor(config, sources, std::move(settings)));
  KOHO_TRY_ASSIGN(executor->ranks_, Ranks::start(executor->config_, sources, executor->settings_));
  return executor;
}

std::span<std::byte> LocalExecutor::plan_space() {
  return ranks_->plan_space();
}

Status LocalExecutor::submit(std::size_t bytes) {
  return ranks_->submit(bytes);
}

Status LocalExecutor::send_masks() {
  return ranks_->send_masks();
}

Status LocalExecutor::collect(StepResult& result, std::int64_t timeout_us) {
  return ranks_->collect(result, timeout_us);
}

Status LocalExecutor::recover(std::int64_t /*timeout_us*/) {
  ranks_.reset();  // waits for the steps in flight
  KOHO_TRY_ASSIGN(ranks_, Ranks::start(config_, *sources_, settings_));
  return {};
}

}  // namespace koho
