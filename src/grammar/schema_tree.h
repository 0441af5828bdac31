// SPDX-License-Identifier: Apache-2.0
// The nodes of a JSON schema, one for each schema within it, and what src/grammar does with them:
// read them (schema_reader.cpp), check what the root reaches (schema_check.cpp) and that options of
// oneOf share no value (schema_disjoint.cpp), write the schema that xgrammar gets
// (schema_writer.cpp), and take out the bounds of strings that are counted beside it
// (schema_lengths.cpp). Private to schema*.cpp.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "grammar/constraint.h"
#include "grammar/json_text.h"
#include "grammar/schema.h"
#include "grammar/schema_keywords.h"

namespace koho {

using json::Kind;
using json::Value;

inline constexpr std::array<std::pair<std::string_view, unsigned>, 7> kTypeNames{{
    {"string", string_type},
    {"integer", integer_type},
    {"number", number_type},
    {"boolean", boolean_type},
    {"null", null_type},
    {"array", array_type},
    {"object", object_type},
}};

/// Whether `value` is one of `types`: 3.0 is an integer, as JSON Schema has it.
bool has_type(const Value& value, unsigned types);

template <typename... Args>
Error fault(ErrorReason reason,
            std::string_view path,
            fmt::format_string<Args...> format,
            Args&&... args) {
  return refused(reason,
                 fmt::format("{}: {}", path, fmt::format(format, std::forward<Args>(args)...)));
}

/// Writes an object's members one by one.
class ObjectWriter {
 public:
  explicit ObjectWriter(std::string& out) : out_(out) { out_ += '{'; }
  std::string& key(std::string_view name) {
    if (!first_) out_ += ',';
    first_ = false;
    append_json_string(out_, name);
    out_ += ':';
    return out_;
  }
  void end() { out_ += '}'; }

 private:
  std::string& out_;
  bool first_ = true;
};

/// The schemas of a text, each a node. Nodes are named by index.
class Schema::Tree {
 public:
  static Result<std::unique_ptr<Tree>> read(std::string_view text,
                                            const SchemaLimits& limits,
                                            SchemaStrictness strictness);
  std::string text() const;
  std::optional<LengthPlan> take_lengths();
  int num_parts() const { return static_cast<int>(nodes_.size()); }
  std::optional<Part> part(int index) const;
  bool open() const;
  Result<std::vector<SchemaProperty>> properties() const;

 private:
  struct Property {
    std::string name;
    int node = -1;
    bool required = false;
    bool discriminates = false;  // between options: it always comes, whether it must or not
    bool always_comes() const { return required || discriminates; }
  };
  struct Node {
    const Value* value = nullptr;  // an object or a boolean
    std::string path;
    std::string pointer;
    std::optional<Error> error;  // counts if the node is reached from the root
    std::string primary;         // its keyword of kPrimary, or empty
    unsigned types = kAnyType;
    bool impossible = false;
    std::vector<Property> properties;
    std::vector<int> options;  // of anyOf, oneOf, allOf
    std::vector<int> prefix;   // of prefixItems
    int items = -1;
    int additional = -1;  // additionalProperties, if a schema
    int names = -1;
    int pattern_properties = -1;                           // the only one
    std::vector<std::pair<std::string, int>> definitions;  // "$defs" or "definitions", name: below
    int target = -1;                                       // of $ref
    bool reached = false;
    bool productive = false;
    std::optional<LengthBounds> counted;  // bounds of a string that text() leaves open
  };
  const Node& at(int index) const { return nodes_[static_cast<std::size_t>(index)]; }
  Node& at(int index) { return nodes_[static_cast<std::size_t>(index)]; }

  // ---- schema_reader.cpp: one node a schema; the parser bounds the depth

  /// `types`: what the schema is about if it does not say.
  int add(const Value& value, std::string path, std::string pointer, unsigned types = kAnyType);
  /// A pointer can name what lies under plain names only.
  std::string pointer_below(const Node& node, std::string_view keyword, std::string_view name);
  int add_below(int index, const Value& value, std::string_view keyword, std::string_view name);
  Status read_members(int index);
  Status read_types(int index);
  Status read_primary(int index);
  Status read_object(int index);
  /// Where any name may come, it may come twice, which readers of JSON count as one.
  Status check_names(int index);
  Status read_required(int index);
  Status read_array(int index);
  Status read_text(int index);
  Status read_bounds(int index);
  /// A node for "any value", made once.
  int anything();

  // ---- schema_check.cpp: what the root reaches, and what can be completed

  /// Follows references from the root and reports the first fault that is reached.
  Status resolve();

  std::int64_t number_of(const Node& node, std::string_view keyword) const;
  /// Whether a value of finite length is valid, given what is known of the other nodes.
  bool completes(const Node& node) const;
  bool object_completes(const Node& node) const;
  bool array_completes(const Node& node) const;
  void find_productive();
  /// The path of the first node that no value satisfies: why the root has no valid value.
  std::string_view unsatisfiable_path() const;
  static bool allows_others(const Node& node);

  // ---- schema_disjoint.cpp: whatever is written for an option of oneOf must be invalid by the others

  /// OpenAPI's discriminator names a property that tells the options apart.
  void find_discriminators();
  Status check_disjoint() const;
  /// The nodes without references and choices that a node stands for.
  std::vector<int> ends_of(int index, int& work) const;
  /// Whether nothing that is written for node `written` is valid by node `other`. False: unknown.
  bool all_excluded(int written, int other, int depth, int& work) const;
  bool excluded(const Node& written, const Node& other, int depth, int& work) const;
  /// Of objects alone. What is written has the properties of its schema and no others, if there are
  /// any.
  bool object_excluded(const Node& written, const Node& other, int depth, int& work) const;
  static bool surely_differ(const Value& one, const Value& two);

  // ---- schema_writer.cpp

  void write_child(std::string& out, int index) const { write(out, index, kAnyType, true); }
  /// The schema of a node, for values of `types` alone.
  void write(std::string& out, int index, unsigned types, bool with_definitions) const;
  void write_definitions(ObjectWriter& object, const Node& node) const;
  static void write_types(std::string& out, unsigned types);
  void write_values(std::string& out, const Node& node, unsigned types) const;
  template <typename Use>
  void for_each_value(const Node& node, Use use) const {
    const Value& content = *node.value->find(node.primary);
    if (node.primary == "const") {
      use(content);
      return;
    }
    for (const Value& value : *content.array())
      if (has_type(value, node.types)) use(value);
  }
  void write_typed(ObjectWriter& object, const Node& node, unsigned types) const;
  void write_array(ObjectWriter& object, const Node& node) const;
  void write_object(ObjectWriter& object, const Node& node) const;

  // ---- schema_lengths.cpp

  /// A leaf that stands for any value.
  static constexpr int kAnything = -1;
  std::optional<LengthBounds> bounds_of(const Node& node) const;
  /// What values of `nodes` may be: nodes without a reference or a choice, or kAnything; sorted.
  std::vector<int> leaves_of(std::vector<int> open);
  /// What a member of an object may be; without a name: a member of any other name.
  static std::optional<int> member_of(const Node& node, const std::string* name);
  /// What an item of an array may be.
  static std::optional<int> item_of(const Node& node, std::size_t index);
  /// What may stand inside of values that are `leaves`, by what `inner` says of a node of `type`.
  template <typename Inner>
  std::vector<int> inside(const std::vector<int>& leaves, unsigned type, const Inner& inner) const {
    std::vector<int> nodes;
    for (const int leaf : leaves) {
      std::optional<int> found = kAnything;
      if (leaf != kAnything) found = (at(leaf).types & type) != 0 ? inner(at(leaf)) : std::nullopt;
      if (found) nodes.push_back(*found);
    }
    return nodes;
  }
  /// All places that can be reached. False: too many. `agreed`: the strings of each place have one
  /// bound; where not, they are no longer counted.
  bool place_all(LengthPlan& plan, bool& agreed);
  bool settle_text(const std::vector<int>& leaves, std::optional<LengthBounds>& text);

  // ---- schema_writer.cpp, for a tool's parameters

  /// The node that a chain of references, or of allOf with one schema, ends at.
  int follow(int index) const;
  /// A node as a schema that stands by itself: with the root's definitions.
  std::string standing_alone(int index, unsigned types) const;
  void add_forms(int index, std::vector<SchemaProperty::Form>& forms, std::vector<int>& seen) const;
  Value root_;
  Value anything_value_;
  int anything_ = -1;
  std::vector<Node> nodes_;
  std::map<std::string, int, std::less<>> by_pointer_;
  std::map<int, std::string> definition_names_;
  bool refers_beyond_definitions_ = false;
  std::int64_t lengths_work_ = 0;
};

}  // namespace koho
