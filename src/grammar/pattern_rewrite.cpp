// SPDX-License-Identifier: Apache-2.0
#include "grammar/pattern_rewrite.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "grammar/constraint.h"
#include "grammar/string_lengths.h"
#include "tokenizer/utf8.h"

namespace koho {
namespace {

/// A character of a string that JSON writes without an escape.
constexpr std::string_view kPlain = R"([^"\\\x00-\x1f])";

void append_character(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0U | (c >> 6U));
    out += static_cast<char>(0x80U | (c & 0x3FU));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0U | (c >> 12U));
    out += static_cast<char>(0x80U | ((c >> 6U) & 0x3FU));
    out += static_cast<char>(0x80U | (c & 0x3FU));
  } else {
    out += static_cast<char>(0xF0U | (c >> 18U));
    out += static_cast<char>(0x80U | ((c >> 12U) & 0x3FU));
    out += static_cast<char>(0x80U | ((c >> 6U) & 0x3FU));
    out += static_cast<char>(0x80U | (c & 0x3FU));
  }
}

/// A character inside a class.
void append_of_class(std::string& out, char32_t c) {
  if (c < 0x80 && std::ispunct(static_cast<int>(c)) != 0) out += '\\';
  append_character(out, c);
}

/// All characters in order, as UTF-8. Made once: this takes longer than the search for a property.
const std::string& all_characters() {
  static const std::string all = [] {
    std::string made;
    made.reserve(0x7F + 2 * 0x780 + 3 * 0xF000 + 4 * 0x100000);
    for (char32_t c = 1; c <= 0x10FFFF; ++c)
      if (c < 0xD800 || c >= 0xE000) append_character(made, c);
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

/// The runs of characters with a property, as the inside of a class ("A-Za-z…"); nullopt: Unicode
/// has no such property.
std::optional<std::string> class_of(const std::string& property) {
  constexpr char32_t kAllBelow = 0x530;  // Latin, Greek, Cyrillic: whole
  constexpr std::size_t kRunMin = 16;    // above, shorter runs are left out
  int error = 0;
  PCRE2_SIZE at = 0;
  const std::string pattern = "\\p{" + property + "}+";
  const std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_UTF | PCRE2_NO_UTF_CHECK, &error, &at, nullptr),
      pcre2_code_free);
  if (code == nullptr) return std::nullopt;
  // Without the just-in-time compiler the search takes longer, and is as right.
  static_cast<void>(pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE));
  const std::string_view all = all_characters();
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(
      pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
  std::string out;
  std::size_t from = 0;
  while (pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(all.data()), all.size(), from,
                     PCRE2_NO_UTF_CHECK, match.get(), nullptr) > 0) {
    const PCRE2_SIZE* found = pcre2_get_ovector_pointer(match.get());
    from = found[1];
    const std::string_view run = all.substr(found[0], found[1] - found[0]);
    const char32_t low = first_character(run);
    const char32_t high = last_character(run);
    if (low >= kAllBelow && index_of(high) - index_of(low) + 1 < kRunMin) continue;
    if (low < 0x20) continue;  // control characters are escapes in JSON
    append_of_class(out, low);
    if (low == high) continue;
    out += '-';
    append_of_class(out, high);
  }
  return out;
}

/// Reads an expression once from left to right, and writes it anew.
class Rewriter {
 public:
  Rewriter(std::string_view pattern, bool json_string, PatternRewriter::Properties& known)
      : rest_(pattern), json_string_(json_string), known_(known) {}

  Result<std::string> run() {
    if (rest_.starts_with("(?i)") || rest_.starts_with("^(?i)")) {
      const bool anchored = rest_.starts_with('^');
      ignore_case_ = true;
      rest_.remove_prefix(anchored ? 5 : 4);
      if (anchored) out_ += '^';
    }
    while (!rest_.empty()) KOHO_TRY(item());
    return std::move(out_);
  }

 private:
  Status item() {
    const char c = rest_.front();
    if (c == '\\') return escape();
    if (in_class_) {
      if (c == ']') in_class_ = false;
      if (ignore_case_ && std::isalpha(static_cast<unsigned char>(c)) != 0) return class_letters();
    } else if (c == '[') {
      in_class_ = true;
      take(1 + (rest_.starts_with("[^") ? 1 : 0));
      if (rest_.starts_with(']')) take(1);
      return {};
    } else if (c == ']') {
      out_ += '\\';  // xgrammar's automata know no other for the character
    } else if (c == '(') {
      for (const std::string_view look : {"(?=", "(?!", "(?<=", "(?<!"})
        if (rest_.starts_with(look))
          return refused(kUnsupportedSchema,
                         fmt::format("look-around \"{}\" is not supported, except ^(?!WORD|WORD) "
                                     "before .* or .+: list what may come, as in [^x]…, or use "
                                     "anyOf",
                                     look));
      if (rest_.starts_with("(?i"))
        return refused(kUnsupportedSchema, "(?i) is supported at the beginning of a pattern only");
    } else if (ignore_case_ && std::isalpha(static_cast<unsigned char>(c)) != 0) {
      out_ += '[';
      out_ += static_cast<char>(std::toupper(c));
      out_ += static_cast<char>(std::tolower(c));
      out_ += ']';
      rest_.remove_prefix(1);
      return {};
    }
    if (ignore_case_ && static_cast<unsigned char>(c) >= 0x80)
      return refused(kUnsupportedSchema,
                     "(?i) with letters outside of ASCII is not supported: write both cases, as in "
                     "[Ää]");
    take(1);
    return {};
  }

  Status escape() {
    if (rest_.size() < 2) {
      take(1);
      return {};
    }
    const char kind = rest_[1];
    if (kind == 'P')
      return refused(kUnsupportedSchema,
                     "\\P{…} is not supported: list the characters that may come, as in [0-9 ]");
    if (kind == 'p') return property();
    if (kind == 's' && json_string_) {
      rest_.remove_prefix(2);
      out_ += ' ';
      if (!in_class_ || !rest_.starts_with('-')) return {};
      rest_.remove_prefix(1);
      out_ += "\\-";
      return {};
    }
    // \xHH, \uHHHH and the like keep their digits.
    std::size_t length = 2;
    if (kind == 'x') length = 4;
    if (kind == 'u') length = rest_.starts_with("\\u{") ? rest_.find('}') + 1 : 6;
    if (kind == 'c') length = 3;
    take(std::min(length == 0 ? 2 : length, rest_.size()));
    return {};
  }

  Status property() {
    std::string name;
    std::size_t length = 3;
    if (rest_.starts_with("\\p{")) {
      const std::size_t end = rest_.find('}');
      if (end == std::string_view::npos)
        return refused(kInvalidGrammar, "\\p{ has no closing brace");
      name = rest_.substr(3, end - 3);
      length = end + 1;
    } else if (rest_.size() > 2) {
      name = rest_[2];
    }
    // ECMAScript's and Unicode's long names of the categories that people use.
    constexpr std::pair<std::string_view, std::string_view> kNames[] = {{"Letter", "L"},
                                                                        {"Lowercase_Letter", "Ll"},
                                                                        {"Uppercase_Letter", "Lu"},
                                                                        {"Number", "N"},
                                                                        {"Decimal_Number", "Nd"},
                                                                        {"Punctuation", "P"},
                                                                        {"Space_Separator", "Zs"},
                                                                        {"Symbol", "S"},

                                                                        {"Alphabetic", "L"},
                                                                        {"Alpha", "L"},
                                                                        {"Lowercase", "Ll"},
                                                                        {"Uppercase", "Lu"}};
    for (const std::string_view before : {"Script=", "sc=", "General_Category=", "gc="})
      if (name.starts_with(before)) name.erase(0, before.size());
    for (const auto& [given, category] : kNames)
      if (name == given) name = category;
    const bool plain = !name.empty() && name.size() <= 40 && std::ranges::all_of(name, [](char c) {
      return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_';
    });
    auto known = known_.find(name);
    if (known == known_.end()) {
      constexpr std::size_t kPropertiesMax = 16;  // each takes some milliseconds
      if (known_.size() >= kPropertiesMax)
        return refused(kGrammarTooComplex,
                       fmt::format("more than {} different \\p{{…}} in a schema", kPropertiesMax));
      known = known_.emplace(name, plain ? class_of(name) : std::nullopt).first;
    }
    const std::optional<std::string>& made = known->second;
    if (!made || made->empty())
      return refused(kUnsupportedSchema,
                     fmt::format("\\p{{{}}} is not a property that a pattern can have: use a "
                                 "category such as \\p{{L}} or \\p{{Nd}}, or list the characters",
                                 name));
    if (!in_class_) out_ += '[';
    out_ += *made;
    if (!in_class_) out_ += ']';
    rest_.remove_prefix(length);
    return {};
  }

  /// A letter of a class, or a range between two letters, in both cases.
  Status class_letters() {
    const char low = rest_[0];
    const bool range = rest_.size() > 2 && rest_[1] == '-' && rest_[2] != ']';
    const char high = range ? rest_[2] : low;
    const auto lower = [](char c) { return c >= 'a' && c <= 'z'; };
    const auto upper = [](char c) { return c >= 'A' && c <= 'Z'; };
    if (!(lower(low) && lower(high)) && !(upper(low) && upper(high)))
      return refused(kUnsupportedSchema,
                     "(?i) with a range that is not between two letters of one case is not "
                     "supported: write both cases");
    for (const bool as_upper : {true, false}) {
      out_ += static_cast<char>(as_upper ? std::toupper(low) : std::tolower(low));
      if (!range) continue;
      out_ += '-';
      out_ += static_cast<char>(as_upper ? std::toupper(high) : std::tolower(high));
    }
    rest_.remove_prefix(range ? 3 : 1);
    return {};
  }

  void take(std::size_t bytes) {
    out_ += rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
  }

  std::string_view rest_;
  bool json_string_;
  PatternRewriter::Properties& known_;
  std::string out_;
  bool ignore_case_ = false;
  bool in_class_ = false;
};

bool is_plain_word(std::string_view word) {
  return !word.empty() && std::ranges::all_of(word, [](char c) {
    return c >= ' ' && c < '\x7f' &&
           std::string_view("\"\\^$.|?*+()[]{}").find(c) == std::string_view::npos;
  });
}

/// "^(?!a|b$).*$" as an expression without look-ahead; nullopt: it has another form.
std::optional<std::string> without_lookahead(std::string_view pattern) {
  constexpr std::string_view kBegin = "^(?!";
  if (!pattern.starts_with(kBegin)) return std::nullopt;
  pattern.remove_prefix(kBegin.size());
  const std::size_t close = pattern.rfind(')');
  if (close == std::string_view::npos) return std::nullopt;
  std::string_view rest = pattern.substr(close + 1);
  std::string_view list = pattern.substr(0, close);
  if (rest.ends_with('$')) rest.remove_suffix(1);
  if (rest != ".*" && rest != ".+") return std::nullopt;
  const bool whole = list.ends_with('$');
  if (whole) list.remove_suffix(1);
  if (list.starts_with("(?:") && list.ends_with(')')) list = list.substr(3, list.size() - 4);
  std::vector<std::string> words;
  while (true) {
    const std::size_t end = std::min(list.find('|'), list.size());
    std::string_view word = list.substr(0, end);
    if (whole && word.ends_with('$')) word.remove_suffix(1);
    if (!is_plain_word(word)) return std::nullopt;
    words.emplace_back(word);
    if (end == list.size()) break;
    list.remove_prefix(end + 1);
  }
  // (?!a|b$) excludes what begins with "a", too: that is more than whole words.
  if (whole && words.size() > 1 && pattern.substr(0, close).find("$|") == std::string_view::npos &&
      !pattern.starts_with("(?:"))
    return std::nullopt;
  return "^" + pattern_without(words, !whole, rest == ".*") + "$";
}

/// What may follow a prefix of words that are cut behind it; `empty`: nothing may, too, unless one
/// of them ends there. Empty: no text may follow.
std::string excluded_below(const std::vector<std::string_view>& words, bool prefixes, bool empty) {
  std::map<char, std::vector<std::string_view>> next;
  bool is_word = false;
  for (const std::string_view word : words) {
    if (word.empty()) {
      is_word = true;
    } else {
      next[word.front()].push_back(word.substr(1));
    }
  }
  if (is_word && prefixes) return {};  // nothing behind it is allowed
  std::string others;
  for (const auto& [c, rest] : next) append_of_class(others, static_cast<unsigned char>(c));
  std::string out = fmt::format(R"(([^{}"\\\x00-\x1f]{}*)", others, kPlain);
  for (const auto& [c, rest] : next) {
    const std::string below = excluded_below(rest, prefixes, true);
    if (below.empty()) continue;
    out += '|';
    if (std::ispunct(static_cast<unsigned char>(c)) != 0) out += '\\';
    out += c;
    out += below;
  }
  out += ')';
  if (!is_word && empty) out += '?';
  return out;
}

}  // namespace

std::string pattern_without(std::span<const std::string> words, bool prefixes, bool empty) {
  return excluded_below({words.begin(), words.end()}, prefixes, empty);
}

Result<std::string> PatternRewriter::rewrite(std::string_view pattern, bool json_string) {
  if (std::optional<std::string> made = without_lookahead(pattern)) return *std::move(made);
  return Rewriter(pattern, json_string, properties_).run();
}

}  // namespace koho
