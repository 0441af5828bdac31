// SPDX-License-Identifier: Apache-2.0
// The engine's thread and its inbox: commands come in under a lock, the thread carries them out
// between two turns of the step loop, and publishes statistics after each.
#include "engine/engine.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <random>
#include <sys/random.h>
#include <utility>

#include "base/log.h"

namespace koho {
namespace {

/// How long the thread waits for a step, for the device or, while requests are live, for commands,
/// before it looks at deadlines and at its inbox again.
constexpr std::int64_t kSliceUs = 50'000;
/// How long it waits for commands without a request, before it looks whether the ranks are there.
constexpr std::chrono::milliseconds kIdle{500};

Result<std::array<std::uint64_t, 4>> random_seed() {
  std::array<std::uint64_t, 4> seed{};
  if (getrandom(seed.data(), sizeof(seed), 0) != static_cast<ssize_t>(sizeof(seed)))
    return make_error(ErrorCode::io_error, "no randomness from the system: {}",
                      std::strerror(errno));
  return seed;
}

}  // namespace

/// What callers leave for the engine's thread. At most one submission, one cancel and one resume
/// (or advance) a request wait here.
struct Engine::Inbox {
  struct Command {
    enum class Kind : std::uint8_t { submit, cancel, resume, advance, nothing };
    Kind kind = Kind::submit;
    Request request;
    std::shared_ptr<OutputStream> stream;
    std::vector<std::shared_ptr<OutputStream>> streams;  // of advance
  };

  std::mutex mutex;
  std::condition_variable arrived;  // for the engine's thread
  std::condition_variable ended;    // for drain
  std::condition_variable settled;  // for settle
  std::vector<Command> commands;
  std::vector<Command> taken;  // the engine's thread's, swapped with commands
  std::int32_t requests = 0;   // accepted and not ended, as are the sequences
  std::int32_t sequences = 0;
  std::uint64_t posted = 0;    // commands
  std::uint64_t taken_to = 0;  // of these, by the engine's thread …
  std::uint64_t carried = 0;   // … and what came of them is in `statistics`
  bool accepting = true;
  bool end_all = false;
  bool stop = false;
  std::mt19937_64 seeds;
  Statistics statistics;

  void post(Command command) {
    {
      const std::lock_guard lock(mutex);
      commands.push_back(std::move(command));
      ++posted;
    }
    arrived.notify_one();
  }
};

Result<std::unique_ptr<Engine>> Engine::start(const EngineLimits& limits,
                                              Executor& executor,
                                              const Clock& clock,
                                              TextDecoderFactory decoders) {
  KOHO_TRY(validate(limits));
  KOHO_TRY_ASSIGN(const auto seed, random_seed());
  std::unique_ptr<Engine> engine(new Engine(limits, executor, clock, std::move(decoders), seed));
  engine->thread_ = std::thread(&Engine::run, engine.get());
  return engine;
}

Engine::Engine(const EngineLimits& limits,
               Executor& executor,
               const Clock& clock,
               TextDecoderFactory decoders,
               const std::array<std::uint64_t, 4>& seed)
    : loop_(limits, executor, clock, std::move(decoders), seed), inbox_(std::make_shared<Inbox>()) {
  const auto commands = 3 * static_cast<std::size_t>(limits.requests_max);
  inbox_->commands.reserve(commands);
  inbox_->taken.reserve(commands);
  inbox_->seeds.seed(seed[1]);
  inbox_->statistics = loop_.statistics();
}

Engine::~Engine() {
  {
    const std::lock_guard lock(inbox_->mutex);
    inbox_->accepting = false;
    inbox_->stop = true;
  }
  inbox_->arrived.notify_one();
  if (thread_.joinable()) thread_.join();  // it may not have started
}

Result<std::shared_ptr<OutputStream>> Engine::submit(Request request,
                                                     std::function<void()> on_ready) {
  const EngineLimits& most = limits();
  KOHO_TRY(validate(request, most));
  const std::int32_t events =
      request.logits ? most.logits_events_per_choice : most.stream_events_per_choice;
  const auto capacity =
      static_cast<std::size_t>(events) * static_cast<std::size_t>(request.choices);
  const std::weak_ptr<Inbox> inbox = inbox_;
  auto on_room = [inbox](OutputStream& stream) {
    if (const std::shared_ptr<Inbox> open = inbox.lock())
      open->post({Inbox::Command::Kind::resume, {}, stream.shared_from_this(), {}});
  };
  auto stream = std::make_shared<OutputStream>(
      capacity, static_cast<std::size_t>(request.sampling.logprobs.value_or(0)),
      std::move(on_ready), std::move(on_room));
  if (request.on_demand) stream->serve_on_demand();
  {
    const std::lock_guard lock(inbox_->mutex);
    if (!inbox_->accepting)
      return make_error(ErrorCode::unavailable, "the engine is shutting down");
    if (inbox_->statistics.broken)
      return make_error(ErrorCode::unavailable, "the device could not be recovered");
    if (inbox_->requests >= most.requests_max ||
        inbox_->sequences + request.choices > most.scheduler.live_max)
      return make_error(ErrorCode::resource_exhausted,
                        "the queue is full: {} requests are in the engine, try again later",
                        inbox_->requests);
    ++inbox_->requests;
    inbox_->sequences += request.choices;
    if (!request.sampling.seed) request.seed = inbox_->seeds();
    ++inbox_->posted;
    inbox_->commands.push_back({Inbox::Command::Kind::submit, std::move(request), stream, {}});
  }
  inbox_->arrived.notify_one();
  return stream;
}

void Engine::cancel(const std::shared_ptr<OutputStream>& stream) {
  if (stream->cancel_requested.exchange(true)) return;
  inbox_->post({Inbox::Command::Kind::cancel, {}, stream, {}});
}

void Engine::advance(std::vector<std::shared_ptr<OutputStream>> streams) {
  inbox_->post({Inbox::Command::Kind::advance, {}, {}, std::move(streams)});
}

void Engine::settle() {
  inbox_->post({Inbox::Command::Kind::nothing, {}, {}, {}});
  std::unique_lock lock(inbox_->mutex);
  const std::uint64_t number = inbox_->posted;
  inbox_->settled.wait(lock, [&] { return inbox_->carried >= number; });
}

bool Engine::takes_turns() {
  const bool first = turn_asked_ == 0;
  {
    const std::lock_guard lock(inbox_->mutex);
    if (!first && inbox_->carried < turn_asked_) return false;
    inbox_->commands.push_back({Inbox::Command::Kind::nothing, {}, {}, {}});
    turn_asked_ = ++inbox_->posted;
  }
  inbox_->arrived.notify_one();
  return !first;
}

void Engine::drain(std::int64_t timeout_us) {
  std::unique_lock lock(inbox_->mutex);
  inbox_->accepting = false;
  const auto empty = [this] { return inbox_->requests == 0; };
  if (inbox_->ended.wait_for(lock, std::chrono::microseconds(timeout_us), empty)) return;
  inbox_->end_all = true;
  inbox_->arrived.notify_one();
  inbox_->ended.wait(lock, empty);
}

Statistics Engine::statistics() const {
  const std::lock_guard lock(inbox_->mutex);
  return inbox_->statistics;
}

void Engine::run() {
  bool busy = false;
  while (take_commands(!busy)) {
    busy = turn();
    publish();
  }
  // Makes the error only if a request needs it: after a start that ran out of memory, its text
  // would not fit.
  if (loop_.live_requests() > 0)
    loop_.end_all(make_error(ErrorCode::unavailable, "the engine is shutting down"));
  publish();
}

bool Engine::take_commands(bool idle) {
  bool end_all = false;
  bool stop = false;
  {
    std::unique_lock lock(inbox_->mutex);
    const auto something = [this] {
      return !inbox_->commands.empty() || inbox_->stop || inbox_->end_all;
    };
    if (idle && loop_.live_requests() == 0) {
      inbox_->arrived.wait_for(lock, kIdle, something);
    } else if (idle) {
      inbox_->arrived.wait_for(lock, std::chrono::microseconds(kSliceUs), something);
    }
    inbox_->commands.swap(inbox_->taken);
    inbox_->taken_to = inbox_->posted;
    end_all = std::exchange(inbox_->end_all, false);
    stop = inbox_->stop;
  }
  for (Inbox::Command& command : inbox_->taken) {
    switch (command.kind) {
      case Inbox::Command::Kind::submit:
        loop_.submit(std::move(command.request), std::move(command.stream));
        break;
      case Inbox::Command::Kind::cancel:
        loop_.cancel(*command.stream);
        break;
      case Inbox::Command::Kind::resume:
        loop_.resume(*command.stream);
        break;
      case Inbox::Command::Kind::advance:
        for (const std::shared_ptr<OutputStream>& stream : command.streams) {
          stream->grant();
          loop_.resume(*stream);
        }
        break;
      case Inbox::Command::Kind::nothing:
        break;
    }
  }
  const bool carried_out = !inbox_->taken.empty();
  inbox_->taken.clear();
  if (end_all) loop_.end_all(make_error(ErrorCode::unavailable, "the engine is shutting down"));
  if (carried_out) publish();
  return !stop;
}

bool Engine::turn() {
  loop_.expire();
  if (!loop_.device_up()) return turn_without_device();
  const bool launched = loop_.launch();
  // Collects when two steps are in flight, or when there was nothing to launch.
  if (loop_.steps_in_flight() == kStepsInFlightMax || (!launched && loop_.steps_in_flight() > 0)) {
    loop_.collect(kSliceUs);
    return true;
  }
  if (!launched) return !loop_.check_device();
  return true;
}

bool Engine::turn_without_device() {
  if (!loop_.broken()) {
    if (!std::exchange(reported_down_, true))
      log::error("the device was lost: {}", loop_.device_error().message);
    if (loop_.recover(kSliceUs)) {
      reported_down_ = false;
      log::info("the device is back; {} requests go on", loop_.live_requests());
    }
    if (!loop_.broken()) return true;
  }
  if (!std::exchange(reported_broken_, true)) {
    log::error("the device could not be recovered: {}", loop_.device_error().message);
    log_recent_steps();
  }
  return false;
}

void Engine::log_recent_steps() const {
  for (const StepRecord& record : recent_steps()) log::warning("step record {}", to_json(record));
}

void Engine::publish() {
  const Statistics statistics = loop_.statistics();
  bool empty = false;
  {
    const std::lock_guard lock(inbox_->mutex);
    inbox_->statistics = statistics;
    inbox_->requests = loop_.live_requests();
    inbox_->sequences = loop_.scheduler().live();
    for (const Inbox::Command& command : inbox_->commands) {
      if (command.kind != Inbox::Command::Kind::submit) continue;
      ++inbox_->requests;
      inbox_->sequences += command.request.choices;
    }
    empty = inbox_->requests == 0;
    inbox_->carried = inbox_->taken_to;
  }
  inbox_->settled.notify_all();
  if (empty) inbox_->ended.notify_all();
}

}  // namespace koho
