// SPDX-License-Identifier: Apache-2.0
// An HTTP answer as bytes come, and what the events of a streamed one say of its request. No
// sockets.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "bench/serve_report.h"

namespace koho::bench {

/// Reads one HTTP answer.
class AnswerReader {
 public:
  using OnBody = std::function<void(std::string_view part)>;

  /// `on_body` gets the body's parts.
  void feed(std::string_view bytes, const OnBody& on_body);
  /// The end of the connection is that of the body.
  bool ends_here() const { return status_ != 0 && !chunked_ && left_ < 0; }
  int status() const { return status_; }  // 0: not read yet
  bool done() const { return done_; }
  bool keeps_alive() const { return keep_alive_; }

 private:
  bool read_head();
  void read_chunks(const OnBody& on_body);

  std::string raw_;
  int status_ = 0;
  bool chunked_ = false;
  bool keep_alive_ = true;
  bool done_ = false;
  std::int64_t left_ = -1;  // of the body; negative: until the connection ends
};

/// Fills a request's result from the events of its stream.
class StreamNotes {
 public:
  void begin(ServedRequest& request, std::int64_t now_us);
  void feed(std::string_view part, std::int64_t now_us);
  /// The answer is over.
  void finish();

 private:
  void event(std::string_view text, std::int64_t now_us);

  ServedRequest* request_ = nullptr;
  std::int64_t begun_us_ = 0;
  std::int64_t last_us_ = 0;
  bool first_ = true;  // no token has come
  std::string tail_;
};

}  // namespace koho::bench
