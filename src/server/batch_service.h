// SPDX-License-Identifier: Apache-2.0
// Runs batches of OpenAI's batch API behind the requests of clients that wait. Its state is on
// disk: answers are appended as they come, and a server that starts again goes on where the last
// one ended. Knows no HTTP.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "server/active_batch.h"
#include "server/batch_check.h"
#include "server/batch_records.h"
#include "server/core.h"
#include "server/file_store.h"
#include "server/line_job.h"

namespace koho::server {

/// What a client wants of a batch.
struct BatchOrder {
  std::string owner{};
  std::string endpoint{};
  std::string input_file_id{};
  std::string completion_window{};
  std::int64_t window_s = 0;
  std::int64_t output_expires_s = 0;
  std::string metadata{};
};

/// What may be kept of files of this key; null: no key is needed.
inline FileShare share_of(const Core& core, const ApiKey* key) {
  if (key == nullptr) return {};
  return {.bytes_max = key->settings().file_bytes,
          .leaves_room = core.api_keys()->all().size() > 1};
}

class BatchService {
 public:
  /// Reads the batches that are in the store's directory. `core` outlives the service.
  /// Errors: io_error; of the store: unavailable.
  static Result<std::unique_ptr<BatchService>> open(Core& core,
                                                    const std::filesystem::path& directory,
                                                    std::int64_t bytes_max);
  ~BatchService();

  /// Ends the thread; what runs is cancelled, to go on at the next start. Idempotent.
  void stop();

  // ---- threads: any
  FileStore& files() { return *files_; }
  /// Errors: not_found: no such file; resource_exhausted: too many batches wait; io_error.
  Result<BatchRecord> create(const BatchOrder& order);
  const BatchRecords& records() const { return records_; }
  /// Errors: not_found; invalid_argument: it is over.
  Result<BatchRecord> cancel(std::string_view owner, std::string_view id);
  /// Deletes a file. Errors: of the store; invalid_argument: an unfinished batch reads it.
  Status remove_file(std::string_view owner, std::string_view id);
  /// Requests of batches that run now.
  std::int64_t running() const { return running_.load(); }
  /// How often a batch found that it has to wait, or has to go on waiting.
  std::int64_t waits_found() const { return waits_found_.load(); }

 private:
  struct Slot {
    std::optional<LineJob> job;
    ActiveBatch* batch = nullptr;
    std::uint64_t order = 0;
  };
  /// Slots whose jobs have something to do. The engine's thread adds to it.
  struct Wakes {
    std::mutex mutex;
    std::condition_variable arrived;
    std::vector<std::size_t> slots;
    bool called = false;
    void add(std::size_t slot) {
      const std::lock_guard lock(mutex);
      slots.push_back(slot);
      arrived.notify_one();
    }
    void call() {
      const std::lock_guard lock(mutex);
      called = true;
      arrived.notify_one();
    }
  };

  BatchService(Core& core, std::unique_ptr<FileStore> files);
  std::filesystem::path part_path(std::string_view id, const char* kind) const;
  /// Of both on the disk.
  std::int64_t part_bytes(std::string_view id) const;
  void count_bytes(const std::string& id, const std::string& owner, std::int64_t bytes);

  // ---- the service's thread
  void run();
  bool work();
  void open_batches();
  bool validate(const std::vector<BatchRecord>& unfinished);
  Result<std::unique_ptr<ActiveBatch>> open_batch(const BatchRecord& record, bool ends);
  void poll_slot(std::size_t index);
  void keep_answer(Slot& slot);
  bool flush(ActiveBatch& batch);
  std::int64_t retry_us() const { return core_.settings().time.batch_retry_ms * 1000; }
  bool waits(const std::string& id) const;
  void wait(const std::string& id, const Error& error);
  void go_on(const std::string& id);
  void release(Slot& slot);
  void feed();
  bool feed_one(ActiveBatch& batch, std::size_t index, const ActiveBatch::Pauses& pauses);
  void prefetch_line(ActiveBatch& batch, const ActiveBatch::Pauses& pauses);
  void withdraw(std::int64_t keep);
  void withdraw_batch(ActiveBatch& batch);
  bool settle(ActiveBatch& batch, const ActiveBatch::Pauses& pauses);
  /// True from a moment on, or when the service ends.
  ActiveBatch::Pauses next_pause() const;
  void count_parts();
  void name_files(const std::string& id);
  Status keep_part(const BatchRecord& batch, const std::string& id, const char* kind);
  void finish_files(const BatchRecord& batch);
  void fail(const std::string& id, const Error& error);
  void finish_failed(const BatchRecord& batch);
  std::int64_t places() const;
  std::int64_t room() const;

  Core& core_;
  std::unique_ptr<FileStore> files_;
  BatchRecords records_;
  std::mutex readers_;  // held while a file gets one, or goes for want of one
  std::shared_ptr<Wakes> wakes_ = std::make_shared<Wakes>();
  std::vector<Slot> slots_;
  std::vector<std::unique_ptr<ActiveBatch>> active_;
  std::size_t turn_ = 0;  // whose line is next
  /// The check of one batch's input, a piece at a time.
  std::optional<BatchChecker> checker_;
  std::string checked_;                                // the batch
  std::map<std::string, std::uint64_t> checks_taken_;  // by owner: the last one's number
  std::uint64_t checks_ = 0;
  bool has_more_ = false;  // to do at once: it paused for the rest
  std::uint64_t order_ = 0;
  std::atomic<std::int64_t> running_{0};
  std::atomic<std::int64_t> waits_found_{0};
  std::atomic<bool> stopping_{false};
  std::int64_t tidied_us_ = 0;
  std::int64_t saved_us_ = 0;
  std::map<std::string, std::int64_t> waits_;  // batches: when they try again
  std::map<std::string, std::int64_t> held_;   // by batch: bytes of its owner's share of files
  std::thread thread_;                         // last
};

}  // namespace koho::server
