// SPDX-License-Identifier: Apache-2.0
// Parses one HTTP/1.1 request from bytes. The result never depends on how the bytes were split into
// reads. Whatever two parsers could read differently (request smuggling) is refused. No sockets.
// Why not Boost.Beast: its parser reads some chunk heads differently depending on the split, and
// asserts on some splits (fuzz/http_reader_fuzz.cpp found both); a JSON server needs little of
// HTTP.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "api/error.h"
#include "base/text.h"
#include "server/http_message.h"
#include "server/settings.h"

namespace koho::server {

class HttpReader {
 public:
  enum class State : std::uint8_t { head, body, done, failed };

  explicit HttpReader(const HttpLimits& limits) : limits_(limits) {}

  /// Consumes bytes from the front and returns their number: fewer than all only when the request
  /// is done or failed.
  std::size_t feed(std::string_view bytes);

  State state() const { return state_; }
  /// Whether the first byte of a request has arrived.
  bool started() const { return started_; }
  const RequestHead& head() const { return head_; }  // once the state is body or done
  /// The client waits for "100 Continue" before it sends its body.
  bool expects_continue() const;
  std::string take_body() { return std::move(body_); }
  void drop_body() { free_text(body_); }
  /// Bytes of the body so far.
  std::size_t body_bytes() const { return body_.size(); }
  /// Memory that the head takes until it is complete.
  std::size_t head_memory() const { return state_ == State::head ? raw_.capacity() : 0; }
  /// Memory that the body takes.
  std::size_t body_memory() const { return body_.capacity(); }
  /// The reason after `failed`; the connection must be closed.
  const api::ApiError& error() const { return error_; }

 private:
  /// The part of the body that comes next.
  enum class Part : std::uint8_t { data, chunk_head, chunk_data, chunk_end, trailer };

  std::size_t feed_head(std::string_view bytes);
  std::size_t feed_body(std::string_view bytes);
  void read_head();
  bool read_field(std::string_view line);
  std::size_t take_data(std::string_view bytes);
  std::size_t take_line(std::string_view bytes);
  void read_chunk_head(std::string_view line);
  void read_trailer(std::string_view line);
  std::size_t body_bytes_max() const;
  void fail(int status, std::string_view message);

  HttpLimits limits_;
  State state_ = State::head;
  bool started_ = false;
  std::string raw_;  // of the head; later of a chunk's head or a trailer
  RequestHead head_;
  bool chunked_ = false;
  Part part_ = Part::data;
  std::uint64_t left_ = 0;  // bytes of the body, or of this chunk
  std::size_t trailer_bytes_ = 0;
  std::string body_;
  api::ApiError error_;
};

}  // namespace koho::server
