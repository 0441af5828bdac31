// SPDX-License-Identifier: Apache-2.0
// How batches end: their answers become files. The files' names are on disk before the files are,
// so that an end that was interrupted can go on. And what is on the disk of those that have not.
#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <functional>
#include <optional>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "server/batch_service.h"

namespace koho::server {
namespace {

constexpr std::size_t kCountedBytes = 1U << 20U;

std::int64_t bytes_of(const std::filesystem::path& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 ? status.st_size : 0;
}

api::ApiError give_up_error(BatchStatus status, bool key_gone, bool had_key) {
  api::ApiError error{.status = 400};
  if (status == BatchStatus::expiring) {
    error.code = "batch_expired";
    error.message = "This request could not be executed before the completion window expired.";
  } else {
    error.code = "batch_cancelled";
    error.message = !key_gone ? "This request was not executed: the batch was cancelled."
                    : had_key
                        ? "The API key that made this batch is no longer valid."
                        : "This batch was made without an API key, and the server has keys now.";
  }
  return error;
}

/// Nobody knows the custom_ids of lines that cannot be read: the batch itself says how many.
std::vector<BatchFault> unread_faults(const ActiveBatch& batch, std::int64_t total) {
  const std::int64_t left = total - batch.completed - batch.failed;
  if (total > 0 && left <= 0) return {};
  const std::string rest = total > 0 ? fmt::format("{} of its {} requests", left, total)
                                     : std::string("its other requests");
  return {{.line = batch.input.ok() ? batch.input->number() + 1 : 0,
           .code = "io_error",
           .param = "input_file_id",
           .message = fmt::format("the input file could not be read to its end: {} were not "
                                  "executed, and have no line in the output or error file",
                                  rest)}};
}

void sync_file(const std::filesystem::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.is_open()) static_cast<void>(::fsync(file.get()));
}

/// How many whole lines a file has; nothing: it cannot be read, or `pauses`.
std::optional<std::int64_t> lines_of(const std::filesystem::path& path,
                                     const std::function<bool()>& pauses) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) return errno == ENOENT ? std::optional<std::int64_t>(0) : std::nullopt;
  std::string bytes(kCountedBytes, '\0');
  std::int64_t lines = 0;
  while (!pauses()) {
    const ssize_t got = ::read(file.get(), bytes.data(), bytes.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::nullopt;
    if (got == 0) return lines;
    lines += std::count(bytes.begin(), bytes.begin() + got, '\n');
  }
  return std::nullopt;
}

}  // namespace

std::int64_t BatchService::part_bytes(std::string_view id) const {
  return bytes_of(part_path(id, "output")) + bytes_of(part_path(id, "errors"));
}

/// Counts what an earlier server left: its records were written when their statuses changed.
void BatchService::count_parts() {
  const auto pauses = [this] { return stopping_.load(); };
  for (const BatchRecord& one : records_.unfinished()) {
    if (!one.output_file_id.empty() || !one.error_file_id.empty()) continue;  // written with those
    const std::optional<std::int64_t> answers = lines_of(part_path(one.id, "output"), pauses);
    const std::optional<std::int64_t> errors = lines_of(part_path(one.id, "errors"), pauses);
    records_.count(one.id, answers.value_or(one.completed), errors.value_or(one.failed));
  }
}

/// Whether the batch is over.
bool BatchService::settle(ActiveBatch& batch, const ActiveBatch::Pauses& pauses) {
  const BatchRecord now = records_.get(batch.id);
  batch.key = core_.api_keys()->find_owner(now.owner);
  // One from before there were keys belongs to nobody who could see it, and to no limit.
  const bool key_gone =
      batch.key == nullptr && (!now.owner.empty() || !core_.api_keys()->all().empty());
  if (key_gone) {
    records_.advance(batch.id, BatchStatus::in_progress, BatchStatus::cancelling);
  } else if (Core::unix_seconds() >= now.expires_at) {
    records_.advance(batch.id, BatchStatus::in_progress, BatchStatus::expiring);
    if (!batch.input.ok())
      records_.advance(batch.id, BatchStatus::finalizing, BatchStatus::expiring);
  }
  if (waits(batch.id) || !flush(batch)) return false;
  const BatchStatus status = records_.get(batch.id).status;
  if (status == BatchStatus::cancelling || status == BatchStatus::expiring) {
    batch.gives_up = true;
    withdraw_batch(batch);
    const Result<bool> done =
        batch.give_up_lines(give_up_error(status, key_gone, !now.owner.empty()), pauses);
    if (!done.ok()) wait(batch.id, done.error());
    records_.count(batch.id, batch.completed, batch.failed);
    const bool unreadable = !done.ok() && !batch.has_unwritten();
    if (unreadable) {
      records_.set_faults(batch.id, unread_faults(batch, now.total));
    } else if (!(done.ok() && *done)) {
      has_more_ = has_more_ || done.ok();
      return false;
    }
  } else {
    // It ends while the server is full, too.
    if (batch.in_flight == 0 && batch.unsent.empty()) prefetch_line(batch, pauses);
    if (!batch.at_end || batch.in_flight > 0 || !batch.unsent.empty()) return false;
    if (status != BatchStatus::finalizing &&
        !records_.advance(batch.id, BatchStatus::in_progress, BatchStatus::finalizing))
      return false;  // cancelled in this moment
  }
  records_.count(batch.id, batch.completed, batch.failed);
  name_files(batch.id);
  finish_files(records_.get(batch.id));
  return true;
}

/// Decides which files the batch will have, on disk: one of each part that holds something.
void BatchService::name_files(const std::string& id) {
  const BatchRecord batch = records_.get(id);
  const auto name = [&](const std::string& named, const char* kind) {
    const std::filesystem::path part = part_path(id, kind);
    if (!named.empty() || bytes_of(part) == 0) return named;
    sync_file(part);
    return "file-" + core_.make_dated_id(Core::unix_seconds());
  };
  records_.name_files(id, name(batch.output_file_id, "output"),
                      name(batch.error_file_id, "errors"));
}

/// Makes a file of a part; without a name there is none.
Status BatchService::keep_part(const BatchRecord& batch, const std::string& id, const char* kind) {
  const std::filesystem::path part = part_path(batch.id, kind);
  if (id.empty()) {
    ::unlink(part.c_str());
    return {};
  }
  const std::int64_t now_s = Core::unix_seconds();
  const char* const name = std::string_view(kind) == "errors" ? "error" : kind;
  return files_->take_over(
      {.id = id,
       .owner = batch.owner,
       .filename = fmt::format("{}_{}.jsonl", batch.id, name),
       .purpose = std::string(kAnswersPurpose),
       .created_at = Core::time_of_id(id).value_or(now_s),
       .expires_at = batch.output_expires_s > 0 ? now_s + batch.output_expires_s : 0},
      part);
}

/// Makes the named files of a batch and ends it.
void BatchService::finish_files(const BatchRecord& batch) {
  const bool is_given_up =
      batch.status == BatchStatus::cancelling || batch.status == BatchStatus::expiring;
  if (!is_given_up && !batch.faults.empty()) return finish_failed(batch);
  Status made = records_.save_again(batch.id);  // its names are on disk before they are used
  if (made.ok()) made = keep_part(batch, batch.output_file_id, "output");
  if (made.ok()) made = keep_part(batch, batch.error_file_id, "errors");
  const BatchStatus end = batch.status == BatchStatus::cancelling ? BatchStatus::cancelled
                          : batch.status == BatchStatus::expiring ? BatchStatus::expired
                                                                  : BatchStatus::completed;
  count_bytes(batch.id, batch.owner, part_bytes(batch.id));
  if (made.ok()) made = records_.end(batch.id, end);
  if (!made.ok() && made.error().code == ErrorCode::not_found) return fail(batch.id, made.error());
  if (!made.ok()) return wait(batch.id, made.error());
  go_on(batch.id);
  log::info("batch {} is {}: {} completed, {} failed of {}", batch.id, batch_status_name(end),
            batch.completed, batch.failed, batch.total);
}

/// Ends the batch with an error of this machine, of which its client is not told paths.
void BatchService::fail(const std::string& id, const Error& error) {
  log::warning("batch {} failed: {}", id, error.message);
  const char* const what = error.code == ErrorCode::not_found
                               ? "a file of the batch is missing on the server"
                               : "a file of the batch is damaged on the server";
  records_.set_faults(id, {{.line = 0,
                            .code = std::string(error_code_info(error.code).name),
                            .param = {},
                            .message = what}});
  name_files(id);
  finish_failed(records_.get(id));
}

/// Makes files of what there is.
void BatchService::finish_failed(const BatchRecord& batch) {
  Status made = records_.save_again(batch.id);
  const auto keep = [&](const std::string& id, const char* kind) -> std::string {
    Status kept = made.ok() ? keep_part(batch, id, kind) : Status();
    if (kept.ok()) return id;
    if (kept.error().code != ErrorCode::not_found) made = std::move(kept);
    return {};
  };
  const std::string output = keep(batch.output_file_id, "output");
  const std::string errors = keep(batch.error_file_id, "errors");
  count_bytes(batch.id, batch.owner, part_bytes(batch.id));
  if (!made.ok()) return wait(batch.id, made.error());
  go_on(batch.id);
  records_.fail(batch.id, output, errors);
}

}  // namespace koho::server
