// SPDX-License-Identifier: Apache-2.0
// The engine without its thread: every live request, and what can happen to them (submit, launch a
// step, collect a step, recover the device), for one caller at a time. engine.cpp calls these in a
// loop; the simulation calls them in any order that a seed chooses. step_loop.cpp launches,
// delivery.cpp turns results into events, failures.cpp recovers.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "engine/executor.h"
#include "engine/flight_recorder.h"
#include "engine/latency_bound.h"
#include "engine/output_stream.h"
#include "engine/plan_writer.h"
#include "engine/request.h"
#include "engine/statistics.h"
#include "engine/stop_strings.h"
#include "engine/text_decoder.h"
#include "engine/token_mask.h"
#include "scheduler/scheduler.h"

namespace koho {

class StepLoop {
 public:
  /// Requires: validate(limits). `seed` is random per process. If `decoders` is empty, streams
  /// carry token ids and no text. Executor and clock outlive the loop.
  StepLoop(const EngineLimits& limits,
           Executor& executor,
           const Clock& clock,
           TextDecoderFactory decoders,
           const std::array<std::uint64_t, 4>& seed);

  /// Takes a request in; its stream will get exactly one end, at once if there is no room.
  /// Requires: validate(request); the stream has limits.stream_events_per_choice a choice.
  void submit(Request request, std::shared_ptr<OutputStream> stream);
  /// Ends the stream's request as cancelled, if it is live. Its pages are free now.
  void cancel(OutputStream& stream);
  /// The stream's reader made room.
  void resume(OutputStream& stream);
  /// Ends requests whose deadline has passed.
  void expire();
  /// Ends every live request as failed.
  void end_all(const Error& error);

  /// Plans a step and hands it to the executor; false if there is nothing to compute, no room in
  /// the pipeline or no device.
  bool launch();

  enum class CollectOutcome : std::uint8_t { nothing, waiting, collected, lost };
  /// Waits for the oldest step and delivers its tokens. waiting: nothing came within `timeout_us`;
  /// lost: the device failed or hangs, recover() is due.
  CollectOutcome collect(std::int64_t timeout_us);

  /// One attempt to bring the device back, or the continuation of one; true once it is up. After
  /// limits.recoveries_max failed attempts every request is failed and the loop is broken.
  bool recover(std::int64_t timeout_us);

  /// Whether the idle ranks are there; if not, the device is lost and recover() is due. Requires:
  /// no step is in flight.
  bool check_device();

  bool device_up() const { return device_up_; }
  bool broken() const { return broken_; }
  /// Why the device was lost, or could not be recovered, most recently.
  const Error& device_error() const { return device_error_; }
  std::int32_t live_requests() const { return live_count_; }
  std::int32_t steps_in_flight() const { return scheduler_.steps_in_flight(); }
  /// Counters and gauges as of now.
  Statistics statistics() const;
  const FlightRecorder& flight_recorder() const { return recorder_; }
  const Scheduler& scheduler() const { return scheduler_; }
  const EngineLimits& limits() const { return limits_; }
  /// The stream that a live sequence writes to.
  const OutputStream& stream_of(const Sequence& sequence) const;

 private:
  struct Choice {
    SequenceId sequence;
    bool active = false;
    bool ended = false;
    std::int32_t completion_tokens = 0;
    std::int32_t reasoning_tokens = 0;
    bool reasoning = false;
    std::int64_t last_token_us = -1;
    std::int64_t stalled_since_us = -1;
    std::int64_t stalled_us = 0;
    std::int32_t computed_before_loss =
        0;  // at any loss of the device; recomputing them is no progress
    Draw draw;
    std::unique_ptr<TokenMask> token_mask;  // null: every token is allowed
    std::unique_ptr<TextDecoder> decoder;
    StopStrings stops;
  };
  /// A live request; slots are reused. A *suspect* was in flight in two device failures without
  /// progress between them: it then runs alone, and all others are set aside, to find the cause.
  struct Live {
    Request request;
    std::shared_ptr<OutputStream> stream;  // null: the slot is free
    std::vector<Choice> choices;
    std::int32_t active_choices = 0;
    bool reader_full = false;  // its stream has no room
    bool set_aside = false;    // while a suspect is computed alone
    bool paused = false;       // reader_full or set_aside, as last told to the scheduler
    std::int32_t faults = 0;  // device failures with this request in flight since its last progress
    std::int32_t preemptions = 0;
    std::int32_t cached_tokens = 0;
    std::int64_t room_checked_step = -1;  // the latest step that checked the stream's room
    std::int64_t submitted_us = 0;
    std::int64_t deadline_us = 0;  // absolute; 0 = none
    std::int64_t admitted_us = -1;
    std::int64_t first_token_us = -1;
    std::int64_t last_token_us = -1;
  };
  struct Owner {
    std::int32_t request = -1;
    std::int32_t choice = -1;
  };

  Live& live_of(const Sequence& sequence);
  Choice& choice_of(const Sequence& sequence);
  /// How each sequence's next token is drawn, for the writer of plans.
  std::function<const Draw&(const Sequence&)> draws();
  Status start_choice(Live& live, std::int32_t request_index, std::int32_t choice_index);
  void end(Live& live, Ending ending, Error error);
  /// Ends a request that has no place.
  void refuse(const Request& request, OutputStream& stream);
  /// A choice ended, `total_us` after its submission; `counter` is one of the four of choices.
  void count_choice(std::uint64_t& counter, std::int32_t tokens, std::int64_t total_us);
  void count_request(const Request& request, Ending ending, std::int32_t longest_answer);
  /// Pauses or resumes the request's sequences if reader_full || set_aside changed.
  void settle_pause(Live& live);
  void note_launch(const StepBatch& batch, std::int64_t now);
  void pause_full_streams(const StepBatch& batch);
  /// After a collect: writes and sends the masks that the step still in flight waits for, if any.
  Status send_late_masks();
  Status check_result(const StepBatch& batch) const;
  void apply_result(const StepBatch& batch);
  void deliver(Live& live,
               std::int32_t choice_index,
               const Sequence& sequence,
               std::int32_t sample);
  FinishReason write_text(
      Live& live, Choice& choice, const Sequence& sequence, Token token, bool ended);
  void count_token(Live& live, Choice& choice, Token token, std::int64_t now);
  void fill_logprobs(const Live& live, std::int32_t sample);
  /// False: the ranks gave none.
  bool fill_logits(std::int32_t sample);
  void lose_device(const Error& error);
  bool fails_too_often(std::int64_t now);
  void note_progress(Live& live, Choice& choice, const StepRow& row);
  void give_up(const Error& error);
  bool is_suspect(const Live& live) const;
  void update_isolation();
  /// Whether a step launched now could blame the wrong request if it fails: a suspect must run
  /// alone, and the step in flight has rows of others (also of requests that ended), or of a
  /// suspect that has been set aside since.
  bool must_collect_first();
  Summary summary_of(const Live& live, Ending ending, Error error, std::int64_t now) const;

  EngineLimits limits_;
  Executor& executor_;
  const Clock& clock_;
  TextDecoderFactory decoders_;
  Scheduler scheduler_;
  LatencyBound latency_bound_;
  std::vector<Live> requests_;
  std::vector<std::int32_t> free_requests_;
  std::vector<Owner> owners_;  // by sequence index
  std::int32_t live_count_ = 0;
  std::int64_t next_deadline_us_ = 0;  // no live deadline is earlier; 0 = none
  bool device_up_ = true;
  bool broken_ = false;
  Error device_error_;
  std::int32_t failed_recoveries_ = 0;
  std::int32_t failures_in_a_row_ = 0;
  std::vector<std::int64_t> failures_us_;  // the latest, a ring of failures_in_window_max
  bool isolating_ = false;                 // suspects are computed one by one, the others wait
  std::int64_t waiting_since_us_ =
      0;  // since when the oldest step in flight is the oldest; its deadline counts from here
  LateMasks late_masks_;  // of the newest step in flight
  StepResult result_;
  OutputEvent event_;  // scratch, as is piece_
  std::string piece_;
  FlightRecorder recorder_;
  Statistics counts_;  // counters and histograms; gauges are read off when asked for
};

}  // namespace koho
