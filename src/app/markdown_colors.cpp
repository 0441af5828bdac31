// SPDX-License-Identifier: Apache-2.0
#include "app/markdown_colors.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>

namespace koho::app {
namespace {

constexpr std::string_view kPlain = "\x1b[0m";
constexpr std::string_view kBold = "\x1b[1m";
constexpr std::string_view kHeading = "\x1b[1;36m";
constexpr std::string_view kCode = "\x1b[36m";
constexpr std::string_view kFence = "\x1b[2m";
constexpr std::string_view kString = "\x1b[32m";
constexpr std::string_view kNumber = "\x1b[33m";
constexpr std::string_view kKeyword = "\x1b[34m";
constexpr std::string_view kComment = "\x1b[2m";

// Of Python, C and C++, JavaScript, Rust, Go and the shell.
constexpr std::array<std::string_view, 60> kKeywords{
    "and",     "as",       "async",  "auto",      "await",  "bool",   "break",  "case",   "catch",
    "char",    "class",    "const",  "continue",  "def",    "do",     "double", "elif",   "else",
    "enum",    "except",   "export", "false",     "fi",     "float",  "fn",     "for",    "from",
    "func",    "function", "if",     "impl",      "import", "in",     "int",    "lambda", "let",
    "long",    "match",    "mut",    "namespace", "new",    "None",   "not",    "null",   "or",
    "package", "pub",      "raise",  "return",    "static", "struct", "then",   "throw",  "true",
    "try",     "use",      "var",    "void",      "while",  "with"};

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

std::size_t word_length(std::string_view text) {
  std::size_t length = 0;
  while (length < text.size() && is_word(text[length])) ++length;
  return length;
}

}  // namespace

void MarkdownColors::style(std::string& out) {
  out += kPlain;
  if (heading_)
    out += kHeading;
  else if (code_)
    out += kCode;
  else if (bold_)
    out += kBold;
}

void MarkdownColors::end_line(std::string& out) {
  if (heading_ || code_ || in_fence_line_ || comment_ || quote_ != 0) out += kPlain;
  heading_ = code_ = in_fence_line_ = comment_ = false;
  quote_ = 0;
  out += '\n';
  held_.erase(0, 1);
  line_begins_ = true;
}

/// Headings and fences begin lines. Requires: the line's first three characters are held, or its
/// end.
void MarkdownColors::take_line_start(std::string& out) {
  line_begins_ = false;
  const std::size_t blanks = std::min(held_.find_first_not_of(' '), held_.size());
  if (std::string_view(held_).substr(blanks).starts_with("```")) {
    fenced_ = !fenced_;
    in_fence_line_ = true;
    out += kFence;
  } else if (!fenced_ && held_.front() == '#') {
    heading_ = true;
    out += kHeading;
  }
}

void MarkdownColors::take_inline(std::string& out, bool last) {
  if (held_.starts_with("**")) {
    bold_ = !bold_;
    if (!bold_) out += "**";
    style(out);
    if (bold_) out += "**";
    held_.erase(0, 2);
  } else if (held_.front() == '`') {
    code_ = !code_;
    if (!code_) out += '`';
    style(out);
    if (code_) out += '`';
    held_.erase(0, 1);
  } else if (held_ != "*" || last) {
    out += held_.front();
    held_.erase(0, 1);
  }
}

void MarkdownColors::take_code(std::string& out, bool last) {
  const char c = held_.front();
  const auto one = [&] {
    out += c;
    held_.erase(0, 1);
  };
  if (comment_) return one();
  if (quote_ != 0) {
    if (c == '\\' && held_.size() > 1 && held_[1] != '\n') {
      out += held_.substr(0, 2);
      held_.erase(0, 2);
      return;
    }
    one();
    if (c != quote_) return;
    quote_ = 0;
    out += kPlain;
    return;
  }
  if (c == '"' || c == '\'') {
    quote_ = c;
    out += kString;
    return one();
  }
  if (c == '#' || held_.starts_with("//")) {
    comment_ = true;
    out += kComment;
    return one();
  }
  const std::size_t length = word_length(held_);
  if (length == 0) return one();
  if (length == held_.size() && !last) return;  // the word may go on
  const std::string word = held_.substr(0, length);
  const bool number = std::isdigit(static_cast<unsigned char>(c)) != 0;
  const bool keyword = std::ranges::find(kKeywords, word) != kKeywords.end();
  if (number || keyword)
    out.append(number ? kNumber : kKeyword).append(word).append(kPlain);
  else
    out += word;
  held_.erase(0, length);
}

std::string MarkdownColors::feed(std::string_view text) {
  held_ += text;
  std::string out;
  while (!held_.empty()) {
    if (held_.front() == '\n') {
      end_line(out);
      continue;
    }
    if (line_begins_) {
      const std::size_t blanks = held_.find_first_not_of(' ');
      const bool may_be_fence =
          blanks == std::string::npos || (held_.size() - blanks < 3 && held_[blanks] == '`' &&
                                          held_.find('\n') == std::string::npos);
      if (may_be_fence && held_.size() < 64) break;
      take_line_start(out);
    }
    const std::size_t before = held_.size();
    if (in_fence_line_) {
      out += held_.front();
      held_.erase(0, 1);
    } else if (fenced_) {
      take_code(out, false);
    } else {
      take_inline(out, false);
    }
    if (held_.size() == before) break;
  }
  return out;
}

std::string MarkdownColors::finish() {
  const bool colored = heading_ || bold_ || code_ || fenced_ || in_fence_line_;
  std::string out;
  while (!held_.empty()) {
    if (held_.front() == '\n') {
      end_line(out);
      continue;
    }
    if (line_begins_) take_line_start(out);
    if (in_fence_line_) {
      out += held_.front();
      held_.erase(0, 1);
    } else if (fenced_) {
      take_code(out, true);
    } else {
      take_inline(out, true);
    }
  }
  if (colored) out += kPlain;
  *this = MarkdownColors();
  return out;
}

}  // namespace koho::app
