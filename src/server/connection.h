// SPDX-License-Identifier: Apache-2.0
// One client's connection: reads requests, answers them by routes and jobs, writes the answers. All
// of it happens on the connection's IoThread. Private to the files that include Asio.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/ip/tcp.hpp>

#include "server/core.h"
#include "server/generation_job.h"
#include "server/handlers.h"
#include "server/http_reader.h"
#include "server/io_thread.h"
#include "server/tls.h"

namespace koho::server {

/// An answer that a thread of the pool computes.
struct LargeAnswer {
  BodyShare share;   // of the body
  BodyShare unread;  // of the answer
  Response response;
  std::atomic<bool> ready{false};
};

/// Who asks without a key: its IPv4 address, or the network of 64 bits that an IPv6 host has.
std::uint64_t client_of(const boost::asio::ip::tcp::socket& socket);

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  /// `tls` is null for plain HTTP.
  Connection(IoThread& thread,
             boost::asio::ip::tcp::socket socket,
             std::unique_ptr<TlsSession> tls,
             ClientShare place);

  void start();
  /// The job or the pool has something to send.
  void on_ready();
  /// Bytes or requests that have arrived are taken now.
  void on_turn();
  void on_tick(std::int64_t now_us);
  void close();

 private:
  using Error = boost::system::error_code;

  void wait_to_read();
  void read_some();
  void on_ciphertext(std::string_view bytes);
  void on_bytes(std::string_view bytes);
  void take_requests();
  std::uint64_t client() const;
  std::uint64_t client_asking(const Route* route) const;
  void answer_requests();
  bool asks_for_turn();
  bool has_requests() const { return !unread_.empty() || held_back_; }
  void on_head();
  bool hold_body();
  bool holds_enough();
  void dispatch();
  void run_job(const api::GenerationEndpoint& endpoint, const ServedModel& serving);
  void answer_on_pool();
  void begin_feed();
  void feed(std::int64_t now_us);
  std::function<void()> waker();
  void pump();
  void begin_stream();
  void append_chunk(std::string_view events);
  void send(Response response);
  void pump_file();
  void finish_exchange();
  std::string_view outgoing();
  void flush();
  void lose(bool by_client);
  /// Answers with an error of the server's own, not of a route.
  void refuse(const api::ApiError& error, bool closes = false);
  bool peer_left();
  void close_behind_last();

  Core& core_;
  LiveCount live_;  // ends last: the core may end once no connection is counted
  IoThread& thread_;
  boost::asio::ip::tcp::socket socket_;
  std::unique_ptr<TlsSession> tls_;
  HttpReader reader_;
  std::uint64_t address_;   // who asks without a key
  std::uint64_t turns_of_;  // whose turns this connection takes: of its last request
  ClientShare place_;       // of the connections
  BodyShare share_;         // of the body that is read
  BodyShare head_share_;    // of the request's head
  std::string unread_;      // bytes that arrived while a request was being answered
  BodyShare pipelined_;     // of unread_
  bool reading_ = false;    // waits for bytes, or for its turn to read them
  bool read_paused_ = false;
  bool closed_ = false;
  bool peer_done_ = false;   // the client has closed its sending side
  bool asks_again_ = false;  // waits for its turn to take the requests of unread_
  bool held_back_ = false;   // requests wait until the client has read earlier answers

  // The current exchange.
  enum class Stage : std::uint8_t { reading, answering };
  Stage stage_ = Stage::reading;
  bool head_handled_ = false;
  const Route* route_ = nullptr;
  std::shared_ptr<ApiKey> key_;  // of the request that is answered
  std::shared_ptr<GenerationJob> job_;
  std::shared_ptr<LargeAnswer> large_;
  std::shared_ptr<FileBody> file_;  // of an answer whose head is in out_
  std::optional<LiveCount> owed_;   // until the answer is sent
  bool feeding_ = false;            // the route's events are sent until the client leaves
  bool stream_begun_ = false;
  bool chunked_ = false;
  bool keep_alive_ = true;
  bool served_ = false;  // an exchange has ended on this connection
  bool head_only_ = false;
  std::string request_id_;
  std::string events_;  // scratch

  std::string out_;
  BodyShare unread_share_;           // of the unread answers: out_ while the socket takes no more
  std::size_t sent_ = 0;             // of out_
  bool writing_ = false;             // waits until the socket accepts more
  std::size_t written_at_once_ = 0;  // since it waited last
  bool close_after_ = false;
  bool more_in_job_ = false;  // the job has more than the buffer had room for

  std::int64_t stage_since_us_ = 0;  // reading: time of the request's first byte or the last answer
  std::int64_t body_since_us_ = 0;   // when the head was complete
  std::int64_t last_write_us_ = 0;   // the socket accepted bytes
  std::int64_t last_event_us_ = 0;   // bytes were added to a stream
};

}  // namespace koho::server
