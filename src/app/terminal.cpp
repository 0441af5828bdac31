// SPDX-License-Identifier: Apache-2.0
#include "app/terminal.h"

#include <cstdint>
#include <cstdlib>
#include <sys/ioctl.h>
#include <unistd.h>

#include <fmt/core.h>

namespace koho::app {
namespace {

enum class Color : std::uint8_t { automatic, always, never };

/// The one setting of the process: --color is for all that it writes.
Color& color() {
  static Color setting = Color::automatic;
  return setting;
}

}  // namespace

bool set_color(std::string_view when) {
  if (when == "auto")
    color() = Color::automatic;
  else if (when == "always" || when == "on")
    color() = Color::always;
  else if (when == "never" || when == "off")
    color() = Color::never;
  else
    return false;
  return true;
}

bool use_color(int fd) {
  if (color() != Color::automatic) return color() == Color::always;
  const char* none = std::getenv("NO_COLOR");
  if (none != nullptr && *none != '\0') return false;
  const char* term = std::getenv("TERM");
  if (term != nullptr && std::string_view(term) == "dumb") return false;
  return isatty(fd) == 1;
}

std::size_t terminal_width(int fd) {
  winsize size{};
  if (ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

std::string terminal_text(std::string_view text) {
  std::string shown;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<std::uint8_t>(text[i]);
    const auto next = static_cast<std::uint8_t>(i + 1 < text.size() ? text[i + 1] : 0);
    if (byte == 0xC2 && next >= 0x80 && next < 0xA0) {  // U+0080 to U+009F
      shown += fmt::format("\\x{:02x}", next);
      ++i;
    } else if ((byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7F) {
      shown += fmt::format("\\x{:02x}", byte);
    } else {
      shown += text[i];
    }
  }
  return shown;
}

}  // namespace koho::app
