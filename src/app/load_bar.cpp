// SPDX-License-Identifier: Apache-2.0
#include "app/load_bar.h"

#include <fmt/format.h>

namespace koho::app {

std::string load_progress_text(const LoadProgress::Now& now) {
  return fmt::format("{:.1f} of {:.1f} GB · {:.1f} GB/s", static_cast<double>(now.bytes_done) / 1e9,
                     static_cast<double>(now.bytes_total) / 1e9, now.gb_per_s);
}

void LoadBar::look() {
  const LoadProgress::Now now = progress_.now();
  if (now.bytes_total > 0) bar_.show(now.fraction(), now.left_s, load_progress_text(now));
}

}  // namespace koho::app
