// SPDX-License-Identifier: Apache-2.0
#include "grammar/xgrammar_messages.h"

namespace koho {

std::string message_of(std::string_view what) {
  what = what.substr(0, what.find('\n'));
  constexpr std::string_view kCheck = "is false: ";
  if (const std::size_t at = what.find(kCheck); at != what.npos)
    what = what.substr(at + kCheck.size());
  if (what.empty()) return std::string(kNoReason);
  return std::string(what.substr(0, 500));
}

std::string reason_of(std::string_view warning) {
  std::string reason = message_of(warning);
  const auto replace = [&](std::string_view found, std::string_view with) {
    if (const std::size_t at = reason.find(found); at != reason.npos)
      reason.replace(at, found.size(), with);
  };
  replace(" and is ignored", "");
  replace(" It is ignored.", "");
  replace(" is ignored", " is not supported");
  replace("; ignoring multipleOf", "");
  replace(" The character itself will be matched", "");
  replace("; matching the character literally", "");
  return reason;
}

}  // namespace koho
