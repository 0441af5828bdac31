// SPDX-License-Identifier: Apache-2.0
// JSON schemas before they become grammars: checked with the place of what is wrong, and rewritten
// so that whatever the grammar allows is valid by the schema. xgrammar leaves parts of a schema
// unheeded without saying so; here each such part is an error or is made superfluous:
//   - keywords that no grammar can hold (uniqueItems, not, if, ...), and combinations of which
//     xgrammar heeds one only, are unsupported_schema, by name and path;
//   - an object with properties gets no others; one without may have any;
//   - required properties that are not declared are declared; enum and const are cut to the type;
//   - options of oneOf are shown to share no value (through references, too), else it is
//     unsupported_schema; then it is written as anyOf;
//   - what can never be completed (a recursion without an end, empty enums, minimum > maximum) is
//     left out where it is optional and unsatisfiable_schema where it is not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "grammar/string_lengths.h"

namespace koho {

struct SchemaLimits {
  std::size_t bytes_max = 64UL << 10U;
  int depth_max = 64;
};

/// How much of a schema its grammar must say.
enum class SchemaStrictness : std::uint8_t {
  strict,          // what a grammar cannot say is an error
  best_effort,     // what it cannot say is left out, where that can be told beforehand
  structure_only,  // types, members, items, const and enum alone
};

/// One argument of a tool, as GLM writes it: text of a string as it is, anything else as JSON.
struct SchemaProperty {
  /// One of the forms that the value may have.
  struct Form {
    enum class Kind : std::uint8_t { text, pattern, literal, json };
    Kind kind = Kind::json;
    std::string value;            // pattern: a regular expression; literal: the text as written;
                                  // json: a schema that stands by itself
    std::int64_t length_min = 0;  // of text, in characters
    std::int64_t length_max = -1;
  };
  std::string name;
  bool required = false;
  std::vector<Form> forms;
};

class Schema {
 public:
  /// Errors: invalid_argument with one of a grammar reason of constraint.h and the path
  /// ("$.items.pattern").
  static Result<Schema> read(std::string_view text,
                             const SchemaLimits& limits,
                             SchemaStrictness strictness = SchemaStrictness::strict);
  Schema(Schema&&) noexcept;
  Schema& operator=(Schema&&) noexcept;
  ~Schema();

  /// The schema to make a grammar of.
  std::string text() const;
  /// Takes bounds of strings out of text(), for others to count; nullopt if it has none that can be
  /// counted so. Where values of one place differ in their bounds, they stay.
  std::optional<LengthPlan> take_lengths();

  /// The properties of the object that the schema describes, in its order. Errors:
  /// unsupported_schema: it does not describe an object by its properties alone, or refers to a
  /// place outside of its definitions.
  Result<std::vector<SchemaProperty>> properties() const;
  /// Whether that object may have properties beside these.
  bool open() const;

  /// A schema within this one, by itself, and its place.
  struct Part {
    std::string path;
    std::string text;
    bool refers = false;  // to others
  };
  /// The schemas within this one, itself included; those within others come behind them.
  int num_parts() const;
  /// Nothing: no value ever has it.
  std::optional<Part> part(int index) const;

 private:
  class Tree;
  explicit Schema(std::unique_ptr<Tree> tree);
  std::unique_ptr<Tree> tree_;
};

}  // namespace koho
