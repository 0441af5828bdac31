// SPDX-License-Identifier: Apache-2.0
// What standard output and standard error can show: whether they are a terminal, its width, and
// whether to use colours (--color, NO_COLOR, TERM=dumb).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace koho::app {

/// "auto", "always" (or "on") or "never" (or "off"); false: none of these. Call before threads
/// start.
bool set_color(std::string_view when);

/// Whether to write colours to `fd`: always or never if so set; else to a terminal, unless NO_COLOR
/// is set to something or TERM is dumb.
bool use_color(int fd);

/// Columns of the terminal at `fd`; 80 if it does not say.
std::size_t terminal_width(int fd);

/// `text` with control characters other than newline and tab as \xHH: they could move the
/// terminal's cursor or change its colours. Requires: `text` has whole UTF-8 characters.
std::string terminal_text(std::string_view text);

}  // namespace koho::app
