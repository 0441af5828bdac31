// SPDX-License-Identifier: Apache-2.0
#include "server/batch_records.h"

#include <algorithm>
#include <functional>
#include <tuple>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "base/mapped_file.h"
#include "server/core.h"
#include "server/stored_json.h"

namespace koho::server {
namespace {

constexpr std::size_t kRecordBytesMax = 1U << 20U;
constexpr std::int64_t kUnfinishedMax = 512;

/// Whether nothing has this name for certain.
bool is_absent(const std::filesystem::path& path) {
  std::error_code error;
  return !std::filesystem::exists(path, error) && !error;
}

Result<BatchRecord> read_record(const std::filesystem::path& path) {
  KOHO_TRY_ASSIGN(const std::string text, read_file(path, kRecordBytesMax));
  KOHO_TRY_ASSIGN(BatchRecord record, read_stored_batch(text));
  if (record.id != path.stem().string())
    return make_error(ErrorCode::corrupt_data, "the batch has the id \"{:.100}\"", record.id);
  return record;
}

}  // namespace

std::filesystem::path BatchRecords::path_of(std::string_view id) const {
  return directory_ / fmt::format("{}.json", id);
}

/// Stands there while the batch is cancelled and its record does not say so.
std::filesystem::path BatchRecords::note_of(std::string_view id) const {
  return directory_ / fmt::format("{}.cancelled", id);
}

Status BatchRecords::read() {
  std::error_code error;
  std::filesystem::create_directories(directory_, error);
  std::vector<std::filesystem::path> others;
  for (const auto& entry : std::filesystem::directory_iterator(directory_, error)) {
    if (entry.path().extension() != ".json") {
      others.push_back(entry.path());
      continue;
    }
    Result<BatchRecord> record = read_record(entry.path());
    if (!record.ok()) {
      all_read_ = false;
      log::warning("{} is left out: {}", entry.path().string(), record.error().message);
      continue;
    }
    if (!is_over(record->status) && !is_absent(note_of(record->id))) {
      record->enter(BatchStatus::cancelling, Core::unix_seconds());
      unsaved_.insert(record->id);
    }
    if (!is_over(record->status))
      log::info("batch {} goes on: {}", record->id, batch_status_name(record->status));
    records_.emplace(record->id, std::move(*record));
  }
  if (error)
    return make_error(ErrorCode::io_error, "{} could not be read: {}", directory_.string(),
                      error.message());
  for (const std::filesystem::path& path : others) remove_leftover(path);
  return {};
}

/// What a server that was killed had begun to write, or to delete with its record.
void BatchRecords::remove_leftover(const std::filesystem::path& path) const {
  const std::string name = path.filename().string();
  const std::string_view id = std::string_view(name).substr(0, name.find('.'));
  const std::string_view kind = std::string_view(name).substr(id.size());
  if (!id.starts_with("batch_")) return;
  const bool torn = kind == ".json.part" || kind == ".cancelled.part";
  const bool is_part = kind == ".output" || kind == ".errors";
  const bool of_none = is_absent(path_of(id));
  const auto record = records_.find(id);
  const bool is_old_note =
      kind == ".cancelled" &&
      (of_none || (record != records_.end() && is_over(record->second.status)));
  if (torn || is_old_note || (is_part && of_none)) ::unlink(path.c_str());
}

std::set<std::string, std::less<>> BatchRecords::named() const {
  const std::lock_guard lock(mutex_);
  std::set<std::string, std::less<>> names;
  for (const auto& [id, record] : records_)
    if (!is_over(record.status)) names.insert({record.output_file_id, record.error_file_id});
  return names;
}

Status BatchRecords::add(const BatchRecord& record) {
  const std::lock_guard lock(mutex_);
  std::int64_t unfinished = 0;
  std::int64_t own = 0;
  for (const auto& [id, one] : records_) {
    if (is_over(one.status)) continue;
    ++unfinished;
    if (one.owner == record.owner) ++own;
  }
  // As many as are left: so whoever comes later finds some, too.
  if (own >= kUnfinishedMax - unfinished)
    return make_error(ErrorCode::resource_exhausted,
                      "{} batches are unfinished, {} of them yours, the limit; cancel some or wait",
                      unfinished, own);
  KOHO_TRY(write_whole_file(path_of(record.id), stored_batch(record)));
  records_.emplace(record.id, record);
  return {};
}

std::optional<BatchRecord> BatchRecords::find(std::string_view owner, std::string_view id) const {
  const std::lock_guard lock(mutex_);
  const auto found = records_.find(id);
  if (found == records_.end() || found->second.owner != owner) return std::nullopt;
  return found->second;
}

std::vector<BatchRecord> BatchRecords::list(std::string_view owner) const {
  std::vector<BatchRecord> records;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, record] : records_)
      if (record.owner == owner) records.push_back(record);
  }
  std::ranges::sort(records, [](const BatchRecord& a, const BatchRecord& b) {
    return std::tie(a.created_at, a.id) > std::tie(b.created_at, b.id);
  });
  return records;
}

Result<BatchRecord> BatchRecords::cancel(std::string_view owner, std::string_view id) {
  const std::lock_guard lock(mutex_);
  const auto found = records_.find(id);
  if (found == records_.end() || found->second.owner != owner)
    return make_error(ErrorCode::not_found, "there is no batch \"{:.100}\"", id);
  BatchRecord& record = found->second;
  if (is_over(record.status))
    return make_error(ErrorCode::invalid_argument, "the batch is {} already",
                      batch_status_name(record.status));
  if (record.status == BatchStatus::validating || record.status == BatchStatus::in_progress) {
    record.enter(BatchStatus::cancelling, Core::unix_seconds());
    static_cast<void>(save(record));
  }
  // A disk that is full has room for an empty file.
  if (record.status == BatchStatus::cancelling && unsaved_.contains(record.id))
    KOHO_TRY(write_whole_file(note_of(record.id), {}));
  return record;
}

std::string BatchRecords::reader_of(std::string_view owner, std::string_view file_id) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [id, record] : records_)
    if (record.owner == owner && record.input_file_id == file_id && !is_over(record.status))
      return id;
  return {};
}

std::vector<BatchRecord> BatchRecords::unfinished() const {
  std::vector<BatchRecord> records;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, record] : records_)
      if (!is_over(record.status)) records.push_back(record);
  }
  std::ranges::sort(records, [](const BatchRecord& a, const BatchRecord& b) {
    return std::tie(a.created_at, a.id) < std::tie(b.created_at, b.id);
  });
  return records;
}

BatchRecord BatchRecords::get(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  return records_.find(id)->second;
}

std::optional<BatchStatus> BatchRecords::status_of(std::string_view id) const {
  const std::lock_guard lock(mutex_);
  const auto found = records_.find(id);
  return found == records_.end() ? std::nullopt : std::optional(found->second.status);
}

bool BatchRecords::advance(const std::string& id, BatchStatus from, BatchStatus to) {
  const std::lock_guard lock(mutex_);
  BatchRecord& record = records_.find(id)->second;
  if (record.status != from) return false;
  record.enter(to, Core::unix_seconds());
  static_cast<void>(save(record));
  return true;
}

void BatchRecords::set_faults(const std::string& id, std::vector<BatchFault> faults) {
  const std::lock_guard lock(mutex_);
  records_.find(id)->second.faults = std::move(faults);
}

void BatchRecords::fail(const std::string& id, std::string output, std::string errors) {
  const std::lock_guard lock(mutex_);
  BatchRecord& record = records_.find(id)->second;
  if (is_over(record.status)) return;
  record.output_file_id = std::move(output);
  record.error_file_id = std::move(errors);
  record.enter(BatchStatus::failed, Core::unix_seconds());
  static_cast<void>(save(record));
}

void BatchRecords::end_check(const std::string& id, BatchCheck check) {
  const std::lock_guard lock(mutex_);
  const auto found = records_.find(id);
  if (found == records_.end()) return;  // it was cancelled, and is forgotten
  BatchRecord& record = found->second;
  record.total = check.total;
  if (record.status != BatchStatus::validating) return;  // cancelled in this moment
  if (check.faults.empty()) {
    log::info("batch {}: {} requests", id, check.total);
    record.enter(BatchStatus::in_progress, Core::unix_seconds());
  } else {
    log::warning("batch {} failed: {}", id, check.faults.front().message);
    record.faults = std::move(check.faults);
    record.enter(BatchStatus::failed, Core::unix_seconds());
  }
  static_cast<void>(save(record));
}

void BatchRecords::count(const std::string& id, std::int64_t completed, std::int64_t failed) {
  const std::lock_guard lock(mutex_);
  BatchRecord& record = records_.find(id)->second;
  record.completed = completed;
  record.failed = failed;
}

void BatchRecords::save_counts(const std::string& id) {
  const std::lock_guard lock(mutex_);
  static_cast<void>(save(records_.find(id)->second));
}

void BatchRecords::set_wait_reason(const std::string& id, std::string reason) {
  const std::lock_guard lock(mutex_);
  records_.find(id)->second.wait_reason = std::move(reason);
}

void BatchRecords::name_files(const std::string& id, std::string output, std::string errors) {
  const std::lock_guard lock(mutex_);
  BatchRecord& record = records_.find(id)->second;
  if (!record.output_file_id.empty() || !record.error_file_id.empty()) return;
  record.output_file_id = std::move(output);
  record.error_file_id = std::move(errors);
  static_cast<void>(save(record));
}

Status BatchRecords::save(const BatchRecord& record) {
  Status written = write_whole_file(path_of(record.id), stored_batch(record));
  if (written.ok()) {
    if (unsaved_.erase(record.id) > 0) ::unlink(note_of(record.id).c_str());
  } else if (unsaved_.insert(record.id).second) {
    log::error("batch {}: {}", record.id, written.error().message);
  }
  return written;
}

Status BatchRecords::save_again(const std::string& id) {
  const std::lock_guard lock(mutex_);
  return unsaved_.contains(id) ? save(records_.find(id)->second) : Status{};
}

void BatchRecords::save_unsaved() {
  const std::lock_guard lock(mutex_);
  for (auto next = unsaved_.begin(); next != unsaved_.end();) {
    const std::string& id = *next++;  // save() takes it out
    if (!save(records_.find(id)->second).ok()) return;
  }
}

Status BatchRecords::end(const std::string& id, BatchStatus status) {
  const std::lock_guard lock(mutex_);
  BatchRecord& record = records_.find(id)->second;
  BatchRecord ended = record;
  ended.enter(status, Core::unix_seconds());
  // Of one that was cancelled before its check had ended nobody has counted the lines.
  ended.total = std::max(ended.total, ended.completed + ended.failed);
  KOHO_TRY(save(ended));
  record = std::move(ended);
  return {};
}

/// The oldest of whoever has the most, so that nobody's go for another's.
void BatchRecords::forget_old() {
  const std::lock_guard lock(mutex_);
  std::map<std::string_view, std::vector<std::pair<std::int64_t, std::string>>> over;  // by owner
  std::vector<std::string> forgotten;
  std::size_t count = 0;
  for (const auto& [id, record] : records_) {
    if (!is_over(record.status)) continue;
    over[record.owner].emplace_back(record.created_at, id);
    ++count;
  }
  for (auto& [owner, own] : over) std::ranges::sort(own, std::greater());
  for (; count > records_max_; --count) {
    const auto most =
        std::ranges::max_element(over, {}, [](const auto& one) { return one.second.size(); });
    const std::string id = std::move(most->second.back().second);
    most->second.pop_back();
    for (const char* kind : {"json", "output", "errors", "cancelled"})
      ::unlink((directory_ / fmt::format("{}.{}", id, kind)).c_str());
    forgotten.push_back(id);
  }
  // Last: the owners' names in `over` are those of the records.
  for (const std::string& id : forgotten) {
    records_.erase(id);
    unsaved_.erase(id);
  }
}

}  // namespace koho::server
