// SPDX-License-Identifier: Apache-2.0
// The one table of what a caller can ask of sampling, and the values of one request. The table has
// a parameter's name, type, range, default and meaning, and which interface offers it under which
// name. The HTTP APIs, batch lines, the command line, the C ABI and generation_config.json read
// their rows here; `koho serve --help-sampling` prints docs/sampling-parameters.md from it. A row
// that is one number needs no other code to be read and checked. Lengths, stops and scheduling are
// rows too; their values are members of Request (engine/request.h).
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "sampling/sampling_row.h"

namespace koho {

inline constexpr int kLogitBiasMax = 1024;  // entries a request
inline constexpr int kStopTokensMax = 64;   // a request
/// Entries of a row's bias list: while min_tokens keeps stop tokens out, theirs beside the others.
inline constexpr int kBiasesMax = kLogitBiasMax + kStopTokensMax;

/// One request's values. The initial ones leave the model's distribution as it is.
struct SamplingParameters {
  double temperature = 1.0;
  double top_p = 1.0;
  double min_p = 0.0;
  std::int64_t top_k = 0;
  double repetition_penalty = 1.0;
  double frequency_penalty = 0.0;
  double presence_penalty = 0.0;
  std::optional<std::int64_t> seed;
  std::optional<int> logprobs;                             // nothing: no logprob at all
  std::vector<std::pair<std::int32_t, float>> logit_bias;  // token id, bias
};

/// A set of the interfaces of koho.
using Interfaces = std::uint16_t;
inline constexpr Interfaces kChatApi = 1;         // POST /v1/chat/completions
inline constexpr Interfaces kCompletionsApi = 2;  // POST /v1/completions
inline constexpr Interfaces kGenerateApi = 4;     // POST /generate
inline constexpr Interfaces kMessagesApi = 8;     // POST /v1/messages
inline constexpr Interfaces kResponsesApi = 16;   // POST /v1/responses
inline constexpr Interfaces kBatchLines = 32;     // a line of koho batch
inline constexpr Interfaces kCommandLine = 64;    // flags of koho run and koho batch
inline constexpr Interfaces kCAbi = 128;          // SamplingParams of include/koho/engine.h
inline constexpr Interfaces kPythonApi = 256;     // koho.SamplingParams
inline constexpr Interfaces kOpenAiApis = kChatApi | kCompletionsApi | kGenerateApi;
inline constexpr Interfaces kHttpApis = kOpenAiApis | kMessagesApi | kResponsesApi;
inline constexpr Interfaces kLibraries = kCAbi | kPythonApi;
inline constexpr Interfaces kEverywhere = kHttpApis | kBatchLines | kCommandLine | kLibraries;

enum class ParameterType : std::uint8_t { number, integer, boolean, strings, token_ids, object };

/// The largest value of a range that ends at the model's vocabulary size.
inline constexpr double kVocabularySize = std::numeric_limits<double>::infinity();

/// [low, high], or (low, high] if `above_low`.
struct ParameterRange {
  double low = 0.0;
  double high = 0.0;
  bool above_low = false;
};

/// What some interfaces do differently from the row, and why.
struct ParameterDifference {
  Interfaces where = 0;
  std::string_view name{};  // its name there; empty: the row's
  std::optional<ParameterRange> range{};
  std::string_view what{};  // the difference in words
  std::string_view reason{};
};

struct SamplingParameter {
  std::string_view name;
  ParameterType type = ParameterType::number;
  /// Of a number or an integer without `range_text`.
  ParameterRange range{};
  std::string_view range_text{};
  std::string_view default_text{};  // empty: the member's initial value
  std::string_view help;
  Interfaces interfaces = kEverywhere;
  std::array<ParameterDifference, 3> differences{};
  /// The value's place, for a row that is one number; null: the readers treat the row by name.
  double SamplingParameters::*number = nullptr;
  std::int64_t SamplingParameters::*integer = nullptr;
  /// The place that the samplers read; null: not a float, or not of the row.
  float SamplingRow::*row = nullptr;
  bool advised = false;  // generation_config.json may set the default
  bool penalty = false;  // reads how often the output, or whether the prompt, has a token
};

// NOTE: not inline, and neither is what reads it: GCC 12 under UBSan does not take the address of
// an inline variable for a constant.
constexpr SamplingParameter kSamplingParameters[] = {
    {.name = "temperature",
     .range = {0, 2},
     .help = "divides the logits; 0 is greedy: always the likeliest token",
     .number = &SamplingParameters::temperature,
     .row = &SamplingRow::temperature,
     .advised = true},
    {.name = "top_p",
     .range = {0, 1, true},
     .help = "keeps the likeliest tokens whose probabilities add up to this",
     .number = &SamplingParameters::top_p,
     .row = &SamplingRow::top_p,
     .advised = true},
    {.name = "min_p",
     .range = {0, 1},
     .help = "keeps the tokens at least this times as likely as the likeliest",
     .number = &SamplingParameters::min_p,
     .row = &SamplingRow::min_p,
     .advised = true},
    {.name = "top_k",
     .type = ParameterType::integer,
     .range = {-1, kVocabularySize},
     .help = "keeps the k likeliest tokens; 0 and -1 keep all",
     .differences = {{{.where = kOpenAiApis | kResponsesApi,
                       .range = ParameterRange{-1, 1'000'000},
                       .reason = "the body's reader refuses what no vocabulary reaches; the engine "
                                 "then holds the value to the model's vocabulary"},
                      {.where = kMessagesApi,
                       .range = ParameterRange{-1, 2147483647},
                       .reason = "Anthropic's API names no largest value; the engine then holds "
                                 "the value to the model's vocabulary"},
                      {.where = kLibraries,
                       .what = "a negative value (Python: None) is the model's advice, 0 keeps all",
                       .reason = "a C struct has no field that is not given"}}},
     .integer = &SamplingParameters::top_k,
     .advised = true},
    {.name = "repetition_penalty",
     .range = {0, 2, true},
     .help = "divides the positive logits of tokens of prompt and output, multiplies the negative "
             "ones; 1 is off",
     .number = &SamplingParameters::repetition_penalty,
     .row = &SamplingRow::repetition_penalty,
     .advised = true,
     .penalty = true},
    {.name = "frequency_penalty",
     .range = {-2, 2},
     .help = "subtracted from a token's logit for each time the output has it; 0 is off",
     .number = &SamplingParameters::frequency_penalty,
     .row = &SamplingRow::frequency_penalty,
     .penalty = true},
    {.name = "presence_penalty",
     .range = {-2, 2},
     .help = "subtracted from the logit of each token that the output has; 0 is off",
     .number = &SamplingParameters::presence_penalty,
     .row = &SamplingRow::presence_penalty,
     .penalty = true},
    {.name = "seed",
     .type = ParameterType::integer,
     .range_text = "any 64-bit integer",
     .default_text = "random",
     .help = "the same request with the same seed gives the same output",
     .differences =
         {{{.where = kCommandLine, .what = "0 or more", .reason = "the flag refuses a sign"},
           {.where = kCAbi,
            .what = "counts only if use_seed is not 0",
            .reason = "a C struct has no field that is not given"}}}},
    {.name = "logit_bias",
     .type = ParameterType::object,
     .range_text = "token id to number in [-100, 100], at most 1024 entries",
     .default_text = "none",
     .help = "added to the logits of these tokens",
     .interfaces = kHttpApis | kBatchLines},
    {.name = "allowed_token_ids",
     .type = ParameterType::token_ids,
     .range_text = "at least one id of the vocabulary",
     .default_text = "all",
     .help = "no other token is sampled",
     .interfaces = kHttpApis},
    {.name = "bad_words",
     .type = ParameterType::strings,
     .range_text = "at most 256 strings",
     .default_text = "none",
     .help = "strings that are never generated",
     .interfaces = kHttpApis},
    {.name = "thinking_token_budget",
     .type = ParameterType::integer,
     .range_text = "0 or more",
     .default_text = "no limit",
     .help = "reasoning ends after at most so many tokens",
     .interfaces = kHttpApis,
     .differences = {{{.where = kMessagesApi,
                       .what = "also thinking.budget_tokens, from 1",
                       .reason = "Anthropic's field"}}}},
    {.name = "max_tokens",
     .type = ParameterType::integer,
     .range_text = "1 to what the context has room for",
     .default_text = "the rest of the context",
     .help = "ends the output after so many tokens",
     .differences = {{{.where = kCompletionsApi | kGenerateApi,
                       .what = "from 0, 16 if not given; /generate also reads max_new_tokens",
                       .reason = "OpenAI's default; 0 computes the prompt only (scoring)"},
                      {.where = kResponsesApi,
                       .name = "max_output_tokens",
                       .reason = "OpenAI's name; the messages API requires the field"},
                      {.where = kCommandLine | kBatchLines,
                       .what = "the flag may be -1, a batch line's own 0",
                       .reason = "-1 is the default: the rest of the context"}}}},
    {.name = "min_tokens",
     .type = ParameterType::integer,
     .range_text = "0 to max_tokens",
     .default_text = "0",
     .help = "no stop token is sampled before so many tokens",
     .interfaces = kHttpApis | kBatchLines | kLibraries,
     .differences =
         {{{.where = kGenerateApi, .what = "also min_new_tokens", .reason = "SGLang's name"}}}},
    {.name = "n",
     .type = ParameterType::integer,
     .range_text = "1..128",
     .default_text = "1",
     .help = "number of outputs (choices) for one prompt",
     .interfaces = kOpenAiApis | kBatchLines},
    {.name = "logprobs",
     .type = ParameterType::integer,
     .range = {0, kTopLogprobsMax},
     .default_text = "none",
     .help = "returns each token's logprob and those of so many alternatives",
     .interfaces = kOpenAiApis | kBatchLines | kLibraries,
     .differences = {{{.where = kChatApi,
                       .name = "top_logprobs",
                       .what = "counts only with \"logprobs\": true",
                       .reason = "OpenAI's chat API has two fields"},
                      {.where = kLibraries,
                       .what = "a boolean: the sampled token's logprob only",
                       .reason = "TokenEvent has room for one logprob"}}}},
    {.name = "logits",
     .type = ParameterType::boolean,
     .default_text = "false",
     .help = "returns the logits of the whole vocabulary that each token was sampled from, before "
             "bias, penalties, temperature and masks",
     .interfaces = kLibraries,
     .differences = {{{.where = kCAbi,
                       .what = "the caller's memory for them, logits_rows tokens; NULL is false",
                       .reason = "C has no arrays that grow"}}}},
    {.name = "stop",
     .type = ParameterType::strings,
     .range_text = "at most 16 strings of 1..1024 bytes",
     .default_text = "none",
     .help = "the output ends before the first of these strings",
     .interfaces = kHttpApis | kBatchLines | kCommandLine,
     .differences = {{{.where = kOpenAiApis | kResponsesApi,
                       .range = ParameterRange{0, 4},
                       .what = "at most 4 strings",
                       .reason = "OpenAI's limit"},
                      {.where = kMessagesApi,
                       .name = "stop_sequences",
                       .what = "stop is read too, at most 4 strings",
                       .reason = "Anthropic's name"}}}},
    {.name = "stop_token_ids",
     .type = ParameterType::token_ids,
     .range_text = "ids, or arrays of 2 to 16 ids; at most 64 with the model's own",
     .default_text = "the model's own",
     .help = "the output ends with one of these tokens, or with an array's tokens in their order",
     .differences = {{{.where = kCommandLine,
                       .what = "single ids only",
                       .reason = "the flag's list is split at commas"},
                      {.where = kCAbi,
                       .what = "arrays are in stop_sequences",
                       .reason = "C has no nested arrays"}}}},
    {.name = "include_stop_str_in_output",
     .type = ParameterType::boolean,
     .default_text = "false",
     .help = "the stop token or string that ended the output stays in the text",
     .interfaces = kHttpApis | kBatchLines,
     .differences = {{{.where = kHttpApis, .what = "also no_stop_trim", .reason = "SGLang's name"},
                      {.where = kBatchLines,
                       .name = "include_stop",
                       .reason = "batch lines are koho's own format; the name stays"}}}},
    {.name = "ignore_eos",
     .type = ParameterType::boolean,
     .default_text = "false",
     .help = "the model's own stop tokens do not end the output"},
    {.name = "priority",
     .type = ParameterType::integer,
     .range_text = "0..7",
     .default_text = "0",
     .help = "0 is served first",
     .interfaces = kHttpApis | kBatchLines | kLibraries},
    {.name = "timeout",
     .type = ParameterType::number,
     .range = {0, 86'400, true},
     .default_text = "none",
     .help = "seconds after which the request fails",
     .interfaces = kHttpApis | kLibraries,
     .differences = {{{.where = kLibraries,
                       .name = "deadline_ms",
                       .what = "whole milliseconds, 0 is none",
                       .reason = "the ABI stays as it is"}}}},
    {.name = "cache_salt",
     .type = ParameterType::strings,
     .range_text = "one string of 1..1024 bytes",
     .default_text = "none",
     .help = "requests share cached prefixes only under the same salt",
     .interfaces = kHttpApis | kLibraries,
     .differences = {{{.where = kLibraries,
                       .what = "128 bits",
                       .reason = "the caller hashes, as the HTTP APIs do"}}}},
};

/// Null: none of this name.
static constexpr const SamplingParameter* find_parameter(std::string_view name) {
  for (const SamplingParameter& parameter : kSamplingParameters)
    if (parameter.name == name) return &parameter;
  return nullptr;
}

/// The row of a name that the program itself wrote.
static constexpr const SamplingParameter& parameter(std::string_view name) {
  const SamplingParameter* found = find_parameter(name);
  KOHO_CHECK(found != nullptr);
  return *found;
}

/// What a parameter is called in one interface. Requires: it is offered there.
static constexpr std::string_view name_in(const SamplingParameter& parameter, Interfaces where) {
  for (const ParameterDifference& difference : parameter.differences)
    if ((difference.where & where) != 0 && !difference.name.empty()) return difference.name;
  return parameter.name;
}

/// The range that one interface checks.
static constexpr ParameterRange range_in(const SamplingParameter& parameter, Interfaces where) {
  for (const ParameterDifference& difference : parameter.differences)
    if ((difference.where & where) != 0 && difference.range) return *difference.range;
  return parameter.range;
}

/// The flag of a parameter: --top-p of top_p.
std::string flag_of(const SamplingParameter& parameter);

/// A parameter's range and default in words, for help and documentation.
std::string range_text(const SamplingParameter& parameter);
std::string default_text(const SamplingParameter& parameter);

}  // namespace koho
