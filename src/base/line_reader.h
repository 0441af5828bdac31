// SPDX-License-Identifier: Apache-2.0
// Reads a file or pipe line by line and holds one line in memory. It skips and reports a line that
// is too long. A wait for a pipe has a timeout, so that the caller can do other work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace koho {

class LineReader {
 public:
  enum class State : std::uint8_t { line, too_long, nothing_yet, end };

  /// Opens `path`; "-" is standard input. Errors: not_found, io_error.
  static Result<LineReader> open(const std::string& path, std::size_t line_bytes_max);
  /// The same of a regular file; of what else has the path it does not wait for lines.
  static Result<LineReader> open_file(const std::string& path, std::size_t line_bytes_max);
  /// Reads from `fd`, which stays open. `name` is for messages.
  LineReader(int fd, std::string name, std::size_t line_bytes_max);
  LineReader(LineReader&& other) noexcept;
  LineReader& operator=(LineReader&&) = delete;
  ~LineReader();

  /// The next line without its end, valid until the next call. nothing_yet: after `timeout_ms`, or
  /// a signal. Errors: io_error.
  Result<State> next(std::string_view& line, int timeout_ms);

  std::int64_t number() const { return number_; }            // of the last line, from 1
  std::int64_t bytes() const { return bytes_; }              // up to the end of the last line
  bool terminated() const { return terminated_; }            // the last line has an end
  std::int64_t bytes_total() const { return bytes_total_; }  // of a regular file, else 0
  const std::string& name() const { return name_; }

 private:
  State take(std::string_view& line, std::size_t length, bool terminated);

  int fd_ = -1;
  bool owned_ = false;
  std::string name_;
  std::size_t line_bytes_max_;
  std::string buffer_;
  std::size_t begin_ = 0;     // of what was not handed out
  std::size_t searched_ = 0;  // no line ends before this
  bool skipping_ = false;     // the rest of a line that is too long
  bool at_end_ = false;
  bool terminated_ = false;
  std::int64_t number_ = 0;
  std::int64_t bytes_ = 0;
  std::int64_t bytes_total_ = 0;
};

}  // namespace koho
