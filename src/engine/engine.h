// SPDX-License-Identifier: Apache-2.0
// The engine as its callers see it: any thread submits and cancels requests, and reads each one's
// tokens from a stream. The engine's own thread runs the step loop (step_loop.h); nobody else
// touches a request, a page or the executor. The number of accepted requests bounds every queue.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "engine/executor.h"
#include "engine/flight_recorder.h"
#include "engine/output_stream.h"
#include "engine/request.h"
#include "engine/statistics.h"
#include "engine/step_loop.h"
#include "engine/text_decoder.h"

namespace koho {

class Engine {
 public:
  /// Starts the engine's thread. The executor must be ready to run steps and, like the clock,
  /// outlive the engine. Errors: invalid_argument (limits).
  static Result<std::unique_ptr<Engine>> start(const EngineLimits& limits,
                                               Executor& executor,
                                               const Clock& clock,
                                               TextDecoderFactory decoders = {});
  /// Ends every live request as failed (unavailable) and waits for its thread.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Accepts a request and returns its stream, which gets exactly one end. `on_ready` as in
  /// OutputStream. Errors: invalid_argument (validate(request)); resource_exhausted (the queue is
  /// full: counted here, when a request is accepted); unavailable (draining, or the device is lost
  /// for good). Threads: any.
  Result<std::shared_ptr<OutputStream>> submit(Request request,
                                               std::function<void()> on_ready = {});

  /// Cancels a request: its stream ends as cancelled within one step, if it has not ended. The
  /// reader may also just drop a stream after this. Threads: any.
  void cancel(const std::shared_ptr<OutputStream>& stream);

  /// Asks for one more token of each of these requests (Request::on_demand), together: they are
  /// planned into one step, as far as it holds them. Threads: any.
  void advance(std::vector<std::shared_ptr<OutputStream>> streams);

  /// Waits until everything that was asked for before this call is carried out and counted in
  /// statistics(): for the turn under way at most. Threads: any but the engine's.
  void settle();

  /// Whether the engine's thread has taken a turn since the last call, which asked it for one as
  /// this one does; false at the first call, and as long as the thread is stuck. Threads: one.
  bool takes_turns();

  /// Accepts nothing any more and waits until all requests ended, or until `timeout_us` has passed;
  /// then the remaining ones fail (unavailable). Threads: any.
  void drain(std::int64_t timeout_us);

  /// As of the last step. Threads: any.
  Statistics statistics() const;
  /// The last steps, oldest first. Threads: any.
  std::vector<StepRecord> recent_steps() const { return loop_.flight_recorder().records(); }
  /// Writes them to the log, a line each. The engine does so itself when the device is lost for
  /// good. Threads: any, not signal handlers.
  void log_recent_steps() const;
  const EngineLimits& limits() const { return loop_.limits(); }

 private:
  struct Inbox;

  Engine(const EngineLimits& limits,
         Executor& executor,
         const Clock& clock,
         TextDecoderFactory decoders,
         const std::array<std::uint64_t, 4>& seed);
  void run();
  /// Waits for commands if there is nothing to do, and carries them out; false: stop.
  bool take_commands(bool idle);
  /// One turn of the loop; true if there was something to do.
  bool turn();
  /// The same without a device.
  bool turn_without_device();
  void publish();

  StepLoop loop_;
  std::shared_ptr<Inbox> inbox_;  // shared with the streams, which may outlive the engine
  std::uint64_t turn_asked_ = 0;  // the number of takes_turns()'s last command
  bool reported_down_ = false;
  bool reported_broken_ = false;
  std::thread thread_;
};

}  // namespace koho
