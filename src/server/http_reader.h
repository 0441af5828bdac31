// SPDX-License-Identifier: Apache-2.0
// Bytes to one HTTP/1.1 request: Beast's parser behind our own limits and refusals. How the bytes
// are cut never changes the result; what two parsers could read differently (request smuggling) is
// refused, never guessed. No sockets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "api/error.h"
#include "server/http_message.h"
#include "server/settings.h"

namespace koho::server {

class HttpReader {
 public:
  enum class State : std::uint8_t { head, body, done, failed };

  explicit HttpReader(const HttpLimits& limits);
  ~HttpReader();
  HttpReader(HttpReader&&) noexcept;
  HttpReader& operator=(HttpReader&&) noexcept;

  /// Takes bytes off the front of what came and returns their number: fewer than all only once the
  /// request is done or failed.
  std::size_t feed(std::string_view bytes);

  State state() const { return state_; }
  /// Whether anything of a request has come.
  bool started() const { return started_; }
  const RequestHead& head() const { return head_; }  // once the state is body or done
  /// The client waits for "100 Continue" before it sends its body.
  bool expects_continue() const;
  std::string take_body();
  std::size_t body_bytes() const;
  /// Why, once failed: the connection cannot go on after that.
  const api::ApiError& error() const { return error_; }

 private:
  struct Parser;

  std::size_t feed_head(std::string_view bytes);
  std::size_t feed_body(std::string_view bytes);
  void begin_body();
  void fail(int status, std::string_view code, std::string_view message);

  HttpLimits limits_;
  State state_ = State::head;
  bool started_ = false;
  std::string raw_;  // of the head
  std::unique_ptr<Parser> parser_;
  RequestHead head_;
  api::ApiError error_;
};

}  // namespace koho::server
