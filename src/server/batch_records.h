// SPDX-License-Identifier: Apache-2.0
// The table of batches: in memory, and each in a file of its own that is written when its status
// changes. Threads: any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "server/batch_record.h"

namespace koho::server {

class BatchRecords {
 public:
  /// `records_max`: of batches that are over.
  explicit BatchRecords(std::filesystem::path directory, std::size_t records_max = 10'000)
      : directory_(std::move(directory)), records_max_(records_max) {}
  /// Reads what an earlier server wrote, and removes what is of no record. Errors: io_error.
  Status read();
  /// False: read() left records out.
  bool all_read() const { return all_read_; }
  /// The files that unfinished batches have named.
  std::set<std::string, std::less<>> named() const;

  /// Errors: resource_exhausted: too many batches are unfinished; io_error.
  Status add(const BatchRecord& record);
  std::optional<BatchRecord> find(std::string_view owner, std::string_view id) const;
  /// The newest first.
  std::vector<BatchRecord> list(std::string_view owner) const;
  /// Errors: not_found; invalid_argument: it is over; io_error: a restart would forget it.
  Result<BatchRecord> cancel(std::string_view owner, std::string_view id);
  /// The unfinished batch that reads a file; "" is none.
  std::string reader_of(std::string_view owner, std::string_view file_id) const;

  // ---- for who runs the batches; `id` is in the table
  /// The oldest first.
  std::vector<BatchRecord> unfinished() const;
  BatchRecord get(const std::string& id) const;
  /// Nothing: it is in the table no more.
  std::optional<BatchStatus> status_of(std::string_view id) const;
  /// False: the batch was not in `from` any more.
  bool advance(const std::string& id, BatchStatus from, BatchStatus to);
  /// It has the files of what it had done, or "". Without effect on one that is over.
  void fail(const std::string& id, std::string output, std::string errors);
  /// Saved with the next change.
  void set_faults(const std::string& id, std::vector<BatchFault> faults);
  /// A batch that is still validating goes on, or has failed.
  void end_check(const std::string& id, BatchCheck check);
  void count(const std::string& id, std::int64_t completed, std::int64_t failed);
  /// Brings them to the disk, if that takes them: what clients see until the batch is open again.
  void save_counts(const std::string& id);
  /// Why the batch waits; "": it does not.
  void set_wait_reason(const std::string& id, std::string reason);
  /// Once: an unfinished batch that has names keeps them.
  void name_files(const std::string& id, std::string output, std::string errors);
  /// Brings a record to the disk that was not saved. Errors: io_error.
  Status save_again(const std::string& id);
  /// The same for all.
  void save_unsaved();
  /// Ends a batch once that is on the disk. Errors: io_error: it is unfinished as before.
  Status end(const std::string& id, BatchStatus status);
  /// Forgets batches that are over, beyond those that are kept: the oldest of the owner with most.
  void forget_old();

 private:
  std::filesystem::path path_of(std::string_view id) const;
  std::filesystem::path note_of(std::string_view id) const;
  void remove_leftover(const std::filesystem::path& path) const;
  /// A failure is logged once, and the record in memory goes on.
  Status save(const BatchRecord& record);

  const std::filesystem::path directory_;
  const std::size_t records_max_;
  bool all_read_ = true;  // since read()
  mutable std::mutex mutex_;
  std::map<std::string, BatchRecord, std::less<>> records_;
  std::set<std::string, std::less<>> unsaved_;  // newer than on the disk
};

}  // namespace koho::server
