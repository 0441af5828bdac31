// SPDX-License-Identifier: Apache-2.0
// A connection's bytes to HTTP requests: every split of the bytes gives the same requests and the
// same refusal after them. A second, simple check refuses what two parsers could read differently
// (request smuggling) in each accepted request.
#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "server/http_reader.h"

namespace koho::server {
namespace {

// Small, so that inputs reach them.
constexpr HttpLimits kLimits{.head_bytes = 512, .fields = 8, .target_bytes = 64, .body_bytes = 256};

struct Exchange {
  HttpReader::State state = HttpReader::State::head;
  RequestHead head;
  std::string body;
  int status = 0;  // of a refusal
  std::size_t begin = 0;
  std::size_t end = 0;  // of a complete request, in the stream
};

/// Everything that the reader makes of `stream`, whose pieces have `next_size()` bytes.
template <typename NextSize>
std::vector<Exchange> read_all(std::string_view stream, const NextSize& next_size) {
  std::vector<Exchange> read;
  std::size_t at = 0;
  while (at < stream.size()) {
    HttpReader reader(kLimits);
    Exchange one{.begin = at};
    const auto going_on = [&reader] {
      return reader.state() == HttpReader::State::head || reader.state() == HttpReader::State::body;
    };
    while (at < stream.size() && going_on()) {
      const std::string_view piece = stream.substr(at, next_size());
      const std::size_t taken = reader.feed(piece);
      KOHO_CHECK(taken <= piece.size());
      KOHO_CHECK(taken == piece.size() || !going_on());
      KOHO_CHECK(reader.body_bytes() <= kLimits.body_bytes + kLimits.head_bytes);
      at += taken;
    }
    one.state = reader.state();
    one.end = at;
    if (one.state == HttpReader::State::done) {
      one.head = reader.head();
      one.body = reader.take_body();
    }
    if (one.state == HttpReader::State::failed) one.status = reader.error().status;
    read.push_back(std::move(one));
    if (read.back().state != HttpReader::State::done) break;
  }
  return read;
}

bool same(const Exchange& a, const Exchange& b) {
  if (a.state != b.state || a.status != b.status || a.begin != b.begin) return false;
  if (a.state != HttpReader::State::done) return true;
  return a.end == b.end && a.head.method == b.head.method && a.head.target == b.head.target &&
         a.head.path == b.head.path && a.head.http_1_0 == b.head.http_1_0 &&
         a.head.keep_alive == b.head.keep_alive && a.head.fields == b.head.fields &&
         a.body == b.body;
}

std::string lower(std::string_view text) {
  std::string made(text);
  std::ranges::transform(made, made.begin(), [](char c) {
    return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  });
  return made;
}

/// `raw`: the bytes that an accepted request was read from.
void check_accepted(std::string_view raw, const Exchange& one) {
  while (raw.starts_with('\r') || raw.starts_with('\n')) raw.remove_prefix(1);
  const std::size_t head_end = raw.find("\r\n\r\n");
  KOHO_CHECK(head_end != std::string_view::npos);
  std::string_view head = raw.substr(0, head_end + 2);
  const std::size_t body_bytes = raw.size() - head_end - 4;
  std::size_t fields = 0;
  std::size_t lengths = 0;
  bool chunked = false;
  std::string length;
  for (bool first = true; !head.empty(); first = false) {
    const std::size_t end = head.find("\r\n");
    const std::string_view line = head.substr(0, end);
    head.remove_prefix(end + 2);
    KOHO_CHECK(line.find_first_of(std::string_view("\r\n\0", 3)) == std::string_view::npos);
    if (first) continue;
    ++fields;
    const std::size_t colon = line.find(':');
    KOHO_CHECK(colon != std::string_view::npos && colon > 0);
    const std::string name = lower(line.substr(0, colon));
    KOHO_CHECK(name.find_first_of(" \t") == std::string::npos);
    std::string_view value = line.substr(colon + 1);
    while (value.starts_with(' ') || value.starts_with('\t')) value.remove_prefix(1);
    while (value.ends_with(' ') || value.ends_with('\t')) value.remove_suffix(1);
    if (name == "content-length") {
      ++lengths;
      length = value;
    }
    if (name == "transfer-encoding") {
      KOHO_CHECK(!chunked);
      KOHO_CHECK(lower(value) == "chunked");
      chunked = true;
    }
  }
  KOHO_CHECK(fields <= kLimits.fields && one.head.fields.size() == fields);
  KOHO_CHECK(one.head.target.size() <= kLimits.target_bytes);
  KOHO_CHECK(one.body.size() <= kLimits.body_bytes);
  KOHO_CHECK(lengths + (chunked ? 1U : 0U) <= 1);
  KOHO_CHECK(!chunked || !one.head.http_1_0);
  if (lengths == 1) {
    KOHO_CHECK(std::ranges::all_of(length, [](char c) { return c >= '0' && c <= '9'; }));
    KOHO_CHECK_EQ(std::stoull(length), one.body.size());
  }
  if (chunked) {
    KOHO_CHECK(raw.ends_with("\r\n"));
  } else {
    KOHO_CHECK_EQ(body_bytes, one.body.size());
  }
}

void check_stream(std::string_view stream) {
  const std::vector<Exchange> whole = read_all(stream, [&stream] { return stream.size(); });
  for (const Exchange& one : whole)
    if (one.state == HttpReader::State::done)
      check_accepted(stream.substr(one.begin, one.end - one.begin), one);
  std::minstd_rand random(static_cast<std::uint32_t>(stream.size()) * 2654435761U + 1U);
  for (const std::uint32_t longest : {1U, 3U, 40U}) {
    const std::vector<Exchange> cut =
        read_all(stream, [&] { return std::size_t{1 + random() % longest}; });
    KOHO_CHECK_EQ(cut.size(), whole.size());
    for (std::size_t i = 0; i < cut.size(); ++i) KOHO_CHECK(same(cut[i], whole[i]));
  }
}

}  // namespace
}  // namespace koho::server

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  koho::server::check_stream({reinterpret_cast<const char*>(data), size});
  return 0;
}
