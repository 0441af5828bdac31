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
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/descriptor.h"
#include "base/error.h"

namespace koho::server {

/// The purpose of files that batches made.
inline constexpr std::string_view kAnswersPurpose = "batch_output";

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

/// What an owner may keep.
struct FileShare {
  std::int64_t bytes_max = 0;  // 0: no limit of its own
  bool leaves_room = false;    // it may keep no more than it leaves to other owners
};

/// Threads: any.
class FileStore {
 public:
  /// Opens or creates the directory, for this process alone. Errors: io_error; unavailable: another
  /// process has it open.
  static Result<std::unique_ptr<FileStore>> open(const std::filesystem::path& directory,
                                                 std::int64_t bytes_max);

  /// Keeps `content` under `file.id`, which is new. Errors: resource_exhausted: all files together
  /// would have more than bytes_max, or the owner's more than its share; io_error.
  Status add(StoredFile file, std::string_view content, const FileShare& share = {});
  /// Whether the owner is within its share, which answers of its batches under way may exceed.
  /// Errors: resource_exhausted.
  Status check_share(std::string_view owner, const FileShare& share) const;
  /// Whether its batches may go on: within its share, or, if others have made that smaller since,
  /// within that of one alone while its answers are no more than is left. Errors:
  /// resource_exhausted.
  Status check_answers(std::string_view owner, const FileShare& share) const;
  /// The owner has so many bytes more, or less, of answers that are no file yet.
  void hold_answers(const std::string& owner, std::int64_t bytes);
  /// Keeps a file that is on this disk already, which is moved; if it is gone, it was moved by an
  /// earlier call that did not end. No limit: it holds work that was done. Errors: not_found:
  /// it is nowhere; io_error: the call may be repeated.
  Status take_over(StoredFile file, const std::filesystem::path& content);

  /// Removes contents without facts, which a server that was killed had begun to keep or to delete:
  /// no client was told of them. Not those in `wanted`, which take_over() has moved.
  void remove_leftovers(const std::set<std::string, std::less<>>& wanted);

  std::optional<StoredFile> find(std::string_view owner, std::string_view id) const;
  /// The newest first.
  std::vector<StoredFile> list(std::string_view owner) const;
  /// Errors: not_found; io_error: it is there as before, or is deleted by another call.
  Status remove(std::string_view owner, std::string_view id);
  void remove_expired(std::int64_t now_s, const std::function<bool(const StoredFile&)>& is_read);

  std::filesystem::path content_path(std::string_view id) const;
  /// A directory for those who keep more than files beside them.
  const std::filesystem::path& directory() const { return directory_; }

 private:
  FileStore(std::filesystem::path directory, std::int64_t bytes_max)
      : directory_(std::move(directory)), bytes_max_(bytes_max) {}
  struct Held {
    std::int64_t bytes = 0;
    std::int64_t files = 0;
    std::int64_t answers = 0;  // of the bytes
  };
  static Held held_of(const StoredFile& file);
  Status read_table();
  Status keep(StoredFile file);
  // ---- under the mutex
  /// An owner has more or less of them.
  void hold(const std::string& owner, const Held& more);
  Status check_room(std::string_view owner, const Held& more, const FileShare& share) const;
  /// How much of `most` an owner may hold.
  std::int64_t room_for(std::string_view owner,
                        std::int64_t most,
                        std::int64_t Held::*what,
                        bool leaves_room) const;
  std::filesystem::path facts_path(std::string_view id) const;

  const std::filesystem::path directory_;
  const std::int64_t bytes_max_;
  Descriptor lock_;
  mutable std::mutex mutex_;
  std::map<std::string, StoredFile, std::less<>> files_;
  std::map<std::string, Held, std::less<>> held_;  // by owner, what is being written included
};

}  // namespace koho::server
