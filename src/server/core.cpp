// SPDX-License-Identifier: Apache-2.0
#include "server/core.h"

#include <algorithm>
#include <chrono>
#include <random>

#include <fmt/format.h>

#include "base/json_writer.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/text.h"
#include "grammar/grammar_compiler.h"
#include "server/generation_job.h"
#include "server/handlers.h"

namespace koho::server {
namespace {

constexpr std::size_t kPoolQueueMax = 8192;  // of which one client has half
/// There is one more, for those who used little: no grammar waits for two of another client.
constexpr std::int32_t kGrammarThreads = 1;
static_assert(GrammarLimits{}.threads == kGrammarThreads + 1);
constexpr std::size_t kPendingAbortsMax = 1024;  // of which one owner has half
/// No request's name is longer: an API's prefix, the client's id, a hyphen and eight digits.
constexpr std::size_t kNameBytesMax = 160;
constexpr std::size_t kUnknownNamesMax = 64;  // no more are logged

/// What is left of the memory for bodies beside those that are parsed, and at least one body of
/// each of two clients.
std::size_t bytes_of_bodies(const ServerSettings& settings) {
  constexpr std::size_t kParsedTimes = 3;  // what a tree and a prompt take beside the body
  const std::size_t body = settings.http.body_bytes;
  const std::size_t parsed =
      kParsedTimes * body * static_cast<std::size_t>(settings.text_threads + 1);
  return std::max(settings.bodies_bytes_max - std::min(parsed, settings.bodies_bytes_max),
                  4 * body);
}

}  // namespace

Core::Core(ServerSettings settings, const Clock& clock)
    : settings_(std::move(settings)),
      clock_(clock),
      started_us_(clock.now_us()),
      bodies_(bytes_of_bodies(settings_)),
      unread_answers_(bytes_of_bodies(settings_)),
      connections_(
          std::make_shared<ClientShares>(2 * static_cast<std::int64_t>(settings_.connections_max))),
      api_keys_(std::make_shared<const ApiKeys>(settings_.api_keys, ApiKeys())),
      waiting_for_("the model"),
      grammar_pool_(kGrammarThreads, kPoolQueueMax, clock),
      pool_(settings_.text_threads, kPoolQueueMax, clock) {
  for (const Route& route : routes()) responses_.try_emplace(std::string(route.path));
  responses_.try_emplace("refused");
}

Core::~Core() = default;

std::shared_ptr<const ApiKeys> Core::api_keys() const {
  const std::lock_guard lock(mutex_);
  return api_keys_;
}

void Core::set_api_keys(std::vector<ApiKeySettings> keys) {
  auto made = std::make_shared<const ApiKeys>(std::move(keys), *api_keys());
  const std::lock_guard lock(mutex_);
  api_keys_.swap(made);
}

void Core::set_loading(std::string what, const LoadProgress* progress) {
  const std::lock_guard lock(mutex_);
  waiting_for_ = std::move(what);
  progress_ = progress;
}

void Core::set_serving(const ServedModel& serving) {
  // RuntimeOptions::clients_share says why.
  engine_requests_->set_most(serving.model.limits.requests_max / 3 * 2);
  engine_sequences_->set_most(serving.model.limits.scheduler.live_max / 3 * 2);
  serving_.store(&serving, std::memory_order_release);
  Phase loading = Phase::loading;
  phase_.compare_exchange_strong(loading, Phase::ready, std::memory_order_acq_rel);
}

void Core::set_draining() {
  phase_.store(Phase::draining, std::memory_order_release);
}

void Core::set_failed(std::string why) {
  {
    const std::lock_guard lock(mutex_);
    waiting_for_ = std::move(why);
  }
  phase_.store(Phase::failed, std::memory_order_release);
}

std::string Core::readiness_json() const {
  const Phase now = phase();
  const ServedModel* serving = this->serving();
  if (now == Phase::ready && serving != nullptr) {
    const Statistics statistics = serving->engine.statistics();
    if (statistics.broken)
      return R"({"status":"failed","waiting_for":"a restart: the engine has failed"})";
    if (!statistics.device_up)
      return fmt::format(R"({{"status":"recovering","waiting_for":"the device","restarts":{}}})",
                         statistics.recoveries);
    return fmt::format(R"({{"status":"ready","restarts":{}}})", statistics.recoveries);
  }
  std::string out;
  if (now == Phase::draining) return R"({"status":"draining","waiting_for":"running requests"})";
  out = now == Phase::failed ? R"({"status":"failed","waiting_for":)"
                             : R"({"status":"loading","waiting_for":)";
  const std::lock_guard lock(mutex_);
  append_json_string(out, waiting_for_);
  const LoadProgress::Now load = progress_ == nullptr ? LoadProgress::Now() : progress_->now();
  if (now == Phase::loading && load.bytes_total > 0) {
    out += fmt::format(R"(,"progress":{:.3f},"bytes_done":{},"bytes_total":{},"gb_per_s":{:.3f})",
                       load.fraction(), load.bytes_done, load.bytes_total, load.gb_per_s);
    if (load.left_s >= 0.0) out += fmt::format(R"(,"seconds_left":{:.1f})", load.left_s);
  }
  return out + '}';
}

void Core::count_response(std::string_view route, int status) {
  const auto kind = static_cast<std::size_t>(std::clamp(status / 100 - 2, 0, 3));
  const std::lock_guard lock(mutex_);
  ++responses_[std::string(route)][kind];
}

std::map<std::string, std::array<std::uint64_t, 4>> Core::responses() const {
  const std::lock_guard lock(mutex_);
  return responses_;
}

void Core::note_unknown_fields(const std::vector<std::string>& names) {
  if (names.empty()) return;
  counters_.unknown_fields += names.size();
  const std::lock_guard lock(mutex_);
  for (const std::string& name : names) {
    if (unknown_seen_.size() >= kUnknownNamesMax ||
        std::ranges::find(unknown_seen_, name) != unknown_seen_.end())
      continue;
    unknown_seen_.push_back(name);
    log::info("ignored the unknown request field \"{}\"", printable(name, 100));
  }
}

std::string Core::add_job(const std::string& id, const std::shared_ptr<GenerationJob>& job) {
  OwnedJob name{.id = id, .owner = job->owner()};
  const std::lock_guard lock(mutex_);
  while (!jobs_.try_emplace(name, job).second) name.id = id + '-' + make_id().substr(0, 8);
  return name.id;
}

void Core::remove_job(const OwnedJob& job) {
  const std::lock_guard lock(mutex_);
  jobs_.erase(job);
}

Core::Abort Core::abort_job(const OwnedJob& wanted) {
  if (wanted.id.size() > kNameBytesMax) return Abort::unknown;
  const OwnedJob bare{.id = std::string(api::without_id_prefix(wanted.id)), .owner = wanted.owner};
  std::shared_ptr<GenerationJob> job;
  {
    const std::lock_guard lock(mutex_);
    auto found = jobs_.find(wanted);
    if (found == jobs_.end()) found = jobs_.find(bare);
    if (found == jobs_.end()) {
      if (readers_.empty() || !has_room_for_abort(wanted.owner)) return Abort::unknown;
      pending_aborts_.push_back({wanted, reader_next_});
      if (bare != wanted) pending_aborts_.push_back({bare, reader_next_});
      return Abort::pending;
    }
    job = found->second.lock();
  }
  if (!job) return Abort::unknown;
  job->abort_with_error();
  return Abort::done;
}

/// As many as are left: so whoever comes later finds some, too.
bool Core::has_room_for_abort(std::string_view owner) const {
  const auto own = static_cast<std::size_t>(std::ranges::count_if(
      pending_aborts_, [owner](const PendingAbort& abort) { return abort.job.owner == owner; }));
  return own + pending_aborts_.size() < kPendingAbortsMax;
}

std::uint64_t Core::begin_reading() {
  const std::lock_guard lock(mutex_);
  readers_.insert(reader_next_);
  return reader_next_++;
}

bool Core::end_reading(std::uint64_t reader, const OwnedJob& job) {
  const std::lock_guard lock(mutex_);
  readers_.erase(reader);
  const bool meant =
      !job.id.empty() && std::ranges::any_of(pending_aborts_, [&](const PendingAbort& abort) {
        return abort.job == job && reader < abort.readers_end;
      });
  std::erase_if(pending_aborts_, [&](const PendingAbort& abort) {
    return readers_.empty() || *readers_.begin() >= abort.readers_end;
  });
  return meant;
}

std::vector<LiveRequest> Core::live_requests(const std::string& owner, std::size_t rows_max) const {
  std::vector<std::pair<std::string, std::shared_ptr<GenerationJob>>> jobs;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, job] : jobs_) {
      if (name.owner != owner) continue;
      if (std::shared_ptr<GenerationJob> live = job.lock())
        jobs.emplace_back(name.id, std::move(live));
    }
  }
  // A job that has two names for a moment is one row.
  const auto by_job = [](const auto& row) { return row.second.get(); };
  std::ranges::sort(jobs, {}, by_job);
  const auto same = std::unique(jobs.begin(), jobs.end(), [&](const auto& a, const auto& b) {
    return by_job(a) == by_job(b);
  });
  jobs.erase(same, jobs.end());
  std::vector<LiveRequest> rows;
  for (const auto& [id, job] : jobs) rows.push_back(job->live(id));
  std::ranges::sort(rows, {}, &LiveRequest::received_us);
  if (rows.size() > rows_max) rows.resize(rows_max);
  return rows;
}

void Core::take_sample() {
  const ServedModel* serving = this->serving();
  if (serving != nullptr && history_.is_due(clock_.now_us()))
    history_.add(serving->engine.statistics(), clock_.now_us(), unix_seconds());
}

void Core::abort_all_jobs() {
  std::vector<std::shared_ptr<GenerationJob>> jobs;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, job] : jobs_)
      if (std::shared_ptr<GenerationJob> live = job.lock()) jobs.push_back(std::move(live));
  }
  for (const std::shared_ptr<GenerationJob>& job : jobs) job->abort_with_error();
}

std::string Core::make_id() {
  thread_local std::mt19937_64 generator{[] {
    std::random_device device;
    return (std::uint64_t{device()} << 32U) | device();
  }()};
  return fmt::format("{:016x}{:016x}", generator(), generator());
}

std::string Core::make_dated_id(std::int64_t unix_s) {
  return fmt::format("{:016x}{}", unix_s, make_id().substr(16));
}

std::optional<std::int64_t> Core::time_of_id(std::string_view id) {
  if (id.size() < 32) return {};
  const std::string_view digits = id.substr(id.size() - 32, 16);
  // Random ones begin otherwise.
  if (!digits.starts_with("00000000")) return {};
  return parse_integer<std::int64_t>(digits, 16);
}

std::int64_t Core::unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace koho::server
