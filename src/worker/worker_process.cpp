// SPDX-License-Identifier: Apache-2.0
// The main thread runs the rank. A second one watches the front, shows that the process runs, and
// how far loading is.
#include "worker/worker_process.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <poll.h>
#include <string>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include "base/clock.h"
#include "base/load_progress.h"
#include "base/log.h"
#include "base/log_settings.h"
#include "comm/process_rendezvous.h"
#include "plan/flat_result.h"
#include "worker/plan_runner.h"
#include "worker/rank_loop.h"

namespace koho {
namespace {

// How long a rank waits for the others before their first collective: they load side by side, and
// the front ends all of them when one fails.
constexpr std::chrono::hours kMeetTimeout{1};
constexpr int kExitOrphan = 1;

void signal_event(int descriptor) {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(descriptor, &one, sizeof(one));
}

/// Empties the rank's eventfd, then waits for it. Negative: for good.
void wait_for_event(int descriptor, std::chrono::microseconds timeout) {
  pollfd waiting{.fd = descriptor, .events = POLLIN, .revents = 0};
  const timespec time{.tv_sec = timeout.count() / 1'000'000,
                      .tv_nsec = timeout.count() % 1'000'000 * 1000};
  if (ppoll(&waiting, 1, timeout.count() < 0 ? nullptr : &time, nullptr) <= 0) return;
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t taken = ::read(descriptor, &count, sizeof(count));
}

/// The steps in shared memory.
class ProcessFeed final : public StepFeed {
 public:
  ProcessFeed(Control& control,
              RankWords& words,
              std::int64_t rank,
              const StepMemoryLayout& layout,
              std::span<std::byte> memory,
              std::int64_t rows_max)
      : control_(control), words_(words), rank_(rank), layout_(layout), memory_(memory) {
    for (StepResult& result : results_) result.reserve(static_cast<std::size_t>(rows_max));
  }

  Counts wait(const Counts& seen, std::chrono::microseconds timeout) override {
    Counts now = counts();
    while (now == seen) {
      wait_for_event(kWake, timeout);
      now = counts();
      if (timeout != kForever) break;
    }
    return now;
  }

  std::span<const std::byte> plan(std::uint64_t step) override {
    const std::span<std::byte> place = layout_.plan(memory_, step);
    const std::uint64_t bytes =
        control_.front.plan_bytes[step % Worker::kStepsInFlightMax].load(std::memory_order_relaxed);
    return place.first(std::min<std::size_t>(bytes, place.size()));
  }

  StepResult& result(std::uint64_t step) override {
    return results_[step % Worker::kStepsInFlightMax];
  }

  void answer(std::uint64_t step, Status status) override {
    const std::size_t place = step % Worker::kStepsInFlightMax;
    const std::span<std::byte> space = layout_.result(memory_, rank_, step);
    const std::size_t bytes = status.ok() ? write_flat_result(results_[place], space)
                                          : write_flat_error(status.error(), space);
    words_.result_bytes[place].store(bytes, std::memory_order_relaxed);
    words_.answered.store(step + 1, std::memory_order_release);
    signal_event(kAnswered);
  }

 private:
  Counts counts() const {
    return {.submitted = control_.front.submitted.load(std::memory_order_acquire),
            .masked = control_.front.masked.load(std::memory_order_acquire),
            .stopping = control_.front.stopping.load(std::memory_order_acquire) != 0};
  }

  Control& control_;
  RankWords& words_;
  std::int64_t rank_;
  StepMemoryLayout layout_;
  std::span<std::byte> memory_;
  std::array<StepResult, Worker::kStepsInFlightMax> results_;
};

/// Ends the process when the front has ended; beats while the process runs.
class Watchdog {
 public:
  Watchdog(RankWords& words, const LoadProgress& progress, std::int64_t beat_us)
      : thread_([&words, &progress, beat_ms = static_cast<int>(beat_us / 1000), this] {
          while (!done_.load()) {
            pollfd front{.fd = kFrontEnds, .events = POLLIN, .revents = 0};
            if (poll(&front, 1, std::max(beat_ms, 1)) > 0) _exit(kExitOrphan);
            words.beats.fetch_add(1, std::memory_order_relaxed);
            const LoadProgress::Now now = progress.now();
            words.load_bytes_total.store(now.bytes_total, std::memory_order_relaxed);
            words.load_bytes_done.store(now.bytes_done, std::memory_order_relaxed);
          }
        }) {}
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  ~Watchdog() {
    done_.store(true);
    thread_.join();
  }

 private:
  std::atomic<bool> done_{false};
  std::thread thread_;  // last: it reads done_
};

class WorkerProcess {
 public:
  WorkerProcess(std::int64_t rank, SharedMemory control_memory, Control& control)
      : rank_(rank),
        control_memory_(std::move(control_memory)),
        control_(control),
        words_(control.rank[static_cast<std::size_t>(rank)]),
        task_(control.task),
        progress_(clock_) {}

  void run(const OpenWorkerModel& open_model) {
    log::configure(static_cast<log::Level>(std::min(task_.log_level, 3U)),
                   task_.log_format == static_cast<std::uint32_t>(log::Format::text)
                       ? log::Format::text
                   : task_.log_format == static_cast<std::uint32_t>(log::Format::json)
                       ? log::Format::json
                       : log::Format::automatic);
    log::set_rank(rank_);
    const Watchdog watchdog(words_, progress_, task_.beat_us);
    Status status = open(open_model);
    if (status.ok()) status = load();
    if (!status.ok()) {
      words_.error.set(status.error());
      tell(RankStage::failed);
      if (rendezvous_) rendezvous_->give_up();
      wait_until([] { return false; });
      return;
    }
    ProcessFeed feed(control_, words_, rank_, layout_, step_memory_.bytes(),
                     load_task_.bounds.sequences_max);
    PlanRunner runner(*worker_, load_task_.bounds);
    tell(RankStage::ready);
    run_steps(*worker_, runner, feed);
  }

 private:
  void tell(RankStage stage) {
    words_.stage.store(stage, std::memory_order_release);
    signal_event(kAnswered);
  }

  /// Waits until `done` or until the front says stop; whether it was the first.
  template <typename Done>
  bool wait_until(const Done& done) {
    while (!done()) {
      if (control_.front.stopping.load(std::memory_order_acquire) != 0) return false;
      wait_for_event(kWake, StepFeed::kForever);
    }
    return true;
  }

  Status open(const OpenWorkerModel& open_model) {
    const DeviceOptions options = task_.device_options();
    KOHO_TRY_ASSIGN(model_, open_model(task_.model, options.kind));
    device_ = options;
    device_.synthetic = model_.synthetic;
    device_.progress = &progress_;
    Status found = check_devices(device_, control_.ranks);
    Result<std::unique_ptr<Backend>> backend =
        found.ok() ? make_backend(device_, rank_, control_.ranks) : std::move(found).error();
    if (!backend.ok()) {
      Error error = std::move(backend).error();
      // What is missing is a device, not a file of the model.
      if (error.code == ErrorCode::not_found) error.code = ErrorCode::device_error;
      return error;
    }
    backend_ = std::move(*backend);
    rendezvous_ = make_process_rendezvous(rendezvous_memory(control_memory_), rank_, control_.ranks,
                                          kMeetTimeout);
    // Devices may be shared: memory is what it is once all ranks have opened theirs.
    KOHO_TRY(rendezvous_->all_gather({}, {}));
    KOHO_TRY_ASSIGN(const MemoryUse use, backend_->memory_use());
    DeviceOptions mine = device_;
    mine.devices = {device_of(device_, rank_)};
    KOHO_TRY_ASSIGN(words_.device.total_bytes, device_memory_bytes(mine));
    words_.device.free_bytes = use.free_bytes;
    KOHO_TRY_ASSIGN(const bool redecodes, redecodes_output(mine));
    words_.device.redecodes_output = redecodes ? 1 : 0;
    words_.device.name.set(backend_->description());
    if (mine.kind == DeviceKind::cuda) {
      KOHO_TRY_ASSIGN(const std::string name, device_name(mine));
      words_.device.name.set(name);
    }
    tell(RankStage::opened);
    return {};
  }

  Status load() {
    if (!wait_until([this] { return control_.front.load.load(std::memory_order_acquire) != 0; }))
      return make_error(ErrorCode::cancelled, "the front does not go on");
    load_task_ = control_.load;
    KOHO_TRY_ASSIGN(step_memory_, SharedMemory::open(Descriptor(kStepMemory)));
    layout_ = StepMemoryLayout(load_task_.bounds, control_.ranks);
    if (step_memory_.bytes().size() < layout_.bytes())
      return make_error(ErrorCode::corrupt_data, "the step memory has {} bytes, {} were expected",
                        step_memory_.bytes().size(), layout_.bytes());
    // Plans are the front's alone.
    if (mprotect(step_memory_.bytes().data(), layout_.plans_bytes(), PROT_READ) != 0)
      return make_error(ErrorCode::internal, "the plans cannot be protected");
    KOHO_TRY_ASSIGN(std::unique_ptr<Communicator> communicator,
                    make_communicator(device_, *backend_, *rendezvous_));
    WorkerSettings settings = load_task_.worker;
    settings.load.shard = task_.shard;
    settings.load.shard.rank = rank_;
    settings.load.shard.ranks = control_.ranks;
    settings.load.kv_pages = load_task_.bounds.pages_per_partition();
    KOHO_TRY_ASSIGN(Worker worker, Worker::create(*model_.config, *model_.sources, settings,
                                                  std::move(backend_), std::move(communicator)));
    worker_ = std::make_unique<Worker>(std::move(worker));
    return {};
  }

  std::int64_t rank_;
  SharedMemory control_memory_;
  Control& control_;
  RankWords& words_;
  WorkerTask task_;  // a copy: nobody changes it
  LoadTask load_task_;
  SteadyClock clock_;
  LoadProgress progress_;
  WorkerModel model_;
  DeviceOptions device_;
  std::unique_ptr<Rendezvous> rendezvous_;
  SharedMemory step_memory_;
  StepMemoryLayout layout_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Worker> worker_;
};

}  // namespace

Status run_worker_process(std::int64_t rank, const OpenWorkerModel& open_model) {
  // Before anything can hang. The front may have ended before this call.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  pollfd front{.fd = kFrontEnds, .events = POLLIN, .revents = 0};
  if (poll(&front, 1, 0) > 0 && (front.revents & POLLIN) != 0) return {};
  std::signal(SIGPIPE, SIG_IGN);
  Result<SharedMemory> memory = SharedMemory::open(Descriptor(kControlMemory));
  if (!memory.ok())
    return std::move(memory).error().with_context(
        "koho worker is started by koho itself, not by hand");
  KOHO_TRY_ASSIGN(Control * control, control_in(*memory));
  if (rank < 0 || rank >= control->ranks)
    return make_error(ErrorCode::invalid_argument, "there is no rank {} of {}", rank,
                      control->ranks);
  WorkerProcess(rank, std::move(*memory), *control).run(open_model);
  return {};
}

}  // namespace koho
