// SPDX-License-Identifier: Apache-2.0
// The formats of strings ("format": "date") as patterns: one table for answers in JSON and for
// arguments of tools. Each text that a pattern matches has the format; a pattern may match less
// (no quoted local part of an address). A format that is not in the table restricts nothing, as
// JSON Schema has it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "grammar/string_lengths.h"

namespace koho {

bool is_known_format(std::string_view format);

struct FormatPattern {
  std::string pattern;
  /// The pattern leaves the lengths open: a LengthTracker must count them. It reaches no dead end:
  /// from a number of characters on that `bounds` allows, each prefix of a text is a text.
  bool counted = false;
};

/// The pattern of a format's texts whose lengths are within `bounds`. `may_count`: the caller
/// counts lengths. nullopt: the format is unknown, or the table has no form with such lengths.
std::optional<FormatPattern> pattern_of_format(std::string_view format,
                                               LengthBounds bounds,
                                               bool may_count);

}  // namespace koho
