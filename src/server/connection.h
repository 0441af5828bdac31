// SPDX-License-Identifier: Apache-2.0
// One client's connection and the thread it lives on. All of a connection happens on its thread;
// others only wake it. Private to the two files that know Asio.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

#include "server/core.h"
#include "server/generation_job.h"
#include "server/handlers.h"
#include "server/http_reader.h"
#include "server/tls.h"

namespace koho::server {

class Connection;

/// A thread with its connections. Looks at all of them every tick, so that none needs a timer.
class IoThread : public std::enable_shared_from_this<IoThread> {
 public:
  explicit IoThread(Core& core);
  ~IoThread();
  void start();
  void stop();

  boost::asio::io_context& context() { return context_; }
  Core& core() { return core_; }

  // ---- this thread
  void add(const std::shared_ptr<Connection>& connection);
  void remove(const std::shared_ptr<Connection>& connection);
  /// Memory for reading, shared by all connections of the thread.
  std::array<char, 64U << 10U>& scratch() { return scratch_; }

  // ---- any thread
  /// The connection's on_ready() will be called on this thread.
  void wake(std::shared_ptr<Connection> connection);

 private:
  void tick();
  void take_ready();

  Core& core_;
  boost::asio::io_context context_{1};
  boost::asio::steady_timer timer_{context_};
  std::unordered_set<std::shared_ptr<Connection>> connections_;
  std::array<char, 64U << 10U> scratch_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Connection>> ready_;
  std::vector<std::shared_ptr<Connection>> taken_;
  bool stopping_ = false;
  std::thread thread_;
};

/// An answer that a thread of the pool makes.
struct LargeAnswer {
  Response response;
  std::atomic<bool> ready{false};
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  /// `tls` is null for plain HTTP.
  Connection(IoThread& thread,
             boost::asio::ip::tcp::socket socket,
             std::unique_ptr<TlsSession> tls);
  ~Connection();

  void start();
  /// The job has something, or was told to look.
  void on_ready();
  void on_tick(std::int64_t now_us);
  void close();

 private:
  using Error = boost::system::error_code;

  void wait_to_read();
  void read_some();
  void on_ciphertext(std::string_view bytes);
  void on_bytes(std::string_view bytes);
  void take_requests();
  void answer_requests();
  void on_head();
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
  void finish_exchange();
  std::string_view outgoing();
  void flush();
  void lose(bool by_client);

  Core& core_;
  IoThread& thread_;
  boost::asio::ip::tcp::socket socket_;
  std::unique_ptr<TlsSession> tls_;
  HttpReader reader_;
  std::string unread_;  // came while a request was answered
  bool reading_ = false;
  bool read_paused_ = false;
  bool closed_ = false;
  bool peer_done_ = false;  // it sends nothing any more

  // The exchange under way.
  enum class Stage : std::uint8_t { reading, answering };
  Stage stage_ = Stage::reading;
  bool head_handled_ = false;
  const Route* route_ = nullptr;
  std::shared_ptr<GenerationJob> job_;
  std::shared_ptr<LargeAnswer> large_;
  bool feeding_ = false;  // the route's events are sent until the client leaves
  bool stream_begun_ = false;
  bool chunked_ = false;
  bool keep_alive_ = true;
  bool served_ = false;  // an exchange has ended on this connection
  bool head_only_ = false;
  std::string request_id_;
  std::string events_;  // scratch

  std::string out_;
  std::size_t sent_ = 0;  // of out_
  bool writing_ = false;  // waits for the socket to take more
  bool close_after_ = false;
  bool more_in_job_ = false;  // it had more than fitted

  std::int64_t stage_since_us_ = 0;  // reading: since the request's first byte, or the last answer
  std::int64_t body_since_us_ = 0;   // when the head was complete
  std::int64_t last_write_us_ = 0;   // the socket took something
  std::int64_t last_event_us_ = 0;   // a stream got bytes
};

}  // namespace koho::server
