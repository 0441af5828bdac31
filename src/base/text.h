// SPDX-License-Identifier: Apache-2.0
// Text that people and programs wrote: whole numbers, lists, blanks around words, capitals; its
// memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace koho {

/// All of `text` as an integer: digits of `base`, behind a '-' for signed types; nothing if it is
/// anything else or does not fit. For std::int32_t, std::int64_t, std::uint32_t and std::uint64_t.
template <typename Integer>
std::optional<Integer> parse_integer(std::string_view text, int base = 10);

/// `text` without the `blanks` at both ends.
std::string_view trimmed(std::string_view text, std::string_view blanks = " \t");

/// What stands between the separators, in order: one part more than there are separators.
std::vector<std::string_view> split(std::string_view text, char separator);

/// Empties `text` and frees its memory, which `text = {}` and clear() keep.
inline void free_text(std::string& text) {
  std::string().swap(text);
}

/// A to Z as a to z, all else as it is.
std::string lower_case(std::string_view text);

}  // namespace koho
