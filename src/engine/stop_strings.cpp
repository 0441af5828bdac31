// SPDX-License-Identifier: Apache-2.0
// Knuth, Morris and Pratt's matcher, one state a stop string.
#include "engine/stop_strings.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace koho {

StopStrings::StopStrings(std::vector<std::string> stops, bool include) : include_(include) {
  std::size_t longest = 0;
  for (std::string& text : stops) {
    KOHO_CHECK(!text.empty());
    longest = std::max(longest, text.size());
    Stop stop{std::move(text), {}, 0};
    stop.fallback.assign(stop.text.size(), 0);
    for (std::size_t i = 1; i < stop.text.size(); ++i) {
      std::size_t length = stop.fallback[i - 1];
      while (length > 0 && stop.text[i] != stop.text[length]) length = stop.fallback[length - 1];
      stop.fallback[i] = stop.text[i] == stop.text[length] ? length + 1 : 0;
    }
    stops_.push_back(std::move(stop));
  }
  held_.reserve(longest);
}

/// Whether `byte` completes the stop string.
bool StopStrings::advance(Stop& stop, char byte) {
  if (stop.matched == stop.text.size()) stop.matched = stop.fallback[stop.matched - 1];
  while (stop.matched > 0 && stop.text[stop.matched] != byte)
    stop.matched = stop.fallback[stop.matched - 1];
  if (stop.text[stop.matched] == byte) ++stop.matched;
  return stop.matched == stop.text.size();
}

void StopStrings::feed(std::string_view piece, std::string& shown) {
  if (matched()) return;
  if (stops_.empty()) {
    shown += piece;
    return;
  }
  for (const char byte : piece) {
    held_ += byte;
    std::size_t hold = 0;
    std::size_t cut = 0;
    for (std::size_t s = 0; s < stops_.size(); ++s) {
      Stop& stop = stops_[s];
      if (advance(stop, byte) && stop.text.size() > cut) {
        cut = stop.text.size();
        match_ = static_cast<std::int32_t>(s);
      }
      hold = std::max(hold, stop.matched);
    }
    const std::size_t kept = matched() ? (include_ ? 0 : cut) : hold;
    shown.append(held_, 0, held_.size() - kept);
    held_.erase(0, matched() ? std::string::npos : held_.size() - kept);
    if (matched()) return;
  }
}

void StopStrings::flush(std::string& shown) {
  shown += held_;
  held_.clear();
}

}  // namespace koho
