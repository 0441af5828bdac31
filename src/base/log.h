// SPDX-License-Identifier: Apache-2.0
// Logging to standard error: readable text on a terminal, JSON lines otherwise. Prompts and secrets
// are never logged.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/core.h>

namespace koho::log {

enum class Level : std::uint8_t { debug, info, warning, error };

/// How lines look. `automatic`: text on a terminal, JSON lines otherwise.
enum class Format : std::uint8_t { automatic, text, json };

/// Sets the lowest level that is written and the format. Call once, before threads start.
void configure(Level lowest, Format format);

/// Writes one line. Threads: any.
void write(Level level, std::string_view message);

/// What a line tells beside its message: a name and a value, which is JSON text.
struct Field {
  std::string_view name;
  std::string value;
};

/// Writes one line with fields: members of the line's JSON object, "name=value" in text.
void write(Level level, std::string_view message, std::span<const Field> fields);

/// `text` as a JSON string.
std::string quoted(std::string_view text);

template <typename... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::debug, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::info, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void warning(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::warning, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::error, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace koho::log
