// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/utf8.h"

#include <cstring>

namespace koho {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// The length of the ASCII prefix of `text`, found eight bytes at a time.
std::size_t ascii_bytes(std::string_view text) {
  std::size_t i = 0;
  for (; i + sizeof(std::uint64_t) <= text.size(); i += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + i, sizeof(word));
    if ((word & 0x8080808080808080U) != 0) break;
  }
  while (i < text.size() && static_cast<std::uint8_t>(text[i]) < 0x80) ++i;
  return i;
}

}  // namespace

Utf8Step utf8_step(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t first = byte(0);
  if (first < 0x80) return {Utf8Step::Kind::whole, 1};
  if (first < 0xC2 || first > 0xF4) return {Utf8Step::Kind::invalid, 1};
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  // The range of the second byte excludes overlong forms, surrogates and code points beyond
  // U+10FFFF.
  const std::uint8_t low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const std::uint8_t high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  for (std::size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {Utf8Step::Kind::cut_off, i};
    const bool fits = i == 1 ? byte(i) >= low && byte(i) <= high : (byte(i) & 0xC0U) == 0x80U;
    if (!fits) return {Utf8Step::Kind::invalid, i};
  }
  return {Utf8Step::Kind::whole, length};
}

std::size_t utf8_valid_bytes(std::string_view text) {
  std::size_t at = 0;
  while (true) {
    at += ascii_bytes(text.substr(at));
    while (at < text.size() && static_cast<std::uint8_t>(text[at]) >= 0x80) {
      const Utf8Step step = utf8_step(text.substr(at));
      if (step.kind != Utf8Step::Kind::whole) return at;
      at += step.bytes;
    }
    if (at == text.size()) return at;
  }
}

void append_utf8_lossy(std::string& out, std::string_view bytes) {
  while (true) {
    const std::size_t valid = utf8_valid_bytes(bytes);
    out.append(bytes.substr(0, valid));
    bytes.remove_prefix(valid);
    if (bytes.empty()) return;
    out.append(kReplacement);
    bytes.remove_prefix(utf8_step(bytes).bytes);
  }
}

char32_t utf8_code_point(std::string_view text, const Utf8Step& step) {
  const auto first = static_cast<std::uint8_t>(text[0]);
  if (step.bytes == 1) return first;
  char32_t code = first & (0x7FU >> step.bytes);
  for (std::size_t i = 1; i < step.bytes; ++i)
    code = (code << 6U) | (static_cast<std::uint8_t>(text[i]) & 0x3FU);
  return code;
}

void append_utf8(std::string& out, char32_t code) {
  const auto tail = [&](unsigned shift) {
    out += static_cast<char>(0x80U | ((code >> shift) & 0x3FU));
  };
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0U | (code >> 6U));
    tail(0);
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0U | (code >> 12U));
    tail(6);
    tail(0);
  } else {
    out += static_cast<char>(0xF0U | (code >> 18U));
    tail(12);
    tail(6);
    tail(0);
  }
}

}  // namespace koho
