// SPDX-License-Identifier: Apache-2.0
// The writing half of a connection: answers and events to bytes, through TLS where it is on, to the
// socket.
#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <ctime>
#include <unistd.h>
#include <utility>

#include <boost/asio/buffer.hpp>
#include <fmt/format.h>

#include "server/connection.h"

namespace koho::server {

namespace asio = boost::asio;

namespace {

constexpr std::size_t kWrittenAtOnceMax = 512U << 10U;
constexpr std::size_t kKeptBytes = 16U << 10U;  // capacity that an empty buffer keeps

void append_number(std::string& out, std::size_t value, int base = 10) {
  std::array<char, 24> digits;
  const auto [end, error] = std::to_chars(digits.begin(), digits.end(), value, base);
  out.append(digits.data(), static_cast<std::size_t>(end - digits.data()));
}

void append_field(std::string& out, std::string_view name, std::string_view value) {
  out += name;
  out += ": ";
  out += value;
  out += "\r\n";
}

/// "Sun, 06 Nov 1994 08:49:37 GMT" (RFC 9110, 5.6.7), made once a second in each thread.
std::string_view http_date() {
  thread_local std::time_t made_for = -1;
  thread_local std::array<char, 32> text{};
  const std::time_t now = Core::unix_seconds();
  if (now != made_for) {
    std::tm parts{};
    gmtime_r(&now, &parts);
    constexpr std::array<std::string_view, 7> kDays{"Sun", "Mon", "Tue", "Wed",
                                                    "Thu", "Fri", "Sat"};
    constexpr std::array<std::string_view, 12> kMonths{"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                                       "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    const auto made =
        fmt::format_to_n(text.data(), text.size(), "{}, {:02} {} {:04} {:02}:{:02}:{:02} GMT",
                         kDays[static_cast<std::size_t>(parts.tm_wday)], parts.tm_mday,
                         kMonths[static_cast<std::size_t>(parts.tm_mon)], parts.tm_year + 1900,
                         parts.tm_hour, parts.tm_min, parts.tm_sec);
    KOHO_CHECK(made.size < text.size());
    text[made.size] = '\0';
    made_for = now;
  }
  return text.data();
}

void append_status_line(std::string& out, int status) {
  out += "HTTP/1.1 ";
  append_number(out, static_cast<std::size_t>(status));
  out += ' ';
  out += reason_phrase(status);
  out += "\r\n";
  append_field(out, "Date", http_date());
}

}  // namespace

void Connection::begin_stream() {
  stream_begun_ = true;
  append_status_line(out_, 200);
  append_field(out_, "Content-Type", "text/event-stream; charset=utf-8");
  append_field(out_, "Cache-Control", "no-cache");
  append_field(out_, "X-Accel-Buffering", "no");
  Response begun;
  add_request_id(reader_.head(), request_id_, begun);
  add_cors(core_, reader_.head(), begun);
  if (job_)
    for (auto& field : job_->limit_fields()) begun.fields.push_back(std::move(field));
  for (const auto& [name, value] : begun.fields) append_field(out_, name, value);
  if (chunked_) {
    append_field(out_, "Transfer-Encoding", "chunked");
  } else {
    keep_alive_ = false;
  }
  append_field(out_, "Connection", keep_alive_ ? "keep-alive" : "close");
  out_ += "\r\n";
}

void Connection::append_chunk(std::string_view events) {
  if (!stream_begun_) begin_stream();
  if (events.empty()) return;
  if (!chunked_) {
    out_ += events;
    return;
  }
  append_number(out_, events.size(), 16);
  out_ += "\r\n";
  out_ += events;
  out_ += "\r\n";
}

void Connection::send(Response response) {
  stage_ = Stage::answering;
  if (response.close) keep_alive_ = false;
  if (reader_.state() != HttpReader::State::failed) add_cors(core_, reader_.head(), response);
  if (request_id_.empty()) request_id_ = core_.make_id();
  add_request_id(reader_.head(), request_id_, response);
  append_status_line(out_, response.status);
  if (response.status != 204) append_field(out_, "Content-Type", response.content_type);
  if (response.status != 204) {
    out_ += "Content-Length: ";
    append_number(
        out_, response.file ? static_cast<std::size_t>(response.file->left) : response.body.size());
    out_ += "\r\n";
  }
  for (const auto& [name, value] : response.fields) append_field(out_, name, value);
  append_field(out_, "Connection", keep_alive_ ? "keep-alive" : "close");
  out_ += "\r\n";
  if (!head_only_ && response.file) {
    file_ = std::move(response.file);
    pump_file();
    return;
  }
  if (!head_only_) out_ += response.body;
  finish_exchange();
}

/// Moves the file's bytes to the output buffer as far as there is room.
void Connection::pump_file() {
  constexpr std::size_t kReadBytes = 64U << 10U;
  while (file_ && !closed_) {
    if (out_.size() - sent_ >= core_.settings().buffer_bytes_max) {
      more_in_job_ = true;
      return;  // flush() calls pump_file() again
    }
    if (file_->left == 0) {
      file_.reset();
      finish_exchange();
      return;
    }
    const std::size_t before = out_.size();
    const std::size_t wanted = std::min(kReadBytes, static_cast<std::size_t>(file_->left));
    out_.resize(before + wanted);
    const ssize_t bytes = ::read(file_->file.get(), out_.data() + before, wanted);
    out_.resize(before + static_cast<std::size_t>(std::max<ssize_t>(bytes, 0)));
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) {
      lose(false);  // the length that was promised is not to be had
      return;
    }
    file_->left -= bytes;
    flush();
  }
}

/// The answer is complete in out_: prepares for the next request, or for closing.
void Connection::finish_exchange() {
  served_ = true;
  stage_ = Stage::reading;
  head_handled_ = false;
  route_ = nullptr;
  key_.reset();
  request_id_.clear();
  head_only_ = false;
  share_.resize(0);
  head_share_.resize(0);
  stage_since_us_ = core_.clock().now_us();
  if (!keep_alive_) {
    close_after_ = true;
    stage_ = Stage::answering;  // no further request is read
    flush();
    return;
  }
  reader_ = HttpReader(core_.settings().http);
  keep_alive_ = true;
  flush();
}

/// The bytes to write next. With TLS these are records: when the previous ones are sent, the next
/// piece of out_ is encrypted.
std::string_view Connection::outgoing() {
  constexpr std::size_t kSealedAtOnce = 64U << 10U;
  if (!tls_) return std::string_view(out_).substr(sent_);
  if (tls_->ciphertext().empty()) {
    const std::string_view piece = std::string_view(out_).substr(sent_, kSealedAtOnce);
    if (piece.empty() && close_after_) tls_->end();
    if (!piece.empty() && tls_->established()) {
      if (!tls_->send(piece)) lose(true);
      sent_ += piece.size();
    }
  }
  return tls_->ciphertext();
}

void Connection::flush() {
  if (writing_ || closed_) return;
  while (true) {
    const std::string_view next = outgoing();
    if (closed_) return;
    if (next.empty()) break;
    Error error;
    // A reader that takes as fast as this writes lets others in, too.
    const bool gives_way = written_at_once_ >= kWrittenAtOnceMax;
    const std::size_t bytes = gives_way ? 0 : socket_.write_some(asio::buffer(next), error);
    if (gives_way || error == asio::error::would_block) {
      writing_ = true;
      last_write_us_ = core_.clock().now_us();
      socket_.async_wait(asio::ip::tcp::socket::wait_write,
                         [self = shared_from_this()](const Error& failed) {
                           self->writing_ = false;
                           self->written_at_once_ = 0;
                           if (self->closed_) return;
                           if (failed) {
                             self->lose(true);
                             return;
                           }
                           self->flush();
                         });
      // Drop the sent part, so that the job has room to go on.
      if (sent_ > out_.size() / 2) {
        out_.erase(0, sent_);
        sent_ = 0;
      }
      unread_share_.hold(out_.capacity());
      return;
    }
    if (error) {
      lose(true);
      return;
    }
    if (tls_) {
      tls_->ciphertext().erase(0, bytes);
    } else {
      sent_ += bytes;
    }
    core_.counters().bytes_sent += bytes;
    written_at_once_ += bytes;
  }
  if (sent_ < out_.size()) return;  // TLS: the handshake is not done
  out_.clear();
  if (out_.capacity() > kKeptBytes) out_.shrink_to_fit();
  sent_ = 0;
  unread_share_.hold(0);
  if (!job_ && !large_ && !file_) owed_.reset();
  if (close_after_) {
    // Closing now could discard the end of the answer if the client is still sending. Shut down
    // only the sending side; the client's close or a tick ends the connection.
    Error error;
    socket_.shutdown(asio::ip::tcp::socket::shutdown_send, error);
    if (peer_done_ || error) close();
    return;
  }
  if (std::exchange(more_in_job_, false)) {
    if (job_) pump();
    if (file_) pump_file();
  }
  close_behind_last();
  if (closed_ || stage_ != Stage::reading || !has_requests()) return;
  if (!std::exchange(asks_again_, true)) thread_.take_turn(turns_of_, shared_from_this());
}

}  // namespace koho::server
