// SPDX-License-Identifier: Apache-2.0
// The way of one request's output from the engine's thread to its reader: a bounded queue that
// never blocks the engine. When the reader is slow the engine pauses the request; exactly one end
// follows the last event.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/request.h"

namespace koho {

struct TokenLogprob {
  Token token = -1;
  float logprob = 0.0F;
};

/// One sampled token, or the end of a choice that sampled none.
struct OutputEvent {
  std::int32_t choice = 0;
  Token token = -1;  // -1: none (max_tokens was 0)
  float logprob = 0.0F;
  std::vector<TokenLogprob> top;             // as many as were asked for
  std::vector<float> logits;                 // [V] unmodified, if asked for and sampled
  std::string text;                          // what became final with this token; may be empty
  FinishReason finish = FinishReason::none;  // the choice's last event
  Token stop_token = -1;                     // which stop token it was
  std::int32_t stop_string = -1;             // or the index of the stop string
};

class OutputStream : public std::enable_shared_from_this<OutputStream> {
 public:
  enum class Read : std::uint8_t { event, nothing, done };

  /// Holds `capacity` events with `alternatives` logprobs each. `on_ready` is called from the
  /// engine's thread, without locks held, when an event or the end arrives in an empty stream.
  /// `on_room` is called from the reader's thread when a paused stream has room again. Either may
  /// be empty; neither may call back into the stream.
  OutputStream(std::size_t capacity,
               std::size_t alternatives,
               std::function<void()> on_ready,
               std::function<void(OutputStream&)> on_room);
  /// From now on events are pushed only as far as they were asked for: one, and one more with
  /// every grant(). Requires: no event was pushed.
  void serve_on_demand();

  // ---- the reader's side; one thread at a time

  /// Moves the next event into `event`, whose buffers are reused. `done`: the request ended and all
  /// events are read.
  Read poll(OutputEvent& event);
  /// As poll, after waiting up to `timeout_us` for something to come.
  Read wait(OutputEvent& event, std::int64_t timeout_us);
  /// The reader reads no more: `on_end` is called once, with the summary, when the request ends (by
  /// the engine's thread), or now if it has. It may not call back into the stream.
  void leave(std::function<void(const Summary&)> on_end);
  /// How the request ended. Requires: poll or wait returned `done`.
  const Summary& summary() const { return summary_; }

  // ---- the engine's side; the engine's thread

  /// Swaps `event` in; it comes back holding buffers to reuse. Requires: room, not closed.
  void push(OutputEvent& event);
  /// The end. Requires: not closed.
  void close(Summary summary);
  /// Asks for one more event. Without effect on a stream that is not served on demand.
  void grant();
  /// Whether fewer than `events` more fit or were asked for; if so on_room will follow, or a
  /// grant().
  bool pause_without(std::size_t events);
  std::size_t size() const;
  bool closed() const;
  std::size_t capacity() const { return ring_.size(); }

  /// The first cancel sets it; later ones change nothing. Threads: any.
  std::atomic<bool> cancel_requested = false;
  /// The engine's name for the request while it is live, else -1. The engine's thread only.
  std::int32_t request_index = -1;

 private:
  Read poll_locked(OutputEvent& event, bool& room);

  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<OutputEvent> ring_;
  std::size_t head_ = 0;
  std::size_t size_ = 0;
  std::size_t room_wanted_ = 0;  // 0: not paused
  bool on_demand_ = false;
  std::size_t granted_ = 0;  // events asked for and not pushed
  bool closed_ = false;
  Summary summary_;
  std::function<void()> on_ready_;
  std::function<void(OutputStream&)> on_room_;
  std::function<void(const Summary&)> on_end_;
};

}  // namespace koho
