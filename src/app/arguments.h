// SPDX-License-Identifier: Apache-2.0
// The command line as CLI11 gets it: '_' in flags as '-', other engines' flags (app/peer_flags.h)
// translated, what no command knows refused with the nearest flag. Flags that every command takes
// are read here: --color.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"

namespace CLI {
class App;
}  // namespace CLI

namespace koho::app {

/// The command of that name below `command`; null: there is none.
const CLI::App* command_below(const CLI::App& command, const std::string& name);

/// Takes --color WHEN, --color=WHEN and --no-color out of `arguments` and sets the colours
/// (app/terminal.h). Errors: invalid_argument.
Status take_color_flag(std::vector<std::string>& arguments);

/// `arguments` (behind the program's name) as `program` understands them; `notes` gets a line for
/// each flag without effect. Errors: invalid_argument.
Result<std::vector<std::string>> translate_arguments(const CLI::App& program,
                                                     const std::vector<std::string>& arguments,
                                                     std::vector<std::string>& notes);

}  // namespace koho::app
