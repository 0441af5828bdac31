// SPDX-License-Identifier: Apache-2.0
// The reading half of a connection: bytes from the socket, through TLS where it is on, to requests.
#include <utility>

#include <boost/asio/buffer.hpp>

#include "server/connection.h"

namespace koho::server {

namespace asio = boost::asio;

namespace {

constexpr std::size_t kPipelinedBytesMax = 64U << 10U;
/// Read at once behind a request that is being answered, and of each connection whatever others
/// hold.
constexpr std::size_t kPipelinedPieceBytes = 8U << 10U;

}  // namespace

void Connection::wait_to_read() {
  if (reading_ || closed_ || peer_done_) return;
  read_paused_ = holds_enough();
  if (read_paused_) return;
  reading_ = true;
  socket_.async_wait(asio::ip::tcp::socket::wait_read,
                     [self = shared_from_this()](const Error& error) {
                       if (self->closed_) return;
                       if (error) {
                         self->lose(true);
                       } else {
                         self->thread_.take_turn(self->turns_of_, self);
                       }
                     });
}

/// Counts what is pipelined among the client's bodies. True: what is more waits in the kernel.
bool Connection::holds_enough() {
  const std::size_t bytes = unread_.size();
  if (pipelined_.bytes() == 0) pipelined_ = BodyShare(core_.bodies(), turns_of_);
  pipelined_.hold(bytes > kPipelinedPieceBytes ? unread_.capacity() : 0);
  return bytes >= kPipelinedBytesMax ||
         (bytes >= kPipelinedPieceBytes && core_.bodies().is_used_up(turns_of_));
}

void Connection::read_some() {
  std::array<char, 64U << 10U>& scratch = thread_.scratch();
  Error error;
  const bool pipelines = stage_ == Stage::answering || !unread_.empty();
  const std::size_t bytes = socket_.read_some(
      asio::buffer(scratch.data(), pipelines ? kPipelinedPieceBytes : scratch.size()), error);
  if (error == asio::error::would_block || error == asio::error::interrupted) {
    wait_to_read();
    return;
  }
  if (error) {
    // A client that only closed its sending side looks like one that left: its running request is
    // cancelled. An answer that is complete is still sent.
    peer_done_ = true;
    const bool answered = stage_ == Stage::answering && !job_ && !large_ && !file_ && !feeding_;
    if (error == asio::error::eof && stage_ == Stage::reading && has_requests()) {
      return;  // what it sent before is answered first
    }
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
  flush();  // handshake records, and output that waited for the handshake
  if (!good) lose(true);
}

void Connection::on_bytes(std::string_view bytes) {
  if (close_after_) return;  // the connection is closing: no further request is answered
  if (stage_ == Stage::answering || !unread_.empty()) {
    unread_ += bytes;
    return;
  }
  if (!reader_.started()) stage_since_us_ = core_.clock().now_us();
  const std::size_t taken = reader_.feed(bytes);
  unread_.assign(bytes.substr(taken));
  if (hold_body()) take_requests();
}

/// Whose the request is, by its head, before anything answers it: its key's, else its address's.
std::uint64_t Connection::client_asking(const Route* route) const {
  const auto found = key_for(core_, route, reader_.head());
  const auto* key = std::get_if<std::shared_ptr<ApiKey>>(&found);
  return key != nullptr && *key ? (*key)->client() : address_;
}

/// Counts the body's bytes, and a large head's; false: there are too many of all bodies, and the
/// request is refused.
bool Connection::hold_body() {
  if (head_share_.bytes() == 0) head_share_ = BodyShare(core_.bodies(), address_);
  const std::size_t head = reader_.head_memory();
  const bool head_fits = head <= kPipelinedPieceBytes || head_share_.grow(head);
  if (head_fits && reader_.body_bytes() == 0) return true;
  if (share_.bytes() == 0) share_ = BodyShare(core_.bodies(), client_asking(nullptr));
  if (head_fits && share_.grow(reader_.body_memory())) return true;
  reader_.drop_body();
  share_.resize(0);
  ++core_.counters().rejected_full;  // whoever sees it counted finds the room
  api::ApiError error{.status = 503, .code = "service_unavailable", .retry_after_s = 1};
  error.message = "the server holds as many bytes of requests as it has memory for; retry later";
  refuse(error, true);  // nobody reads the rest of the body
  return false;
}

/// Closes the connection if the client sends no more and has all its answers.
void Connection::close_behind_last() {
  if (peer_done_ && stage_ == Stage::reading && !has_requests() && out_.empty()) close();
}

void Connection::take_requests() {
  answer_requests();
  close_behind_last();
  if (!holds_enough() && read_paused_) wait_to_read();
}

/// Parses and answers the requests that have arrived, one after the other.
void Connection::answer_requests() {
  while (!closed_ && stage_ == Stage::reading) {
    // A client that sends requests without reading answers waits; flush() continues here.
    const std::size_t waiting = out_.size() - sent_;
    held_back_ =
        waiting >= core_.settings().buffer_bytes_max || (waiting > 0 && unread_share_.is_used_up());
    if (held_back_) return;
    if (!unread_.empty() && reader_.state() != HttpReader::State::done &&
        reader_.state() != HttpReader::State::failed) {
      if (!reader_.started()) stage_since_us_ = core_.clock().now_us();
      const std::string bytes = std::exchange(unread_, {});
      unread_.assign(std::string_view(bytes).substr(reader_.feed(bytes)));
      if (!hold_body()) return;
    }
    switch (reader_.state()) {
      case HttpReader::State::head:
        return;
      case HttpReader::State::failed:
        keep_alive_ = false;
        refuse(reader_.error(), true);
        return;
      case HttpReader::State::body:
        if (!head_handled_) on_head();
        return;
      case HttpReader::State::done:
        if (!head_handled_) on_head();
        if (asks_for_turn()) return;
        if (route_ != nullptr && !closed_) dispatch();  // null: the head was refused
        // The next one after what other connections have for this thread: flush() has seen to it.
        if (!unread_.empty()) return;
        break;
    }
  }
}

/// The turn was another client's: of the address, or of the request before. True: it has to wait.
bool Connection::asks_for_turn() {
  if (route_ == nullptr || closed_) return false;
  const std::uint64_t now = client_asking(route_);
  if (std::exchange(turns_of_, now) == now) return false;
  asks_again_ = true;
  thread_.take_turn(now, shared_from_this());
  return true;
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
    // Nobody reads the body, so it must not be parsed as the next request.
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

}  // namespace koho::server
