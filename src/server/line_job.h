// SPDX-License-Identifier: Apache-2.0
// One line of OpenAI's batch format on its way: a request to an endpoint, answered in this process,
// and the line of output that it becomes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "api/batch_line.h"
#include "server/core.h"

namespace koho::server {

class LineJob {
 public:
  struct Options {
    std::function<void()> wake;     // poll() has something to do; from any thread
    std::shared_ptr<ApiKey> key{};  // charged for the request; null: none
    std::int32_t priority = 0;      // the best that the request can have
  };
  /// Begins to read the request. `core` and `serving` outlive the job.
  LineJob(Core& core, const ServedModel& serving, api::BatchLine line, Options options);
  /// Cancels what is under way.
  ~LineJob();
  LineJob(LineJob&&) = default;
  LineJob& operator=(LineJob&&) = delete;

  /// Whether the answer is complete. One caller at a time.
  bool poll();
  const api::BatchLine& line() const { return line_; }

  // Require: poll() has returned true.
  int status() const { return status_; }  // HTTP's
  /// The server was full or the key at a limit: the line is to be sent again, not before this
  /// number of seconds; 0: it is answered.
  std::int32_t retry_after_s() const { return retry_after_s_; }
  std::string output() const;
  /// Of an answer with status 200.
  const api::AnswerTotals& totals() const { return totals_; }
  bool is_cut() const { return cut_; }  // it reached its length
  /// The request gives way to others: it is not held against its key. Cancel it next.
  void forgive();
  /// Takes the line back, to send it again.
  api::BatchLine take_line() { return std::move(line_); }

 private:
  api::BatchLine line_;
  std::shared_ptr<GenerationJob> job_;  // null: complete
  std::string request_id_;
  int status_ = 0;
  std::int32_t retry_after_s_ = 0;
  std::string body_;
  api::AnswerTotals totals_;
  bool cut_ = false;
};

}  // namespace koho::server
