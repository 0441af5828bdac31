// SPDX-License-Identifier: Apache-2.0
// `koho tokenize`: turns a text into token ids, or with --jsonl a JSON string a line into an array
// of ids; --decode reverses it.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "app/command.h"
#include "app/model_directory.h"
#include "base/json.h"
#include "base/json_writer.h"
#include "chat/json.h"
#include "tokenizer/tokenizer.h"

namespace koho::app {
namespace {

constexpr std::size_t kLineBytesMax = 64U << 20U;

constexpr const char* kExamples =
    R"(Input: TEXT, or standard input as a whole; with --jsonl one JSON value per line of it, a string, or
with --decode an array of ids. Output: an array of ids (for each line), or the text (a JSON string).
The directory needs only a tokenizer.json.

Without --allow-special text is plain text; with it "<|user|>" in the text becomes a control token.
The first bad line ends the program with an error that has its number.

Examples:
  koho tokenize models/tiny "Hello, world"
  koho tokenize models/tiny --decode "[71,72]"
  echo '"Hello, world"' | koho tokenize --model models/tiny --jsonl
  echo '"[gMASK]<sop><|user|>Hi"' | koho tokenize --model models/tiny --jsonl --allow-special
  echo '[71,72]' | koho tokenize --model models/tiny --jsonl --decode
  koho tokenize --model models/tiny --jsonl < texts.jsonl > ids.jsonl)";

struct TokenizeOptions {
  std::string model;
  std::string words[2];  // MODEL and TEXT as they are given
  bool jsonl = false;
  bool allow_special = false;
  bool decode = false;
  bool skip_special = false;
};

/// The ids of a text, as a JSON array.
Result<std::string> encode_text(const Tokenizer& tokenizer,
                                const std::string& text,
                                bool allow_special) {
  KOHO_TRY_ASSIGN(const std::vector<std::int32_t> ids,
                  allow_special ? tokenizer.encode_with_special(text) : tokenizer.encode(text));
  return fmt::format("[{}]", fmt::join(ids, ","));
}

/// Those of a JSON string.
Result<std::string> encode_line(const Tokenizer& tokenizer,
                                const json::Value& value,
                                bool allow_special) {
  if (value.string() == nullptr)
    return make_error(ErrorCode::invalid_argument, "expected a JSON string, found {}",
                      json::kind_name(value.kind()));
  return encode_text(tokenizer, *value.string(), allow_special);
}

/// The ids of a JSON array.
Result<std::vector<std::int32_t>> ids_of(const json::Value& value) {
  if (value.array() == nullptr)
    return make_error(ErrorCode::invalid_argument, "expected a JSON array of ids, found {}",
                      json::kind_name(value.kind()));
  std::vector<std::int32_t> ids;
  for (const json::Value& item : *value.array()) {
    if (!item.integer() || *item.integer() < 0 || *item.integer() > INT32_MAX)
      return make_error(ErrorCode::invalid_argument, "element {} is not a token id (0 to {})",
                        ids.size(), INT32_MAX);
    ids.push_back(static_cast<std::int32_t>(*item.integer()));
  }
  return ids;
}

/// Their text, as a JSON string.
Result<std::string> decode_line(const Tokenizer& tokenizer,
                                const json::Value& value,
                                bool skip_special) {
  KOHO_TRY_ASSIGN(const std::vector<std::int32_t> ids, ids_of(value));
  std::string quoted;
  append_json_string(quoted, tokenizer.decode(ids, skip_special));
  return quoted;
}

Result<std::string> tokenize_line(const Tokenizer& tokenizer,
                                  const std::string& line,
                                  const TokenizeOptions& options) {
  if (line.size() > kLineBytesMax)
    return make_error(ErrorCode::resource_exhausted, "the line has {} bytes, the limit is {}",
                      line.size(), kLineBytesMax);
  Result<json::Value> value =
      json::parse(line, {.depth_max = 1, .string_bytes_max = kLineBytesMax});
  // In a line of input what is not JSON is the caller's mistake, not a corrupt file.
  if (!value.ok()) return Error{ErrorCode::invalid_argument, value.error().message};
  return options.decode ? decode_line(tokenizer, *value, options.skip_special)
                        : encode_line(tokenizer, *value, options.allow_special);
}

/// Without --jsonl: the whole of a text, or an array of ids.
Status tokenize_text(const Tokenizer& tokenizer, std::string text, const TokenizeOptions& options) {
  if (text.empty() || text == "-")
    text.assign(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
  if (!options.decode) {
    KOHO_TRY_ASSIGN(const std::string ids, encode_text(tokenizer, text, options.allow_special));
    std::cout << ids << std::endl;
    return {};
  }
  Result<json::Value> value = json::parse(text, {.depth_max = 1});
  if (!value.ok())
    return make_error(ErrorCode::invalid_argument, "--decode: expected ids such as [71,72]: {}",
                      value.error().message);
  KOHO_TRY_ASSIGN(const std::vector<std::int32_t> ids, ids_of(*value));
  std::cout << tokenizer.decode(ids, options.skip_special) << std::endl;
  return {};
}

Status run_tokenize(TokenizeOptions& options) {
  KOHO_TRY(take_model_word(options.model, {&options.words[0], &options.words[1]}));
  if (options.model.empty())
    return make_error(ErrorCode::invalid_argument,
                      "the model is missing: koho tokenize MODEL TEXT, or -m MODEL TEXT");
  KOHO_TRY_ASSIGN(const std::filesystem::path directory, find_model(options.model, false));
  KOHO_TRY_ASSIGN(const Tokenizer tokenizer, Tokenizer::load(directory / "tokenizer.json"));
  if (!options.jsonl) return tokenize_text(tokenizer, options.words[1], options);
  if (!options.words[1].empty())
    return make_error(ErrorCode::invalid_argument, "--jsonl reads standard input, not TEXT");
  std::ios::sync_with_stdio(false);
  std::string line;
  for (std::size_t number = 1; std::getline(std::cin, line); ++number) {
    Result<std::string> out = tokenize_line(tokenizer, line, options);
    if (!out.ok()) return std::move(out).error().with_context(fmt::format("line {}", number));
    std::cout << *out << '\n';
    if (!std::cout) break;
  }
  if (std::cin.bad()) return make_error(ErrorCode::io_error, "standard input could not be read");
  return {};
}

}  // namespace

Runner add_tokenize(CommandLine& command) {
  const auto options = std::make_shared<TokenizeOptions>();
  command.add_option("MODEL", options->words[0], "The directory, where -m does not name it");
  command.add_option("TEXT", options->words[1], "The text; left out or -: standard input");
  command.add_option("-m,--model", options->model, "Directory with a tokenizer.json")
      ->type_name("DIR");
  command.add_flag("--jsonl", options->jsonl, "Read and write one JSON value per line");
  Option* decode = command.add_flag("--decode", options->decode, "Turn ids into text");
  command
      .add_flag("--allow-special", options->allow_special,
                "Recognise added tokens (<|user|>, <think>, ...) in the text")
      ->excludes(decode);
  command
      .add_flag("--skip-special", options->skip_special,
                "With --decode: leave out tokens with the special flag")
      ->needs(decode);
  command.footer(kExamples);
  return [options] { return run_tokenize(*options); };
}

}  // namespace koho::app
