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
  const std::string group =
      "Structured output (constrains the answer after </think>; at most one of these)";
  command.add_flag("--json-object", flags.json_object, "The answer is a JSON object")->group(group);
  command
      .add_option("--json-schema", flags.json_schema,
                  "The answer is JSON that is valid for the schema in this file")
      ->type_name("FILE")
      ->group(group);
  command.add_option("--regex", flags.regex, "The whole answer matches this regular expression")
      ->group(group);
  command
      .add_option("--grammar", flags.grammar, "The answer follows the EBNF grammar in this file")
      ->type_name("FILE")
      ->group(group);
  command
      .add_option("--choice", flags.choices,
                  "The answer is this string; give the flag once for each string allowed")
      ->allow_extra_args(false)
      ->group(group);
}

}  // namespace koho::app
