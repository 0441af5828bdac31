// SPDX-License-Identifier: Apache-2.0
// All commands with their flags as plain data, read from the tables that parse them: what shell
// completion and the man page are made of.
#pragma once

#include <string>
#include <vector>

namespace koho::app {

struct FlagOutline {
  std::vector<std::string> names;    // "-m", "--model"
  std::string value;                 // what it takes, in capitals; "" is nothing
  std::vector<std::string> choices;  // of the value; none: any
  std::string help;
};

struct CommandOutline {
  std::string name;  // "bench serve"; "" is the program
  std::string summary;
  std::vector<FlagOutline> flags;
  std::vector<FlagOutline> arguments;  // without a flag; `value` is the name
  std::string footer;                  // formats and examples
  std::vector<CommandOutline> below;
};

/// The program; `koho serve` from its own table. Defined in main.cpp, which knows all commands.
CommandOutline program_outline();

/// The script of "bash", "zsh" or "fish". Requires: one of these.
std::string completion_script(const std::string& shell, const CommandOutline& program);

/// The page koho(1), in troff's man macros.
std::string man_page(const CommandOutline& program);

}  // namespace koho::app
