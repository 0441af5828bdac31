// SPDX-License-Identifier: Apache-2.0
// The tree behind Schema: one node for each subschema. Five files implement it:
//   schema_reader.cpp    parses JSON into nodes
//   schema_check.cpp     resolves $ref, finds nodes that no finite value satisfies
//   schema_disjoint.cpp  shows that the options of a oneOf share no value
//   schema_writer.cpp    writes the schema for xgrammar, and the arguments of tools
//   schema_lengths.cpp   moves length bounds of strings into a LengthPlan
// Private to schema*.cpp.
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
#include "base/json_writer.h"
#include "grammar/constraint.h"
#include "grammar/schema.h"
#include "grammar/schema_keywords.h"
#include "grammar/string_formats.h"

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

/// Whether `value` has one of `types`. 3.0 is an integer, as in JSON Schema.
bool has_type(const Value& value, unsigned types);

/// A grammar error "REASON: path: message".
template <typename... Args>
Error fault(ErrorReason reason,
            std::string_view path,
            fmt::format_string<Args...> format,
            Args&&... args) {
  return refused(reason,
                 fmt::format("{}: {}", path, fmt::format(format, std::forward<Args>(args)...)));
}

/// Writes a JSON object member by member.
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

/// See the file head. An int that names a node is its index in nodes_; the root is 0.
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
  Result<std::vector<SchemaProperty>> properties(std::size_t& bytes_left) const;

 private:
  struct Property {
    std::string name;
    int node = -1;
    bool required = false;
    bool discriminates = false;  // it tells options of a oneOf apart, so the grammar requires it
    bool always_comes() const { return required || discriminates; }
  };
  struct Node {
    const Value* value = nullptr;  // an object or a boolean
    std::string path;
    std::string pointer;
    std::optional<Error> error;  // reported if the root reaches the node
    std::string primary;         // its keyword in kPrimary, or empty
    unsigned types = kAnyType;
    bool impossible = false;
    std::vector<Property> properties;
    std::vector<int> options;  // subschemas of anyOf, oneOf, allOf
    std::vector<int> prefix;   // prefixItems
    int items = -1;
    int additional = -1;  // additionalProperties, if it is a schema
    int names = -1;
    int pattern_properties = -1;  // the only subschema of patternProperties
    std::vector<std::pair<std::string, int>> definitions;  // ("$defs" or "definitions", node)
    int target = -1;                                       // the node that $ref names
    bool reached = false;
    bool productive = false;
    // Bounds that are in the LengthPlan, not in text(): of the string, and of the names that
    // patternProperties allows.
    std::optional<LengthBounds> counted;
    std::optional<LengthBounds> counted_names;
  };
  const Node& at(int index) const { return nodes_[static_cast<std::size_t>(index)]; }
  Node& at(int index) { return nodes_[static_cast<std::size_t>(index)]; }

  // ---- schema_reader.cpp. Recursive; the JSON parser has bounded the depth

  /// Adds a node for `value` and its subschemas. `types` apply if the schema names no type.
  int add(const Value& value, std::string path, std::string pointer, unsigned types = kAnyType);
  /// The JSON pointer of a subschema; empty if a name on the way has a character that pointers
  /// escape.
  std::string pointer_below(const Node& node, std::string_view keyword, std::string_view name);
  int add_below(int index, const Value& value, std::string_view keyword, std::string_view name);
  Status read_members(int index);
  Status read_types(int index);
  Status read_primary(int index);
  Status read_object(int index);
  /// Refuses minProperties above 1 where member names are free: the grammar would let one name
  /// appear twice, and JSON parsers count that as one member.
  Status check_names(int index);
  Status read_required(int index);
  Status read_array(int index);
  Status read_text(int index);
  Status read_bounds(int index);
  /// The node of the schema `true`; the first call adds it.
  int anything();

  // ---- schema_check.cpp

  /// Marks the nodes that the root reaches, resolves their $ref, and returns the first fault.
  Status resolve();
  void name_root();

  std::int64_t number_of(const Node& node, std::string_view keyword) const;
  /// Whether some finite value satisfies the node, given the productive nodes found so far.
  bool completes(const Node& node) const;
  bool object_completes(const Node& node) const;
  bool array_completes(const Node& node) const;
  /// How many items have a schema in prefixItems and may come: up to maxItems, or to one that no
  /// value satisfies.
  std::size_t num_first_items(const Node& node) const;
  /// Then leaves out the types of a node of which no value satisfies it.
  void find_productive();
  /// The path of the first node that no value satisfies, which makes the root unsatisfiable.
  std::string_view unsatisfiable_path() const;
  static bool allows_others(const Node& node);
  /// Whether a node without $ref, choices and lists allows any value. One that names all types may
  /// have bounds.
  static bool allows_all(const Node& node) {
    return node.value->object() == nullptr ||
           (node.types == kAnyType && node.value->find("type") == nullptr);
  }

  // ---- schema_disjoint.cpp. What xgrammar writes for one option must be invalid by the others

  /// Marks the properties that an OpenAPI `discriminator` names.
  void find_discriminators();
  Status check_disjoint() const;
  /// The nodes without $ref and choices that `index` leads to.
  std::vector<int> ends_of(int index, int& work) const;
  /// Whether no text that the grammar allows for node `written` is valid by node `other`. false
  /// means unknown.
  bool all_excluded(int written, int other, int depth, int& work) const;
  bool excluded(const Node& written, const Node& other, int depth, int& work) const;
  /// excluded() for two objects. A text of `written` has only the properties that its schema
  /// declares, if it declares any.
  bool object_excluded(const Node& written, const Node& other, int depth, int& work) const;
  static bool surely_differ(const Value& one, const Value& two);

  // ---- schema_writer.cpp

  void write_child(std::string& out, int index) const { write(out, index, kAnyType, true); }
  /// Writes the schema of a node, restricted to values of `types`.
  void write(std::string& out, int index, unsigned types, bool with_definitions) const;
  void write_definitions(ObjectWriter& object, const Node& node, bool alone) const;
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
  /// The pattern of a node's strings; empty: it has none.
  std::string pattern_of(const Node& node) const;
  /// The form of the node's `format` that has its lengths; nullopt: the node has no known format.
  std::optional<FormatPattern> format_of(const Node& node, bool may_count) const;
  LengthBounds lengths_of(const Node& node) const;
  void write_array(ObjectWriter& object, const Node& node) const;
  void write_object(ObjectWriter& object, const Node& node) const;
  /// The nodes without $ref and choices that propertyNames leads to and that allow some string.
  std::vector<int> names_of(const Node& node) const;
  void write_names(std::string& out, const std::vector<int>& names) const;

  // ---- schema_lengths.cpp

  /// In place of a node: any value.
  static constexpr int kAnything = -1;
  std::optional<LengthBounds> bounds_of(const Node& node) const;
  /// The nodes without $ref and choices that `open` leads to, kAnything in place of those that
  /// allow any value; sorted.
  std::vector<int> leaves_of(std::vector<int> open);
  /// The node of an object's member `name`; nullptr: of a member that the schema does not name.
  static std::optional<int> member_of(const Node& node, const std::string* name);
  /// The node of an array's item.
  static std::optional<int> item_of(const Node& node, std::size_t index);
  /// The nodes of members or items of `leaves`: `inner` gives the one of a leaf that has `type`.
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
  /// Fills `plan` with all places that the root reaches; false if there are too many. `agreed`: at
  /// each place all schemas have the same bounds. Where they differ, settle_text() clears
  /// `counted`.
  bool place_all(LengthPlan& plan, bool& agreed);
  /// Whether the node is an enum or a const.
  bool lists(int index) const {
    return at(index).primary == "enum" || at(index).primary == "const";
  }
  /// Whether all strings that enums and consts among `leaves` list are within `bounds`.
  bool listed_fit(const std::vector<int>& leaves, LengthBounds bounds) const;
  /// Sets the bounds that all `leaves` have or, where they differ and are large, those that satisfy
  /// all of them. false: returned the bounds to the grammar.
  bool settle_text(const std::vector<int>& leaves, std::optional<LengthBounds>& text);
  /// The same for the names of members.
  bool settle_names(const std::vector<int>& leaves, std::optional<LengthBounds>& names);

  // ---- schema_writer.cpp: parameters of a tool

  /// The node at the end of a chain of $ref and of allOf with one schema.
  int follow(int index) const;
  /// The schema of a node with the root's definitions, so that its $ref resolve.
  std::string standing_alone(int index, unsigned types) const;
  void add_alternatives(int index,
                        std::vector<SchemaProperty::Alternative>& alternatives,
                        std::vector<int>& seen,
                        std::size_t& bytes_left) const;

  Value root_;
  Value anything_value_;
  int anything_ = -1;
  std::vector<Node> nodes_;
  std::map<std::string, int, std::less<>> by_pointer_;
  std::map<int, std::string> definition_names_;
  std::string root_name_;  // as a definition of its own, if a $ref names it
  bool refers_beyond_definitions_ = false;
  std::int64_t lengths_work_ = 0;
};

}  // namespace koho
