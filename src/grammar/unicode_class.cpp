// SPDX-License-Identifier: Apache-2.0
#include "grammar/unicode_class.h"

#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <fmt/format.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "grammar/string_lengths.h"
#include "tokenizer/utf8.h"

namespace koho {
namespace {

/// All characters in order, as UTF-8. Made once: this takes longer than the search for a property.
const std::string& all_characters() {
  static const std::string all = [] {
    std::string made;
    made.reserve(0x80 + 2 * 0x780 + 3 * 0xF000 + 4 * 0x100000);
    for (char32_t c = 0; c <= 0x10FFFF; ++c)
      if (c < 0xD800 || c >= 0xE000) append_utf8(made, c);
    return made;
  }();
  return all;
}

char32_t first_character(std::string_view text) {
  return utf8_code_point(text, utf8_step(text));
}

char32_t last_character(std::string_view text) {
  std::size_t begin = text.size() - 1;
  while (!begins_character(text[begin])) --begin;
  return first_character(text.substr(begin));
}

/// A character's place among all characters.
std::size_t index_of(char32_t c) {
  return c - (c >= 0xE000 ? 0x800U : 0U);
}

/// Looks at every character: this takes some milliseconds.
std::optional<std::string> search_class(const std::string& property, bool whole) {
  constexpr char32_t kAllBelow = 0x530;  // Latin, Greek, Cyrillic: whole
  constexpr std::size_t kRunMin = 16;    // above, shorter runs, or gaps between them, are left out
  int error = 0;
  PCRE2_SIZE at = 0;
  std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code(nullptr, pcre2_code_free);
  // "sc:": of a script without the characters that it shares with others.
  for (const std::string_view kind : {whole ? "" : "sc:", ""}) {
    const std::string pattern = fmt::format("\\p{{{}{}}}+", kind, property);
    code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                             PCRE2_UTF | PCRE2_NO_UTF_CHECK, &error, &at, nullptr));
    if (code != nullptr) break;
  }
  if (code == nullptr) return std::nullopt;
  // Without the just-in-time compiler the search takes longer, and is as right.
  static_cast<void>(pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE));
  const std::string_view all = all_characters();
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(
      pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
  std::vector<std::pair<char32_t, char32_t>> runs;
  std::size_t from = 0;
  while (pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(all.data()), all.size(), from,
                     PCRE2_NO_UTF_CHECK, match.get(), nullptr) > 0) {
    const PCRE2_SIZE* found = pcre2_get_ovector_pointer(match.get());
    from = found[1];
    const std::string_view run = all.substr(found[0], found[1] - found[0]);
    const char32_t low = first_character(run);
    const char32_t high = last_character(run);
    const bool short_gap = !runs.empty() && low >= kAllBelow &&
                           index_of(low) - index_of(runs.back().second) <= kRunMin;
    if (whole && short_gap) {
      runs.back().second = high;
      continue;
    }
    if (!whole && low >= kAllBelow && index_of(high) - index_of(low) + 1 < kRunMin) continue;
    if (!whole && low < 0x20) continue;  // control characters are escapes in JSON
    runs.emplace_back(low, high);
  }
  std::string out;
  for (const auto& [low, high] : runs) {
    append_of_class(out, low);
    if (low == high) continue;
    out += '-';
    append_of_class(out, high);
  }
  return out;
}

}  // namespace

void append_of_class(std::string& out, char32_t c) {
  if (c < 0x20 || c == 0x7F) {
    out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    return;
  }
  if (c < 0x80 && std::string_view("\\]-^[").find(static_cast<char>(c)) != std::string_view::npos)
    out += '\\';
  append_utf8(out, c);
}

std::optional<std::string> class_of_property(const std::string& property, bool whole) {
  constexpr std::size_t kKnownMax = 256;  // of a few kilobytes each
  static std::mutex mutex;
  static std::map<std::pair<std::string, bool>, std::optional<std::string>> known;
  const std::pair key(property, whole);
  {
    const std::lock_guard lock(mutex);
    if (const auto found = known.find(key); found != known.end()) return found->second;
  }
  std::optional<std::string> made = search_class(property, whole);
  const std::lock_guard lock(mutex);
  if (made && known.size() < kKnownMax) known.emplace(key, made);
  return made;
}

}  // namespace koho
