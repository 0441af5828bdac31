// SPDX-License-Identifier: Apache-2.0
// Reads the values of `koho serve` options from text: numbers with suffixes, bytes, shares,
// booleans and words. A refusal says what was expected and found; the caller adds the flag's name.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace koho::app {

/// "4096", "32k" (k is 1024, m is 1024 * 1024). Errors: invalid_argument outside least..most.
Result<std::int64_t> number_of(const std::string& text, std::int64_t least, std::int64_t most);

template <typename Integer>
Status set_number(Integer& target, const std::string& text, std::int64_t least, std::int64_t most) {
  KOHO_TRY_ASSIGN(const std::int64_t value, number_of(text, least, most));
  target = static_cast<Integer>(value);
  return {};
}

/// "0,1,2": one number or more.
Status set_numbers(std::vector<std::int32_t>& target,
                   const std::string& text,
                   std::int64_t least,
                   std::int64_t most);

/// "1073741824", "400G", "400GiB": K, M, G and T are powers of 1024.
Status set_bytes(std::int64_t& target, const std::string& text);

/// A number above 0 and at most 1.
Status set_share(double& target, const std::string& text);

/// A flag without a value is true; the config file and the environment may also say false.
Status set_boolean(bool& target, const std::string& text);

/// The same for a flag that says what is not so.
Status set_negated(bool& target, const std::string& text);

/// Any text.
Status set_text(std::string& target, const std::string& text);

/// One more of a list of any texts.
Status add_text(std::vector<std::string>& target, const std::string& text);

/// One of `words`.
Status set_word(std::string& target,
                const std::string& text,
                std::initializer_list<std::string_view> words);

/// A flag that sets `target` to `on`; "false" leaves the target as it is.
template <typename Value>
Status set_if_on(Value& target, Value on, const std::string& text) {
  bool is_on = false;
  KOHO_TRY(set_boolean(is_on, text));
  if (is_on) target = on;
  return {};
}

/// As --print-config shows it.
std::string shown_boolean(bool value);

}  // namespace koho::app
