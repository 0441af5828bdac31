// SPDX-License-Identifier: Apache-2.0
// Colours Markdown for a terminal while it arrives: headings, bold, `code`, fenced blocks with
// their language's strings, numbers, comments and common keywords. It changes no character: the
// text stays Markdown. Holds back at most a few characters that may become a marker.
#pragma once

#include <string>
#include <string_view>

namespace koho::app {

class MarkdownColors {
 public:
  /// The text with colours; what may be the start of a marker waits for the next call.
  std::string feed(std::string_view text);
  /// What was held back, and the end of all colours.
  std::string finish();

 private:
  void take_line_start(std::string& out);
  void take_inline(std::string& out, bool last);
  void take_code(std::string& out, bool last);
  void end_line(std::string& out);
  void style(std::string& out);

  std::string held_;            // not yet written
  bool line_begins_ = true;     // nothing of the line was written
  bool fenced_ = false;         // inside a fenced block …
  bool in_fence_line_ = false;  // … or on the line that opens or closes it
  bool heading_ = false;
  bool bold_ = false;
  bool code_ = false;
  char quote_ = 0;        // fenced: the open string's
  bool comment_ = false;  // fenced: up to the end of the line
};

}  // namespace koho::app
