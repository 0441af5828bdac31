// SPDX-License-Identifier: Apache-2.0
#include "api/body_fields.h"

#include <algorithm>
#include <cmath>
#include <span>

#include <fmt/format.h>

#include "api/anthropic.h"
#include "api/chat_completions.h"
#include "api/completions.h"
#include "api/endpoints.h"
#include "api/error.h"
#include "api/native.h"
#include "api/responses.h"
#include "api/shared_fields.h"
#include "base/json_writer.h"
#include "base/text.h"
#include "sampling/parameter_table.h"

namespace koho::api {
namespace {

/// Fields that no table of readers has.
constexpr BodyField kOthers[] = {
    {"model", "string: a served name; left out: the model"},
    {"system", "string or array of text blocks"},
    {"stop_sequences", "array of strings"},
    {"input", "string or array of items"},
    {"instructions", "string: comes before the input"},
    {"max_output_tokens", "integer from 1"},
    {"text", "object: format, or with /generate a string: the prompt"},
    {"reasoning", "object: effort, summary"},
    {"tokens", "array of token ids"},
    {"return_token_strs", "boolean: also return the tokens' texts"},
    {"n_predict", "integer: llama.cpp's name for max_tokens"},
    {"n_probs", "integer in 0..20: llama.cpp's name for logprobs; 0 returns none"},
    {"repeat_penalty", "number: llama.cpp's name for repetition_penalty"},
    {"return_tokens", "boolean: llama.cpp's name for return_token_ids"},
    {"sampling_params", "object: SGLang's names of the sampling parameters"},
};

const std::vector<RequestField>& chat_first() {
  static const std::vector<RequestField> all = [] {
    std::vector<RequestField> fields;
    for (const auto part : {chat_completion_fields(), shared_fields(), completion_fields()})
      fields.insert(fields.end(), part.begin(), part.end());
    return fields;
  }();
  return all;
}

const std::vector<RequestField>& text_first() {
  static const std::vector<RequestField> all = [] {
    std::vector<RequestField> fields;
    for (const auto part : {completion_fields(), shared_fields(), chat_completion_fields()})
      fields.insert(fields.end(), part.begin(), part.end());
    return fields;
  }();
  return all;
}

std::string_view words_for(std::string_view name, const std::vector<RequestField>& tables) {
  const auto found = std::ranges::find(tables, name, &RequestField::name);
  if (found != tables.end()) return found->takes;
  const auto other = std::ranges::find(kOthers, name, &BodyField::name);
  return other != std::end(kOthers) ? other->takes : std::string_view();
}

std::string types(std::initializer_list<std::string_view> names) {
  std::string out = R"("type":[)";
  for (const std::string_view name : names) out += fmt::format("\"{}\",", name);
  return out + "\"null\"]";
}

std::string bounds(const ParameterRange& range) {
  if (range.low >= range.high) return {};
  std::string out =
      fmt::format(R"(,"{}":{})", range.above_low ? "exclusiveMinimum" : "minimum", range.low);
  if (std::isfinite(range.high)) out += fmt::format(R"(,"maximum":{})", range.high);
  return out;
}

std::string schema_of_parameter(const SamplingParameter& row) {
  switch (row.type) {
    case ParameterType::number:
      return types({"number"}) + bounds(range_in(row, kOpenAiApis));
    case ParameterType::integer:
      return types({"integer"}) +
             (row.range_text.empty() ? bounds(range_in(row, kOpenAiApis)) : std::string());
    case ParameterType::boolean:
      return types({"boolean"});
    case ParameterType::strings:
      return types({"string", "array"});
    case ParameterType::token_ids:
      return types({"array"});
    case ParameterType::object:
      return types({"object"});
  }
  return {};
}

/// "integer in 0..20: …" and the like.
std::string schema_of_words(std::string_view words) {
  const std::string_view head = words.substr(0, words.find_first_of(":;"));
  if (head.starts_with("boolean")) return types({"boolean"});
  if (head.starts_with("number")) return types({"number"});
  if (head.starts_with("object")) return types({"object"});
  if (head.starts_with("array")) return types({"array"});
  if (head.starts_with("string"))
    return head.find("array") != std::string_view::npos ? types({"string", "array"})
                                                        : types({"string"});
  if (!head.starts_with("integer")) return {};
  std::string out = types({"integer"});
  const auto number_behind = [&](std::string_view word) -> std::optional<std::int64_t> {
    const std::size_t at = head.find(word);
    if (at == std::string_view::npos) return std::nullopt;
    const std::string_view rest = head.substr(at + word.size());
    return parse_integer<std::int64_t>(rest.substr(0, rest.find_first_not_of("-0123456789")));
  };
  // -1 stands for as many as fit.
  const bool open = words.find("-1") != std::string_view::npos;
  for (const std::string_view word : {" from ", " in "})
    if (const auto low = number_behind(word))
      out += fmt::format(R"(,"minimum":{})", open ? -1 : *low);
  if (const auto high = number_behind("..")) out += fmt::format(R"(,"maximum":{})", *high);
  return out;
}

}  // namespace

std::vector<BodyField> body_fields(std::string_view path) {
  bool (*reads)(std::string_view name) = nullptr;
  for (const GenerationEndpoint& one : generation_endpoints())
    if (one.path == path) reads = one.reads;
  for (const TextEndpoint& one : text_endpoints())
    if (one.path == path) reads = one.reads;
  std::vector<BodyField> fields;
  if (reads == nullptr) return fields;
  const bool of_text = path == "/v1/completions" || path == "/generate" || path == "/completion";
  const std::vector<RequestField>& tables = of_text ? text_first() : chat_first();
  const auto add = [&](std::string_view name) {
    if (name == "echo" && path != "/v1/completions") return;  // read to be refused
    if (!reads(name) || std::ranges::find(fields, name, &BodyField::name) != fields.end()) return;
    fields.push_back({name, words_for(name, tables)});
  };
  add("model");
  for (const RequestField& field : tables) add(field.name);
  for (const BodyField& field : kOthers) add(field.name);
  for (const std::string_view name : message_field_names()) add(name);
  for (const std::string_view name : response_field_names()) add(name);
  for (const std::string_view name : generate_field_names()) add(name);
  return fields;
}

std::string_view required_field(std::string_view path) {
  for (const GenerationEndpoint& one : generation_endpoints())
    if (one.path == path && (one.in_batches || error_style(path) == ErrorStyle::anthropic))
      return one.prompt_field;
  return {};
}

std::string field_schema(const BodyField& field) {
  // An API's own row, such as the logprobs of chats, says more than the table of parameters.
  const SamplingParameter* row = find_parameter(field.name);
  if (row != nullptr && !field.takes.empty() && field.takes != row->help) row = nullptr;
  std::string out = row != nullptr ? schema_of_parameter(*row) : schema_of_words(field.takes);
  const std::string_view words = row != nullptr ? row->help : field.takes;
  if (!words.empty()) {
    if (!out.empty()) out += ',';
    out += R"("description":)";
    append_json_string(out, words);
  }
  return "{" + out + "}";
}

}  // namespace koho::api
