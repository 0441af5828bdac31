// SPDX-License-Identifier: Apache-2.0
#include "app/constraint_flags.h"

#include "base/mapped_file.h"

namespace koho::app {
namespace {

constexpr std::size_t kFileBytesMax = 16UL << 20U;

}  // namespace

Result<std::optional<Constraint>> ConstraintFlags::read() const {
  const int given = int{json_object} + int{!json_schema.empty()} + int{!regex.empty()} +
                    int{!grammar.empty()} + int{!choices.empty()};
  if (given > 1)
    return make_error(
        ErrorCode::invalid_argument,
        "give one of --json-object, --json-schema, --regex, --grammar and --choice, not {}", given);
  if (json_object) return std::optional(Constraint::json_object());
  if (!regex.empty()) return std::optional(Constraint::regex(regex));
  if (!choices.empty()) return std::optional(Constraint::choice(choices));
  if (!json_schema.empty()) {
    KOHO_TRY_ASSIGN(std::string text, read_file(json_schema, kFileBytesMax));
    return std::optional(Constraint::json_schema(std::move(text)));
  }
  if (!grammar.empty()) {
    KOHO_TRY_ASSIGN(std::string text, read_file(grammar, kFileBytesMax));
    return std::optional(Constraint::ebnf(std::move(text)));
  }
  return std::optional<Constraint>();
}

void add_constraint_flags(CommandLine& command, ConstraintFlags& flags) {
  const std::string group = "Form of the answer (behind the thoughts; one of these)";
  command.add_flag("--json-object", flags.json_object, "A JSON object")->group(group);
  command.add_option("--json-schema", flags.json_schema, "JSON, valid by the schema in this file")
      ->type_name("FILE")
      ->group(group);
  command.add_option("--regex", flags.regex, "A text that all of this matches")->group(group);
  command.add_option("--grammar", flags.grammar, "A text of the EBNF grammar in this file")
      ->type_name("FILE")
      ->group(group);
  command.add_option("--choice", flags.choices, "This text, or another one that is given so")
      ->allow_extra_args(false)
      ->group(group);
}

}  // namespace koho::app
