// SPDX-License-Identifier: Apache-2.0
#include "server/http_reader.h"

#include <algorithm>
#include <optional>

#include "base/text.h"

namespace koho::server {
namespace {

constexpr std::size_t kChunkHeadBytesMax = 256;

bool is_blank(char c) {
  return c == ' ' || c == '\t';
}

bool is_control(char c) {
  return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == '\x7f';
}

struct Fault {
  int status;
  std::string_view message;
};

/// Parses the request line (without CR LF): method, target, version.
std::optional<Fault> read_request_line(std::string_view line,
                                       const HttpLimits& limits,
                                       RequestHead& head) {
  constexpr Fault kBroken{400, "the request line must be METHOD TARGET HTTP/1.1"};
  const std::size_t first = line.find(' ');
  const std::size_t last = line.rfind(' ');
  if (first == std::string_view::npos || last == first) return kBroken;
  if (!is_token(line.substr(0, first))) return kBroken;
  const std::string_view target = line.substr(first + 1, last - first - 1);
  if (target.size() > limits.target_bytes) return Fault{414, "the URL is too long"};
  const auto is_visible = [](char c) { return c > ' ' && c < '\x7f'; };
  if (target.empty() || !std::ranges::all_of(target, is_visible)) return kBroken;
  const std::string_view version = line.substr(last + 1);
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (version.size() != 8 || !version.starts_with("HTTP/") || !is_digit(version[5]) ||
      version[6] != '.' || !is_digit(version[7]))
    return kBroken;
  // A later minor version is HTTP/1.1 to a server of it (RFC 9110, 2.5).
  if (version[5] != '1') return Fault{505, "the HTTP version must be 1.0 or 1.1"};
  head.method = line.substr(0, first);
  head.target = target;
  head.http_1_0 = version == "HTTP/1.0";
  return {};
}

/// Absolute form, "http://host:8000/path", as clients send it to a proxy: `path` becomes the path
/// and the host replaces the Host field. False: there is no path, no host, or a user name.
bool take_authority(RequestHead& head, std::string_view& path) {
  const std::size_t scheme = path.find("://");
  if (path.starts_with('/') || scheme == std::string_view::npos) return !path.empty();
  const std::string name = lower_case(path.substr(0, scheme));
  if (name != "http" && name != "https") return false;
  path.remove_prefix(scheme + 3);
  const std::string_view authority = path.substr(0, path.find('/'));
  if (authority.empty() || authority.find('@') != std::string_view::npos) return false;
  for (auto& [field, value] : head.fields)
    if (field == "host") value = authority;
  path.remove_prefix(authority.size());
  if (path.empty()) path = "/";
  return true;
}

/// Whether `word` is an element of the comma-separated header field `name`.
bool lists(const RequestHead& head, std::string_view name, std::string_view word) {
  for (const auto& [field, value] : head.fields) {
    if (field != name) continue;
    for (std::string_view rest = value; !rest.empty();) {
      const std::string_view item = rest.substr(0, rest.find(','));
      if (lower_case(trimmed(item)) == word) return true;
      rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    }
  }
  return false;
}

}  // namespace

void HttpReader::fail(int status, std::string_view message) {
  state_ = State::failed;
  error_ = {.status = status,
            .code = status == 400   ? "bad_request"
                    : status == 413 ? "request_too_large"
                                    : "",
            .param = {},
            .message = std::string(message)};
}

std::size_t HttpReader::feed(std::string_view bytes) {
  std::size_t taken = 0;
  while (taken < bytes.size() && (state_ == State::head || state_ == State::body)) {
    started_ = true;
    const std::string_view rest = bytes.substr(taken);
    taken += state_ == State::head ? feed_head(rest) : feed_body(rest);
  }
  return taken;
}

std::size_t HttpReader::feed_head(std::string_view bytes) {
  std::size_t taken = 0;
  for (const char c : bytes) {
    ++taken;
    // Empty lines before a request are allowed, the first byte must begin a method.
    if (raw_.empty() && (c == '\r' || c == '\n')) continue;
    if (raw_.empty() && !is_token({&c, 1})) {
      fail(400, "not an HTTP request");
      return taken;
    }
    if (raw_.size() >= limits_.head_bytes) {
      const bool in_line = raw_.find("\r\n") == std::string::npos;
      fail(in_line ? 414 : 431,
           in_line ? "the URL is too long" : "the header fields are too large");
      return taken;
    }
    const bool after_return = !raw_.empty() && raw_.back() == '\r';
    if ((c == '\n') != after_return) {
      fail(400, "a line of the header does not end with CR LF");
      return taken;
    }
    raw_ += c;
    if (c != '\n') continue;
    // Check the first line at once: a client that does not speak HTTP may never send the empty line
    // that ends a head.
    const std::size_t first_line = raw_.find("\r\n");
    if (first_line + 2 == raw_.size()) {
      const auto fault =
          read_request_line(std::string_view(raw_).substr(0, first_line), limits_, head_);
      if (fault) {
        fail(fault->status, fault->message);
        return taken;
      }
    } else if (raw_.ends_with("\r\n\r\n")) {
      read_head();
      return taken;
    }
  }
  return taken;
}

/// Parses one header field line (without CR LF); false: failed.
bool HttpReader::read_field(std::string_view line) {
  const std::size_t colon = line.find(':');
  if (is_blank(line.front())) {
    fail(400, "a header field spans several lines (obsolete line folding)");
  } else if (head_.fields.size() >= limits_.fields) {
    fail(431, "too many header fields");
  } else if (colon == std::string_view::npos || !is_token(line.substr(0, colon))) {
    fail(400, "a header field is not NAME: VALUE");
  } else if (std::ranges::any_of(line.substr(colon + 1), is_control)) {
    fail(400, "a header field has control characters");
  } else {
    head_.fields.emplace_back(lower_case(line.substr(0, colon)), trimmed(line.substr(colon + 1)));
    return true;
  }
  return false;
}

/// Parses the complete head and finds the length of the body.
void HttpReader::read_head() {
  std::string_view lines = raw_;
  lines.remove_prefix(lines.find("\r\n") + 2);
  while (lines.size() > 2) {
    const std::string_view line = lines.substr(0, lines.find("\r\n"));
    if (!read_field(line)) return;
    lines.remove_prefix(line.size() + 2);
  }
  raw_.clear();
  raw_.shrink_to_fit();
  const auto count = [this](std::string_view name) {
    return std::ranges::count(head_.fields, name, [](const auto& field) { return field.first; });
  };
  // What each of two readers may take from another line: a proxy the last, koho the first.
  for (const std::string_view once :
       {"host", "origin", "content-type", "content-encoding", "authorization", "x-api-key"})
    if (count(once) > 1) {
      fail(400, fmt::format("more than one {} header field", once));
      return;
    }
  std::string_view path = std::string_view(head_.target).substr(0, head_.target.find('?'));
  if (!take_authority(head_, path)) {
    fail(400, "the URL must be a path, or http://HOST/PATH without a user");
    return;
  }
  // "/v1/models/" is "/v1/models".
  if (path.size() > 1 && path.ends_with('/') && path[path.size() - 2] != '/') path.remove_suffix(1);
  if (!decode_percent(path, head_.path)) {
    fail(400, "the URL has an invalid percent escape");
    return;
  }
  head_.keep_alive = !lists(head_, "connection", "close") &&
                     (!head_.http_1_0 || lists(head_, "connection", "keep-alive"));
  chunked_ = head_.has("transfer-encoding");
  const bool sized = head_.has("content-length");
  if (count("content-length") > 1) {
    fail(400, "more than one Content-Length header field");
  } else if (chunked_ && (sized || head_.http_1_0 || count("transfer-encoding") > 1)) {
    fail(400,
         "Transfer-Encoding cannot be combined with Content-Length, repeated, or used in HTTP/1.0");
  } else if (chunked_ && lower_case(head_.field("transfer-encoding")) != "chunked") {
    fail(400, "Transfer-Encoding must be chunked");
  } else if (sized) {
    const auto length = parse_integer<std::uint64_t>(head_.field("content-length"));
    left_ = length.value_or(0);
    if (!length) {
      fail(400, "Content-Length is not a number");
    } else if (left_ > body_bytes_max()) {
      fail(413, "the body is too large");
    } else {
      state_ = left_ == 0 ? State::done : State::body;
    }
  } else {
    part_ = Part::chunk_head;
    state_ = chunked_ ? State::body : State::done;
  }
}

std::size_t HttpReader::feed_body(std::string_view bytes) {
  const bool in_data = part_ == Part::data || part_ == Part::chunk_data;
  return in_data ? take_data(bytes) : take_line(bytes);
}

std::size_t HttpReader::take_data(std::string_view bytes) {
  const std::string_view taken = bytes.substr(0, left_);
  // From here on the body grows in one step if its length is known, or else by a quarter.
  constexpr std::size_t kLargeBytes = 1U << 20U;
  if (const std::size_t size = body_.size() + taken.size();
      size > kLargeBytes && size > body_.capacity())
    body_.reserve(part_ == Part::data ? body_.size() + left_ : size + size / 4);
  body_ += taken;
  left_ -= taken.size();
  if (left_ > 0) return taken.size();
  if (part_ == Part::data) {
    state_ = State::done;
  } else {
    part_ = Part::chunk_end;
  }
  return taken.size();
}

/// Collects a line between chunks and parses it when it is complete.
std::size_t HttpReader::take_line(std::string_view bytes) {
  const std::size_t line_max = part_ == Part::trailer ? limits_.head_bytes : kChunkHeadBytesMax;
  std::size_t taken = 0;
  for (const char c : bytes) {
    ++taken;
    const bool after_return = !raw_.empty() && raw_.back() == '\r';
    const bool ends = c == '\n';
    if (ends != after_return || (is_control(c) && c != '\r' && !ends) || raw_.size() >= line_max) {
      fail(400, "the chunked body is malformed");
      return taken;
    }
    raw_ += c;
    if (!ends) continue;
    const std::string line = raw_.substr(0, raw_.size() - 2);
    raw_.clear();
    if (part_ == Part::chunk_head) {
      read_chunk_head(line);
    } else if (part_ == Part::trailer) {
      read_trailer(line);
    } else if (line.empty()) {
      part_ = Part::chunk_head;
    } else {
      fail(400, "chunk data exceeds the chunk size");
    }
    return taken;
  }
  return taken;
}

/// "1a" or "1a;name=value"; chunk extensions are ignored.
void HttpReader::read_chunk_head(std::string_view line) {
  const auto size = parse_integer<std::uint64_t>(trimmed(line.substr(0, line.find(';'))), 16);
  if (!size || is_blank(line.front())) {
    fail(400, "a chunk has no valid size");
  } else if (*size > body_bytes_max() - body_.size()) {
    fail(413, "the body is too large");
  } else {
    left_ = *size;
    part_ = left_ == 0 ? Part::trailer : Part::chunk_data;
  }
}

/// Trailer fields are checked and ignored.
void HttpReader::read_trailer(std::string_view line) {
  trailer_bytes_ += line.size() + 2;
  if (line.empty()) {
    state_ = State::done;
  } else if (trailer_bytes_ > limits_.head_bytes) {
    fail(431, "the trailer fields are too large");
  } else if (!is_token(line.substr(0, line.find(':'))) || line.find(':') == std::string::npos) {
    fail(400, "a trailer field is not NAME: VALUE");
  }
}

std::size_t HttpReader::body_bytes_max() const {
  const bool uploads = !limits_.upload_path.empty() && head_.path == limits_.upload_path;
  return uploads ? limits_.upload_bytes : limits_.body_bytes;
}

bool HttpReader::expects_continue() const {
  return state_ == State::body && !head_.http_1_0 &&
         lower_case(head_.field("expect")) == "100-continue";
}

}  // namespace koho::server
