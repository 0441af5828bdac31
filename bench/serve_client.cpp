// SPDX-License-Identifier: Apache-2.0
#include "bench/serve_client.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <netdb.h>
#include <optional>
#include <sys/socket.h>
#include <utility>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/text.h"
#include "bench/http_answer.h"
#include "bench/load_generator.h"

namespace koho::bench {
namespace {

constexpr double kUsPerS = 1e6;

Result<sockaddr_storage> address_of(const ServerUrl& server) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed =
      getaddrinfo(server.host.c_str(), std::to_string(server.port).c_str(), &hints, &found);
  if (failed != 0 || found == nullptr)
    return make_error(ErrorCode::io_error, "{}: {}", server.host, gai_strerror(failed));
  // Of localhost's two addresses the one that servers listen on.
  const addrinfo* chosen = found;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next)
    if (one->ai_family == AF_INET && chosen->ai_family != AF_INET) chosen = one;
  sockaddr_storage address{};
  std::memcpy(&address, chosen->ai_addr, chosen->ai_addrlen);
  freeaddrinfo(found);
  return address;
}

/// A request's bytes.
std::string http_request(const ServerUrl& server,
                         std::string_view method,
                         const std::string& path,
                         const std::map<std::string, std::string>& fields,
                         const std::string& body) {
  std::string out = fmt::format("{} {}{} HTTP/1.1\r\nHost: {}:{}\r\nAccept: */*\r\n", method,
                                server.path, path, server.host, server.port);
  for (const auto& [name, value] : fields) out += fmt::format("{}: {}\r\n", name, value);
  if (method == "POST")
    out += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", body.size());
  return out + "\r\n" + body;
}

std::string no_connection(const ServerUrl& server) {
  return fmt::format("no server answers at http://{}:{}", server.host, server.port);
}

class Connection;

/// Gives requests to connections as they are due and there is room.
class Run {
 public:
  Run(const ClientSettings& settings,
      const std::vector<PlannedRequest>& planned,
      const sockaddr_storage& address)
      : settings_(settings), planned_(planned), generator_(address) {
    result_.requests.resize(planned.size());
    answers_.resize(planned.size());
    next_turn_.assign(planned.size(), -1);
    due_us_.assign(planned.size(), 0);
    for (std::size_t i = 0; i < planned.size(); ++i)
      if (planned[i].follows >= 0)
        next_turn_[static_cast<std::size_t>(planned[i].follows)] = static_cast<std::int64_t>(i);
      else
        arrivals_.push_back(i);
    std::ranges::stable_sort(
        arrivals_, [&](std::size_t a, std::size_t b) { return planned[a].at_s < planned[b].at_s; });
  }

  ServedRun go(const std::function<void(std::int64_t)>& told) {
    begin_us_ = clock_.now_us();
    const bool ended = generator_.run(
        [&] {
          take_arrivals();
          start_waiting();
          told(over_);
          return over_ == static_cast<std::int64_t>(planned_.size());
        },
        begin_us_ + settings_.timeout_s * 1'000'000);
    if (!ended)
      for (ServedRequest& one : result_.requests)
        if (!one.success && one.error.empty()) one.error = "the run took too long";
    result_.duration_s = static_cast<double>(std::max(end_us_, begin_us_) - begin_us_) / kUsPerS;
    ending_ = true;
    generator_.leave_all();
    return std::move(result_);
  }

  // ---- for connections
  const ClientSettings& settings() const { return settings_; }
  ServedRequest& result(std::size_t index) { return result_.requests[index]; }
  std::string body(std::size_t index) const { return planned_[index].body(answers_[index]); }
  double since_begin_s(std::int64_t us) const {
    return static_cast<double>(us - begin_us_) / kUsPerS;
  }
  /// The request is over; what comes next on this connection, or nothing.
  std::optional<std::size_t> finish(std::size_t index) {
    ++over_;
    end_us_ = clock_.now_us();
    --running_;
    ServedRequest& done = result_.requests[index];
    std::int64_t next = next_turn_[index];
    if (next >= 0 && done.success) {
      std::vector<std::string>& answers = answers_[static_cast<std::size_t>(next)];
      answers = std::move(answers_[index]);
      answers.push_back(done.text);
      due_us_[static_cast<std::size_t>(next)] = end_us_;
      waiting_.push_back(static_cast<std::size_t>(next));
    } else {
      // A session ends with its first failure.
      for (; next >= 0; next = next_turn_[static_cast<std::size_t>(next)]) {
        result_.requests[static_cast<std::size_t>(next)].error = "an earlier turn failed";
        ++over_;
      }
    }
    take_arrivals();
    return next_waiting();
  }
  std::optional<std::size_t> next_waiting() {
    if (ending_ || waiting_.empty()) return std::nullopt;
    if (settings_.concurrency > 0 && running_ >= settings_.concurrency) return std::nullopt;
    const std::size_t index = waiting_.front();
    waiting_.pop_front();
    ++running_;
    result_.requests[index].prompt_tokens = planned_[index].prompt_tokens;
    result_.requests[index].queue_s =
        static_cast<double>(std::max<std::int64_t>(clock_.now_us() - due_us_[index], 0)) / kUsPerS;
    return index;
  }
  /// The same request again: its kept connection had ended.
  void again(std::size_t index) {
    --running_;
    waiting_.push_front(index);
  }
  void add_idle(Connection* connection) { idle_.push_back(connection); }
  void remove_idle(Connection* connection) { std::erase(idle_, connection); }

 private:
  void take_arrivals() {
    const std::int64_t now_us = clock_.now_us();
    while (arrived_ < arrivals_.size()) {
      const std::size_t index = arrivals_[arrived_];
      const std::int64_t due_us =
          begin_us_ + static_cast<std::int64_t>(planned_[index].at_s * kUsPerS);
      if (due_us > now_us) return;
      ++arrived_;
      due_us_[index] = due_us;
      waiting_.push_back(index);
    }
  }
  void start_waiting();

  const ClientSettings& settings_;
  const std::vector<PlannedRequest>& planned_;
  SteadyClock clock_;
  LoadGenerator generator_;
  ServedRun result_;
  std::vector<std::vector<std::string>> answers_;  // of the session, before each request
  std::vector<std::int64_t> next_turn_;            // -1: the last
  std::vector<std::int64_t> due_us_;
  std::vector<std::size_t> arrivals_;  // by time
  std::size_t arrived_ = 0;
  std::deque<std::size_t> waiting_;
  std::vector<Connection*> idle_;
  std::int64_t running_ = 0;
  std::int64_t over_ = 0;
  std::int64_t begin_us_ = 0;
  std::int64_t end_us_ = 0;
  bool ending_ = false;
};

class Connection final : public LoadClient {
 public:
  Connection(Run& run, std::size_t first) : run_(run), request_(first) { begin(first); }

  void on_open() override {
    open_ = true;
    send_request();
  }
  /// Of an idle connection.
  void start(std::size_t index) {
    reused_ = true;
    begin(index);
    send_request();
  }
  void on_bytes(std::string_view bytes) override {
    if (!busy_) return;
    got_bytes_ = true;
    reader_.feed(bytes, [this](std::string_view part) { take(part); });
    if (reader_.done()) finish();
  }
  void on_end(End /*end*/) override {
    if (!busy_) {
      run_.remove_idle(this);
      return;
    }
    if (reused_ && !got_bytes_) {
      run_.again(request_);
      return;
    }
    ServedRequest& result = run_.result(request_);
    if (!open_) {
      result.error = no_connection(run_.settings().server);
    } else if (!reader_.ends_here()) {
      result.error = "the connection ended before the answer";
    }
    gone_ = true;
    finish();
  }

 private:
  /// From here the request's times count, as vLLM's do: its body's making is in them, and its
  /// connection's where none was kept.
  void begin(std::size_t index) {
    request_ = index;
    busy_ = true;
    reader_ = {};
    got_bytes_ = false;
    error_body_.clear();
    const std::int64_t now_us = clock_.now_us();
    ServedRequest& result = run_.result(request_);
    result.start_s = run_.since_begin_s(now_us);
    notes_.begin(result, now_us);
  }
  void send_request() {
    const ClientSettings& settings = run_.settings();
    send(
        http_request(settings.server, "POST", settings.path, settings.fields, run_.body(request_)));
  }
  void take(std::string_view part) {
    if (reader_.status() == 200) {
      notes_.feed(part, clock_.now_us());
    } else {
      error_body_ += part.substr(0, 1000 - std::min<std::size_t>(error_body_.size(), 1000));
    }
  }
  void finish() {
    ServedRequest& result = run_.result(request_);
    if (reader_.status() != 200 && reader_.status() != 0)
      result.error = fmt::format("HTTP {}: {}", reader_.status(), error_body_);
    if (open_) notes_.finish();
    const bool keeps = !gone_ && reader_.keeps_alive();
    const std::optional<std::size_t> next = run_.finish(request_);
    busy_ = false;
    if (!keeps) {
      // Someone else takes the request that would have come next here.
      if (next) run_.again(*next);
      if (!gone_) leave(false);
    } else if (next) {
      start(*next);
    } else {
      run_.add_idle(this);
    }
  }

  Run& run_;
  SteadyClock clock_;
  std::size_t request_;
  bool busy_ = true;
  bool open_ = false;
  bool gone_ = false;
  bool reused_ = false;
  bool got_bytes_ = false;
  AnswerReader reader_;
  StreamNotes notes_;
  std::string error_body_;
};

void Run::start_waiting() {
  while (const std::optional<std::size_t> index = next_waiting()) {
    if (!idle_.empty()) {
      Connection* connection = idle_.back();
      idle_.pop_back();
      connection->start(*index);
    } else if (!generator_.join(std::make_unique<Connection>(*this, *index))) {
      result_.requests[*index].error = no_connection(settings_.server);
      static_cast<void>(finish(*index));
    }
  }
}

}  // namespace

Result<ServerUrl> parse_server_url(const std::string& text) {
  std::string_view rest = text;
  if (rest.starts_with("https://"))
    return make_error(ErrorCode::unsupported,
                      "{}: this client speaks http only; a local proxy can add TLS", text);
  constexpr std::string_view kHttp = "http://";
  if (rest.starts_with(kHttp)) rest.remove_prefix(kHttp.size());
  ServerUrl url;
  const std::size_t slash = std::min(rest.find('/'), rest.size());
  url.path = rest.substr(slash);
  for (const std::string_view end : {"/", "/v1", "/"})
    if (url.path.ends_with(end)) url.path.resize(url.path.size() - end.size());
  rest = rest.substr(0, slash);
  const std::size_t colon = rest.rfind(':');
  const bool has_port = colon != std::string_view::npos && !rest.substr(colon).ends_with(']');
  if (has_port) {
    const auto port = parse_integer<std::uint32_t>(rest.substr(colon + 1));
    if (!port || *port == 0 || *port > std::numeric_limits<std::uint16_t>::max())
      return make_error(ErrorCode::invalid_argument, "{}: the port is not within 1..65535", text);
    url.port = static_cast<std::uint16_t>(*port);
    rest = rest.substr(0, colon);
  }
  if (rest.starts_with('[') && rest.ends_with(']')) rest = rest.substr(1, rest.size() - 2);
  if (rest.empty() || rest.find_first_of(" @?#") != std::string_view::npos)
    return make_error(ErrorCode::invalid_argument,
                      "\"{}\" is not a server's URL: expected http://HOST:PORT", text);
  url.host = rest;
  return url;
}

Result<HttpAnswer> get(const ServerUrl& server,
                       const std::string& path,
                       const std::map<std::string, std::string>& fields) {
  struct Getter final : LoadClient {
    Getter(std::string request, HttpAnswer& answer)
        : request_(std::move(request)), answer_(answer) {}
    void on_open() override { send(request_); }
    void on_bytes(std::string_view bytes) override {
      reader_.feed(bytes, [this](std::string_view part) { answer_.body += part; });
      answer_.status = reader_.status();
      if (reader_.done()) leave(false);
    }
    void on_end(End /*end*/) override {}
    std::string request_;
    HttpAnswer& answer_;
    AnswerReader reader_;
  };
  KOHO_TRY_ASSIGN(const sockaddr_storage address, address_of(server));
  LoadGenerator generator(address);
  HttpAnswer answer;
  constexpr std::int64_t kPatienceUs = 10'000'000;
  if (!generator.join(
          std::make_unique<Getter>(http_request(server, "GET", path, fields, {}), answer)) ||
      !generator.run_out(SteadyClock().now_us() + kPatienceUs) || answer.status == 0)
    return make_error(ErrorCode::io_error,
                      "no server answers at http://{}:{}{}{}: start one (koho serve DIR), or give "
                      "its URL",
                      server.host, server.port, server.path, path);
  return answer;
}

Result<ServedRun> run_requests(const ClientSettings& settings,
                               const std::vector<PlannedRequest>& requests,
                               const std::function<void(std::int64_t over)>& told) {
  KOHO_TRY_ASSIGN(const sockaddr_storage address, address_of(settings.server));
  Run run(settings, requests, address);
  return run.go(told);
}

}  // namespace koho::bench
