// SPDX-License-Identifier: Apache-2.0
#include "server/file_store.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <functional>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "base/json_writer.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "server/stored_json.h"

namespace koho::server {
namespace {

constexpr std::size_t kFactsBytesMax = 64U << 10U;
constexpr std::int64_t kFilesMax = 100'000;
constexpr std::string_view kFacts = ".json";
constexpr std::string_view kTorn = ".part";

/// As the server makes them.
bool is_id(std::string_view name) {
  constexpr std::string_view kBeginning = "file-";
  return name.starts_with(kBeginning) &&
         name.find_first_not_of("0123456789abcdef", kBeginning.size()) == name.npos &&
         name.size() == kBeginning.size() + 32;
}

std::string_view without(std::string_view name, std::string_view end) {
  return name.ends_with(end) ? name.substr(0, name.size() - end.size()) : name;
}

std::string facts_of(const StoredFile& file) {
  std::string out = file_json(file);
  out.pop_back();
  append_text_member(out, "owner", file.owner);
  return out + "}";
}

Result<StoredFile> read_facts(const std::filesystem::path& path) {
  KOHO_TRY_ASSIGN(const std::string text, read_file(path, kFactsBytesMax));
  KOHO_TRY_ASSIGN(const chat::Json json, chat::parse_json(text));
  StoredFile file{.id = text_member(json, "id"),
                  .owner = text_member(json, "owner"),
                  .filename = text_member(json, "filename"),
                  .purpose = text_member(json, "purpose"),
                  .bytes = integer_member(json, "bytes"),
                  .created_at = integer_member(json, "created_at"),
                  .expires_at = integer_member(json, "expires_at")};
  if (file.id != path.stem().string())
    return make_error(ErrorCode::corrupt_data, "the file has the id \"{}\"", file.id);
  return file;
}

}  // namespace

std::string file_json(const StoredFile& file) {
  std::string out = R"({"id":)";
  append_json_string(out, file.id);
  out += R"(,"object":"file","bytes":)";
  append_json_integer(out, file.bytes);
  append_time_member(out, "created_at", file.created_at);
  append_time_member(out, "expires_at", file.expires_at);
  out += R"(,"filename":)";
  append_json_string(out, file.filename);
  append_text_member(out, "purpose", file.purpose);
  return out + R"(,"status":"processed"})";
}

Result<std::unique_ptr<FileStore>> FileStore::open(const std::filesystem::path& directory,
                                                   std::int64_t bytes_max) {
  std::error_code error;
  std::filesystem::create_directories(directory / "files", error);
  if (error)
    return make_error(ErrorCode::io_error, "{} could not be created: {}", directory.string(),
                      error.message());
  // Prompts and answers: nobody else's business.
  std::filesystem::permissions(directory, std::filesystem::perms::owner_all, error);
  std::unique_ptr<FileStore> store(new FileStore(directory, bytes_max));
  const std::filesystem::path lock = directory / "lock";
  store->lock_ = Descriptor(::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!store->lock_.is_open())
    return make_error(ErrorCode::io_error, "{} could not be opened: {}", lock.string(),
                      std::strerror(errno));
  if (flock(store->lock_.get(), LOCK_EX | LOCK_NB) != 0)
    return make_error(ErrorCode::unavailable, "{}: another server uses this directory",
                      directory.string());
  KOHO_TRY(store->read_table());
  return store;
}

Status FileStore::read_table() {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory_ / "files", error)) {
    const std::filesystem::path& path = entry.path();
    if (path.extension() != ".json") continue;
    Result<StoredFile> file = read_facts(path);
    struct stat status {};
    if (!file.ok() || stat(content_path(file->id).c_str(), &status) != 0) {
      log::warning("{} is left out: {}", path.string(),
                   file.ok() ? "its content is missing" : file.error().message);
      continue;
    }
    file->bytes = status.st_size;
    hold(file->owner, held_of(*file));
    files_.emplace(file->id, std::move(*file));
  }
  if (error)
    return make_error(ErrorCode::io_error, "{} could not be read: {}", directory_.string(),
                      error.message());
  return {};
}

void FileStore::remove_leftovers(const std::set<std::string, std::less<>>& wanted) {
  const Result<std::vector<std::string>> names = file_names(directory_ / "files");
  if (!names.ok()) return log::warning("{}", names.error().message);
  for (const std::string& name : *names) {
    const bool torn = name.ends_with(kTorn);
    const std::string_view id = without(name, torn ? kTorn : "");
    if (!is_id(without(id, kFacts))) continue;
    const bool is_content = is_id(id) && !wanted.contains(id) &&
                            !std::ranges::binary_search(*names, fmt::format("{}{}", id, kFacts));
    if (!torn && !is_content) continue;
    const std::filesystem::path path = directory_ / "files" / name;
    log::info("{} is removed: an earlier server ended while it was written", path.string());
    if (::unlink(path.c_str()) != 0)
      log::warning("{} could not be deleted: {}", path.string(), std::strerror(errno));
  }
}

std::filesystem::path FileStore::content_path(std::string_view id) const {
  return directory_ / "files" / id;
}

std::filesystem::path FileStore::facts_path(std::string_view id) const {
  return directory_ / "files" / fmt::format("{}{}", id, kFacts);
}

Status FileStore::keep(StoredFile file) {
  KOHO_TRY(write_whole_file(facts_path(file.id), facts_of(file)));
  const std::lock_guard lock(mutex_);
  hold(file.owner, held_of(file));
  files_.insert_or_assign(file.id, std::move(file));
  return {};
}

FileStore::Held FileStore::held_of(const StoredFile& file) {
  const bool answers = file.purpose == kAnswersPurpose;
  return {.bytes = file.bytes, .files = 1, .answers = answers ? file.bytes : 0};
}

void FileStore::hold(const std::string& owner, const Held& more) {
  Held& held = held_[owner];
  held.bytes += more.bytes;
  held.files += more.files;
  held.answers += more.answers;
  if (held.files == 0 && held.bytes == 0) held_.erase(owner);
}

std::int64_t FileStore::room_for(std::string_view owner,
                                 std::int64_t most,
                                 std::int64_t Held::*what,
                                 bool leaves_room) const {
  std::vector<std::int64_t> others;
  for (const auto& [name, held] : held_)
    if (name != owner) others.push_back(held.*what);
  std::ranges::sort(others, std::greater<>());
  // As for unfinished batches: each leaves as much as it has. Who has more, by the answers of
  // batches, has taken it from nobody.
  for (const std::int64_t one : others) most -= leaves_room ? std::min(one, most / 2) : one;
  return leaves_room ? most / 2 : most;
}

Status FileStore::check_room(std::string_view owner,
                             const Held& more,
                             const FileShare& share) const {
  const auto found = held_.find(owner);
  const Held own = found == held_.end() ? Held{} : found->second;
  if (own.files + more.files > room_for(owner, kFilesMax, &Held::files, share.leaves_room))
    return make_error(ErrorCode::resource_exhausted,
                      "{} files are yours, the limit: delete some first", own.files);
  std::int64_t room = room_for(owner, bytes_max_, &Held::bytes, share.leaves_room);
  if (share.bytes_max > 0) room = std::min(room, share.bytes_max);
  if (own.bytes + more.bytes > room)
    return make_error(ErrorCode::resource_exhausted,
                      "{} bytes of files are yours, {} more would fit: delete some first",
                      own.bytes, std::max<std::int64_t>(room - own.bytes, 0));
  return {};
}

Status FileStore::check_share(std::string_view owner, const FileShare& share) const {
  const std::lock_guard lock(mutex_);
  return check_room(owner, {}, share);
}

Status FileStore::check_answers(std::string_view owner, const FileShare& share) const {
  const std::lock_guard lock(mutex_);
  Status room = check_room(owner, {}, share);
  const auto own = held_.find(owner);
  if (room.ok() || !share.leaves_room || own == held_.end()) return room;
  std::int64_t left = bytes_max_;
  for (const auto& [name, held] : held_) left -= held.bytes;
  const std::int64_t alone =
      share.bytes_max > 0 ? std::min(share.bytes_max, bytes_max_ / 2) : bytes_max_ / 2;
  return own->second.bytes <= alone && own->second.answers <= left ? Status{} : room;
}

void FileStore::hold_answers(const std::string& owner, std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  hold(owner, {.bytes = bytes, .files = 0, .answers = bytes});
}

Status FileStore::add(StoredFile file, std::string_view content, const FileShare& share) {
  file.bytes = static_cast<std::int64_t>(content.size());
  const std::string owner = file.owner;
  const Held promised{.bytes = file.bytes, .files = 1};
  {
    const std::lock_guard lock(mutex_);
    KOHO_TRY(check_room(owner, promised, share));
    hold(owner, promised);
  }
  const std::filesystem::path path = content_path(file.id);
  Status done = write_whole_file(path, content);
  if (done.ok()) done = keep(std::move(file));
  if (!done.ok()) ::unlink(path.c_str());
  const std::lock_guard lock(mutex_);
  hold(owner, {.bytes = -promised.bytes, .files = -1});
  return done;
}

Status FileStore::take_over(StoredFile file, const std::filesystem::path& content) {
  if (find(file.owner, file.id)) return {};
  const std::filesystem::path path = content_path(file.id);
  const bool moved = ::rename(content.c_str(), path.c_str()) == 0;
  struct stat status {};
  if ((!moved && errno != ENOENT) || stat(path.c_str(), &status) != 0)
    return make_error(errno == ENOENT ? ErrorCode::not_found : ErrorCode::io_error,
                      "{} could not be renamed: {}", content.string(), std::strerror(errno));
  file.bytes = status.st_size;
  return keep(std::move(file));
}

std::optional<StoredFile> FileStore::find(std::string_view owner, std::string_view id) const {
  const std::lock_guard lock(mutex_);
  const auto found = files_.find(id);
  if (found == files_.end() || found->second.owner != owner) return std::nullopt;
  return found->second;
}

std::vector<StoredFile> FileStore::list(std::string_view owner) const {
  std::vector<StoredFile> files;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, file] : files_)
      if (file.owner == owner) files.push_back(file);
  }
  std::ranges::sort(files, [](const StoredFile& a, const StoredFile& b) {
    return a.created_at != b.created_at ? a.created_at > b.created_at : a.id > b.id;
  });
  return files;
}

Status FileStore::remove(std::string_view owner, std::string_view id) {
  const std::lock_guard lock(mutex_);
  const auto found = files_.find(id);
  if (found == files_.end() || found->second.owner != owner)
    return make_error(ErrorCode::not_found, "there is no file \"{:.100}\"", id);
  // The facts first: content without facts is no file.
  for (const std::filesystem::path& path : {facts_path(id), content_path(id)})
    if (::unlink(path.c_str()) != 0 && errno != ENOENT)
      return make_error(ErrorCode::io_error, "{} could not be deleted: {}", path.string(),
                        std::strerror(errno));
  const Held held = held_of(found->second);
  hold(found->second.owner, {.bytes = -held.bytes, .files = -held.files, .answers = -held.answers});
  files_.erase(found);
  return {};
}

void FileStore::remove_expired(std::int64_t now_s,
                               const std::function<bool(const StoredFile&)>& is_read) {
  std::vector<StoredFile> expired;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, file] : files_)
      if (file.expires_at > 0 && file.expires_at <= now_s) expired.push_back(file);
  }
  Status last;
  for (const StoredFile& file : expired)
    if (!is_read(file))
      if (Status removed = remove(file.owner, file.id); !removed.ok()) last = std::move(removed);
  if (!last.ok() && last.error().code != ErrorCode::not_found)
    log::warning("an expired file stays: {}", last.error().message);
}

}  // namespace koho::server
