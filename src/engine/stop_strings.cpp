// SPDX-License-Identifier: Apache-2.0
#include "engine/stop_strings.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace koho {
namespace {

/// Length of the longest end of `text` that begins `stop` without completing it.
std::size_t overlap(std::string_view text, std::string_view stop) {
  for (std::size_t length = std::min(text.size(), stop.size() - 1); length > 0; --length)
    if (text.substr(text.size() - length) == stop.substr(0, length)) return length;
  return 0;
}

}  // namespace

StopStrings::StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_) KOHO_CHECK(!stop.empty());
}

std::string StopStrings::feed(std::string_view piece) {
  if (matched()) return {};
  pending_ += piece;
  std::size_t first = std::string::npos;
  for (const std::string& stop : stops_) {
    const std::size_t place = pending_.find(stop);
    if (place >= first) continue;
    first = place;
    matched_ = &stop;
  }
  std::size_t shown = first;
  if (!matched()) {
    std::size_t held = 0;
    for (const std::string& stop : stops_) held = std::max(held, overlap(pending_, stop));
    shown = pending_.size() - held;
  }
  std::string text = pending_.substr(0, shown);
  pending_.erase(0, matched() ? std::string::npos : shown);
  return text;
}

std::string StopStrings::flush() {
  return matched() ? std::string() : std::exchange(pending_, {});
}

}  // namespace koho
