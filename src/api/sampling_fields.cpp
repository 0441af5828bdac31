// SPDX-License-Identifier: Apache-2.0
#include "api/sampling_fields.h"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include <fmt/core.h>

#include "api/fields.h"
#include "base/text.h"
#include "sampling/output_record.h"
#include "sampling/parameter_table.h"

namespace koho::api {
namespace {

using chat::Json;
using Value = FieldValue;

constexpr std::int32_t kChoicesMax = 128;

/// A parameter that is one number: type, range and place are its row of the table.
Refusal read_one_number(const Value& value, RequestBuilder& builder) {
  const SamplingParameter& row = parameter(value.name);
  const ParameterRange range = range_in(row, kOpenAiApis);
  SamplingParameters& sampling = builder.request.base.sampling;
  if (row.number != nullptr)
    return read_number(value, range.low, range.high, sampling.*row.number, range.above_low);
  return read_integer(value, static_cast<std::int64_t>(range.low),
                      static_cast<std::int64_t>(range.high), sampling.*row.integer);
}

Refusal read_seed(const Value& value, RequestBuilder& builder) {
  std::int64_t seed = 0;
  if (Refusal refused = read_integer(value, std::numeric_limits<std::int64_t>::min(),
                                     std::numeric_limits<std::int64_t>::max(), seed))
    return refused;
  builder.request.base.sampling.seed = seed;
  return {};
}

Refusal read_logit_bias(const Value& value, RequestBuilder& builder) {
  if (!value.json.is_object()) return must_be(value, "an object of token ids and numbers");
  const auto entries = value.json.keys.size();
  if (entries > static_cast<std::size_t>(kLogitBiasMax))
    return wrong_field(value.name, fmt::format("logit_bias may have at most {} entries, found {}",
                                               kLogitBiasMax, entries));
  for (std::size_t i = 0; i < entries; ++i) {
    const std::string& key = value.json.keys[i];
    const auto token = parse_integer<std::int32_t>(key);
    if (!token || *token < 0 || *token >= builder.model.limits.vocabulary)
      return wrong_field(
          value.name, fmt::format("logit_bias: \"{:.40}\" is not a token id; valid ids are 0..{}",
                                  std::string_view(key), builder.model.limits.vocabulary - 1));
    double bias = 0.0;
    if (Refusal refused =
            read_number({.name = value.name, .json = value.json.items[i]}, -100.0, 100.0, bias))
      return refused;
    builder.request.base.sampling.logit_bias.emplace_back(*token, static_cast<float>(bias));
  }
  return {};
}

Refusal read_allowed_tokens(const Value& value, RequestBuilder& builder) {
  if (value.json.is_array() && value.json.items.empty())
    return wrong_field(value.name, "allowed_token_ids must not be empty");
  const std::int32_t vocabulary = builder.model.limits.vocabulary;
  return read_token_ids(value, vocabulary, static_cast<std::size_t>(vocabulary),
                        builder.request.base.allowed_tokens);
}

/// As vLLM has it: each word as a text begins with it, and behind a space.
Refusal read_bad_words(const Value& value, RequestBuilder& builder) {
  constexpr std::size_t kWordsMax = 256;
  std::vector<std::string> words;
  if (value.json.is_array() && value.json.items.empty()) return {};
  if (Refusal refused = read_texts(value, kWordsMax, 1024, words)) return refused;
  if (builder.model.tokenizer == nullptr)
    return wrong_field(value.name, "bad_words needs a model with a tokenizer.json");
  for (const std::string& word : words)
    for (const std::string_view before : {"", " "}) {
      Result<std::vector<Token>> ids = builder.model.tokenizer->encode(std::string(before) + word);
      if (!ids.ok()) return wrong_field(value.name, ids.error().message);
      builder.request.base.banned_sequences.push_back(std::move(ids).value());
    }
  return {};
}

/// Single tokens, and arrays of tokens that end the answer where they come in this order.
Refusal read_stop_tokens(const Value& value, RequestBuilder& builder) {
  const std::size_t own = builder.model.defaults.stop_tokens.size();  // the model's come first
  const auto most = static_cast<std::size_t>(builder.model.limits.stop_tokens_max);
  const std::size_t stops_max = most - std::min(own, most);
  if (!value.json.is_array()) return must_be(value, "an array of token ids and of arrays of them");
  if (value.json.items.size() > stops_max)
    return wrong_field(value.name, fmt::format("{} may have at most {} entries, found {}",
                                               value.name, stops_max, value.json.items.size()));
  builder.request.base.stop_sequences.clear();
  Json single;
  single.kind = Json::Kind::array;
  for (const Json& item : value.json.items) {
    if (!item.is_array()) {
      single.items.push_back(item);
      continue;
    }
    std::vector<Token>& sequence = builder.request.base.stop_sequences.emplace_back();
    if (Refusal refused =
            read_token_ids({.name = value.name, .json = item}, builder.model.limits.vocabulary,
                           std::size_t{OutputRecord::kStopLengthMax}, sequence))
      return refused;
    if (sequence.size() < 2)
      return wrong_field(
          value.name, fmt::format("{}: a stop sequence must have at least 2 tokens", value.name));
  }
  return read_token_ids({.name = value.name, .json = single}, builder.model.limits.vocabulary,
                        stops_max, builder.stop_token_ids);
}

Refusal read_stop_strings(const Value& value, RequestBuilder& builder) {
  return read_texts(value, static_cast<std::size_t>(range_in(parameter("stop"), kOpenAiApis).high),
                    static_cast<std::size_t>(builder.model.limits.stop_string_bytes_max),
                    builder.request.base.stop_strings);
}

Refusal read_include_stop(const Value& value, RequestBuilder& builder) {
  return read_boolean(value, builder.request.base.include_stop);
}

constexpr bool is_one_number(const SamplingParameter& row) {
  return row.number != nullptr || row.integer != nullptr;
}

/// The rows that are one number, in the table's order.
constexpr auto kNumbers = [] {
  std::array<RequestField, std::ranges::count_if(kSamplingParameters, is_one_number)> fields{};
  std::size_t count = 0;
  for (const SamplingParameter& row : kSamplingParameters)
    if (is_one_number(row)) fields[count++] = {row.name, row.help, read_one_number};
  return fields;
}();

constexpr RequestField field(std::string_view name,
                             Refusal (*read)(const Value& value, RequestBuilder& builder)) {
  return {name, parameter(name).help, read};
}

constexpr RequestField kOthers[] = {
    field("seed", read_seed),
    field("logit_bias", read_logit_bias),
    field("allowed_token_ids", read_allowed_tokens),
    field("bad_words", read_bad_words),
    field("thinking_token_budget",
          [](const Value& v, RequestBuilder& d) {
            return read_integer(v, 0, std::numeric_limits<std::int32_t>::max(),
                                d.request.base.reasoning_tokens_max);
          }),
    field("n",
          [](const Value& v, RequestBuilder& d) {
            const std::int32_t most = std::min(kChoicesMax, d.model.limits.choices_max);
            return read_integer(v, 1, most, d.request.base.choices);
          }),
    field("min_tokens",
          [](const Value& v, RequestBuilder& d) {
            return read_integer(v, 0, d.model.limits.scheduler.context_max,
                                d.request.base.min_tokens);
          }),
    field("stop", read_stop_strings),
    field("stop_token_ids", read_stop_tokens),
    field("include_stop_str_in_output", read_include_stop),
    {"no_stop_trim", "SGLang's name for include_stop_str_in_output", read_include_stop},
    field("ignore_eos",
          [](const Value& v, RequestBuilder& d) { return read_boolean(v, d.ignore_eos); }),
};

}  // namespace

std::span<const RequestField> sampling_fields() {
  static const std::vector<RequestField> all = [] {
    std::vector<RequestField> fields(kNumbers.begin(), kNumbers.end());
    fields.insert(fields.end(), std::begin(kOthers), std::end(kOthers));
    return fields;
  }();
  return all;
}

Status read_sampling_numbers(const Json& body,
                             Interfaces api,
                             std::initializer_list<std::string_view> names,
                             SamplingParameters& sampling) {
  for (const std::string_view name : names) {
    const SamplingParameter& row = parameter(name);
    const ParameterRange range = range_in(row, api);
    if (row.integer != nullptr) {
      KOHO_TRY_ASSIGN(const std::optional<std::int64_t> value,
                      optional_integer(body, name, static_cast<std::int64_t>(range.low),
                                       static_cast<std::int64_t>(range.high)));
      if (value) sampling.*row.integer = *value;
      continue;
    }
    KOHO_TRY_ASSIGN(const std::optional<double> value,
                    optional_number(body, name, range.low, range.high));
    if (!value) continue;
    if (range.above_low && *value == range.low)
      return make_field_error(ErrorCode::invalid_argument, name, "{}: must be above {}", range.low);
    sampling.*row.number = *value;
  }
  return {};
}

}  // namespace koho::api
