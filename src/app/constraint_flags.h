// SPDX-License-Identifier: Apache-2.0
// The flags for structured output; a command takes at most one of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/command_line.h"
#include "base/error.h"
#include "grammar/constraint.h"

namespace koho::app {

/// Compile time limit of a grammar; longer than a server's, as nobody else waits.
inline constexpr std::int64_t kCompileUsMax = 60'000'000;

struct ConstraintFlags {
  bool json_object = false;
  std::string json_schema;  // a file
  std::string regex;
  std::string grammar;  // a file
  std::vector<std::string> choices;

  /// Errors: not_found, io_error (a file); invalid_argument: more than one was given.
  Result<std::optional<Constraint>> read() const;
};

/// Declares --json-schema, --regex, … on `command`; `flags` must outlive the parse.
void add_constraint_flags(CommandLine& command, ConstraintFlags& flags);

}  // namespace koho::app
