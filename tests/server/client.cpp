// SPDX-License-Identifier: Apache-2.0
#include "client.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <chrono>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include "tests/support/patience.h"

namespace koho::server {
namespace {

std::string lower(std::string_view text) {
  std::string made(text);
  std::ranges::transform(made, made.begin(), [](char c) {
    return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  });
  return made;
}

}  // namespace

chat::Json Reply::json() const {
  Result<chat::Json> parsed = chat::parse_json(body);
  return parsed.ok() ? std::move(*parsed) : chat::Json{};
}

std::vector<std::string> Reply::events() const {
  std::vector<std::string> found;
  std::string_view rest = body;
  while (!rest.empty()) {
    const std::size_t end = rest.find("\n\n");
    const std::string_view frame = rest.substr(0, end);
    if (const std::size_t data = frame.find("data: "); data != std::string_view::npos)
      found.emplace_back(frame.substr(data + 6));
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 2);
  }
  return found;
}

Client::Client(std::uint16_t port, const std::string& from)
    : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
  if (!from.empty()) {
    sockaddr_in own{};
    own.sin_family = AF_INET;
    inet_pton(AF_INET, from.c_str(), &own.sin_addr);
    if (bind(socket_, reinterpret_cast<const sockaddr*>(&own), sizeof own) != 0) close();
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) close();
  const int on = 1;
  setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

Client::~Client() {
  close();
}

void Client::finish_sending() {
  shutdown(socket_, SHUT_WR);
}

void Client::close() {
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
}

void Client::reset() {
  const linger now{.l_onoff = 1, .l_linger = 0};
  setsockopt(socket_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  close();
}

void Client::set_receive_buffer(int bytes) {
  setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
}

bool Client::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

bool Client::receive() {
  if (!connected()) return false;  // poll() would wait for nothing
  pollfd waited{.fd = socket_, .events = POLLIN, .revents = 0};
  const std::chrono::milliseconds most = testing::kPatience;
  if (poll(&waited, 1, static_cast<int>(most.count())) != 1) return false;
  std::array<char, 64U << 10U> buffer;
  const ssize_t bytes = recv(socket_, buffer.data(), buffer.size(), 0);
  if (bytes <= 0) return false;
  pending_.append(buffer.data(), static_cast<std::size_t>(bytes));
  return true;
}

bool Client::sees_end() {
  while (receive()) {
  }
  pollfd waited{.fd = socket_, .events = POLLIN, .revents = 0};
  return poll(&waited, 1, 0) == 1;  // readable, and nothing to read
}

bool Client::read_until(std::string_view text, int times) {
  std::size_t from = 0;
  while (times > 0) {
    const std::size_t at = pending_.find(text, from);
    if (at == std::string::npos) {
      if (!receive()) return false;
      continue;
    }
    from = at + text.size();
    --times;
  }
  return true;
}

std::optional<Reply> Client::read_reply(bool without_body) {
  Reply reply;
  std::size_t head = std::string::npos;
  do {
    while ((head = pending_.find("\r\n\r\n")) == std::string::npos)
      if (!receive()) return {};
    std::string_view lines = std::string_view(pending_).substr(0, head + 2);
    reply = {};
    std::from_chars(lines.data() + 9, lines.data() + 12, reply.status);
    lines.remove_prefix(lines.find("\r\n") + 2);
    while (!lines.empty()) {
      const std::size_t colon = lines.find(':');
      const std::size_t end = lines.find("\r\n");
      reply.fields[lower(lines.substr(0, colon))] = lines.substr(colon + 2, end - colon - 2);
      lines.remove_prefix(end + 2);
    }
    pending_.erase(0, head + 4);
  } while (reply.status == 100);
  if (without_body || reply.status == 204) return reply;
  if (const auto length = reply.fields.find("content-length"); length != reply.fields.end()) {
    const std::size_t bytes = std::stoul(length->second);
    while (pending_.size() < bytes)
      if (!receive()) return {};
    reply.body = pending_.substr(0, bytes);
    pending_.erase(0, bytes);
    return reply;
  }
  const auto encoding = reply.fields.find("transfer-encoding");
  if (encoding == reply.fields.end() || encoding->second != "chunked") {
    while (receive()) {
    }
    reply.body = std::move(pending_);
    pending_.clear();
    return reply;
  }
  while (true) {
    std::size_t line = 0;
    while ((line = pending_.find("\r\n")) == std::string::npos)
      if (!receive()) return {};
    const std::size_t bytes = std::stoul(pending_.substr(0, line), nullptr, 16);
    while (pending_.size() < line + 2 + bytes + 2)
      if (!receive()) return {};
    reply.body += pending_.substr(line + 2, bytes);
    pending_.erase(0, line + 2 + bytes + 2);
    if (bytes == 0) return reply;
  }
}

std::optional<Reply> Client::get(std::string_view path, std::string_view fields) {
  std::string request = "GET ";
  request.append(path).append(" HTTP/1.1\r\nHost: localhost\r\n").append(fields).append("\r\n");
  if (!send(request)) return {};
  return read_reply();
}

std::optional<Reply> Client::post(std::string_view path,
                                  std::string_view body,
                                  std::string_view fields) {
  std::string request = "POST ";
  request.append(path)
      .append(" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
      .append(fields)
      .append("Content-Length: ")
      .append(std::to_string(body.size()))
      .append("\r\n\r\n")
      .append(body);
  // A refusal may come, and the connection end, before all of a large body is sent.
  send(request);
  return read_reply();
}

Reply get(std::uint16_t port, std::string_view path, std::string_view fields) {
  return Client(port).get(path, fields).value_or(Reply{});
}

Reply post(std::uint16_t port,
           std::string_view path,
           std::string_view body,
           std::string_view fields) {
  return Client(port).post(path, body, fields).value_or(Reply{});
}

chat::Json at(const chat::Json& json, std::string_view path) {
  const chat::Json* here = &json;
  while (!path.empty()) {
    const std::size_t dot = std::min(path.find('.'), path.size());
    const std::string_view step = path.substr(0, dot);
    path.remove_prefix(std::min(dot + 1, path.size()));
    if (here->is_array()) {
      std::size_t index = 0;
      std::from_chars(step.data(), step.data() + step.size(), index);
      if (index >= here->items.size()) return {};
      here = &here->items[index];
    } else {
      here = here->find(step);
      if (here == nullptr) return {};
    }
  }
  return *here;
}

std::string text_at(const chat::Json& json, std::string_view path) {
  const chat::Json value = at(json, path);
  return value.is_string() ? value.text : chat::dump_json(value);
}

}  // namespace koho::server
