// SPDX-License-Identifier: Apache-2.0
#include "engine/process_executor.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "engine/rank_results.h"

namespace koho {
namespace {

constexpr int kKillMs = 10'000;
constexpr int kStopMs = 2'000;  // an idle rank ends in milliseconds
constexpr std::int64_t kForeverUs = std::numeric_limits<std::int64_t>::max();

}  // namespace

ProcessExecutor::ProcessExecutor(ProcessExecutorSettings settings)
    : settings_(std::move(settings)), supervisor_([this] { supervise(); }) {}

Result<std::unique_ptr<ProcessExecutor>> ProcessExecutor::open(ProcessExecutorSettings settings) {
  std::unique_ptr<ProcessExecutor> executor(new ProcessExecutor(std::move(settings)));
  KOHO_TRY(executor->run(Job::open, kForeverUs));
  return executor;
}

ProcessExecutor::~ProcessExecutor() {
  cancelled_.store(true);
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return job_ == Job::none || job_done_; });
    job_ = Job::end;
    job_done_ = false;
  }
  changed_.notify_all();
  supervisor_.join();
}

Status ProcessExecutor::run(Job job, std::int64_t timeout_us) {
  std::unique_lock lock(mutex_);
  if (job_ == Job::none) {
    job_ = job;
    job_done_ = false;
    changed_.notify_all();
  }
  const auto done = [this] { return job_done_; };
  if (timeout_us == kForeverUs) {
    changed_.wait(lock, done);
  } else if (!changed_.wait_for(lock, std::chrono::microseconds(timeout_us), done)) {
    return make_error(ErrorCode::deadline_exceeded, "the workers are being started");
  }
  job_ = Job::none;
  return std::exchange(job_status_, {});
}

void ProcessExecutor::supervise() {
  while (true) {
    Job job = Job::none;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return job_ != Job::none && !job_done_; });
      job = job_;
    }
    Status status;
    try {
      status = carry_out(job);
    } catch (const std::exception& error) {  // std::bad_alloc
      status = Error{ErrorCode::resource_exhausted, error.what()};
    }
    {
      const std::lock_guard lock(mutex_);
      job_status_ = std::move(status);
      job_done_ = true;
    }
    changed_.notify_all();
    if (job == Job::end) return;
  }
}

Status ProcessExecutor::carry_out(Job job) {
  switch (job) {
    case Job::open:
      return open_group();
    case Job::load:
      return load_group(settings_.progress);
    case Job::restart:
      loaded_ = false;
      {
        const std::lock_guard lock(mutex_);
        processes_.clear();
      }
      if (group_) {
        KOHO_TRY(group_->kill(kKillMs));
        group_.reset();
      }
      KOHO_TRY(open_group());
      return load_group(nullptr);
    case Job::end:
      if (group_ && loaded_) group_->stop(kStopMs);
      group_.reset();
      return {};
    case Job::none:
      break;
  }
  return {};
}

Status ProcessExecutor::open_group() {
  KOHO_TRY_ASSIGN(group_, WorkerGroup::spawn(settings_.group));
  {
    const std::lock_guard lock(mutex_);
    processes_.clear();
    for (std::int64_t rank = 0; rank < group_->ranks(); ++rank)
      processes_.push_back(group_->pid(rank));
  }
  KOHO_TRY(group_->wait_for(RankStage::opened, nullptr, cancelled_));
  if (!devices_.empty()) return {};
  for (std::int64_t rank = 0; rank < group_->ranks(); ++rank)
    devices_.push_back(group_->device(rank));
  return {};
}

Status ProcessExecutor::load_group(LoadProgress* progress) {
  KOHO_TRY(group_->load(task_));
  KOHO_TRY(group_->wait_for(RankStage::ready, progress, cancelled_));
  loaded_ = true;
  return {};
}

Status ProcessExecutor::load(const LoadTask& task) {
  task_ = task;
  owners_ = task.bounds.partitions > 1 ? RowOwners::one_rank : RowOwners::all_ranks;
  const auto ranks = static_cast<std::size_t>(settings_.group.ranks);
  answered_.resize(ranks);
  statuses_.resize(ranks);
  results_.resize(ranks);
  for (StepResult& result : results_)
    result.reserve(static_cast<std::size_t>(task.bounds.sequences_max));
  return run(Job::load, kForeverUs);
}

std::span<std::byte> ProcessExecutor::plan_space() {
  return group_->plan_space(submitted_);
}

Status ProcessExecutor::submit(std::size_t bytes) {
  KOHO_CHECK_LT(submitted_ - collected_, static_cast<std::uint64_t>(Worker::kStepsInFlightMax));
  PlanHeader header;
  std::memcpy(&header, plan_space().data(), sizeof(header));
  plan_steps_[submitted_ % plan_steps_.size()] = header.step;
  group_->submit(submitted_++, bytes);
  return {};
}

Status ProcessExecutor::send_masks() {
  group_->send_masks(submitted_);
  return {};
}

Status ProcessExecutor::read_answers() {
  const ResultBounds bounds{.rows_max = task_.bounds.sequences_max,
                            .vocabulary = task_.bounds.vocabulary};
  const std::int64_t step = plan_steps_[collected_ % plan_steps_.size()];
  bool news = false;
  for (std::size_t rank = 0; rank < results_.size(); ++rank) {
    const auto number = static_cast<std::int64_t>(rank);
    if (answered_[rank] != 0 || !group_->has_answered(number, collected_)) continue;
    answered_[rank] = 1;
    news = true;
    statuses_[rank] = read_flat_result(group_->answer(number, collected_), bounds, results_[rank]);
    if (statuses_[rank].ok() && results_[rank].step != step)
      statuses_[rank] = make_error(ErrorCode::internal, "it answers step {}, {} was expected",
                                   results_[rank].step, step);
  }
  if (!news) return {};
  // The others of a rank that failed say `unavailable`: the cause may still come.
  const bool all = std::ranges::find(answered_, 0) == answered_.end();
  Status failure = first_failure(statuses_);
  if (failure.ok() || (!all && failure.error().code == ErrorCode::unavailable)) return {};
  Error error = std::move(failure).error();
  if (error.code == ErrorCode::deadline_exceeded) error.code = ErrorCode::device_error;
  return error;
}

Status ProcessExecutor::collect(StepResult& result, std::int64_t timeout_us) {
  KOHO_CHECK_LT(collected_, submitted_);
  const SteadyClock clock;
  const std::int64_t end = clock.now_us() + timeout_us;
  while (true) {
    KOHO_TRY(read_answers());
    if (std::ranges::find(answered_, 0) == answered_.end()) break;
    const std::int64_t left = end - clock.now_us();
    if (left <= 0) {
      KOHO_TRY(group_->check());
      return Error{ErrorCode::deadline_exceeded, "still running"};  // short: allocates nothing
    }
    if (group_->wait(left)) continue;
    // Nothing was written. What a rank answered before it ended is still taken.
    Status there = group_->check();
    if (there.ok()) continue;
    KOHO_TRY(read_answers());
    if (std::ranges::find(answered_, 0) == answered_.end()) break;
    return there;
  }
  ++collected_;
  std::ranges::fill(answered_, 0);
  return merge_results(results_, owners_, result);
}

Status ProcessExecutor::check() {
  return group_->check();
}

void ProcessExecutor::forget_steps() {
  submitted_ = 0;
  collected_ = 0;
  std::ranges::fill(answered_, 0);
  std::ranges::fill(statuses_, Status());
}

Status ProcessExecutor::recover(std::int64_t timeout_us) {
  KOHO_TRY(run(Job::restart, timeout_us));
  forget_steps();
  return {};
}

std::vector<pid_t> ProcessExecutor::processes() const {
  const std::lock_guard lock(mutex_);
  return processes_;
}

}  // namespace koho
