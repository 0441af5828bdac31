// SPDX-License-Identifier: Apache-2.0
// tokenizer.json of arbitrary bytes: an error, or a tokenizer that is correct on fixed texts: every
// id is a token, decoding returns the text, plain text has no added tokens, and decoding as a
// stream equals decoding at once. Besides libFuzzer's mutator of bytes, one of JSON values
// exchanges, copies and removes values, since mutated bytes are seldom valid JSON.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "tokenizer/detokenizer.h"
#include "tokenizer/tokenizer.h"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace koho {
namespace {

using Ids = std::vector<std::int32_t>;

constexpr std::array<std::string_view, 5> kTexts{
    "Hello, it's 1234 o'clock.\r\n\n  <|user|> <think> é東🎉\u0301\t ", "aaaaaaaaaabbbbbbbbbbbbb",
    "the the the", std::string_view("\0\x7F\u0085\u180E", 7), ""};

void check_stream(const Tokenizer& tokenizer, const Ids& ids) {
  for (const bool skip_special : {false, true}) {
    Detokenizer stream(tokenizer, skip_special);
    std::string streamed;
    for (const std::int32_t id : ids) streamed += stream.push(id);
    streamed += stream.finish();
    KOHO_CHECK(streamed == tokenizer.decode(ids, skip_special));
  }
}

void check_tokenizer(const Tokenizer& tokenizer) {
  for (const std::string_view text : kTexts) {
    const Result<Ids> plain = tokenizer.encode(text);
    if (plain.ok()) {
      for (const std::int32_t id : *plain) KOHO_CHECK(tokenizer.is_token(id));
      KOHO_CHECK(tokenizer.decode(*plain) == text);
      check_stream(tokenizer, *plain);
      const std::vector<TextSegment> segments{{"", true}, {text, false}};
      const Result<Ids> segmented = tokenizer.encode(segments);
      KOHO_CHECK(segmented.ok() && *segmented == *plain);
    } else {
      KOHO_CHECK(plain.error().code == ErrorCode::resource_exhausted);
    }
    // An added token in the byte alphabet may stand for other bytes than its text has.
    const Result<Ids> special = tokenizer.encode_with_special(text);
    if (special.ok())
      for (const std::int32_t id : *special) KOHO_CHECK(tokenizer.is_token(id));
  }
  Ids all;  // and ids that are no token
  for (std::int32_t id = -1; id <= std::min(tokenizer.vocab_size(), 600); ++id) all.push_back(id);
  check_stream(tokenizer, all);
}

/// Where each value of a JSON text stands: strings, numbers, words, and containers that close.
std::vector<std::pair<std::size_t, std::size_t>> values_of(std::string_view text) {
  std::vector<std::pair<std::size_t, std::size_t>> values;
  std::vector<std::size_t> open;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t begin = i;
    if (text[i] == '"') {
      for (++i; i < text.size() && text[i] != '"'; ++i)
        if (text[i] == '\\') ++i;
      i = std::min(i + 1, text.size());
      values.emplace_back(begin, i);
    } else if (text[i] == '{' || text[i] == '[') {
      open.push_back(i++);
    } else if (text[i] == '}' || text[i] == ']') {
      ++i;
      if (!open.empty()) {
        values.emplace_back(open.back(), i);
        open.pop_back();
      }
    } else if (std::string_view(" \t\r\n,:").find(text[i]) != std::string_view::npos) {
      ++i;
    } else {
      while (i < text.size() &&
             std::string_view(" \t\r\n,:{}[]\"").find(text[i]) == std::string_view::npos)
        ++i;
      values.emplace_back(begin, i);
    }
  }
  return values;
}

std::string mutated(std::string_view text, std::mt19937& random) {
  const auto values = values_of(text);
  if (values.empty()) return std::string(text);
  const auto any = [&] { return values[random() % values.size()]; };
  const auto [begin, end] = any();
  const auto [other_begin, other_end] = any();
  const std::string_view other = text.substr(other_begin, other_end - other_begin);
  constexpr std::array<std::string_view, 16> kNew{"null",
                                                  "true",
                                                  "false",
                                                  "0",
                                                  "-1",
                                                  "1e9",
                                                  "255",
                                                  "99999999999",
                                                  "\"\"",
                                                  "{}",
                                                  "[]",
                                                  "\"a b\"",
                                                  "\"\\u0120a\"",
                                                  "[\"a\",\"b\"]",
                                                  "\"(?i:x)|\\\\s+(?!\\\\S)|\\\\p{L}{1,3}\"",
                                                  "{\"type\":\"ByteLevel\"}"};
  std::string out(text.substr(0, begin));
  switch (random() % 4) {
    case 0:
      out += other;
      break;
    case 1:
      out += kNew[random() % kNew.size()];
      break;
    case 2:
      out += text.substr(begin, end - begin);
      out += ",";
      out += other;
      break;
    default:
      break;  // removed
  }
  out += text.substr(end);
  return out;
}

}  // namespace
}  // namespace koho

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data,
                                               std::size_t size,
                                               std::size_t max_size,
                                               unsigned seed) {
  std::mt19937 random(seed);
  if (random() % 3 == 0) return LLVMFuzzerMutate(data, size, max_size);
  const std::string out = koho::mutated({reinterpret_cast<const char*>(data), size}, random);
  if (out.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::memcpy(data, out.data(), out.size());
  return out.size();
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const koho::Result<koho::Tokenizer> tokenizer =
      koho::Tokenizer::from_json({reinterpret_cast<const char*>(data), size});
  if (tokenizer.ok()) koho::check_tokenizer(*tokenizer);
  return 0;
}
