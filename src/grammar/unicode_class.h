// SPDX-License-Identifier: Apache-2.0
// Characters and Unicode's properties as parts of a regular expression's class. Private to
// src/grammar.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace koho {

/// Appends a character inside a class, escaped where it would mean something else.
void append_of_class(std::string& out, char32_t c);

/// The runs of characters with a property, as the inside of a class ("A-Za-z…"). Some rare ones are
/// missing, and of a script those that it shares with others; `whole`: none is missing, and some
/// rare ones are there that do not have it. nullopt: Unicode has no such property.
std::optional<std::string> class_of_property(const std::string& property, bool whole);

}  // namespace koho
