// SPDX-License-Identifier: Apache-2.0
#include "base/line_reader.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace koho {
namespace {

constexpr std::size_t kReadBytes = 64U << 10U;

}  // namespace

Result<LineReader> LineReader::open(const std::string& path, std::size_t line_bytes_max) {
  if (path == "-") return LineReader(STDIN_FILENO, "standard input", line_bytes_max);
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return make_error(errno == ENOENT ? ErrorCode::not_found : ErrorCode::io_error, "{}: {}", path,
                      std::strerror(errno));
  LineReader reader(fd, path, line_bytes_max);
  reader.owned_ = true;
  struct stat status {};
  if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode)) reader.bytes_total_ = status.st_size;
  return reader;
}

Result<LineReader> LineReader::open_file(const std::string& path, std::size_t line_bytes_max) {
  struct stat status {};
  if (stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode))
    return make_error(ErrorCode::io_error, "{} is not a regular file", path);
  return open(path, line_bytes_max);
}

LineReader::LineReader(int fd, std::string name, std::size_t line_bytes_max)
    : fd_(fd), name_(std::move(name)), line_bytes_max_(line_bytes_max) {}

LineReader::LineReader(LineReader&& other) noexcept
    : fd_(other.fd_),
      owned_(std::exchange(other.owned_, false)),
      name_(std::move(other.name_)),
      line_bytes_max_(other.line_bytes_max_),
      buffer_(std::move(other.buffer_)),
      begin_(other.begin_),
      searched_(other.searched_),
      skipping_(other.skipping_),
      at_end_(other.at_end_),
      terminated_(other.terminated_),
      number_(other.number_),
      bytes_(other.bytes_),
      bytes_total_(other.bytes_total_) {}

LineReader::~LineReader() {
  if (owned_) ::close(fd_);
}

LineReader::State LineReader::take(std::string_view& line, std::size_t length, bool terminated) {
  line = std::string_view(buffer_).substr(begin_, length);
  const std::size_t used = length + (terminated ? 1 : 0);
  begin_ += used;
  searched_ = begin_;
  bytes_ += static_cast<std::int64_t>(used);
  terminated_ = terminated;
  ++number_;
  const bool too_long = std::exchange(skipping_, false) || length > line_bytes_max_;
  return too_long ? State::too_long : State::line;
}

Result<LineReader::State> LineReader::next(std::string_view& line, int timeout_ms) {
  while (true) {
    const std::size_t end = buffer_.find('\n', searched_);
    if (end != std::string::npos) return take(line, end - begin_, true);
    searched_ = buffer_.size();
    if (at_end_) {
      if (begin_ == buffer_.size() && !skipping_) return State::end;
      return take(line, buffer_.size() - begin_, false);
    }
    buffer_.erase(0, begin_);
    begin_ = 0;
    if (buffer_.size() > line_bytes_max_) {
      bytes_ += static_cast<std::int64_t>(buffer_.size());
      buffer_.clear();
      skipping_ = true;
    }
    searched_ = buffer_.size();

    pollfd waiting{.fd = fd_, .events = POLLIN, .revents = 0};
    const int ready = ::poll(&waiting, 1, timeout_ms);
    if (ready == 0 || (ready < 0 && errno == EINTR)) return State::nothing_yet;
    const std::size_t size = buffer_.size();
    buffer_.resize(size + kReadBytes);
    const ssize_t got = ::read(fd_, buffer_.data() + size, kReadBytes);
    buffer_.resize(size + static_cast<std::size_t>(got > 0 ? got : 0));
    if (got == 0) at_end_ = true;
    if (got >= 0) continue;
    if (errno == EINTR || errno == EAGAIN) return State::nothing_yet;
    return make_error(ErrorCode::io_error, "{} could not be read: {}", name_, std::strerror(errno));
  }
}

}  // namespace koho
