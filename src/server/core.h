// SPDX-License-Identifier: Apache-2.0
// State that all connections share: settings, the model once it is loaded, the server's phase,
// counters, running jobs. No sockets.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "api/endpoints.h"
#include "api/model.h"
#include "base/clock.h"
#include "base/load_progress.h"
#include "engine/engine.h"
#include "server/api_keys.h"
#include "server/body_budget.h"
#include "server/client_shares.h"
#include "server/history.h"
#include "server/request_log.h"
#include "server/settings.h"
#include "server/work_pool.h"

namespace koho::server {

class BatchService;
class GenerationJob;

/// The loaded model. Outlives every connection.
struct ServedModel {
  Engine& engine;
  api::Model model;
  using Grammar = std::shared_ptr<const CompiledGrammar>;
  /// For Request::grammar; empty: constraints are not supported. A thread of grammar_pool() calls
  /// it.
  std::function<Result<Grammar>(const Constraint& constraint)> compile_grammar{};
  /// What was compiled before, or null; it does not wait. Empty: always null.
  std::function<Grammar(const Constraint& constraint)> find_grammar{};
  std::string server_info{};  // for /server_info: members of a JSON object, or ""
};

enum class Phase : std::uint8_t { loading, ready, draining, failed };

/// Counters of the server itself; the engine has its own. Names as on the metrics page.
struct Counters {
  std::atomic<std::uint64_t> connections_accepted{0};
  std::atomic<std::uint64_t> connections_refused{0};
  std::atomic<std::int64_t> connections_live{0};
  std::atomic<std::int64_t> requests_live{0};
  std::atomic<std::int64_t> requests_scoring{0};
  std::atomic<std::int64_t> answers_owed{0};    // to requests that came before a drain
  std::atomic<std::uint64_t> disconnects{0};    // before the answer was complete
  std::atomic<std::uint64_t> write_stalls{0};   // clients that did not read for too long
  std::atomic<std::uint64_t> head_timeouts{0};  // 408
  std::atomic<std::uint64_t> pings{0};
  std::atomic<std::uint64_t> unknown_fields{0};
  std::atomic<std::uint64_t> bytes_sent{0};
  std::atomic<std::uint64_t> rejected_full{0};
  std::atomic<std::uint64_t> rejected_not_ready{0};
  std::atomic<std::uint64_t> deadlines_passed{0};
  std::atomic<std::uint64_t> tool_calls_unknown{0};
  std::atomic<std::uint64_t> tool_calls_malformed{0};
  std::atomic<std::uint64_t> tool_calls_mended{0};
  std::atomic<std::uint64_t> reasoning_unclosed{0};
};

/// Is counted while it lives.
class LiveCount {
 public:
  explicit LiveCount(std::atomic<std::int64_t>& count) : count_(count) { ++count_; }
  ~LiveCount() { --count_; }
  LiveCount(const LiveCount&) = delete;
  LiveCount& operator=(const LiveCount&) = delete;

 private:
  std::atomic<std::int64_t>& count_;
};

class Core {
 public:
  Core(ServerSettings settings, const Clock& clock);
  ~Core();

  const ServerSettings& settings() const { return settings_; }
  const Clock& clock() const { return clock_; }
  Counters& counters() { return counters_; }
  const Counters& counters() const { return counters_; }
  WorkPool& pool() { return pool_; }
  /// Compiles grammars, one of each client at a time.
  WorkPool& grammar_pool() { return grammar_pool_; }
  BodyBudget& bodies() { return bodies_; }
  /// Bytes of answers that their clients do not read.
  BodyBudget& unread_answers() { return unread_answers_; }
  /// Open connections, by address.
  const std::shared_ptr<ClientShares>& connections() { return connections_; }
  /// The engine's requests and sequences. Requires: the model is served.
  const std::shared_ptr<ClientShares>& engine_requests() { return engine_requests_; }
  const std::shared_ptr<ClientShares>& engine_sequences() { return engine_sequences_; }

  /// The API keys, one of which every request must have; empty: no key is needed. Never null.
  /// Threads: any.
  std::shared_ptr<const ApiKeys> api_keys() const;
  /// Keys that stay keep what they counted.
  void set_api_keys(std::vector<ApiKeySettings> keys);

  // ---- phase of the server; threads: any
  Phase phase() const { return phase_.load(std::memory_order_acquire); }
  /// What /readyz shows as `waiting_for`, and the progress of loading the weights (null: unknown),
  /// which must outlive the loading.
  void set_loading(std::string what, const LoadProgress* progress = nullptr);
  /// Starts serving the model. `serving` outlives the core.
  void set_serving(const ServedModel& serving);
  void set_draining();
  void set_failed(std::string why);
  /// Null while loading.
  const ServedModel* serving() const { return serving_.load(std::memory_order_acquire); }
  /// {"status": …, "waiting_for": …}; while weights are loaded also "progress" (0..1),
  /// "bytes_done", "bytes_total", "gb_per_s" and, after the first bytes, "seconds_left".
  std::string readiness_json() const;
  std::int64_t uptime_us() const { return clock_.now_us() - started_us_; }

  /// Files and batches; null: the server has none.
  BatchService* batches() const { return batches_.load(std::memory_order_acquire); }
  /// `service` ends before the core.
  void set_batches(BatchService* service) { batches_.store(service, std::memory_order_release); }

  // ---- counters with labels; threads: any
  void count_response(std::string_view route, int status);
  /// route -> numbers of 2xx, 3xx, 4xx and 5xx answers.
  std::map<std::string, std::array<std::uint64_t, 4>> responses() const;
  void note_unknown_fields(const std::vector<std::string>& names);

  // ---- what the dashboard shows; threads: any
  /// The running requests of this owner, oldest first, `rows_max` at most.
  std::vector<LiveRequest> live_requests(const std::string& owner, std::size_t rows_max) const;
  RequestLog& request_log() { return request_log_; }
  const RequestLog& request_log() const { return request_log_; }
  /// Takes a sample of the statistics if one is due. Called at every tick.
  void take_sample();
  const History& history() const { return history_; }

  // ---- running jobs, for aborting by id; threads: any
  /// A job as its owner calls it.
  struct OwnedJob {
    std::string id{};
    std::string owner{};
    auto operator<=>(const OwnedJob&) const = default;
  };
  /// Returns the job's name: `id`, or if a running job of its owner has that name, `id`, a hyphen
  /// and eight random digits.
  std::string add_job(const std::string& id, const std::shared_ptr<GenerationJob>& job);
  void remove_job(const OwnedJob& job);
  /// Aborts the owner's job with that name, with or without an API's prefix ("chatcmpl-"). unknown:
  /// there is none. pending: there is none yet, but bodies are still being read; a job of the owner
  /// whose body has the name is aborted then.
  enum class Abort : std::uint8_t { unknown, pending, done };
  Abort abort_job(const OwnedJob& wanted);
  void abort_all_jobs();
  /// Announces a job whose body is not read yet; returns its number for end_reading().
  std::uint64_t begin_reading();
  /// The body of job `reader` is read and has this name, or "". True: its owner asked abort_job()
  /// for it.
  bool end_reading(std::uint64_t reader, const OwnedJob& job);

  /// 32 random hexadecimal digits.
  std::string make_id();
  /// The same, of which the first 16 are a time: what is listed by age keeps its place in the list
  /// when it is deleted.
  std::string make_dated_id(std::int64_t unix_s);
  /// That time; nothing: the id has none.
  static std::optional<std::int64_t> time_of_id(std::string_view id);
  static std::int64_t unix_seconds();

 private:
  ServerSettings settings_;
  const Clock& clock_;
  std::int64_t started_us_;
  Counters counters_;
  BodyBudget bodies_;
  BodyBudget unread_answers_;
  const std::shared_ptr<ClientShares> connections_;
  const std::shared_ptr<ClientShares> engine_requests_ = std::make_shared<ClientShares>();
  const std::shared_ptr<ClientShares> engine_sequences_ = std::make_shared<ClientShares>();
  RequestLog request_log_;
  History history_;
  std::atomic<Phase> phase_{Phase::loading};
  std::atomic<const ServedModel*> serving_{nullptr};
  std::atomic<BatchService*> batches_{nullptr};
  mutable std::mutex mutex_;
  std::shared_ptr<const ApiKeys> api_keys_;
  std::string waiting_for_;
  const LoadProgress* progress_ = nullptr;
  std::map<std::string, std::array<std::uint64_t, 4>> responses_;
  std::map<OwnedJob, std::weak_ptr<GenerationJob>> jobs_;
  std::set<std::uint64_t> readers_;  // in the order they came
  std::uint64_t reader_next_ = 0;
  struct PendingAbort {
    OwnedJob job;
    std::uint64_t readers_end;  // applies to readers before this one
  };
  bool has_room_for_abort(std::string_view owner) const;
  std::vector<PendingAbort> pending_aborts_;  // empty while no body is being read
  std::vector<std::string> unknown_seen_;     // names that were logged
  WorkPool grammar_pool_;
  WorkPool pool_;  // the pools are last: their threads end first, and this one's use the other
};

}  // namespace koho::server
