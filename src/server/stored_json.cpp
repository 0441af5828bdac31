// SPDX-License-Identifier: Apache-2.0
#include "server/stored_json.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/json_writer.h"

namespace koho::server {
namespace {

Error failed(const std::filesystem::path& path, const char* what) {
  return make_error(ErrorCode::io_error, "{} could not be {}: {}", path.string(), what,
                    std::strerror(errno));
}

}  // namespace

Status write_whole_file(const std::filesystem::path& path, std::string_view text) {
  std::filesystem::path part = path;
  part += ".part";
  constexpr mode_t kMode = 0600;
  Descriptor file(::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, kMode));
  if (!file.is_open()) return failed(part, "created");
  const auto give_up = [&](const char* what) {
    const Error error = failed(part, what);
    ::unlink(part.c_str());
    return error;
  };
  while (!text.empty()) {
    const ssize_t written = ::write(file.get(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return give_up("written");
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  if (::fsync(file.get()) != 0) return give_up("written");
  if (::rename(part.c_str(), path.c_str()) != 0) return give_up("renamed");
  const Descriptor directory(
      ::open(path.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.is_open()) static_cast<void>(::fsync(directory.get()));
  return {};
}

std::string text_member(const chat::Json& object, std::string_view name) {
  const chat::Json* member = object.given(name);
  return member != nullptr && member->is_string() ? member->text : std::string();
}

std::int64_t integer_member(const chat::Json& object, std::string_view name) {
  const chat::Json* member = object.given(name);
  return member == nullptr ? 0 : member->as_integer().value_or(0);
}

void append_text_member(std::string& out, std::string_view name, std::string_view value) {
  out += ",\"";
  out += name;
  out += "\":";
  if (value.empty()) {
    out += "null";
  } else {
    append_json_string(out, value);
  }
}

void append_time_member(std::string& out, std::string_view name, std::int64_t value) {
  out += ",\"";
  out += name;
  out += "\":";
  if (value == 0) {
    out += "null";
  } else {
    append_json_integer(out, value);
  }
}

}  // namespace koho::server
