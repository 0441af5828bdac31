// SPDX-License-Identifier: Apache-2.0
#include "server/request_log.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "base/json_writer.h"
#include "base/log.h"

namespace koho::server {
namespace {

std::string ms_text(std::int64_t us) {
  return fmt::format("{:.1f}", static_cast<double>(us) / 1e3);
}

std::string number_or_null(const std::optional<std::int64_t>& number) {
  return number ? fmt::to_string(*number) : "null";
}

std::string rate_or_null(const std::optional<double>& rate) {
  return rate ? fmt::format("{:.1f}", *rate) : "null";
}

std::string ms_or_null(const std::optional<std::int64_t>& us) {
  return us ? ms_text(*us) : "null";
}

void append_member(std::string& out, std::string_view name, std::string_view text) {
  fmt::format_to(std::back_inserter(out), R"("{}":)", name);
  append_json_string(out, text);
  out += ',';
}

void append(std::string& out, const LiveRequest& row, std::int64_t now_us) {
  out += out.back() == '[' ? "{" : ",{";
  append_member(out, "id", row.id);
  append_member(out, "path", row.path);
  append_member(out, "state", row.state);
  const std::int64_t span_us = row.last_us - row.first_us;
  std::optional<double> rate;
  if (row.tokens > 1 && span_us > 0)
    rate = static_cast<double>(row.tokens - 1) * 1e6 / static_cast<double>(span_us);
  fmt::format_to(std::back_inserter(out),
                 R"("age_ms":{},"prompt_tokens":{},"tokens":{},"tokens_per_s":{}}})",
                 ms_text(std::max<std::int64_t>(now_us - row.received_us, 0)),
                 row.prompt_tokens < 0 ? "null" : fmt::to_string(row.prompt_tokens), row.tokens,
                 rate_or_null(rate));
}

void append(std::string& out, const EndedRequest& row) {
  out += out.back() == '[' ? "{" : ",{";
  append_member(out, "id", row.id);
  append_member(out, "path", row.path);
  append_member(out, "finish", row.finish);
  append_member(out, "param", row.param);
  append_member(out, "message", row.message);
  fmt::format_to(std::back_inserter(out),
                 R"("ended":{},"status":{},"failed":{},"prompt_tokens":{},"cached_tokens":{},)"
                 R"("tokens":{},"first_token_ms":{},"tokens_per_s":{},"total_ms":{}}})",
                 row.ended_unix_s, row.status, row.failed, number_or_null(row.prompt_tokens),
                 number_or_null(row.cached_tokens), row.tokens, ms_or_null(row.first_token_us),
                 rate_or_null(row.tokens_per_s), ms_text(row.total_us));
}

}  // namespace

std::string_view shortened(std::string_view text) {
  std::size_t bytes = std::min(text.size(), EndedRequest::kTextBytesMax);
  while (bytes > 0 && bytes < text.size() && (static_cast<unsigned char>(text[bytes]) >> 6U) == 2U)
    --bytes;
  return text.substr(0, bytes);
}

void log_request(const EndedRequest& request) {
  std::vector<log::Field> fields{
      {"request_id", log::quoted(request.id)},
      {"path", log::quoted(request.path)},
      {"status", fmt::to_string(request.status)},
      {"finish", log::quoted(request.finish)},
  };
  if (request.failed) {
    fields.push_back({"code", request.code.empty() ? "null" : log::quoted(request.code)});
    fields.push_back({"param", request.param.empty() ? "null" : log::quoted(request.param)});
  }
  if (!request.key.empty()) fields.push_back({"key", log::quoted(request.key)});
  if (!request.user.empty()) fields.push_back({"user", log::quoted(request.user)});
  fields.push_back({"prompt_tokens", number_or_null(request.prompt_tokens)});
  fields.push_back({"cached", number_or_null(request.cached_tokens)});
  fields.push_back({"completion_tokens", fmt::to_string(request.tokens)});
  fields.push_back({"ttft_ms", ms_or_null(request.first_token_us)});
  fields.push_back({"tps", rate_or_null(request.tokens_per_s)});
  fields.push_back({"total_ms", ms_text(request.total_us)});
  log::write(log::Level::info, "request", fields);
}

void RequestLog::add(EndedRequest request) {
  const std::lock_guard lock(mutex_);
  ++counts_[request.owner];
  rows_.push_front(std::move(request));
  if (rows_.size() <= kRowsMax) return;
  const auto most =
      std::ranges::max_element(counts_, {}, [](const auto& one) { return one.second; });
  const auto oldest = std::find_if(rows_.rbegin(), rows_.rend(), [&](const EndedRequest& row) {
    return row.owner == most->first;
  });
  rows_.erase(std::next(oldest).base());
  if (--most->second == 0) counts_.erase(most);
}

std::vector<EndedRequest> RequestLog::rows() const {
  const std::lock_guard lock(mutex_);
  return {rows_.begin(), rows_.end()};
}

std::string requests_json(const std::vector<LiveRequest>& live,
                          const std::vector<EndedRequest>& ended,
                          std::int64_t now_us) {
  std::string out = R"({"running":[)";
  for (const LiveRequest& row : live) append(out, row, now_us);
  out += R"(],"ended":[)";
  for (const EndedRequest& row : ended) append(out, row);
  return out + "]}";
}

}  // namespace koho::server
