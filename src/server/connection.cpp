// SPDX-License-Identifier: Apache-2.0
// A connection from accept to close: socket options, routes and jobs, time limits. Reading is in
// connection_read.cpp, writing in connection_write.cpp.
#include "server/connection.h"

#include <utility>

#include <boost/asio/socket_base.hpp>
#include <netinet/tcp.h>

#include "server/client_address.h"

namespace koho::server {

namespace asio = boost::asio;

namespace {

constexpr std::int64_t kUsPerMs = 1000;

template <typename Value>
void set_option(asio::ip::tcp::socket& socket, int level, int name, Value value) {
  // If the kernel lacks an option, the connection works without it.
  static_cast<void>(setsockopt(socket.native_handle(), level, name, &value, sizeof value));
}

api::ApiError unread_answers() {
  api::ApiError error{.status = 429, .code = "rate_limit_exceeded", .retry_after_s = 1};
  error.message =
      "the answers that this client does not read have filled the memory for them; read them";
  return error;
}

/// A peer that vanished is found within 45 s: after 15 s either the server's own data stays
/// unacknowledged for 25 s (TCP_USER_TIMEOUT) or three keep-alive probes do.
void tune(asio::ip::tcp::socket& socket, std::int32_t send_bytes) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 15);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, 25'000U);
  set_option(socket, SOL_SOCKET, SO_SNDBUF, send_bytes);
}

}  // namespace

std::uint64_t client_of(const asio::ip::tcp::socket& socket) {
  boost::system::error_code error;
  const asio::ip::address address = socket.remote_endpoint(error).address();
  if (error) return 0;
  return address.is_v4() ? client_of_address(address.to_v4().to_bytes())
                         : client_of_address(address.to_v6().to_bytes());
}

Connection::Connection(IoThread& thread,
                       asio::ip::tcp::socket socket,
                       std::unique_ptr<TlsSession> tls,
                       ClientShare place)
    : core_(thread.core()),
      live_(core_.counters().connections_live),
      thread_(thread),
      socket_(std::move(socket)),
      tls_(std::move(tls)),
      reader_(core_.settings().http),
      address_(client_of(socket_)),
      turns_of_(address_),
      place_(std::move(place)),
      stage_since_us_(core_.clock().now_us()) {}

void Connection::start() {
  Error error;
  socket_.non_blocking(true, error);
  tune(socket_, core_.settings().socket_send_bytes);
  thread_.add(shared_from_this());
  wait_to_read();
}

void Connection::close() {
  if (closed_) return;
  closed_ = true;
  if (job_) {
    job_->on_disconnect();
    job_.reset();
  }
  owed_.reset();
  Error error;
  socket_.close(error);
  thread_.remove(shared_from_this());
}

/// Closes the connection because the client left (`by_client`) or because it is too slow.
void Connection::lose(bool by_client) {
  if (closed_) return;
  if (by_client && stage_ == Stage::answering && !feeding_) ++core_.counters().disconnects;
  // Drop what the client did not read; otherwise the kernel would keep it and retry.
  if (!by_client) set_option(socket_, SOL_SOCKET, SO_LINGER, linger{.l_onoff = 1, .l_linger = 0});
  close();
}

void Connection::dispatch() {
  const ServedModel* serving = core_.serving();
  auto found = key_for(core_, route_, reader_.head());
  if (Response* refused = std::get_if<Response>(&found)) {
    core_.count_response("refused", refused->status);
    send(std::move(*refused));
    return;
  }
  key_ = std::get<std::shared_ptr<ApiKey>>(std::move(found));
  if (unread_share_.bytes() == 0) unread_share_ = BodyShare(core_.unread_answers(), client());
  if (!route_->open && core_.unread_answers().is_used_up(client())) {
    refuse(unread_answers());
    return;
  }
  if (!owed_ && route_->feed == nullptr && core_.phase() != Phase::draining)
    owed_.emplace(core_.counters().answers_owed);
  if (route_->generation != nullptr) {
    run_job(*route_->generation, *serving);
    return;
  }
  if (route_->feed != nullptr) {
    begin_feed();
    return;
  }
  if (route_->waits_for_disk || reader_.body_bytes() > core_.settings().inline_body_bytes) {
    answer_on_pool();
    return;
  }
  Response response = answer_route(core_, *route_, reader_.head(), reader_.take_body(), key_.get());
  // Whoever reads nothing still gets what is small: the health.
  constexpr std::size_t kSmallBytes = 4U << 10U;
  if (response.body.size() > kSmallBytes && core_.unread_answers().is_used_up(client())) {
    refuse(unread_answers());
    return;
  }
  core_.count_response(route_->path, response.status);
  send(std::move(response));
}

void Connection::refuse(const api::ApiError& error, bool closes) {
  Response response = error_response(api::error_style(reader_.head().path), error);
  response.close = closes;
  core_.count_response("refused", response.status);
  send(std::move(response));
}

std::uint64_t Connection::client() const {
  return key_ ? key_->client() : address_;
}

std::function<void()> Connection::waker() {
  return [weak = weak_from_this(), weak_thread = thread_.weak_from_this()] {
    const std::shared_ptr<IoThread> thread = weak_thread.lock();
    if (!thread) return;
    if (std::shared_ptr<Connection> connection = weak.lock()) thread->wake(std::move(connection));
  };
}

void Connection::begin_feed() {
  stage_ = Stage::answering;
  stream_begun_ = false;
  if (request_id_.empty()) request_id_ = core_.make_id();
  core_.count_response(route_->path, 200);
  if (head_only_) {
    begin_stream();
    finish_exchange();
    return;
  }
  feeding_ = true;
  feed(core_.clock().now_us());
}

void Connection::feed(std::int64_t now) {
  if (core_.phase() == Phase::draining) {
    feeding_ = false;
    keep_alive_ = false;
    if (chunked_) out_ += "0\r\n\r\n";
    finish_exchange();
    return;
  }
  last_event_us_ = now;
  append_chunk(thread_.event_of(*route_, now));
  flush();
}

/// Has the pool compute the answer.
void Connection::answer_on_pool() {
  const auto large = std::make_shared<LargeAnswer>();
  large->share = std::exchange(share_, {});
  large->unread = BodyShare(core_.unread_answers(), client());
  const auto body = std::make_shared<std::string>(reader_.take_body());
  const auto answer = [large, body, client = client(), &core = core_, route = route_,
                       head = reader_.head(), key = key_, wake = waker()] {
    // Answers that were made since the request came may wait unread.
    large->response = core.unread_answers().is_used_up(client)
                          ? error_response(api::error_style(head.path), unread_answers())
                          : answer_route(core, *route, head, *body, key.get());
    large->unread.hold(large->response.body.size());
    large->ready.store(true, std::memory_order_release);
    wake();
  };
  if (core_.pool().submit(client(), answer)) {
    stage_ = Stage::answering;
    large_ = large;
    return;
  }
  ++core_.counters().rejected_full;
  api::ApiError error{.status = 503, .code = "service_unavailable", .retry_after_s = 1};
  error.message = "too many requests of this client wait for a thread; retry later";
  core_.count_response(route_->path, error.status);
  send(error_response(api::error_style(reader_.head().path), error));
}

void Connection::run_job(const api::GenerationEndpoint& endpoint, const ServedModel& serving) {
  stage_ = Stage::answering;
  stream_begun_ = false;
  GenerationJob::Setup setup;
  setup.endpoint = &endpoint;
  setup.serving = &serving;
  setup.id = core_.make_id();
  setup.request_id = request_id_;
  setup.wake = waker();
  setup.key = key_;
  setup.client = address_;
  setup.share = std::exchange(share_, {});
  job_ = std::make_shared<GenerationJob>(core_, std::move(setup));
  last_event_us_ = core_.clock().now_us();
  job_->start(reader_.take_body());
}

void Connection::on_turn() {
  if (closed_) return;
  if (std::exchange(asks_again_, false)) {
    take_requests();
  } else {
    reading_ = false;
    read_some();
  }
}

void Connection::on_ready() {
  if (closed_) return;
  if (job_) pump();
  if (!large_ || !large_->ready.load(std::memory_order_acquire)) return;
  const std::shared_ptr<LargeAnswer> large = std::exchange(large_, nullptr);
  core_.count_response(route_->path, large->response.status);
  unread_share_ = std::move(large->unread);
  send(std::move(large->response));
}

/// Moves the job's bytes to the output buffer as far as there is room.
void Connection::pump() {
  while (job_ && !closed_) {
    const std::size_t waiting = out_.size() - sent_;
    const std::size_t room_max = core_.settings().buffer_bytes_max;
    if (waiting >= room_max) {
      more_in_job_ = true;
      return;  // flush() calls pump() again
    }
    events_.clear();
    const GenerationJob::State state = job_->poll(events_, room_max - waiting);
    if (state == GenerationJob::State::waiting) return;
    if (state == GenerationJob::State::answered) {
      Response response = std::move(job_->response());
      request_id_ = job_->name();
      for (auto& field : job_->limit_fields()) response.fields.push_back(std::move(field));
      job_.reset();
      send(std::move(response));
      return;
    }
    last_event_us_ = core_.clock().now_us();
    request_id_ = job_->name();
    append_chunk(events_);
    if (state == GenerationJob::State::streamed) {
      job_.reset();
      if (chunked_) out_ += "0\r\n\r\n";
      finish_exchange();
      return;
    }
    flush();
  }
}

/// Whether the peer has closed its side, behind bytes that are not read yet.
bool Connection::peer_left() {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  return getsockopt(socket_.native_handle(), IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0 &&
         info.tcpi_state != TCP_ESTABLISHED;
}

void Connection::on_tick(std::int64_t now) {
  if (closed_) return;
  if ((read_paused_ || peer_done_) && job_ && peer_left()) {
    lose(true);
    return;
  }
  const TimeLimits& time = core_.settings().time;
  if (writing_) {
    if (now - last_write_us_ < time.write_stall_ms * kUsPerMs) return;
    ++core_.counters().write_stalls;
    lose(false);
    return;
  }
  if (close_after_) {
    if (now - stage_since_us_ >= time.flush_ms * kUsPerMs) close();
    return;
  }
  if (feeding_) {
    const bool due = now - last_event_us_ >= time.feed_ms * kUsPerMs;
    if (due || core_.phase() == Phase::draining) feed(now);
    return;
  }
  if (stage_ == Stage::answering) {
    if (!job_ || time.ping_ms == 0 || now - last_event_us_ < time.ping_ms * kUsPerMs) return;
    events_.clear();
    request_id_ = job_->name();
    job_->ping(events_);
    last_event_us_ = now;
    if (events_.empty()) return;
    append_chunk(events_);
    flush();
    return;
  }
  if (asks_again_) return;  // the next step is not the client's
  if (!reader_.started()) {
    // While draining, a connection that had an answer closes at once; a new one gets a 503 first.
    const bool leaves = core_.phase() == Phase::draining && served_;
    const bool greets = tls_ && !tls_->established();
    const std::int64_t wait_ms = leaves ? 0 : greets ? time.head_ms : time.idle_ms;
    if (now - stage_since_us_ >= wait_ms * kUsPerMs) close();
    return;
  }
  const bool in_head = reader_.state() == HttpReader::State::head;
  bool late = in_head && now - stage_since_us_ >= time.head_ms * kUsPerMs;
  if (!in_head) {
    const std::int64_t beyond = now - body_since_us_ - time.body_grace_ms * kUsPerMs;
    const std::int64_t bytes_per_s =
        core_.bodies().is_scarce() ? time.body_bytes_per_s_scarce : time.body_bytes_per_s;
    late = beyond > 0 &&
           static_cast<double>(reader_.body_bytes()) <
               static_cast<double>(bytes_per_s) * (static_cast<double>(now - body_since_us_) / 1e6);
  }
  if (!late) return;
  ++core_.counters().head_timeouts;
  api::ApiError error{.status = 408};
  error.message = "the request arrived too slowly";
  refuse(error, true);
}

}  // namespace koho::server
