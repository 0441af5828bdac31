// SPDX-License-Identifier: Apache-2.0
#include "server/batch_output.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>
#include <xxhash.h>

#include "api/batch_line.h"
#include "base/line_reader.h"
#include "chat/json.h"

namespace koho::server {
namespace {

constexpr std::string_view kBeginning = R"({"id":)";

}  // namespace

IdHash hash_of(std::string_view id) {
  const XXH128_hash_t hash = XXH3_128bits(id.data(), id.size());
  return {hash.low64, hash.high64};
}

Result<BatchOutput> BatchOutput::open(const std::string& path, const Options& options) {
  if (path == "-") return BatchOutput(STDOUT_FILENO, "standard output");
  constexpr mode_t kMode = 0666;  // less the umask
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, kMode);
  // A pipe or device has no answers of an earlier run.
  const int write_only =
      fd < 0 && errno == EACCES ? ::open(path.c_str(), O_WRONLY | O_CLOEXEC) : -1;
  BatchOutput output(fd >= 0 ? fd : write_only, path);
  if (output.fd_ < 0) return output.failed("opened");
  output.owned_ = true;
  struct stat status {};
  if (fstat(output.fd_, &status) != 0) return output.failed("examined");
  if (!S_ISREG(status.st_mode)) return output;
  if (flock(output.fd_, LOCK_EX | LOCK_NB) != 0)
    return make_error(ErrorCode::unavailable, "{}: another koho batch is writing this file", path);
  if (options.restart) {
    if (ftruncate(output.fd_, 0) != 0) return output.failed("emptied");
    return output;
  }
  KOHO_TRY(output.read_earlier(options.line_bytes_max));
  return output;
}

BatchOutput::BatchOutput(BatchOutput&& other) noexcept
    : fd_(other.fd_),
      owned_(std::exchange(other.owned_, false)),
      name_(std::move(other.name_)),
      answered_(std::move(other.answered_)),
      refused_(std::move(other.refused_)),
      bytes_dropped_(other.bytes_dropped_),
      bytes_(other.bytes_),
      torn_(other.torn_) {}

BatchOutput::~BatchOutput() {
  if (owned_) ::close(fd_);
}

Error BatchOutput::failed(const char* what) const {
  return make_error(ErrorCode::io_error, "{} could not be {}: {}", name_, what,
                    std::strerror(errno));
}

Status BatchOutput::read_earlier(std::size_t line_bytes_max) {
  LineReader reader(fd_, name_, line_bytes_max);
  std::string_view line;
  while (true) {
    KOHO_TRY_ASSIGN(const LineReader::State state, reader.next(line, -1));
    if (state == LineReader::State::nothing_yet) continue;  // a signal
    if (state == LineReader::State::end) return {};
    if (!reader.terminated()) break;
    if (state == LineReader::State::too_long)
      return make_error(ErrorCode::corrupt_data, "{}, line {}: more than {} bytes", name_,
                        reader.number(), line_bytes_max);
    KOHO_TRY(note(line, reader.number()));
    bytes_ = reader.bytes();
  }
  if (chat::parse_json(line).ok()) {  // all but its end was written, or it is somebody else's
    KOHO_TRY(note(line, reader.number()));
    bytes_ = reader.bytes();
    return write({});
  }
  const std::size_t known = std::min(line.size(), kBeginning.size());
  if (line.substr(0, known) != kBeginning.substr(0, known))
    return make_error(ErrorCode::corrupt_data,
                      "{}, line {}: no answer of koho batch; name another file, or --restart to "
                      "empty this one",
                      name_, reader.number());
  bytes_dropped_ = reader.bytes() - bytes_;
  if (ftruncate(fd_, bytes_) != 0) return failed("truncated after its last complete line");
  return {};
}

Status BatchOutput::note(std::string_view line, std::int64_t number) {
  if (api::BatchOutcome outcome; api::read_batch_outcome(line, outcome)) {
    const IdHash hash = hash_of(outcome.custom_id);
    if (outcome.answered) {
      answered_.insert(hash);
    } else {
      refused_[outcome.number] = hash;
    }
    return {};
  }
  const Result<chat::Json> json = chat::parse_json(line);
  const chat::Json* id = json.ok() ? json->find("id") : nullptr;
  const chat::Json* error = json.ok() ? json->find("error") : nullptr;
  const chat::Json* of_input = json.ok() ? json->find("line") : nullptr;
  const bool answer = json.ok() && error == nullptr && json->find("usage") != nullptr;
  const std::optional<std::int64_t> refused_line =
      error != nullptr && of_input != nullptr ? of_input->as_integer() : std::nullopt;
  if (id == nullptr || (!answer && !refused_line))
    return make_error(ErrorCode::corrupt_data,
                      "{}, line {}: no answer of koho batch; name another file, or --restart to "
                      "empty this one",
                      name_, number);
  const IdHash hash = hash_of(chat::dump_json(*id));
  if (answer) {
    answered_.insert(hash);
  } else {
    refused_[*refused_line] = hash;
  }
  return {};
}

bool BatchOutput::refused(std::int64_t number, std::string_view id) const {
  const auto found = refused_.find(number);
  return found != refused_.end() && found->second == hash_of(id);
}

Status BatchOutput::write(std::string line) {
  line += '\n';
  if (torn_ && ftruncate(fd_, bytes_) != 0 && errno != EINVAL) return failed("written");
  torn_ = false;
  std::string_view left = line;
  while (!left.empty()) {
    const ssize_t written = ::write(fd_, left.data(), left.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      torn_ = left.size() < line.size();
      return failed("written");
    }
    left.remove_prefix(static_cast<std::size_t>(written));
  }
  bytes_ += static_cast<std::int64_t>(line.size());
  return {};
}

Status BatchOutput::close() {
  if (!std::exchange(owned_, false)) return {};
  if (::close(fd_) != 0) return failed("closed");
  return {};
}

}  // namespace koho::server
