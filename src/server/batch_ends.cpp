// SPDX-License-Identifier: Apache-2.0
// How batches end: their answers become files. The files' names are on disk before the files are,
// so that an end that was interrupted can go on.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "server/batch_service.h"

namespace koho::server {
namespace {

std::int64_t bytes_of(const std::filesystem::path& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 ? status.st_size : 0;
}

void sync_file(const std::filesystem::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.is_open()) static_cast<void>(::fsync(file.get()));
}

}  // namespace

std::int64_t BatchService::part_bytes(std::string_view id) const {
  return bytes_of(part_path(id, "output")) + bytes_of(part_path(id, "errors"));
}

/// Decides which files the batch will have, on disk.
void BatchService::name_files(const ActiveBatch& batch) {
  const auto name = [&](const BatchOutput& output, const char* kind) {
    if (output.bytes() == 0) return std::string();
    sync_file(part_path(batch.id, kind));
    return "file-" + core_.make_id();
  };
  records_.name_files(batch.id, name(batch.output, "output"), name(batch.errors, "errors"));
}

/// Makes the named files of a batch and ends it.
void BatchService::finish_files(const BatchRecord& batch) {
  const std::int64_t now_s = Core::unix_seconds();
  const auto keep = [&](const std::string& id, const char* kind, const char* name) -> Status {
    const std::filesystem::path part = part_path(batch.id, kind);
    if (id.empty()) {
      ::unlink(part.c_str());
      return {};
    }
    return files_->take_over(
        {.id = id,
         .owner = batch.owner,
         .filename = fmt::format("{}_{}.jsonl", batch.id, name),
         .purpose = std::string(kAnswersPurpose),
         .created_at = now_s,
         .expires_at = batch.output_expires_s > 0 ? now_s + batch.output_expires_s : 0},
        part);
  };
  Status made = records_.save_again(batch.id);  // its names are on disk before they are used
  if (made.ok()) made = keep(batch.output_file_id, "output", "output");
  if (made.ok()) made = keep(batch.error_file_id, "errors", "error");
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
  go_on(id);
  count_bytes(id, records_.get(id).owner, 0);
  log::warning("batch {} failed: {}", id, error.message);
  records_.fail(id, {{.line = 0,
                      .code = std::string(error_code_info(error.code).name),
                      .param = {},
                      .message = "the server could not read or write the batch's files"}});
}

}  // namespace koho::server
