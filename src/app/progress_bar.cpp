// SPDX-License-Identifier: Apache-2.0
#include "app/progress_bar.h"

#include <algorithm>
#include <cstdio>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "app/terminal.h"

namespace koho::app {
namespace {

constexpr std::chrono::milliseconds kRedraw{100};
constexpr std::chrono::seconds kLine{10};
constexpr std::size_t kBarWidth = 30;

std::string bar_text(double fraction) {
  const double full = std::clamp(fraction, 0.0, 1.0) * static_cast<double>(kBarWidth);
  const auto cells = static_cast<std::size_t>(full);
  std::string bar;
  for (std::size_t i = 0; i < kBarWidth; ++i) bar += i < cells ? "█" : "░";
  return bar;
}

}  // namespace

std::string time_text(double seconds) {
  const auto whole = static_cast<long long>(std::max(seconds, 0.0) + 0.5);
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole / 60 % 60);
}

ProgressBar::ProgressBar(std::string title)
    : title_(std::move(title)),
      terminal_(isatty(STDERR_FILENO) == 1),
      next_(Clock::now() + (terminal_ ? Clock::duration(kRedraw) : Clock::duration(kLine))) {}

bool ProgressBar::due() const {
  return Clock::now() >= next_;
}

void ProgressBar::show(double fraction, double left_s, std::string_view rate) {
  if (!due()) return;
  next_ = Clock::now() + (terminal_ ? Clock::duration(kRedraw) : Clock::duration(kLine));
  std::string text = title_;
  if (fraction >= 0.0) {
    if (terminal_ && terminal_width(STDERR_FILENO) >= 76) text += " " + bar_text(fraction);
    text += fmt::format(" {:.0f} %", 100.0 * std::min(fraction, 1.0));
  }
  if (!rate.empty()) text.append(" · ").append(rate);
  if (left_s >= 0.0) text += fmt::format(" · {} left", time_text(left_s));
  std::fprintf(stderr, terminal_ ? "\r\x1b[K%s" : "koho: %s\n", text.c_str());
  std::fflush(stderr);
  on_screen_ = terminal_;
}

void ProgressBar::clear() {
  if (std::exchange(on_screen_, false)) std::fputs("\r\x1b[K", stderr);
}

}  // namespace koho::app
