// SPDX-License-Identifier: Apache-2.0
// A batch whose files are open: which lines of its input have no outcome yet, and where outcomes
// are written. What may take long goes on until it is told to pause.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "api/batch_line.h"
#include "base/line_reader.h"
#include "server/api_keys.h"
#include "server/batch_output.h"

namespace koho::server {

/// Threads: one.
struct ActiveBatch {
  /// A line that waits to be sent, or to be sent again.
  struct Unsent {
    api::BatchLine line{};
    std::int64_t at_us = 0;
  };
  using Pauses = std::function<bool()>;

  ActiveBatch(std::string name,
              Result<LineReader> reader,
              BatchOutput answers,
              BatchOutput failures)
      : id(std::move(name)),
        input(std::move(reader)),
        output(std::move(answers)),
        errors(std::move(failures)) {}

  enum class Next : std::uint8_t { line, paused, end };
  /// The next line that has no outcome yet. A line that cannot be read gets one. Errors: of the
  /// input; of flush().
  Result<Next> next_line(api::BatchLine& read, const Pauses& pauses);
  /// Writes an error for lines that have no outcome. True: for all. Errors: of flush().
  Result<bool> give_up_lines(const api::ApiError& why, const Pauses& pauses);

  /// Takes an outcome, to be written by flush().
  void keep(std::string text, bool answered);
  /// Writes what is kept. Errors: io_error; what was not written stays for the next call.
  Status flush();
  bool has_unwritten() const { return !kept_.empty(); }
  /// On the disk.
  std::int64_t bytes() const { return output.bytes() + errors.bytes(); }

  std::string id;
  Result<LineReader> input;
  BatchOutput output;
  BatchOutput errors;
  std::deque<Unsent> unsent;
  std::shared_ptr<ApiKey> key;
  std::int64_t in_flight = 0;
  std::int64_t completed = 0;
  std::int64_t failed = 0;
  bool at_end = false;    // of the input
  bool gives_up = false;  // it is cancelled or expired: no line is sent any more

 private:
  struct Outcome {
    std::string text{};
    bool answered = false;  // else it belongs to the errors
  };
  Status give_up(const api::BatchLine& line, const api::ApiError& why);

  std::deque<Outcome> kept_;  // one for each line in flight at most
};

}  // namespace koho::server
