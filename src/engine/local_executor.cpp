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

#include "comm/one_rank.h"
#include "comm/thread_ranks.h"
#include "scheduler/scheduler.h"
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
    std::vector<std::unique_ptr<Communicator>> communicators;
    if (settings.ranks == 1) {
      communicators.push_back(std::make_unique<OneRank>());
    } else {
      communicators = make_thread_ranks(settings.ranks, kRankTimeout);
    }
    for (std::int64_t rank = 0; rank < settings.ranks; ++rank) {
      WorkerSettings worker = settings.worker;
      worker.load.shard.rank = rank;
      worker.load.shard.ranks = settings.ranks;
      worker.load.kv_pages = settings.bounds.pages_per_partition();
      const std::string name = "rank " + std::to_string(rank);
      Result<std::unique_ptr<Backend>> backend = settings.make_backend(rank);
      if (!backend.ok()) return std::move(backend).error().with_context(name);
      if (settings.ranks > 1 && (*backend)->device().kind != DeviceId::Kind::cpu)
        return make_error(
            ErrorCode::unsupported,
            "{} ranks on {}: several ranks exchange data through host memory and need the CPU",
            settings.ranks, (*backend)->description());
      Result<Worker> made =
          Worker::create(config, sources, worker, std::move(backend).value(),
                         std::move(communicators[static_cast<std::size_t>(rank)]));
      if (!made.ok()) return std::move(made).error().with_context(name);
      Rank& entry = ranks->ranks_.emplace_back();
      entry.worker = std::make_unique<Worker>(std::move(made).value());
      entry.runner = std::make_unique<PlanRunner>(*entry.worker, settings.bounds);
    }
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
      if (move == Move::stop) return;
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
