// SPDX-License-Identifier: Apache-2.0
// NOTE: the translator refuses each construct that Oniguruma (in its default syntax, which Hugging
// Face tokenizers use) and PCRE2 read differently:
//   \w                   whether combining marks belong to it
//   \h                   Oniguruma: a hexadecimal digit; PCRE2: a blank
//   ^ $                  Oniguruma: of each line; PCRE2: of the whole text
//   .                    which newlines it excludes
//   [a[b]] &&            Oniguruma: set operations; PCRE2: plain characters
//   {,n} {n}? {n}+       Oniguruma: optional and repeated; PCRE2: lazy and possessive
//   (?i)                 how far it reaches over alternatives
//   \p{Greek}            Oniguruma: the script; PCRE2: script extensions
#include "tokenizer/split_pattern.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/printable.h"
#include "tokenizer/utf8.h"

namespace koho {
namespace {

constexpr std::size_t kPatternBytesMax = 4096;
constexpr std::size_t kGroupDepthMax = 100;
constexpr int kRepeatMax = 1000;

// The general categories, which have the same names in both engines and contain the same assigned
// characters.
constexpr std::array<std::string_view, 37> kCategories{
    "C",  "Cc", "Cf", "Cn", "Co", "Cs", "L",  "Ll", "Lm", "Lo", "Lt", "Lu", "M",
    "Mc", "Me", "Mn", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Pe", "Pf", "Pi",
    "Po", "Ps", "S",  "Sc", "Sk", "Sm", "So", "Z",  "Zl", "Zp", "Zs"};

// Letters that one character folds to ("ß" to "ss", "ﬁ" to "fi"). In (?i:...) Oniguruma matches
// that character for the two letters, and PCRE2 does not.
constexpr std::array<std::string_view, 5> kFoldedPairs{"ss", "st", "ff", "fi", "fl"};

bool is_ascii_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  Result<std::string> run() {
    if (pattern_.empty() || pattern_.size() > kPatternBytesMax)
      return make_error(ErrorCode::unsupported, "the pattern has {} bytes; 1 to {} are supported",
                        pattern_.size(), kPatternBytesMax);
    while (at_ < pattern_.size()) KOHO_TRY(item());
    if (caseless_.size() != 1) return refuse(at_, "an open group");
    return std::move(out_);
  }

 private:
  enum class Element : unsigned char { character, set };

  bool next_is(std::string_view text) const { return pattern_.substr(at_, text.size()) == text; }
  Error refuse(std::size_t place, std::string_view what) const {
    return make_error(ErrorCode::unsupported,
                      "{} at byte {} (before '{}') is not among the supported constructs", what,
                      place, printable(pattern_.substr(std::min(place, pattern_.size())), 20));
  }
  bool caseless() const { return caseless_.back(); }

  /// Translates one item outside of a class.
  Status item() {
    const char c = pattern_[at_];
    if (c != '\\' && !is_ascii_letter(c)) last_letter_ = 0;
    switch (c) {
      case '(':
        return open_group();
      case ')':
        if (caseless_.size() == 1) return refuse(at_, "a ')' without its '('");
        caseless_.pop_back();
        out_ += c;
        ++at_;
        return {};
      case '|':
        out_ += c;
        ++at_;
        return {};
      case '?':
      case '*':
      case '+':
        return quantifier();
      case '{':
        return interval();
      case '[':
        return char_class();
      case '^':
      case '$':
      case '.':
        return refuse(at_, "'^', '$' or '.'");
      default: {
        KOHO_TRY_ASSIGN(const Element element, character(false));
        static_cast<void>(element);
        return {};
      }
    }
  }

  Status open_group() {
    if (caseless_.size() > kGroupDepthMax) return refuse(at_, "a group nested this deep");
    constexpr std::array<std::string_view, 7> kOpenings{"(?:",  "(?i:", "(?=", "(?!",
                                                        "(?<=", "(?<!", "(?>"};
    for (const std::string_view opening : kOpenings) {
      if (!next_is(opening)) continue;
      caseless_.push_back(caseless() || opening == "(?i:");
      out_ += opening;
      at_ += opening.size();
      return {};
    }
    if (next_is("(?") || next_is("(*")) return refuse(at_, "this kind of group");
    caseless_.push_back(caseless());
    out_ += "(?:";  // captures are not needed
    ++at_;
    return {};
  }

  Status quantifier() {
    out_ += pattern_[at_++];
    if (at_ < pattern_.size() && (pattern_[at_] == '?' || pattern_[at_] == '+'))
      out_ += pattern_[at_++];
    return no_second_quantifier();
  }

  Status no_second_quantifier() const {
    if (at_ < pattern_.size() && std::string_view("?*+{").find(pattern_[at_]) != std::string::npos)
      return refuse(at_, "a quantifier after a quantifier");
    return {};
  }

  Status interval() {
    const std::size_t begin = at_++;
    const auto number = [&]() -> int {
      if (at_ == pattern_.size() || !is_digit(pattern_[at_])) return -1;
      int value = 0;
      while (at_ < pattern_.size() && is_digit(pattern_[at_]) && value <= kRepeatMax)
        value = value * 10 + (pattern_[at_++] - '0');
      return value;
    };
    const int least = number();
    int most = least;
    if (next_is(",")) {
      ++at_;
      most = next_is("}") ? kRepeatMax : number();
    }
    if (!next_is("}") || least < 0 || most < least || most > kRepeatMax)
      return refuse(begin, "this use of '{'");
    ++at_;
    out_ += pattern_.substr(begin, at_ - begin);
    return no_second_quantifier();
  }

  Status char_class() {
    const std::size_t begin = at_++;
    out_ += '[';
    if (next_is("^")) {
      if (caseless()) return refuse(begin, "a negated class inside (?i:...)");
      out_ += '^';
      ++at_;
    }
    bool first = true;
    for (; at_ < pattern_.size() && pattern_[at_] != ']'; first = false) {
      if (pattern_[at_] == '[') return refuse(at_, "a class inside a class");
      if (next_is("&&")) return refuse(at_, "'&&'");
      if (pattern_[at_] == '-') {  // not of a range, whose '-' is read with its first character
        if (!first && !(at_ + 1 < pattern_.size() && pattern_[at_ + 1] == ']'))
          return refuse(at_, "this use of '-'");
        out_ += "\\-";
        ++at_;
        continue;
      }
      KOHO_TRY_ASSIGN(const Element element, character(true));
      const bool range = next_is("-") && at_ + 1 < pattern_.size() && pattern_[at_ + 1] != ']';
      if (!range) continue;
      if (element == Element::set) return refuse(at_, "a range that begins with a set");
      out_ += '-';
      ++at_;
      if (std::string_view("[-&").find(pattern_[at_]) != std::string::npos)
        return refuse(at_, "this end of a range");
      const std::size_t end = at_;
      KOHO_TRY_ASSIGN(const Element last, character(true));
      if (last == Element::set) return refuse(end, "a range that ends with a set");
    }
    if (at_ == pattern_.size()) return refuse(begin, "an open class");
    if (first) return refuse(begin, "an empty class");
    out_ += ']';
    ++at_;
    last_letter_ = 0;
    return {};
  }

  /// Translates a character, plain or escaped, or an escape that stands for a set.
  Result<Element> character(bool in_class) {
    if (pattern_[at_] == '\\') return escape();
    const Utf8Step step = utf8_step(pattern_.substr(at_));
    if (caseless()) {
      if (step.bytes > 1) return refuse(at_, "a character beyond ASCII inside (?i:...)");
      if (!in_class) KOHO_TRY(check_folding(pattern_[at_]));
    }
    if (step.bytes == 1 && !is_ascii_letter(pattern_[at_]) && !is_digit(pattern_[at_]) &&
        pattern_[at_] > ' ' && pattern_[at_] < 0x7F)
      out_ += '\\';
    out_ += pattern_.substr(at_, step.bytes);
    at_ += step.bytes;
    return Element::character;
  }

  Status check_folding(char c) {
    const std::array<char, 2> pair{last_letter_, lower(c)};
    if (std::find(kFoldedPairs.begin(), kFoldedPairs.end(), std::string_view(pair.data(), 2)) !=
        kFoldedPairs.end())
      return refuse(at_ - 1, "letters inside (?i:...) that are also one character");
    last_letter_ = lower(c);
    return {};
  }

  Result<Element> escape() {
    const std::size_t begin = at_++;
    if (at_ == pattern_.size()) return refuse(begin, "a '\\' at the end");
    const char c = pattern_[at_++];
    last_letter_ = 0;
    const auto put = [&](std::string_view text, Element element) {
      out_ += text;
      return element;
    };
    switch (c) {
      case 'r':
        return put("\\r", Element::character);
      case 'n':
        return put("\\n", Element::character);
      case 't':
        return put("\\t", Element::character);
      case 'f':
        return put("\\f", Element::character);
      case 's':
        return put("\\p{White_Space}", Element::set);
      case 'S':
        return put("\\P{White_Space}", Element::set);
      case 'd':
        return put("\\p{Nd}", Element::set);
      case 'D':
        return put("\\P{Nd}", Element::set);
      case 'p':
      case 'P':
        return category(begin);
      case 'u':
        return hexadecimal(begin);
      default:
        break;
    }
    if (is_ascii_letter(c) || is_digit(c) || static_cast<unsigned char>(c) >= 0x80 || c <= ' ' ||
        c == 0x7F)
      return refuse(begin, "this escape");
    out_ += pattern_.substr(begin, 2);
    return Element::character;
  }

  /// Translates \p{Lu} or \P{Lu}.
  Result<Element> category(std::size_t begin) {
    const std::size_t close = pattern_.find('}', at_);
    if (!next_is("{") || close == std::string_view::npos) return refuse(begin, "this escape");
    const std::string_view name = pattern_.substr(at_ + 1, close - at_ - 1);
    if (std::find(kCategories.begin(), kCategories.end(), name) == kCategories.end())
      return refuse(begin, "a property other than a general category");
    if (caseless()) return refuse(begin, "a property inside (?i:...)");
    at_ = close + 1;
    out_ += pattern_.substr(begin, at_ - begin);
    return Element::set;
  }

  /// Translates \uHHHH.
  Result<Element> hexadecimal(std::size_t begin) {
    constexpr std::size_t kDigits = 4;
    const std::string_view digits = pattern_.substr(at_, kDigits);
    if (digits.size() < kDigits ||
        digits.find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos)
      return refuse(begin, "this escape");
    if (caseless()) return refuse(begin, "\\u inside (?i:...)");
    at_ += kDigits;
    out_ += "\\x{" + std::string(digits) + "}";
    return Element::character;
  }

  std::string_view pattern_;
  std::size_t at_ = 0;
  std::string out_;
  std::vector<bool> caseless_{false};  // of each open group; [0] is the whole pattern
  char last_letter_ = 0;               // in lower case, if it is the previous character
};

}  // namespace

Result<std::string> translate_split_pattern(std::string_view pattern) {
  return Translator(pattern).run();
}

}  // namespace koho
