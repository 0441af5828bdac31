// SPDX-License-Identifier: Apache-2.0
// One request to the model, from its body to the last byte of its answer: parses and tokenises
// (large bodies on the pool), submits, and turns the engine's events into bytes when its connection
// polls. It knows no sockets: it wakes its connection, which then polls.
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
#include "server/key_use.h"
#include "server/request_log.h"

namespace koho::server {

class GenerationJob : public std::enable_shared_from_this<GenerationJob> {
 public:
  struct Setup {
    const api::GenerationEndpoint* endpoint = nullptr;
    const ServedModel* serving = nullptr;
    std::string id;          // random
    std::string request_id;  // X-Request-Id of the head; "": the body may have one
    /// Tells the connection that poll() has something to do. Called from any thread.
    std::function<void()> wake;
    std::shared_ptr<ApiKey> key{};  // null: none was needed
    std::uint64_t client = 0;       // who asks, where there is no key
    BodyShare share{};              // of the body
    /// Of a batch: the best priority that the request can have, and no stream.
    bool in_batch = false;
    std::int32_t priority = 0;
  };

  GenerationJob(Core& core, Setup setup);
  ~GenerationJob();
  GenerationJob(const GenerationJob&) = delete;
  GenerationJob& operator=(const GenerationJob&) = delete;

  /// Begins to read `body`. Call once.
  void start(std::string body);

  enum class State : std::uint8_t {
    waiting,    // nothing to send yet
    streaming,  // `out` holds events; more come
    streamed,   // `out` holds the last ones
    answered    // response() is the whole answer
  };
  // The connection calls the following, one call at a time.

  /// Appends new events, about `bytes_max` bytes at most; the engine pauses while more are waiting.
  State poll(std::string& out, std::size_t bytes_max);
  /// Requires: poll returned answered.
  Response& response() { return response_; }
  /// Requires: the same, with status 200.
  const api::AnswerTotals& totals() const { return answer_->totals(); }
  bool is_cut() const { return answer_->finish() == api::Finish::length; }
  /// What is left of the API key's limits, as header fields.
  std::vector<std::pair<std::string_view, std::string>> limit_fields();
  /// Appends a keep-alive comment or event; nothing unless a stream is running.
  void ping(std::string& out);
  /// What the request took from its key's limits, and keeps, is given back.
  void forgive();
  /// The client has left: cancels the request.
  void on_disconnect();

  /// Ends the request with an error to its client. Threads: any.
  void abort_with_error();

  /// Who shares the server's work, as client_of(key) or the address. Threads: any.
  std::uint64_t client() const { return setup_.key ? setup_.key->client() : setup_.client; }
  /// Whose it is. Threads: any.
  std::string owner() const { return owner_of(setup_.key.get()); }

  /// The request as a row of the dashboard, under one of its names. Threads: any.
  LiveRequest live(std::string id) const;

  /// The request's name for the client, the log, /abort_request and /debug/cache: the client's own,
  /// or the id. It may change until the first poll() that does not return waiting.
  const std::string& name() const { return name_; }

 private:
  /// One page's tokens: the prefix of each chunk is whole pages and one token.
  static constexpr std::size_t kScoreChunkTokens = 64;
  enum class Stage : std::uint8_t { preparing, prepared, scoring, running, over };

  void prepare(std::string& body);
  void end_preparing();
  bool is_cancelled() const { return abandoned_.load() || aborted_.load(); }
  bool find_grammar();
  std::optional<api::ApiError> compile_grammar();
  void end_reading(const std::string& name);
  std::optional<api::ApiError> read(std::string& body);
  /// Charges prompts and answers to the key, or refuses.
  void take_tokens();
  void begin_prompt_logprobs();
  void compute_prompt_logprobs();
  void make_answer();
  void submit();
  /// The engine's stream of a request, and the places that it takes there.
  struct Submitted {
    std::shared_ptr<OutputStream> stream{};  // null: ended
    ClientShare request{};
    ClientShare sequences{};
  };
  /// False: the client has as many as it may.
  bool take_places(Submitted& made, std::int32_t sequences);
  /// Takes the places of all requests, or refuses before anything is made for each of them.
  void take_all_places();
  /// With what is left of its deadline. Requires: `made` has the places.
  Status submit_one(Request request, Submitted& made);
  void take_events(std::string& out, std::size_t bytes_max);
  void finish(const api::ApiError& error, std::string& out);
  std::optional<api::ApiError> hold_answer();
  void begin(std::string& out);
  void cancel_streams();
  /// `use`: whose tokens it counts, of which `read` were read; or nullptr.
  void cancel(Submitted submitted, std::shared_ptr<KeyUse> use, std::int64_t read);
  /// Counts what the engine generated for a stream that ended and `read` tokens of which were read.
  static void count_unread(KeyUse& use,
                           const Summary& summary,
                           std::int64_t read,
                           std::int64_t now_us);
  void report(std::string_view finish, int status, const api::ApiError* error = nullptr);
  EndedRequest summarise(std::string_view finish, int status, const api::ApiError* error) const;

  Core& core_;
  LiveCount live_;  // ends last: whoever counts it no more finds what the members below had
  Setup setup_;
  std::string name_;                     // in the core's table while the request runs
  std::optional<std::uint64_t> reader_;  // the core's number for the reading of the body
  std::string body_name_;  // in the table from reading to the first poll that is not waiting
  std::int64_t received_us_;
  std::atomic<bool> prepared_{false};
  std::atomic<bool> aborted_{false};
  std::atomic<bool> abandoned_{false};
  Stage stage_ = Stage::preparing;

  // prepare() writes these until prepared_ is set; then they belong to the connection.
  api::GenerationRequest request_;
  std::optional<api::ApiError> refused_;

  /// Consecutive prompt tokens whose log probabilities one forced generation computes.
  struct ScoreChunk {
    Submitted submitted{};
    std::size_t prompt = 0;
    std::size_t position = 0;  // of the next token
    std::size_t end = 0;
    bool leads = false;     // the prompt's other chunks wait for its first token
    bool in_place = false;  // it has the places of the prompt's request
  };
  ScoreChunk chunk_of(std::size_t prompt, std::size_t number) const;
  void read_prompt_logprobs(ScoreChunk& chunk);
  std::vector<ScoreChunk> active_chunks_;
  std::deque<ScoreChunk> pending_chunks_;
  std::optional<LiveCount> scoring_;  // until the last part is submitted
  /// Of each scored prompt, the tokens that the cache had before the prompt's own chunks filled it.
  std::vector<std::int64_t> cached_tokens_;

  std::optional<api::Answer> answer_;
  bool stream_ = false;
  bool begun_ = false;
  bool told_ = false;  // of a stream, the status line is already sent
  /// What the log reports of an answer that ended early, and the dashboard of one under way.
  struct Progress {
    std::atomic<std::int64_t> tokens{0};  // received so far
    std::atomic<std::int64_t> first_us{0};
    std::atomic<std::int64_t> last_us{0};
  };
  Progress progress_;
  std::vector<Submitted> streams_;         // one for each request, from when it has its places
  std::vector<std::int64_t> tokens_read_;  // of each
  std::size_t streams_left_ = 0;
  OutputEvent event_;
  std::string body_;              // of an answer without streaming
  std::size_t answer_bytes_ = 0;  // of it, about, as far as it is made
  BodyShare held_answer_;
  Response response_;
  bool reported_ = false;
  std::shared_ptr<KeyUse> use_;   // of the key; null: none was needed
  bool key_is_at_limit_ = false;  // why the request is refused
};

}  // namespace koho::server
