// SPDX-License-Identifier: Apache-2.0
// Requests as the dashboard lists them: those that run, and the last ones that ended, which the log
// has a line for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace koho::server {

struct LiveRequest {
  std::string id{};
  std::string_view path{};
  std::string_view state{};  // "reading", "waiting" (for its first token), "answering"
  std::int64_t received_us = 0;
  std::int64_t prompt_tokens = -1;  // -1: not known yet
  std::int64_t tokens = 0;          // of the answer
  std::int64_t first_us = 0;        // of the first token, if there is one
  std::int64_t last_us = 0;
};

struct EndedRequest {
  std::string id{};
  std::string_view path{};
  std::int64_t ended_unix_s = 0;
  int status = 0;
  std::string finish{};  // "stop", "length", "tool_calls", "abort", or an error's code
  bool failed = false;
  std::string code{};     // of the error; "": it has none
  std::string param{};    // the field the error is about, at most kTextBytesMax bytes
  std::string message{};  // the error's, at most kTextBytesMax bytes
  std::string key{};      // the API key's hash; "": none was needed
  std::string owner{};    // whose it is
  std::string user{};     // at most kTextBytesMax bytes
  std::optional<std::int64_t> prompt_tokens{};
  std::optional<std::int64_t> cached_tokens{};
  std::int64_t tokens = 0;  // of the answer
  std::optional<std::int64_t> first_token_us{};
  std::optional<double> tokens_per_s{};
  std::int64_t total_us = 0;

  static constexpr std::size_t kTextBytesMax = 200;
};

/// The beginning of `text`, whole characters, at most EndedRequest::kTextBytesMax bytes.
std::string_view shortened(std::string_view text);

/// The log's line about a request.
void log_request(const EndedRequest& request);

/// The last ended requests. Of the owner with most the oldest goes first, so that nobody's go for
/// another's. Threads: any.
class RequestLog {
 public:
  static constexpr std::size_t kRowsMax = 200;

  void add(EndedRequest request);
  /// Newest first.
  std::vector<EndedRequest> rows() const;

 private:
  mutable std::mutex mutex_;
  std::deque<EndedRequest> rows_;              // newest first
  std::map<std::string, std::size_t> counts_;  // by owner; none is 0
};

/// {"running": [...], "ended": [...]}; ages and durations in ms.
std::string requests_json(const std::vector<LiveRequest>& live,
                          const std::vector<EndedRequest>& ended,
                          std::int64_t now_us);

}  // namespace koho::server
