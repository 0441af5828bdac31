// SPDX-License-Identifier: Apache-2.0
// One thread a rank. The engine's thread writes a plan into a step buffer and counts it as
// submitted; each rank takes the steps in order (worker/rank_loop.h) and leaves its result in the
// buffer; collect() waits until all have.
#include "engine/local_executor.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <thread>

#include "comm/thread_rendezvous.h"
#include "engine/rank_results.h"
#include "scheduler/scheduler.h"
#include "worker/plan_runner.h"
#include "worker/rank_loop.h"

namespace koho {
namespace {

// How long a rank waits for the others before their first collective: they load side by side.
constexpr std::chrono::hours kMeetTimeout{1};

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
    KOHO_TRY(ranks->load(config, sources, settings));
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

  /// Loads every rank, side by side: the first thing that they do together is to meet.
  Status load(const ModelConfig& config,
              const ModelSources& sources,
              const LocalExecutorSettings& settings) {
    const auto count = static_cast<std::size_t>(settings.ranks);
    rendezvous_ = make_thread_rendezvous(settings.ranks, kMeetTimeout);
    const std::vector<std::unique_ptr<Rendezvous>>& rendezvous = rendezvous_;
    ranks_.resize(count);
    if (count == 1)
      return load_rank(config, sources, settings, *rendezvous[0]).with_context("rank 0");
    std::vector<Status> statuses(count);
    std::vector<std::jthread> threads;  // they join also where there is no memory for the next one
    struct Guard {
      Rendezvous& rendezvous;
      bool all_started = false;
      ~Guard() {
        if (!all_started) rendezvous.give_up();
      }
    } guard{.rendezvous = *rendezvous[0]};
    for (std::size_t rank = 0; rank < count; ++rank)
      threads.emplace_back([&, rank] {
        try {
          statuses[rank] = load_rank(config, sources, settings, *rendezvous[rank]);
        } catch (const std::exception& error) {  // std::bad_alloc
          statuses[rank] = Error{ErrorCode::resource_exhausted, error.what()};
        }
        if (!statuses[rank].ok()) rendezvous[rank]->give_up();
      });
    guard.all_started = true;
    for (std::jthread& thread : threads) thread.join();
    return first_failure(statuses);
  }

  Status load_rank(const ModelConfig& config,
                   const ModelSources& sources,
                   const LocalExecutorSettings& settings,
                   Rendezvous& rendezvous) {
    WorkerSettings worker = settings.worker;
    worker.load.shard.rank = rendezvous.rank();
    worker.load.shard.ranks = settings.ranks;
    worker.load.kv_pages = settings.bounds.pages_per_partition();
    KOHO_TRY_ASSIGN(std::unique_ptr<Backend> backend, settings.make_backend(rendezvous.rank()));
    KOHO_TRY_ASSIGN(std::unique_ptr<Communicator> communicator,
                    make_communicator(settings.device, *backend, rendezvous));
    KOHO_TRY_ASSIGN(Worker made, Worker::create(config, sources, worker, std::move(backend),
                                                std::move(communicator)));
    Rank& entry = ranks_[static_cast<std::size_t>(rendezvous.rank())];
    entry.worker = std::make_unique<Worker>(std::move(made));
    entry.runner = std::make_unique<PlanRunner>(*entry.worker, settings.bounds);
    return {};
  }

  /// One rank's steps, in the buffers that all share.
  class Feed final : public StepFeed {
   public:
    Feed(Ranks& ranks, std::size_t rank) : ranks_(ranks), rank_(rank) {}

    Counts wait(const Counts& seen, std::chrono::microseconds timeout) override {
      std::unique_lock lock(ranks_.mutex_);
      const auto now = [this] {
        return Counts{
            .submitted = ranks_.submitted_, .masked = ranks_.masked_, .stopping = ranks_.stopping_};
      };
      const auto more = [&] { return now() != seen; };
      if (timeout == kForever)
        ranks_.changed_.wait(lock, more);
      else
        ranks_.changed_.wait_for(lock, timeout, more);
      return now();
    }
    std::span<const std::byte> plan(std::uint64_t step) override {
      StepBuffer& buffer = ranks_.step_buffer(step);
      return buffer.space().first(buffer.bytes);
    }
    StepResult& result(std::uint64_t step) override {
      return ranks_.step_buffer(step).results[rank_];
    }
    void answer(std::uint64_t step, Status status) override {
      {
        const std::lock_guard lock(ranks_.mutex_);
        StepBuffer& buffer = ranks_.step_buffer(step);
        buffer.statuses[rank_] = std::move(status);
        ++buffer.ranks_done;
      }
      ranks_.changed_.notify_all();
    }

   private:
    Ranks& ranks_;
    std::size_t rank_;
  };

  void work(std::size_t rank) {
    Feed feed(*this, rank);
    run_steps(*ranks_[rank].worker, *ranks_[rank].runner, feed);
  }

  std::vector<std::unique_ptr<Rendezvous>> rendezvous_;  // by rank; outlives the ranks
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
