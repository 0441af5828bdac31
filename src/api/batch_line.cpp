// SPDX-License-Identifier: Apache-2.0
#include "api/batch_line.h"

#include <fmt/format.h>

#include "api/body.h"
#include "base/json_writer.h"
#include "base/text.h"
#include "chat/json.h"

namespace koho::api {
namespace {

using chat::Json;

constexpr std::string_view kIdBeginning = "batch_req_";
constexpr std::size_t kEnvelopeDepth = 8;

/// A scan of an object's members in text that parse_json() has accepted.
class Members {
 public:
  explicit Members(std::string_view object) : text_(object) { at_ = text_.find('{') + 1; }

  /// The next member: its key as it is written, without quotes, and its value's text.
  bool next(std::string_view& key, std::string_view& value) {
    at_ = text_.find_first_of("\"}", at_);
    if (at_ == std::string_view::npos || text_[at_] == '}') return false;
    const std::size_t begin = at_;
    skip_string();
    key = text_.substr(begin + 1, at_ - begin - 2);
    at_ = text_.find_first_not_of(" \t\r\n:", at_);
    const std::size_t value_begin = at_;
    skip_value();
    value = text_.substr(value_begin, at_ - value_begin);
    return true;
  }

 private:
  void skip_string() {
    for (++at_; text_[at_] != '"'; ++at_)
      if (text_[at_] == '\\') ++at_;
    ++at_;
  }
  /// Up to the comma or brace behind it.
  void skip_value() {
    for (std::size_t depth = 0; at_ < text_.size();) {
      const char c = text_[at_];
      if (c == '"') {
        skip_string();
        continue;
      }
      if (depth == 0 && (c == ',' || c == '}')) return;
      if (c == '{' || c == '[') ++depth;
      if (c == '}' || c == ']') --depth;
      ++at_;
    }
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

bool is_of_envelope(std::string_view name) {
  return name == "custom_id" || name == "method" || name == "url" || name == "body";
}

Refusal must_be_string(const Json& json, std::string_view name) {
  const Json* member = json.given(name);
  if (member != nullptr && member->is_string()) return {};
  return wrong_field(name,
                     fmt::format("{} must be a string, found {}", name,
                                 member == nullptr ? "nothing" : chat::kind_name(member->kind)),
                     member == nullptr ? "missing_required_parameter" : "invalid_type");
}

std::string id_of(const BatchLine& line) {
  return fmt::format("{}{}", kIdBeginning, line.number);
}

}  // namespace

bool is_blank_line(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

std::optional<bool> is_batch_line(std::string_view line) {
  const Result<Json> json =
      chat::parse_json(line, {.needs = [](std::string_view) { return false; }});
  if (json.ok() && json->is_object())
    return json->find("custom_id") != nullptr ||
           (json->find("url") != nullptr && json->find("body") != nullptr);
  if (line.find(R"("custom_id")") != std::string_view::npos) return true;
  return std::nullopt;
}

ApiError line_too_long() {
  return wrong_field("",
                     fmt::format("the line is longer than {} bytes, the limit", kBatchLineBytesMax),
                     "invalid_json_line");
}

Refusal read_batch_line(std::string_view line, std::int64_t number, BatchLine& read) {
  read.number = number;
  // The body is read where it is answered; here only its extent is found.
  const auto needs = [](std::string_view name) { return is_of_envelope(name) && name != "body"; };
  const Result<Json> json =
      chat::parse_json(line, {.depth_max = chat::kJsonDepthMax + kEnvelopeDepth, .needs = needs});
  if (!json.ok()) {
    ApiError error = to_api_error(json.error());
    error.status = 400;
    error.code = "invalid_json_line";
    return error;
  }
  if (!json->is_object())
    return wrong_field("", "a line must be a JSON object", "invalid_json_line");
  if (Refusal refused = must_be_string(*json, "custom_id")) return refused;
  const std::string& custom_id = json->find("custom_id")->text;
  if (custom_id.empty() || custom_id.size() > kCustomIdBytesMax)
    return wrong_field("custom_id",
                       fmt::format("custom_id must have 1..{} bytes, found {}", kCustomIdBytesMax,
                                   custom_id.size()),
                       "invalid_custom_id");
  read.custom_id = custom_id;
  if (Refusal refused = must_be_string(*json, "method")) return refused;
  if (json->find("method")->text != "POST")
    return wrong_field("method", "method must be POST", "invalid_method");
  if (Refusal refused = must_be_string(*json, "url")) return refused;
  read.endpoint = find_batch_endpoint(json->find("url")->text);
  if (read.endpoint == nullptr)
    return wrong_field("url",
                       fmt::format("url must be one of {}, found {:.100}", batch_paths(),
                                   std::string_view(json->find("url")->text)),
                       "invalid_url");
  std::string_view key;
  std::string_view value;
  for (Members members(line); members.next(key, value);)
    if (key == "body") read.body = trimmed(value, " \t\r\n");
  if (!read.body.starts_with('{'))
    return wrong_field("body", "body must be an object",
                       read.body.empty() ? "missing_required_parameter" : "invalid_type");
  return {};
}

std::string batch_answer_line(const BatchLine& line,
                              int status,
                              std::string_view request_id,
                              std::string_view body) {
  std::string out = fmt::format(R"({{"id":"{}","custom_id":)", id_of(line));
  append_json_string(out, line.custom_id);
  out += fmt::format(R"(,"response":{{"status_code":{},"request_id":)", status);
  append_json_string(out, request_id);
  out += R"(,"body":)";
  out += body;
  return out + R"(},"error":null})";
}

std::string batch_error_line(const BatchLine& line, const ApiError& error) {
  std::string out = fmt::format(R"({{"id":"{}","custom_id":)", id_of(line));
  out += line.custom_id.empty() ? "null" : json_string(line.custom_id);
  // append_error() replaces what is no UTF-8; its object {"error": …} is the end of the line.
  std::string object;
  append_error(object, ErrorStyle::openai, error);
  out += R"(,"response":null,)";
  out += std::string_view(object).substr(1);
  return out;
}

bool read_batch_outcome(std::string_view line, BatchOutcome& outcome) {
  // An answer may repeat parts of its request, and lies two levels below.
  const Result<Json> json =
      chat::parse_json(line, {.depth_max = chat::kJsonDepthMax + kEnvelopeDepth,
                              .needs = [](std::string_view name) { return name != "response"; }});
  if (!json.ok()) return false;
  const Json* id = json->find("id");
  const Json* custom_id = json->find("custom_id");
  if (id == nullptr || !id->is_string() || custom_id == nullptr ||
      !id->text.starts_with(kIdBeginning))
    return false;
  const auto number =
      parse_integer<std::int64_t>(std::string_view(id->text).substr(kIdBeginning.size()));
  if (!number) return false;
  outcome.number = *number;
  outcome.custom_id = chat::dump_json(*custom_id);
  outcome.answered = line.find(R"("response":{"status_code":200,)") != std::string_view::npos;
  return true;
}

}  // namespace koho::api
