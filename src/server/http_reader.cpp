// SPDX-License-Identifier: Apache-2.0
#include "server/http_reader.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

namespace koho::server {

namespace http = boost::beast::http;

struct HttpReader::Parser {
  http::request_parser<http::string_body> beast;
};

HttpReader::HttpReader(const HttpLimits& limits) : limits_(limits) {}
HttpReader::~HttpReader() = default;
HttpReader::HttpReader(HttpReader&&) noexcept = default;
HttpReader& HttpReader::operator=(HttpReader&&) noexcept = default;

namespace {

struct Fault {
  int status;
  std::string_view message;
};

bool is_token_character(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
         std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

std::string lower(std::string_view text) {
  std::string made(text);
  std::ranges::transform(made, made.begin(), [](char c) {
    return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  });
  return made;
}

/// The first line, without its end: method, target, version.
std::optional<Fault> check_request_line(std::string_view line, const HttpLimits& limits) {
  constexpr Fault kBroken{400, "the request line is broken"};
  const std::size_t first = line.find(' ');
  const std::size_t last = line.rfind(' ');
  if (first == std::string_view::npos || first == 0 || last == first) return kBroken;
  if (!std::ranges::all_of(line.substr(0, first), is_token_character)) return kBroken;
  const std::string_view target = line.substr(first + 1, last - first - 1);
  if (target.size() > limits.target_bytes) return Fault{414, "the URL is too long"};
  const auto is_visible = [](char c) { return c > ' ' && c < '\x7f'; };
  if (target.empty() || !std::ranges::all_of(target, is_visible)) return kBroken;
  const std::string_view version = line.substr(last + 1);
  if (version != "HTTP/1.1" && version != "HTTP/1.0")
    return Fault{400, "the HTTP version must be 1.0 or 1.1"};
  return {};
}

/// The lines after the first one, each with its end.
std::optional<Fault> check_fields(std::string_view lines, const HttpLimits& limits) {
  std::size_t fields = 0;
  std::size_t lengths = 0;
  bool transfer = false;
  while (!lines.empty()) {
    const std::size_t end = lines.find("\r\n");
    const std::string_view line = lines.substr(0, end);
    lines.remove_prefix(end + 2);
    if (line.front() == ' ' || line.front() == '\t') return Fault{400, "a header field is folded"};
    if (++fields > limits.fields) return Fault{431, "too many header fields"};
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos || colon == 0 ||
        !std::ranges::all_of(line.substr(0, colon), is_token_character))
      return Fault{400, "a header field is broken"};
    const auto is_control = [](char c) {
      return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == '\x7f';
    };
    if (std::ranges::any_of(line.substr(colon + 1), is_control))
      return Fault{400, "a header field holds control characters"};
    const std::string name = lower(line.substr(0, colon));
    if (name == "content-length") ++lengths;
    if (name == "transfer-encoding") transfer = true;
  }
  if (lengths > 1) return Fault{400, "more than one Content-Length"};
  if (lengths > 0 && transfer) return Fault{400, "Content-Length beside Transfer-Encoding"};
  return {};
}

}  // namespace

void HttpReader::fail(int status, std::string_view code, std::string_view message) {
  state_ = State::failed;
  error_ = {
      .status = status, .code = std::string(code), .param = {}, .message = std::string(message)};
}

std::size_t HttpReader::feed(std::string_view bytes) {
  std::size_t taken = 0;
  while (taken < bytes.size() && (state_ == State::head || state_ == State::body)) {
    started_ = true;
    taken +=
        state_ == State::head ? feed_head(bytes.substr(taken)) : feed_body(bytes.substr(taken));
  }
  return taken;
}

std::size_t HttpReader::feed_head(std::string_view bytes) {
  std::size_t taken = 0;
  for (const char c : bytes) {
    ++taken;
    // Empty lines before a request are allowed, the first byte must begin a method.
    if (raw_.empty() && (c == '\r' || c == '\n')) continue;
    if (raw_.empty() && !is_token_character(c)) {
      fail(400, "bad_request", "this is no HTTP request");
      return taken;
    }
    if (raw_.size() >= limits_.head_bytes) {
      const bool in_line = raw_.find("\r\n") == std::string::npos;
      fail(in_line ? 414 : 431, "", in_line ? "the URL is too long" : "the header is too large");
      return taken;
    }
    const bool after_return = !raw_.empty() && raw_.back() == '\r';
    if ((c == '\n') != after_return) {
      fail(400, "bad_request", "a line of the header does not end with CR LF");
      return taken;
    }
    raw_ += c;
    if (c != '\n') continue;
    // The first line shows whether this is HTTP at all; who sends something else may never send
    // an empty line.
    const std::size_t first_line = raw_.find("\r\n");
    if (first_line + 2 == raw_.size()) {
      const auto fault = check_request_line(std::string_view(raw_).substr(0, first_line), limits_);
      if (fault) {
        fail(fault->status, fault->status == 400 ? "bad_request" : "", fault->message);
        return taken;
      }
    } else if (raw_.ends_with("\r\n\r\n")) {
      const std::size_t begin = first_line + 2;
      const auto fault =
          check_fields(std::string_view(raw_).substr(begin, raw_.size() - begin - 2), limits_);
      if (fault) {
        fail(fault->status, fault->status == 400 ? "bad_request" : "", fault->message);
      } else {
        begin_body();
      }
      return taken;
    }
  }
  return taken;
}

void HttpReader::begin_body() {
  parser_ = std::make_unique<Parser>();
  http::request_parser<http::string_body>& beast = parser_->beast;
  beast.header_limit(static_cast<std::uint32_t>(limits_.head_bytes + 4));
  beast.body_limit(limits_.body_bytes);
  boost::beast::error_code error;
  beast.put(boost::asio::buffer(raw_), error);
  if (error == http::error::body_limit) {
    fail(413, "request_too_large", "the body is too large");
    return;
  }
  if ((error && error != http::error::need_more) || !beast.is_header_done()) {
    fail(400, "bad_request", "the header is broken");
    return;
  }
  const auto& message = beast.get();
  head_.method = std::string(message.method_string());
  head_.target = std::string(message.target());
  head_.http_1_0 = message.version() < 11;
  head_.keep_alive = message.keep_alive();
  const std::string_view path = std::string_view(head_.target).substr(0, head_.target.find('?'));
  if (!decode_percent(path, head_.path)) {
    fail(400, "bad_request", "the URL has a broken escape");
    return;
  }
  for (const auto& field : message)
    head_.fields.emplace_back(lower(field.name_string()), std::string(field.value()));
  raw_.clear();
  raw_.shrink_to_fit();
  const bool ended = beast.is_done() || (!beast.chunked() && !beast.content_length());
  state_ = ended ? State::done : State::body;
}

std::size_t HttpReader::feed_body(std::string_view bytes) {
  http::request_parser<http::string_body>& beast = parser_->beast;
  boost::beast::error_code error;
  std::size_t taken = 0;
  // A chunk's head that is cut stays with us until the rest comes.
  raw_ += bytes;
  while (!beast.is_done()) {
    const std::size_t used =
        beast.put(boost::asio::buffer(raw_.data() + taken, raw_.size() - taken), error);
    taken += used;
    if (error || used == 0 || taken == raw_.size()) break;
  }
  const std::size_t kept = raw_.size() - bytes.size();  // came earlier
  if (error == http::error::body_limit) {
    fail(413, "request_too_large", "the body is too large");
    return bytes.size();
  }
  if (error && error != http::error::need_more) {
    fail(400, "bad_request", "the body's chunks are broken");
    return bytes.size();
  }
  if (beast.is_done()) {
    state_ = State::done;
    raw_.clear();
    return taken - kept;
  }
  raw_.erase(0, taken);
  if (raw_.size() > limits_.head_bytes) fail(400, "bad_request", "the body's chunks are broken");
  return bytes.size();
}

bool HttpReader::expects_continue() const {
  return state_ == State::body && lower(head_.field("expect")) == "100-continue";
}

std::size_t HttpReader::body_bytes() const {
  return parser_ ? parser_->beast.get().body().size() + raw_.size() : 0;
}

std::string HttpReader::take_body() {
  return parser_ ? std::move(parser_->beast.get().body()) : std::string();
}

}  // namespace koho::server
