// SPDX-License-Identifier: Apache-2.0
#include "grammar/pattern_rewrite.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>
#include <optional>
#include <vector>

#include "grammar/constraint.h"
#include "grammar/string_lengths.h"
#include "grammar/unicode_class.h"
#include "tokenizer/utf8.h"

namespace koho {
namespace {

/// Whether a class has more than one character: \d, \p{L}.
bool is_set(std::string_view item) {
  return item.size() > 1 && item[0] == '\\' &&
         std::string_view("dDwWsSpP").find(item[1]) != std::string_view::npos;
}

/// The bytes of the character, or of the escape of one, that `text` begins with.
std::size_t character_bytes(std::string_view text) {
  if (text.size() < 2 || text[0] != '\\') return text.empty() ? 0 : utf8_step(text).bytes;
  std::size_t bytes = 1 + utf8_step(text.substr(1)).bytes;
  if (text[1] == 'x') bytes = 4;
  if (text[1] == 'u') bytes = text.starts_with("\\u{") ? text.find('}') + 1 : 6;
  if (text[1] == 'c') bytes = 3;
  return std::min(bytes == 0 ? 2 : bytes, text.size());
}

/// Reads an expression once from left to right, and writes it anew.
class Rewriter {
 public:
  Rewriter(std::string_view pattern, bool json_string, PatternRewriter::Properties& known)
      : rest_(pattern), json_string_(json_string), known_(known) {}

  Result<std::string> run() {
    const bool anchored = rest_.starts_with('^');
    if (anchored) take(1);
    if (rest_.starts_with("(?")) {
      const std::size_t end = rest_.find_first_not_of("is", 2);
      if (end != std::string_view::npos && end > 2 && rest_[end] == ')') {
        ignore_case_ = rest_.substr(2, end - 2).find('i') != std::string_view::npos;
        any_ = rest_.substr(2, end - 2).find('s') != std::string_view::npos;
        rest_.remove_prefix(end + 1);
      }
    }
    while (!rest_.empty()) KOHO_TRY(item());
    return std::move(out_);
  }

 private:
  Status item() {
    const char c = rest_.front();
    if (in_class_ && c != ']') return class_item();
    if (c == '\\') return escape();
    if (in_class_) {
      in_class_ = false;
    } else if (c == ')') {
      depth_ = std::max(depth_ - 1, 0);
    } else if (rest_.starts_with(R"([\s\S])") || rest_.starts_with(R"([\S\s])")) {
      take(6);  // all characters
      return {};
    } else if (c == '[') {
      in_class_ = true;
      negated_ = rest_.starts_with("[^");
      take(negated_ ? 2 : 1);
      if (!rest_.starts_with(']')) return {};
      return refused(kInvalidGrammar,
                     fmt::format("\"{}]\" means different things in different dialects: write \\] "
                                 "for the bracket, [\\s\\S] for any character",
                                 negated_ ? "[^" : "["));
    } else if (c == ']') {
      out_ += '\\';  // xgrammar's automata know no other for the character
    } else if (c == '(') {
      return group();
    } else if (c == '*' || c == '+' || c == '?' || c == '{') {
      return repetition();
    } else if (c == '.' && !any_) {
      out_ += kAnyOfALine;
      rest_.remove_prefix(1);
      return {};
    } else if (ignore_case_ && std::isalpha(static_cast<unsigned char>(c)) != 0) {
      out_ += '[';
      out_ += static_cast<char>(std::toupper(c));
      out_ += static_cast<char>(std::tolower(c));
      out_ += ']';
      rest_.remove_prefix(1);
      return {};
    }
    return plain(1);
  }

  Status group() {
    if (++depth_ > kGroupDepthMax)
      return refused(
          kGrammarTooComplex,
          fmt::format("groups nest deeper than the limit of {} parentheses", kGroupDepthMax));
    for (const std::string_view look : {"(?=", "(?!", "(?<=", "(?<!"})
      if (rest_.starts_with(look))
        return refused(kUnsupportedSchema,
                       fmt::format("look-around \"{}\" is not supported, except ^(?!WORD|WORD) "
                                   "before .* or .+: list what may come, as in [^x]…, or use "
                                   "anyOf",
                                   look));
    for (const std::string_view begin : {"(?P<", "(?<"}) {
      const std::size_t end = rest_.find('>');
      if (!rest_.starts_with(begin) || end == std::string_view::npos) continue;
      rest_.remove_prefix(end + 1);
      out_ += "(?:";
      return {};
    }
    if (rest_.starts_with("(?i"))
      return refused(kUnsupportedSchema, "(?i) is supported at the beginning of a pattern only");
    if (rest_.starts_with("(?") && !rest_.starts_with("(?:"))
      return refused(
          kUnsupportedSchema,
          fmt::format("a group \"{}\" is not supported: use (…) or (?:…)", rest_.substr(0, 3)));
    take(rest_.starts_with("(?:") ? 3 : 1);
    return {};
  }

  /// The bytes of the repetition that `rest_` begins with, without the "?" of a lazy one; 0: none.
  std::size_t repetition_bytes() const {
    if (rest_.empty()) return 0;
    if (rest_[0] != '{') return std::string_view("*+?").find(rest_[0]) != rest_.npos ? 1 : 0;
    const std::size_t end = rest_.find('}');
    const bool counts = end != rest_.npos && end > 1 &&
                        rest_.substr(1, end - 1).find_first_not_of("0123456789,") == rest_.npos;
    return counts ? end + 1 : 0;
  }

  Status repetition() {
    const std::size_t bytes = repetition_bytes();
    if (rest_.starts_with("{,") && bytes > 0)
      return refused(kInvalidGrammar,
                     fmt::format("\"{}\" means different things in different dialects: write {{0{} "
                                 "or, for the characters, \\{{",
                                 rest_.substr(0, bytes), rest_.substr(1, bytes - 1)));
    take(bytes == 0 ? 1 : bytes);
    if (bytes > 0 && rest_.starts_with('?')) take(1);
    if (bytes > 0 && repetition_bytes() > 0)
      return refused(kInvalidGrammar,
                     "a repetition of a repetition, or a possessive one, is not supported: put "
                     "what is repeated in a group, as in (?:a{2})+");
    return {};
  }

  /// A character, a range or a set (\d) within a class. A hyphen that makes no range stands for
  /// itself, which is written so.
  Status class_item() {
    if (ignore_case_ && negated_) KOHO_TRY(check_excluded());
    const bool set = is_set(rest_);
    bool range = false;
    if (set) {
      const bool word = rest_[1] == 'w';
      KOHO_TRY(escape());
      if (word && ignore_case_ && negated_) out_ += R"(\u017f\u212a)";
    } else {
      const std::size_t bytes = character_bytes(rest_);
      const std::string_view after = rest_.substr(bytes);
      const bool hyphen = after.size() > 1 && after[0] == '-' && after[1] != ']';
      range = hyphen && !is_set(after.substr(1));
      const bool letter = std::isalpha(static_cast<unsigned char>(rest_[0])) != 0;
      if (ignore_case_ && letter) {
        KOHO_TRY(class_letters());
      } else {
        KOHO_TRY(plain(bytes));
        if (range) {
          take(1);
          return plain(character_bytes(rest_));
        }
        if (!hyphen) return {};
      }
    }
    // The second of [\d--9] is the end of no range, and the beginning of none.
    int hyphens = 0;
    for (; hyphens < 2 && rest_.starts_with('-') && !rest_.starts_with("-]"); ++hyphens)
      take_hyphen();
    const std::string_view after = rest_.substr(character_bytes(rest_));
    if (set && hyphens == 1 && after.size() > 1 && after[0] == '-' && after[1] != ']' &&
        rest_[0] != ']' && !is_set(rest_))
      return refused(kInvalidGrammar,
                     fmt::format("\"-{}-\" behind a set means different things in different "
                                 "dialects: write the hyphen first, as in [-\\da-z]",
                                 rest_.substr(0, character_bytes(rest_))));
    return {};
  }

  /// Refuses what (?i) makes of a class [^…] that its letters do not show: other letters of an
  /// escape, of a property, of a range that begins or ends among them.
  Status check_excluded() const {
    if (static_cast<unsigned char>(rest_[0]) >= 0x80) return {};             // plain()
    if (std::isalpha(static_cast<unsigned char>(rest_[0])) != 0) return {};  // class_letters()
    if (is_set(rest_) && rest_[1] != 'p') return {};
    const std::size_t bytes = character_bytes(rest_);
    const std::optional<int> low = side_of(rest_.substr(0, bytes));
    std::string_view after = rest_.substr(bytes);
    std::optional<int> high = low;
    if (after.size() > 1 && after[0] == '-' && after[1] != ']' && !is_set(after.substr(1))) {
      after.remove_prefix(1);
      high = side_of(after.substr(0, character_bytes(after)));
    }
    if (low && high && *low == *high) return {};
    return refused(kUnsupportedSchema,
                   "(?i) with a class [^…] that has an escape of a letter, \\p{…}, or a range that "
                   "begins or ends among letters is not supported: leave out (?i), and write both "
                   "cases, as in [^Aa]");
  }

  /// Where a character of ASCII is: before, between or behind the letters; nullopt: it is one, or
  /// none of ASCII.
  static std::optional<int> side_of(std::string_view one) {
    std::optional<char32_t> code = code_of(one);
    if (one.size() == 1) code = one[0];
    if (one.size() == 2 && std::string_view("nrtfv0b").find(one[1]) != std::string_view::npos)
      return 0;
    if (one.size() == 2 && one[0] == '\\') code = one[1];
    if (!code || *code >= 0x80 || std::isalpha(static_cast<int>(*code)) != 0) return std::nullopt;
    return *code < 'A' ? 0 : *code < 'a' ? 1 : 2;
  }

  void take_hyphen() {
    rest_.remove_prefix(1);
    out_ += "\\-";
  }

  /// One character, an escape perhaps, of `bytes`.
  Status plain(std::size_t bytes) {
    const std::string_view one = rest_.substr(0, bytes);
    if (ignore_case_ && static_cast<unsigned char>(one[0]) >= 0x80)
      return refused(kUnsupportedSchema,
                     "(?i) with letters outside of ASCII is not supported: write both cases, as in "
                     "[Ää]");
    // xgrammar's rules, not its automata, read more than two digits behind \x, and escapes of
    // what has a meaning only.
    constexpr std::string_view kNeedNone = "!\"#%&',:;<=>@_`~ ";
    std::optional<char32_t> code = code_of(one);
    if (code && one[1] == 'u') return unicode_escape(bytes, *code);
    if (one == "-" && in_class_) {
      take_hyphen();
      return {};
    }
    if (one == "\\0" && rest_.size() > 2 && std::isdigit(static_cast<unsigned char>(rest_[2])) != 0)
      return refused(kInvalidGrammar,
                     fmt::format("\"{}\" means different things in different dialects: write "
                                 "\\x00 and the digit, or \\x and two digits",
                                 rest_.substr(0, 3)));
    if (bytes == 2 && one[0] == '\\' && kNeedNone.find(one[1]) != kNeedNone.npos) code = one[1];
    const bool escaped = code == U'"' || code == U'\\';  // in JSON, too
    if (!code || (json_string_ && escaped)) {
      take(bytes);
      return {};
    }
    if (*code < ' ' || *code == 0x7F) {
      out_ += fmt::format("\\u{:04x}", static_cast<unsigned>(*code));
      rest_.remove_prefix(bytes);
      return {};
    }
    constexpr std::string_view kSpecial = "^$.*+?()[]{}|\\/";
    if (in_class_) {
      append_of_class(out_, *code);
    } else {
      if (*code < 0x80 && kSpecial.find(static_cast<char>(*code)) != kSpecial.npos) out_ += '\\';
      append_utf8(out_, *code);
    }
    rest_.remove_prefix(bytes);
    return {};
  }

  /// \uHHHH or \u{…} of `bytes`, with the character `code`. JavaScript writes one above U+FFFF as
  /// two halves, which are one.
  Status unicode_escape(std::size_t bytes, char32_t code) {
    const auto is_half = [](char32_t c, char32_t first) { return c >= first && c < first + 0x400; };
    const std::string_view after = rest_.substr(bytes);
    const std::optional<char32_t> low = code_of(after.substr(0, character_bytes(after)));
    if (!in_class_ && bytes == 6 && is_half(code, 0xD800) && after.starts_with("\\u") && low &&
        is_half(*low, 0xDC00)) {
      out_ += fmt::format("\\u{{{:x}}}", 0x10000U + ((code - 0xD800U) << 10U) + (*low - 0xDC00U));
      rest_.remove_prefix(bytes + character_bytes(after));
      return {};
    }
    if (code > 0x10FFFF || is_half(code, 0xD800) || is_half(code, 0xDC00))
      return refused(kInvalidGrammar,
                     fmt::format("{} is {}: write the character itself, or \\u{{1f600}} with its "
                                 "number",
                                 rest_.substr(0, bytes),
                                 code > 0x10FFFF ? "above U+10FFFF" : "half of a character"));
    take(bytes);
    return {};
  }

  /// The character of \xHH, \uHHHH or \u{…}; above U+10FFFF: of a larger number, too.
  static std::optional<char32_t> code_of(std::string_view escape) {
    const bool braced = escape.starts_with("\\u{") && escape.ends_with('}');
    if (!braced && !(escape.size() == 4 && escape.starts_with("\\x")) &&
        !(escape.size() == 6 && escape.starts_with("\\u")))
      return std::nullopt;
    const char* const last = escape.data() + escape.size() - (braced ? 1 : 0);
    unsigned code = 0;
    const auto [end, error] = std::from_chars(escape.data() + (braced ? 3 : 2), last, code, 16);
    if (end != last || error == std::errc::invalid_argument) return std::nullopt;
    return error == std::errc() ? code : 0x110000;
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
    if (kind == 's' && json_string_ && !(in_class_ && negated_)) {
      rest_.remove_prefix(2);
      out_ += ' ';
      return {};
    }
    if (kind == 'W' && ignore_case_ && !(in_class_ && negated_)) {
      // Without the other cases of "s" and "k".
      rest_.remove_prefix(2);
      out_ += in_class_ ? R"(\u0000-/:-@\[-\^`{-\u017e\u0180-\u2129\u212b-\u{10ffff})"
                        : R"([^\w\u017f\u212a])";
      return {};
    }
    if (is_set(rest_)) {
      take(2);
      return {};
    }
    return plain(character_bytes(rest_));
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
    for (const std::string_view before :
         {"Script=", "sc=", "Script_Extensions=", "scx=", "General_Category=", "gc="})
      if (name.starts_with(before)) name.erase(0, before.size());
    for (const auto& [given, category] : kNames)
      if (name == given) name = category;
    const bool plain = !name.empty() && name.size() <= 40 && std::ranges::all_of(name, [](char c) {
      return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_';
    });
    const bool whole = in_class_ && negated_;
    const std::string key = whole ? "^" + name : name;
    auto known = known_.find(key);
    if (known == known_.end()) {
      constexpr std::size_t kPropertiesMax = 16;  // each takes some milliseconds
      if (known_.size() >= kPropertiesMax)
        return refused(kGrammarTooComplex,
                       fmt::format("more than {} different \\p{{…}} in a schema", kPropertiesMax));
      known = known_.emplace(key, plain ? class_of_property(name, whole) : std::nullopt).first;
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
    constexpr std::pair<char, std::string_view> kOthers[] = {{'k', "\\u212a"}, {'s', "\\u017f"}};
    for (const auto& [letter, other] : kOthers)
      if (negated_ && std::tolower(low) <= letter && letter <= std::tolower(high)) out_ += other;
    rest_.remove_prefix(range ? 3 : 1);
    return {};
  }

  void take(std::size_t bytes) {
    out_ += rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
  }

  std::string_view rest_;
  bool json_string_;
  bool any_ = false;  // "." stands for ends of lines, too
  PatternRewriter::Properties& known_;
  std::string out_;
  bool ignore_case_ = false;
  bool in_class_ = false;
  bool negated_ = false;  // the class
  int depth_ = 0;         // of groups
};

}  // namespace

Result<std::string> PatternRewriter::rewrite(std::string_view pattern, bool json_string) {
  if (std::optional<std::string> made = pattern_without_lookahead(pattern)) return *std::move(made);
  return Rewriter(pattern, json_string, properties_).run();
}

}  // namespace koho
