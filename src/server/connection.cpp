// SPDX-License-Identifier: Apache-2.0
#include "server/connection.h"

#include <charconv>
#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/socket_base.hpp>
#include <netinet/tcp.h>

#include "base/log.h"

namespace koho::server {

namespace asio = boost::asio;

namespace {

constexpr std::int64_t kUsPerMs = 1000;
constexpr std::size_t kKeptBytes = 16U << 10U;  // of a buffer between two uses
constexpr std::size_t kPipelinedBytesMax = 64U << 10U;

template <typename Value>
void set_option(asio::ip::tcp::socket& socket, int level, int name, Value value) {
  // An option that the kernel lacks costs a feature, not the connection.
  static_cast<void>(setsockopt(socket.native_handle(), level, name, &value, sizeof value));
}

/// Peers that vanish are found within 45 s, whether anything is being sent or not: a ping of the
/// 15th second and what follows it is unanswered for 25 s, or so are three probes.
void tune(asio::ip::tcp::socket& socket) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 15);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, 25'000U);
  // The kernel would let a reader that takes nothing have megabytes.
  set_option(socket, SOL_SOCKET, SO_SNDBUF, 128 << 10);
}

void append_number(std::string& out, std::size_t value, int base = 10) {
  std::array<char, 24> digits;
  const auto [end, error] = std::to_chars(digits.begin(), digits.end(), value, base);
  out.append(digits.data(), static_cast<std::size_t>(end - digits.data()));
}

void append_field(std::string& out, std::string_view name, std::string_view value) {
  out += name;
  out += ": ";
  out += value;
  out += "\r\n";
}

void append_status_line(std::string& out, int status) {
  out += "HTTP/1.1 ";
  append_number(out, static_cast<std::size_t>(status));
  out += ' ';
  out += reason_phrase(status);
  out += "\r\n";
}

}  // namespace

// ---- IoThread

IoThread::IoThread(Core& core) : core_(core) {}

IoThread::~IoThread() {
  stop();
}

void IoThread::start() {
  thread_ = std::thread([this] {
    tick();
    context_.run();
  });
}

void IoThread::stop() {
  if (!thread_.joinable()) return;
  asio::post(context_, [this] {
    stopping_ = true;
    timer_.cancel();
    while (!connections_.empty()) {
      const std::shared_ptr<Connection> connection = *connections_.begin();
      connection->close();
    }
    context_.stop();
  });
  thread_.join();
}

void IoThread::add(const std::shared_ptr<Connection>& connection) {
  connections_.insert(connection);
}

void IoThread::remove(const std::shared_ptr<Connection>& connection) {
  connections_.erase(connection);
}

void IoThread::wake(std::shared_ptr<Connection> connection) {
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    first = ready_.empty();
    ready_.push_back(std::move(connection));
  }
  if (first) asio::post(context_, [this] { take_ready(); });
}

void IoThread::take_ready() {
  {
    const std::lock_guard lock(mutex_);
    taken_.swap(ready_);
  }
  for (const std::shared_ptr<Connection>& connection : taken_) connection->on_ready();
  taken_.clear();
}

void IoThread::tick() {
  if (stopping_) return;
  const std::int64_t now = core_.clock().now_us();
  std::vector<std::shared_ptr<Connection>> all(connections_.begin(), connections_.end());
  for (const std::shared_ptr<Connection>& connection : all) connection->on_tick(now);
  timer_.expires_after(std::chrono::milliseconds(core_.settings().time.tick_ms));
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) tick();
  });
}

// ---- Connection

Connection::Connection(IoThread& thread,
                       asio::ip::tcp::socket socket,
                       std::unique_ptr<TlsSession> tls)
    : core_(thread.core()),
      thread_(thread),
      socket_(std::move(socket)),
      tls_(std::move(tls)),
      reader_(core_.settings().http),
      stage_since_us_(core_.clock().now_us()) {
  ++core_.counters().connections_live;
}

Connection::~Connection() {
  --core_.counters().connections_live;
}

void Connection::start() {
  Error error;
  socket_.non_blocking(true, error);
  tune(socket_);
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
  Error error;
  socket_.close(error);
  thread_.remove(shared_from_this());
}

/// The client went away, or is given up.
void Connection::lose(bool by_client) {
  if (closed_) return;
  if (by_client && stage_ == Stage::answering && !feeding_) ++core_.counters().disconnects;
  // What a reader does not take would stay in the kernel until that gives up, too.
  if (!by_client) set_option(socket_, SOL_SOCKET, SO_LINGER, linger{.l_onoff = 1, .l_linger = 0});
  close();
}

void Connection::wait_to_read() {
  if (reading_ || closed_ || peer_done_) return;
  // What a client sends ahead waits in the kernel once enough of it is here.
  if (unread_.size() >= kPipelinedBytesMax) {
    read_paused_ = true;
    return;
  }
  reading_ = true;
  socket_.async_wait(asio::ip::tcp::socket::wait_read,
                     [self = shared_from_this()](const Error& error) {
                       self->reading_ = false;
                       if (self->closed_) return;
                       if (error) {
                         self->lose(true);
                       } else {
                         self->read_some();
                       }
                     });
}

void Connection::read_some() {
  std::array<char, 64U << 10U>& scratch = thread_.scratch();
  Error error;
  const std::size_t bytes = socket_.read_some(asio::buffer(scratch), error);
  if (error == asio::error::would_block || error == asio::error::interrupted) {
    wait_to_read();
    return;
  }
  if (error) {
    // A client that only stopped sending cannot be told from one that left: the request it waits
    // for ends. What is answered already is still sent.
    peer_done_ = true;
    const bool answered = stage_ == Stage::answering && !job_ && !large_ && !feeding_;
    if (error == asio::error::eof && (answered || writing_)) {
      close_after_ = true;
      flush();
    } else {
      lose(true);
    }
    return;
  }
  if (tls_) {
    on_ciphertext({scratch.data(), bytes});
  } else {
    on_bytes({scratch.data(), bytes});
  }
  wait_to_read();
}

void Connection::on_ciphertext(std::string_view bytes) {
  std::string plain;
  const bool good = tls_->receive(bytes, plain);
  if (!plain.empty()) on_bytes(plain);
  flush();  // the handshake's answers, and what waited for it
  if (!good) lose(true);
}

void Connection::on_bytes(std::string_view bytes) {
  if (close_after_) return;  // the connection ends: nobody will answer this
  if (stage_ == Stage::answering || !unread_.empty()) {
    unread_ += bytes;
    return;
  }
  if (!reader_.started()) stage_since_us_ = core_.clock().now_us();
  const std::size_t taken = reader_.feed(bytes);
  unread_.assign(bytes.substr(taken));
  take_requests();
}

void Connection::take_requests() {
  answer_requests();
  if (!read_paused_ || unread_.size() >= kPipelinedBytesMax) return;
  read_paused_ = false;
  wait_to_read();
}

/// Goes on with what has been read, as far as it is the turn of a new request.
void Connection::answer_requests() {
  while (!closed_ && stage_ == Stage::reading) {
    // Who sends requests and takes no answers waits; flush() comes back here.
    if (out_.size() - sent_ >= core_.settings().buffer_bytes_max) return;
    if (!unread_.empty() && reader_.state() != HttpReader::State::done &&
        reader_.state() != HttpReader::State::failed) {
      if (!reader_.started()) stage_since_us_ = core_.clock().now_us();
      const std::string bytes = std::exchange(unread_, {});
      unread_.assign(std::string_view(bytes).substr(reader_.feed(bytes)));
    }
    switch (reader_.state()) {
      case HttpReader::State::head:
        return;
      case HttpReader::State::failed: {
        keep_alive_ = false;
        Response response = error_response(api::error_style(reader_.head().path), reader_.error());
        response.close = true;
        core_.count_response("refused", response.status);
        send(std::move(response));
        return;
      }
      case HttpReader::State::body:
        if (!head_handled_) on_head();
        return;
      case HttpReader::State::done:
        if (!head_handled_) on_head();
        if (route_ != nullptr && !closed_) dispatch();  // not if the head was refused
        break;
    }
  }
}

void Connection::on_head() {
  head_handled_ = true;
  body_since_us_ = core_.clock().now_us();
  const RequestHead& head = reader_.head();
  keep_alive_ = head.keep_alive && core_.phase() != Phase::draining;
  head_only_ = head.method == "HEAD";
  chunked_ = !head.http_1_0;
  request_id_ = client_request_id(head);
  std::variant<const Route*, Response> found = find_route(core_, head);
  if (Response* refused = std::get_if<Response>(&found)) {
    // A body that nobody reads would be taken for the next request.
    if (reader_.state() == HttpReader::State::body) refused->close = true;
    core_.count_response("refused", refused->status);
    send(std::move(*refused));
    return;
  }
  route_ = std::get<const Route*>(found);
  if (reader_.expects_continue()) {
    out_ += "HTTP/1.1 100 Continue\r\n\r\n";
    flush();
  }
}

void Connection::dispatch() {
  const ServedModel* serving = core_.serving();
  if (route_->generation != nullptr) {
    run_job(*route_->generation, *serving);
    return;
  }
  if (route_->feed != nullptr) {
    begin_feed();
    return;
  }
  if (reader_.body_bytes() > core_.settings().inline_body_bytes) {
    answer_on_pool();
    return;
  }
  Response response = answer_route(core_, *route_, reader_.head(), reader_.take_body());
  core_.count_response(route_->path, response.status);
  send(std::move(response));
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
  append_chunk(route_->feed(core_));
  flush();
}

/// The pool makes the answer; if it is full, this thread does.
void Connection::answer_on_pool() {
  const auto large = std::make_shared<LargeAnswer>();
  const auto body = std::make_shared<std::string>(reader_.take_body());
  const bool taken = core_.pool().submit(
      [large, body, &core = core_, route = route_, head = reader_.head(), wake = waker()] {
        large->response = answer_route(core, *route, head, *body);
        large->ready.store(true, std::memory_order_release);
        wake();
      });
  if (!taken) {
    Response response = answer_route(core_, *route_, reader_.head(), *body);
    core_.count_response(route_->path, response.status);
    send(std::move(response));
    return;
  }
  stage_ = Stage::answering;
  large_ = large;
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
  job_ = std::make_shared<GenerationJob>(core_, std::move(setup));
  last_event_us_ = core_.clock().now_us();
  job_->start(reader_.take_body());
}

void Connection::on_ready() {
  if (closed_) return;
  if (job_) pump();
  if (!large_ || !large_->ready.load(std::memory_order_acquire)) return;
  const std::shared_ptr<LargeAnswer> large = std::exchange(large_, nullptr);
  core_.count_response(route_->path, large->response.status);
  send(std::move(large->response));
}

/// Moves what the job has to the socket, as far as there is room.
void Connection::pump() {
  while (job_ && !closed_) {
    const std::size_t waiting = out_.size() - sent_;
    const std::size_t room_max = core_.settings().buffer_bytes_max;
    if (waiting >= room_max) {
      more_in_job_ = true;
      return;  // flush() comes back here
    }
    events_.clear();
    const GenerationJob::State state = job_->poll(events_, room_max - waiting);
    if (state == GenerationJob::State::waiting) return;
    if (state == GenerationJob::State::answered) {
      Response response = std::move(job_->response());
      request_id_ = job_->name();
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

void Connection::begin_stream() {
  stream_begun_ = true;
  append_status_line(out_, 200);
  append_field(out_, "Content-Type", "text/event-stream; charset=utf-8");
  append_field(out_, "Cache-Control", "no-cache");
  append_field(out_, "X-Accel-Buffering", "no");
  Response begun;
  add_request_id(reader_.head(), request_id_, begun);
  add_cors(core_, reader_.head(), begun);
  for (const auto& [name, value] : begun.fields) append_field(out_, name, value);
  if (chunked_) {
    append_field(out_, "Transfer-Encoding", "chunked");
  } else {
    keep_alive_ = false;
  }
  append_field(out_, "Connection", keep_alive_ ? "keep-alive" : "close");
  out_ += "\r\n";
}

void Connection::append_chunk(std::string_view events) {
  if (!stream_begun_) begin_stream();
  if (events.empty()) return;
  if (!chunked_) {
    out_ += events;
    return;
  }
  append_number(out_, events.size(), 16);
  out_ += "\r\n";
  out_ += events;
  out_ += "\r\n";
}

void Connection::send(Response response) {
  stage_ = Stage::answering;
  if (response.close) keep_alive_ = false;
  if (reader_.state() != HttpReader::State::failed) add_cors(core_, reader_.head(), response);
  if (request_id_.empty()) request_id_ = core_.make_id();
  add_request_id(reader_.head(), request_id_, response);
  append_status_line(out_, response.status);
  if (response.status != 204) append_field(out_, "Content-Type", response.content_type);
  if (response.status != 204) {
    out_ += "Content-Length: ";
    append_number(out_, response.body.size());
    out_ += "\r\n";
  }
  for (const auto& [name, value] : response.fields) append_field(out_, name, value);
  append_field(out_, "Connection", keep_alive_ ? "keep-alive" : "close");
  out_ += "\r\n";
  if (!head_only_) out_ += response.body;
  finish_exchange();
}

/// The answer is complete in out_: the next request may be read.
void Connection::finish_exchange() {
  served_ = true;
  stage_ = Stage::reading;
  head_handled_ = false;
  route_ = nullptr;
  request_id_.clear();
  head_only_ = false;
  stage_since_us_ = core_.clock().now_us();
  if (!keep_alive_) {
    close_after_ = true;
    stage_ = Stage::answering;  // nothing more is read
    flush();
    return;
  }
  reader_ = HttpReader(core_.settings().http);
  keep_alive_ = true;
  flush();
}

/// What the socket is to take next. Through TLS these are records; a part of out_ becomes some when
/// those before are gone.
std::string_view Connection::outgoing() {
  constexpr std::size_t kSealedAtOnce = 64U << 10U;
  if (!tls_) return std::string_view(out_).substr(sent_);
  if (tls_->ciphertext().empty()) {
    const std::string_view piece = std::string_view(out_).substr(sent_, kSealedAtOnce);
    if (piece.empty() && close_after_) tls_->end();
    if (!piece.empty() && tls_->established()) {
      if (!tls_->send(piece)) lose(true);
      sent_ += piece.size();
    }
  }
  return tls_->ciphertext();
}

void Connection::flush() {
  if (writing_ || closed_) return;
  while (true) {
    const std::string_view next = outgoing();
    if (closed_) return;
    if (next.empty()) break;
    Error error;
    const std::size_t bytes = socket_.write_some(asio::buffer(next), error);
    if (error == asio::error::would_block) {
      writing_ = true;
      last_write_us_ = core_.clock().now_us();
      socket_.async_wait(asio::ip::tcp::socket::wait_write,
                         [self = shared_from_this()](const Error& failed) {
                           self->writing_ = false;
                           if (self->closed_) return;
                           if (failed) {
                             self->lose(true);
                             return;
                           }
                           self->flush();
                         });
      // What was sent makes room for what the job still has.
      if (sent_ > out_.size() / 2) {
        out_.erase(0, sent_);
        sent_ = 0;
      }
      return;
    }
    if (error) {
      lose(true);
      return;
    }
    if (tls_) {
      tls_->ciphertext().erase(0, bytes);
    } else {
      sent_ += bytes;
    }
    core_.counters().bytes_sent += bytes;
  }
  if (sent_ < out_.size()) return;  // the handshake comes first
  out_.clear();
  if (out_.capacity() > kKeptBytes) out_.shrink_to_fit();
  sent_ = 0;
  if (close_after_) {
    // The client must see the end of the answer before the end of the connection: what it still
    // sends is taken until it closes, too, or a tick ends this.
    Error error;
    socket_.shutdown(asio::ip::tcp::socket::shutdown_send, error);
    if (peer_done_ || error) close();
    return;
  }
  if (std::exchange(more_in_job_, false) && job_) pump();
  if (closed_ || stage_ != Stage::reading || unread_.empty()) return;
  asio::post(thread_.context(), [self = shared_from_this()] {
    if (!self->closed_) self->take_requests();
  });
}

void Connection::on_tick(std::int64_t now) {
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
  if (!reader_.started()) {
    // While draining, who already had an answer goes at once; who just came is told by one.
    const bool leaves = core_.phase() == Phase::draining && served_;
    const bool greets = tls_ && !tls_->established();
    const std::int64_t patience = leaves ? 0 : greets ? time.head_ms : time.idle_ms;
    if (now - stage_since_us_ >= patience * kUsPerMs) close();
    return;
  }
  const bool in_head = reader_.state() == HttpReader::State::head;
  bool late = in_head && now - stage_since_us_ >= time.head_ms * kUsPerMs;
  if (!in_head) {
    const std::int64_t beyond = now - body_since_us_ - time.body_grace_ms * kUsPerMs;
    late = beyond > 0 && static_cast<double>(reader_.body_bytes()) <
                             static_cast<double>(time.body_bytes_per_s) *
                                 (static_cast<double>(now - body_since_us_) / 1e6);
  }
  if (!late) return;
  ++core_.counters().head_timeouts;
  api::ApiError error{.status = 408};
  error.message = "the request came too slowly";
  Response response = error_response(api::error_style(reader_.head().path), error);
  response.close = true;
  core_.count_response("refused", response.status);
  send(std::move(response));
}

}  // namespace koho::server
