// SPDX-License-Identifier: Apache-2.0
// A file of a batch's answers, in koho's format or OpenAI's: reads those of an earlier run, drops
// an incomplete last line, appends whole lines. It refuses a file of anything else.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"

namespace koho::server {

/// A 128-bit hash of an id: a million ids take about 50 MB, whatever their length.
struct IdHash {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  bool operator==(const IdHash&) const = default;
};
/// Of an id as JSON.
IdHash hash_of(std::string_view id);

struct IdHashLow {
  std::size_t operator()(const IdHash& hash) const { return hash.low; }
};
using IdSet = std::unordered_set<IdHash, IdHashLow>;

class BatchOutput {
 public:
  struct Options {
    std::size_t line_bytes_max = 0;  // of a line that an earlier run wrote
    bool restart = false;            // forget what is there
  };

  /// Opens or creates `path`; "-" is standard output. Errors: io_error; corrupt_data (not a file of
  /// `koho batch`); unavailable (another run is writing it).
  static Result<BatchOutput> open(const std::string& path, const Options& options);
  BatchOutput(BatchOutput&& other) noexcept;
  BatchOutput& operator=(BatchOutput&&) = delete;
  ~BatchOutput();

  /// Ids with an answer from an earlier run.
  const IdSet& answered() const { return answered_; }
  /// Whether an earlier run refused this line of the input with this id (as JSON).
  bool refused(std::int64_t number, std::string_view id) const;
  std::size_t lines_found() const { return answered_.size() + refused_.size(); }
  /// Bytes of the incomplete last line that open() dropped.
  std::int64_t bytes_dropped() const { return bytes_dropped_; }

  /// Bytes of whole lines.
  std::int64_t bytes() const { return bytes_; }

  /// Appends `line` and a newline, or nothing of it. Errors: io_error: another call may succeed.
  Status write(std::string line);
  /// Errors: io_error: some file systems report write errors only here.
  Status close();

 private:
  BatchOutput(int fd, std::string name) : fd_(fd), name_(std::move(name)) {}
  Status read_earlier(std::size_t line_bytes_max);
  Status note(std::string_view line, std::int64_t number);
  Error failed(const char* what) const;

  int fd_ = -1;
  bool owned_ = false;
  std::string name_;
  IdSet answered_;
  std::unordered_map<std::int64_t, IdHash> refused_;  // by line of the input
  std::int64_t bytes_dropped_ = 0;
  std::int64_t bytes_ = 0;
  bool torn_ = false;  // the beginning of a line is behind them
};

}  // namespace koho::server
