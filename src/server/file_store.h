// SPDX-License-Identifier: Apache-2.0
// The files of OpenAI's files API: a directory on disk, with one file of content and one of facts
// for each, and a table of the facts in memory. Every file belongs to an owner, and nobody else
// finds it. Knows no HTTP.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/descriptor.h"
#include "base/error.h"

namespace koho::server {

struct StoredFile {
  std::string id{};        // "file-…", of letters, digits and hyphens
  std::string owner{};     // "": made while no key was needed
  std::string filename{};  // as the client named it; no path of this machine
  std::string purpose{};
  std::int64_t bytes = 0;
  std::int64_t created_at = 0;  // seconds since 1970
  std::int64_t expires_at = 0;  // 0: never
};

/// The file's JSON object for clients.
std::string file_json(const StoredFile& file);

/// Threads: any.
class FileStore {
 public:
  /// Opens or creates the directory, for this process alone. Errors: io_error; unavailable: another
  /// process has it open.
  static Result<std::unique_ptr<FileStore>> open(const std::filesystem::path& directory,
                                                 std::int64_t bytes_max);

  /// Keeps `content` under `file.id`, which is new. Errors: resource_exhausted: all files together
  /// would have more than bytes_max; io_error.
  Status add(StoredFile file, std::string_view content);
  /// The same for a file that is on this disk already, which is moved; if it is gone, it was moved
  /// by an earlier call that did not end. No limit: it holds work that was done. Errors: io_error.
  Status take_over(StoredFile file, const std::filesystem::path& content);

  std::optional<StoredFile> find(std::string_view owner, std::string_view id) const;
  /// The newest first.
  std::vector<StoredFile> list(std::string_view owner) const;
  /// False: there is none.
  bool remove(std::string_view owner, std::string_view id);
  void remove_expired(std::int64_t now_s, const std::function<bool(const StoredFile&)>& is_read);

  std::filesystem::path content_path(std::string_view id) const;
  /// A directory for those who keep more than files beside them.
  const std::filesystem::path& directory() const { return directory_; }
  std::int64_t bytes_used() const;

 private:
  FileStore(std::filesystem::path directory, std::int64_t bytes_max)
      : directory_(std::move(directory)), bytes_max_(bytes_max) {}
  Status read_table();
  Status keep(StoredFile file);
  std::filesystem::path facts_path(std::string_view id) const;

  const std::filesystem::path directory_;
  const std::int64_t bytes_max_;
  Descriptor lock_;
  mutable std::mutex mutex_;
  std::map<std::string, StoredFile, std::less<>> files_;
  std::int64_t bytes_used_ = 0;
  std::int64_t bytes_promised_ = 0;  // of files that are being written
};

}  // namespace koho::server
