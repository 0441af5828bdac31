// SPDX-License-Identifier: Apache-2.0
// Checks a JSON schema and rewrites it for xgrammar, so that every text the grammar allows is valid
// by the client's schema. xgrammar silently ignores parts of a schema; this file refuses each such
// part by keyword and path, or rewrites the schema so that it no longer matters:
//   - unsupported_schema: keywords that a grammar cannot express (uniqueItems, not, if, ...), and
//     combinations of keywords of which xgrammar applies only one;
//   - an object with `properties` has no other members; an object without `properties` may have
//     any;
//   - names in `required` that `properties` lacks are declared; `enum` and `const` keep only values
//     of the `type`;
//   - `oneOf` becomes `anyOf` once its options are shown to share no value ($ref is followed), else
//     it is unsupported_schema;
//   - a part that no finite value satisfies (endless recursion, an empty enum, minimum > maximum)
//     is dropped where it is optional, and unsatisfiable_schema where it is required.
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

/// How much of a schema its grammar must express.
enum class SchemaStrictness : std::uint8_t {
  strict,          // all of it; a keyword that a grammar cannot express is an error
  best_effort,     // relax_schema() first drops keywords that a grammar cannot express
  structure_only,  // only types, members, items, const and enum
};

/// One argument of a tool. GLM writes a string as it is, without quotes, and any other value as
/// JSON.
struct SchemaProperty {
  /// One of the alternatives that the value may be.
  struct Alternative {
    enum class Kind : std::uint8_t { text, pattern, literal, json };
    Kind kind = Kind::json;
    std::string value;            // pattern: a regular expression; literal: the text as written;
                                  // json: a self-contained schema
    std::int64_t length_min = 0;  // of text, in characters
    std::int64_t length_max = -1;
  };
  std::string name;
  bool any_name = false;  // any number of arguments, of any names
  bool required = false;
  std::vector<Alternative> alternatives;
};

class Schema {
 public:
  /// Parses, checks and rewrites a schema. Errors: invalid_argument with a reason of constraint.h
  /// and the path of the fault ("$.items.pattern").
  static Result<Schema> read(std::string_view text,
                             const SchemaLimits& limits,
                             SchemaStrictness strictness = SchemaStrictness::strict);
  Schema(Schema&&) noexcept;
  Schema& operator=(Schema&&) noexcept;
  ~Schema();

  /// The rewritten schema, for xgrammar.
  std::string text() const;
  /// Moves length bounds of strings out of text() into a LengthPlan; nullopt if no bound can be
  /// moved. Where several schemas apply to one place of the JSON text and differ in their bounds,
  /// the bounds stay in text().
  std::optional<LengthPlan> take_lengths();

  /// The properties of the object that the schema describes, in the schema's order; of one that
  /// describes all members alike, one with any_name. Errors:
  /// unsupported_schema: the schema is not an object described by `properties`, or a `$ref` points
  /// outside of `$defs` and `definitions`; grammar_too_complex: they take `bytes_left`, of which
  /// this takes what they have. Each carries the definitions that it may refer to.
  Result<std::vector<SchemaProperty>> properties(std::size_t& bytes_left) const;
  /// Whether that object may have other properties.
  bool open() const;

  /// One subschema as a schema of its own, with its path: compiling the parts one by one finds the
  /// part that xgrammar refuses.
  struct Part {
    std::string path;
    std::string text;
    bool refers = false;  // contains a $ref
  };
  /// The number of subschemas, the root included. A nested subschema has a larger index than the
  /// one around it.
  int num_parts() const;
  /// nullopt if the root does not reach the subschema, or no finite value satisfies it.
  std::optional<Part> part(int index) const;

 private:
  class Tree;
  explicit Schema(std::unique_ptr<Tree> tree);
  std::unique_ptr<Tree> tree_;
};

}  // namespace koho
