// SPDX-License-Identifier: Apache-2.0
// One request to the model, from its body to the last byte of its answer: reads and tokenises (on
// the pool if that is long), submits, turns the engine's events into bytes when its connection asks
// for them. Knows no sockets: it wakes its connection, which then polls.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/answer.h"
#include "api/endpoints.h"
#include "engine/output_stream.h"
#include "server/core.h"
#include "server/http_message.h"

namespace koho::server {

class GenerationJob : public std::enable_shared_from_this<GenerationJob> {
 public:
  struct Setup {
    const api::GenerationEndpoint* endpoint = nullptr;
    const ServedModel* serving = nullptr;
    std::string id;          // random
    std::string request_id;  // the client's name for it, of the head; "": perhaps in the body
    /// Tells the connection that poll() has something to do. Called from any thread.
    std::function<void()> wake;
  };

  GenerationJob(Core& core, Setup setup);
  ~GenerationJob();
  GenerationJob(const GenerationJob&) = delete;
  GenerationJob& operator=(const GenerationJob&) = delete;

  /// Called once.
  void start(std::string body);

  enum class State : std::uint8_t {
    waiting,    // nothing to send yet
    streaming,  // `out` holds events; more come
    streamed,   // `out` holds the last ones
    answered    // response() is the whole answer
  };
  // What follows is called by the connection, one call at a time.

  /// Appends what came, at most about `bytes_max`: the rest waits in the engine, which pauses.
  State poll(std::string& out, std::size_t bytes_max);
  /// Requires: poll returned answered.
  Response& response() { return response_; }
  /// Appends what keeps a quiet stream open. Nothing, if this is no stream or nothing is known yet.
  void ping(std::string& out);
  /// Nobody reads any more: the request is cancelled.
  void on_disconnect();

  /// Ends the request with an error to its reader. Threads: any.
  void abort_with_error();

  /// The request's name, the same for the client, the log, /abort_request and /debug/cache: the
  /// client's own, or the id. May change until the first poll that is not waiting.
  const std::string& name() const { return name_; }

 private:
  static constexpr std::size_t kScoreChunkTokens =
      64;  // a page's: what stands before a run is whole
           // pages and a token
  enum class Stage : std::uint8_t { preparing, prepared, scoring, running, over };

  void prepare(const std::string& body);
  void end_reading(const std::string& name);
  std::optional<api::ApiError> read(const std::string& body);
  void begin_prompt_logprobs();
  void compute_prompt_logprobs();
  void submit();
  void take_events(std::string& out, std::size_t bytes_max);
  void finish(const api::ApiError& error, std::string& out);
  void begin(std::string& out);
  void cancel_streams();
  void report(std::string_view finish, int status, const api::ApiError* error = nullptr);

  Core& core_;
  Setup setup_;
  std::string name_;                     // in the core's table while the request runs
  std::optional<std::uint64_t> reader_;  // the core's name for who reads the body
  std::string body_name_;  // in the table from reading to the first poll that is not waiting
  std::int64_t received_us_;
  std::atomic<bool> prepared_{false};
  std::atomic<bool> aborted_{false};
  std::atomic<bool> abandoned_{false};
  Stage stage_ = Stage::preparing;

  // Written before prepared_ is set, the connection's from then on.
  api::GenerationRequest request_;
  std::optional<api::ApiError> refused_;

  /// Tokens of a prompt in a row whose log probabilities are asked for.
  struct ScoreChunk {
    std::shared_ptr<OutputStream> stream{};
    std::size_t prompt = 0;
    std::size_t position = 0;  // of the next
    std::size_t end = 0;
    bool leads = false;  // the prompt's other runs wait for its first token
  };
  ScoreChunk run_of(std::size_t prompt, std::size_t number) const;
  void read_prompt_logprobs(ScoreChunk& run);
  std::vector<ScoreChunk> active_chunks_;  // under way
  std::deque<ScoreChunk> pending_chunks_;  // that come next

  std::optional<api::Answer> answer_;
  bool stream_ = false;
  bool begun_ = false;
  /// What is known of an answer that breaks off.
  struct Progress {
    std::int64_t tokens = 0;  // that came
    std::int64_t first_us = 0;
    std::int64_t last_us = 0;
  };
  Progress progress_;
  std::vector<std::shared_ptr<OutputStream>> streams_;  // null: ended
  std::size_t streams_left_ = 0;
  OutputEvent event_;
  std::string body_;  // of an answer that is no stream
  Response response_;
  bool reported_ = false;
};

}  // namespace koho::server
