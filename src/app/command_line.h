// SPDX-License-Identifier: Apache-2.0
// Declares the flags of a command. A thin wrapper of CLI11 with CLI11's names: only
// command_line.cpp and main.cpp include its headers, which cost four seconds of compilation per
// file.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace koho::app {

/// What a flag's value must be.
struct Check {
  enum class Kind : std::uint8_t { at_least, positive, between, one_of };
  Kind kind = Kind::at_least;
  std::int64_t least = 0;
  std::int64_t other = 0;  // at_least: also allowed
  double low = 0.0;
  double high = 0.0;
  bool integer = true;  // between: the bounds are integers
  std::vector<std::string> names;
};

/// An integer, `least` or more. (CLI11's own PositiveNumber prints the limits of a double.)
Check at_least(std::int64_t least);
/// The same, or `other`, which stands for no bound.
Check at_least(std::int64_t least, std::int64_t other);
/// A number above 0; neither infinity nor NaN.
Check positive();
/// A number within both bounds.
Check between(int low, int high);
Check between(double low, double high);
/// One of these words.
Check one_of(std::initializer_list<const char*> names);

/// A flag or positional argument while it is declared. The methods are CLI11's.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  Option* required();
  Option* check(const Check& check);
  Option* capture_default_str();  // the help shows the value that the variable has now
  Option* group(const std::string& title);
  Option* type_name(const std::string& name);
  Option* needs(const Option* other);
  Option* excludes(const Option* other);
  Option* delimiter(char c);
  Option* allow_extra_args(bool allowed);
  Option* expected(int count);

 private:
  CLI::Option* option_;
};

/// One command's flags.
class CommandLine {
 public:
  /// Where a flag's value goes.
  using Variable = std::variant<std::string*,
                                bool*,
                                std::int32_t*,
                                std::int64_t*,
                                std::uint64_t*,
                                double*,
                                std::optional<std::string>*,
                                std::optional<bool>*,
                                std::optional<std::int64_t>*,
                                std::optional<double>*,
                                std::vector<std::string>*,
                                std::vector<std::int32_t>*,
                                std::vector<std::int64_t>*>;

  explicit CommandLine(CLI::App& app) : app_(app) {}
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  /// `name` as CLI11 has it: "--name", "-n,--name", or "name" of a positional argument. `variable`
  /// must live until the command has run.
  template <typename T>
  Option* add_option(const std::string& name, T& variable, const std::string& help) {
    return add_option(name, Variable(&variable), help);
  }
  Option* add_option(const std::string& name, Variable variable, const std::string& help);
  /// "--name", or "--name,!--no-name".
  Option* add_flag(const std::string& name, bool& variable, const std::string& help);
  /// The same; the variable stays as it is if neither is given, and of both the last counts.
  Option* add_flag(const std::string& name, std::optional<bool>& variable, const std::string& help);
  /// A command below this one; `chosen` is called when it is the one that was given.
  CommandLine* add_subcommand(const std::string& name, const std::string& help);
  void callback(std::function<void()> chosen);
  void footer(const std::string& text);
  void require_subcommand(int least, int most);

 private:
  Option* keep(CLI::Option* option);

  CLI::App& app_;
  std::vector<std::unique_ptr<Option>> options_;
  std::vector<std::unique_ptr<CommandLine>> below_;
};

}  // namespace koho::app
