// SPDX-License-Identifier: Apache-2.0
// Progress on standard error: on a terminal one line that is redrawn, with a bar, a rate and the
// time left; elsewhere a line every ten seconds.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace koho::app {

/// "1 min 20 s".
std::string time_text(double seconds);

class ProgressBar {
 public:
  /// `title` begins every line: "loading".
  explicit ProgressBar(std::string title);
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar() { clear(); }

  /// Whether the next show() would write: callers that have to compute what they show ask first.
  bool due() const;
  /// `fraction` is 0..1, negative if unknown; `left_s` negative if unknown. Writes if it is time.
  void show(double fraction, double left_s, std::string_view rate);
  /// Removes the line from the terminal.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;

  std::string title_;
  bool terminal_;
  bool on_screen_ = false;
  Clock::time_point next_;
};

}  // namespace koho::app
