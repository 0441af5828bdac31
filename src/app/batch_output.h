// SPDX-License-Identifier: Apache-2.0
// The output file of `koho batch`: knows what an earlier run left in it, drops a line that was cut
// off, appends whole lines. Touches no file that it does not recognise as its own.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"

namespace koho::app {

/// 128 bits that stand for an id: a million ids take some 50 MB, however long they are.
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

  /// Opens or makes `path`; "-" is standard output. Errors: io_error; corrupt_data (a file that no
  /// run of ours wrote); unavailable (another run is writing it).
  static Result<BatchOutput> open(const std::string& path, const Options& options);
  BatchOutput(BatchOutput&& other) noexcept;
  BatchOutput& operator=(BatchOutput&&) = delete;
  ~BatchOutput();

  /// Ids that have an answer.
  const IdSet& answered() const { return answered_; }
  /// Whether this line of the input, with this id (as JSON), was refused before.
  bool refused(std::int64_t number, std::string_view id) const;
  std::size_t lines_found() const { return answered_.size() + refused_.size(); }
  /// Bytes of a last line that was cut off.
  std::int64_t bytes_dropped() const { return bytes_dropped_; }

  /// Appends `line` and its end. Errors: io_error (the disk is full: the run has to end).
  Status write(std::string line);
  /// Errors: io_error, as some file systems report late.
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
};

}  // namespace koho::app
