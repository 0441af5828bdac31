// SPDX-License-Identifier: Apache-2.0
#include "bench/http_answer.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/text.h"
#include "chat/json.h"

namespace koho::bench {
namespace {

using chat::Json;

constexpr double kUsPerS = 1e6;

/// Whether a chunk of a chat has a token: the opening one, which has the role, has none.
bool has_token(const Json& choice) {
  const Json* delta = choice.find("delta");
  if (delta == nullptr) return true;  // a completion
  for (const char* name : {"content", "reasoning", "reasoning_content", "tool_calls"})
    if (const Json* part = delta->given(name))
      if (!part->text.empty() || !part->items.empty()) return true;
  const Json* content = delta->given("content");
  return content != nullptr && delta->find("role") == nullptr;
}

}  // namespace

void AnswerReader::feed(std::string_view bytes, const OnBody& on_body) {
  raw_ += bytes;
  if (status_ == 0 && !read_head()) return;
  if (chunked_) {
    read_chunks(on_body);
  } else if (!done_) {
    std::string part = std::exchange(raw_, {});
    if (left_ >= 0) {
      part.resize(std::min(part.size(), static_cast<std::size_t>(left_)));
      left_ -= static_cast<std::int64_t>(part.size());
    }
    on_body(part);
    done_ = left_ == 0;
  }
}

bool AnswerReader::read_head() {
  const std::size_t end = raw_.find("\r\n\r\n");
  if (end == std::string::npos) return false;
  std::string_view head = std::string_view(raw_).substr(0, end + 2);
  if (head.size() < 12 || !head.starts_with("HTTP/1.")) {
    status_ = 599;
  } else {
    std::from_chars(head.data() + 9, head.data() + 12, status_);
  }
  keep_alive_ = head.starts_with("HTTP/1.1");
  while (!head.empty()) {
    const std::size_t line_end = head.find("\r\n");
    const std::string_view line = head.substr(0, line_end);
    head.remove_prefix(line_end + 2);
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) continue;
    const std::string name = lower_case(line.substr(0, colon));
    const std::string value = lower_case(trimmed(line.substr(colon + 1)));
    if (name == "content-length") left_ = parse_integer<std::int64_t>(value).value_or(0);
    if (name == "transfer-encoding") chunked_ = value == "chunked";
    if (name == "connection") keep_alive_ = value != "close";
  }
  raw_.erase(0, end + 4);
  done_ = !chunked_ && left_ == 0;
  return true;
}

void AnswerReader::read_chunks(const OnBody& on_body) {
  while (!done_) {
    const std::size_t line_end = raw_.find("\r\n");
    if (line_end == std::string::npos) return;
    const std::string_view size_text =
        trimmed(std::string_view(raw_).substr(0, std::min(line_end, raw_.find(';'))));
    const auto size = parse_integer<std::uint64_t>(size_text, 16).value_or(0);
    if (raw_.size() < line_end + 2 + size + 2) return;
    if (size > 0) on_body(std::string_view(raw_).substr(line_end + 2, size));
    raw_.erase(0, line_end + 2 + size + 2);
    done_ = size == 0;
  }
}

void StreamNotes::begin(ServedRequest& request, std::int64_t now_us) {
  request_ = &request;
  begun_us_ = last_us_ = now_us;
  first_ = true;
  tail_.clear();
}

void StreamNotes::feed(std::string_view part, std::int64_t now_us) {
  tail_ += part;
  std::size_t begin = 0;
  for (std::size_t end = 0; (end = tail_.find("\n\n", begin)) != std::string::npos; begin = end + 2)
    event(std::string_view(tail_).substr(begin, end - begin), now_us);
  tail_.erase(0, begin);
}

void StreamNotes::finish() {
  request_->success = !first_;
  request_->latency_s = static_cast<double>(last_us_ - begun_us_) / kUsPerS;
  if (first_ && request_->error.empty()) request_->error = "no token came";
  if (!request_->error.empty()) request_->success = false;
}

void StreamNotes::event(std::string_view text, std::int64_t now_us) {
  constexpr std::string_view kData = "data:";
  if (!text.starts_with(kData)) return;  // a comment
  text = trimmed(text.substr(kData.size()));
  if (text == "[DONE]") return;
  const Result<Json> json = chat::parse_json(text);
  if (!json.ok()) {
    request_->error = "an event is no JSON: " + json.error().message;
    return;
  }
  if (const Json* error = json->given("error")) {
    request_->error = chat::dump_json(*error).substr(0, 300);
    return;
  }
  const Json* choices = json->given("choices");
  if (choices != nullptr && !choices->items.empty()) {
    const Json& choice = choices->items.front();
    if (!has_token(choice)) return;
    if (std::exchange(first_, false)) {
      request_->ttft_s = static_cast<double>(now_us - begun_us_) / kUsPerS;
    } else {
      request_->itl_s.push_back(static_cast<double>(now_us - last_us_) / kUsPerS);
    }
    last_us_ = now_us;
    const Json* delta = choice.find("delta");
    const Json* content = delta == nullptr ? choice.given("text") : delta->given("content");
    if (content != nullptr) request_->text += content->text;
  } else if (const Json* usage = json->given("usage")) {
    if (const Json* count = usage->given("completion_tokens"))
      request_->output_tokens = count->as_integer().value_or(0);
    if (const Json* count = usage->given("prompt_tokens"))
      request_->prompt_tokens = count->as_integer().value_or(0);
  }
}

}  // namespace koho::bench
