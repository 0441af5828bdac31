// SPDX-License-Identifier: Apache-2.0
// `koho tokenize`: turns JSON strings into arrays of token ids, one per line; --decode reverses it.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iostream>
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
    R"(Input: one JSON value per line, a string, or with --decode an array of ids. Output: one line for
each, an array of ids, or a string. The directory needs only a tokenizer.json.

Without --allow-special text is plain text; with it "<|user|>" in the text becomes a control token.
The first bad line ends the program with an error that has its number.

Examples:
  echo '"Hello, world"' | koho tokenize --model models/tiny --jsonl
  echo '"[gMASK]<sop><|user|>Hi"' | koho tokenize --model models/tiny --jsonl --allow-special
  echo '[71,72]' | koho tokenize --model models/tiny --jsonl --decode
  koho tokenize --model models/tiny --jsonl < texts.jsonl > ids.jsonl)";

struct TokenizeOptions {
  std::string model;
  bool jsonl = false;
  bool allow_special = false;
  bool decode = false;
  bool skip_special = false;
};

/// The ids of a JSON string, as a JSON array.
Result<std::string> encode_line(const Tokenizer& tokenizer,
                                const json::Value& value,
                                bool allow_special) {
  if (value.string() == nullptr)
    return make_error(ErrorCode::invalid_argument, "expected a JSON string, found {}",
                      json::kind_name(value.kind()));
  KOHO_TRY_ASSIGN(const std::vector<std::int32_t> ids,
                  allow_special ? tokenizer.encode_with_special(*value.string())
                                : tokenizer.encode(*value.string()));
  return fmt::format("[{}]", fmt::join(ids, ","));
}

/// The text of a JSON array of ids, as a JSON string.
Result<std::string> decode_line(const Tokenizer& tokenizer,
                                const json::Value& value,
                                bool skip_special) {
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

Status run_tokenize(const TokenizeOptions& options) {
  KOHO_TRY_ASSIGN(const std::filesystem::path directory, find_model(options.model, false));
  KOHO_TRY_ASSIGN(const Tokenizer tokenizer, Tokenizer::load(directory / "tokenizer.json"));
  std::ios::sync_with_stdio(false);
  std::string line;
  for (std::size_t number = 1; std::getline(std::cin, line); ++number) {
    Result<std::string> out = tokenize_line(tokenizer, line, options);
    if (!out.ok()) return std::move(out).error().with_context(fmt::format("line {}", number));
    std::cout << *out << '\n';
    if (!std::cout) break;
  }
  if (std::cin.bad()) return make_error(ErrorCode::io_error, "standard input could not be read");
  if (!std::cout.flush())
    return make_error(ErrorCode::io_error, "standard output could not be written");
  return {};
}

}  // namespace

Runner add_tokenize(CommandLine& command) {
  const auto options = std::make_shared<TokenizeOptions>();
  command.add_option("-m,--model,MODEL", options->model, "Directory with a tokenizer.json")
      ->type_name("DIR")
      ->required();
  command.add_flag("--jsonl", options->jsonl, "Read and write one JSON value per line (required)")
      ->required();
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
