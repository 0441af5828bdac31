// SPDX-License-Identifier: Apache-2.0
#include "app/command_line.h"

#include <charconv>
#include <cmath>
#include <system_error>
#include <utility>

#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include "base/text.h"

namespace koho::app {
namespace {

CLI::Validator at_least_validator(std::int64_t least, std::int64_t other) {
  const auto check = [least, other](std::string& text) -> std::string {
    const auto value = parse_integer<std::int64_t>(text);
    if (value && (*value >= least || *value == other)) return "";
    return fmt::format("expected an integer of at least {}, found '{}'", least, text);
  };
  return {check, ""};
}

CLI::Validator positive_validator() {
  const auto check = [](std::string& text) -> std::string {
    double value = 0.0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error == std::errc() && stop == end && std::isfinite(value) && value > 0.0) return "";
    return fmt::format("expected a number above 0, found '{}'", text);
  };
  return {check, ""};
}

CLI::Validator validator_of(const Check& check) {
  switch (check.kind) {
    case Check::Kind::at_least:
      return at_least_validator(check.least, check.other);
    case Check::Kind::positive:
      return positive_validator();
    case Check::Kind::one_of:
      return CLI::IsMember(check.names);
    case Check::Kind::between:
      break;
  }
  if (check.integer) return CLI::Range(static_cast<int>(check.low), static_cast<int>(check.high));
  return CLI::Range(check.low, check.high);
}

}  // namespace

Check at_least(std::int64_t least) {
  return at_least(least, least);
}

Check at_least(std::int64_t least, std::int64_t other) {
  return {.kind = Check::Kind::at_least, .least = least, .other = other, .names = {}};
}

Check positive() {
  return {.kind = Check::Kind::positive, .names = {}};
}

Check between(int low, int high) {
  return {.kind = Check::Kind::between,
          .low = static_cast<double>(low),
          .high = static_cast<double>(high),
          .names = {}};
}

Check between(double low, double high) {
  return {.kind = Check::Kind::between, .low = low, .high = high, .integer = false, .names = {}};
}

Check one_of(std::initializer_list<const char*> names) {
  return {.kind = Check::Kind::one_of, .names = {names.begin(), names.end()}};
}

Option* Option::required() {
  option_->required();
  return this;
}

Option* Option::check(const Check& check) {
  option_->check(validator_of(check));
  return this;
}

Option* Option::capture_default_str() {
  option_->capture_default_str();
  return this;
}

Option* Option::group(const std::string& title) {
  option_->group(title);
  return this;
}

Option* Option::type_name(const std::string& name) {
  option_->type_name(name);
  return this;
}

Option* Option::needs(const Option* other) {
  option_->needs(other->option_);
  return this;
}

Option* Option::excludes(const Option* other) {
  option_->excludes(other->option_);
  return this;
}

Option* Option::delimiter(char c) {
  option_->delimiter(c);
  return this;
}

Option* Option::allow_extra_args(bool allowed) {
  option_->allow_extra_args(allowed);
  return this;
}

Option* Option::expected(int count) {
  option_->expected(count);
  return this;
}

Option* CommandLine::keep(CLI::Option* option) {
  options_.push_back(std::make_unique<Option>(option));
  return options_.back().get();
}

Option* CommandLine::add_option(const std::string& name,
                                Variable variable,
                                const std::string& help) {
  return std::visit([&](auto* value) { return keep(app_.add_option(name, *value, help)); },
                    variable);
}

Option* CommandLine::add_flag(const std::string& name, bool& variable, const std::string& help) {
  return keep(app_.add_flag(name, variable, help));
}

Option* CommandLine::add_flag(const std::string& name,
                              std::optional<bool>& variable,
                              const std::string& help) {
  // NOTE: add_flag(name, variable) would count: 0 if not given, and -1, which is true, if negated.
  CLI::Option* flag = app_.add_flag_function(
      name, [&variable](std::int64_t given) { variable = given > 0; }, help);
  return keep(flag->multi_option_policy(CLI::MultiOptionPolicy::TakeLast));
}

CommandLine* CommandLine::add_subcommand(const std::string& name, const std::string& help) {
  below_.push_back(std::make_unique<CommandLine>(*app_.add_subcommand(name, help)));
  return below_.back().get();
}

void CommandLine::callback(std::function<void()> chosen) {
  app_.callback(std::move(chosen));
}

void CommandLine::footer(const std::string& text) {
  app_.footer(text);
}

void CommandLine::require_subcommand(int least, int most) {
  app_.require_subcommand(static_cast<std::size_t>(least), static_cast<std::size_t>(most));
}

}  // namespace koho::app
