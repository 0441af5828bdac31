// SPDX-License-Identifier: Apache-2.0
// The public functions of Schema, and the steps of reading one: parse, relax, resolve references,
// find what can be satisfied, check oneOf.
#include "grammar/schema.h"

#include "grammar/schema_merge.h"
#include "grammar/schema_references.h"
#include "grammar/schema_relaxation.h"
#include "grammar/schema_tree.h"
#include "grammar/schema_values.h"

namespace koho {
namespace {

/// Below a "$id" a "$ref" to "#…" is relative to that, not to the whole document.
class RebasedReferences {
 public:
  /// With `leave_out` the schemas that have one become `{}`, which allows any value.
  explicit RebasedReferences(bool leave_out) : leave_out_(leave_out) {}

  /// Whether one is there, and not left out; path() tells where. Recursive; the JSON parser has
  /// bounded the depth.
  bool find(Value& schema, bool below_id = false, bool root = true) {
    if (schema.object() == nullptr) return false;
    const auto text = [&](std::string_view name) {
      const Value* found = schema.find(name);
      return found == nullptr ? nullptr : found->string();
    };
    const std::string* id = text("$id");
    below_id = below_id || (!root && id != nullptr && !id->starts_with('#'));
    const std::string* reference = text("$ref");
    if (below_id && reference != nullptr && reference->starts_with('#')) {
      if (leave_out_) schema = Value(Value::Object());
      return !leave_out_;
    }
    for (json::Member& member : *schema.object()) {
      if (!has_schemas(member.name)) continue;
      // What `not` excludes must not become any value.
      const bool excludes = leave_out_ && member.name == "not";
      if (excludes ? RebasedReferences(false).find(member.value, below_id, false)
                   : find_in(member, below_id)) {
        if (excludes) {
          member.value = Value(false);
          continue;
        }
        path_.insert(0, "." + member.name);
        return true;
      }
    }
    return false;
  }
  const std::string& path() const { return path_; }

 private:
  static bool has_names(std::string_view keyword) {
    constexpr std::array<std::string_view, 6> kNames{
        "properties",  "patternProperties", "$defs",
        "definitions", "dependentSchemas",  "dependencies"};
    return is_one_of(kNames, keyword);
  }

  static bool has_schemas(std::string_view keyword) {
    if (keyword == "const" || keyword == "enum") return false;
    return has_names(keyword) || !says_nothing(keyword);
  }

  bool find_in(json::Member& member, bool below_id) {
    if (Value::Array* list = member.value.array()) {
      for (std::size_t i = 0; i < list->size(); ++i) {
        if (!find((*list)[i], below_id, false)) continue;
        path_.insert(0, fmt::format("[{}]", i));
        return true;
      }
      return false;
    }
    if (!has_names(member.name)) return find(member.value, below_id, false);
    if (member.value.object() == nullptr) return false;
    for (json::Member& one : *member.value.object()) {
      if (!find(one.value, below_id, false)) continue;
      path_.insert(0, "." + one.name);
      return true;
    }
    return false;
  }

  bool leave_out_;
  std::string path_;
};

}  // namespace

Result<std::unique_ptr<Schema::Tree>> Schema::Tree::read(std::string_view text,
                                                         const SchemaLimits& limits,
                                                         SchemaStrictness strictness) {
  auto tree = std::make_unique<Tree>();
  if (text.size() > limits.bytes_max)
    return fault(
        kGrammarTooComplex, "$",
        "the schema has {} bytes; the limit is {}: write a long enum as a pattern of its values' "
        "form, or let the value be any string and check the answer",
        text.size(), limits.bytes_max);
  Result<Value> root = json::parse(text, {.depth_max = limits.depth_max});
  if (!root.ok() && root.error().reason == ErrorReason::beyond_64_bits)
    return fault(kUnsupportedSchema, "$",
                 "{}: give a minimum, maximum or other number within 64 bits, or leave it out",
                 root.error().message);
  if (!root.ok())
    return fault(
        root.error().reason == ErrorReason::too_deep ? kGrammarTooComplex : kInvalidGrammar, "$",
        "{}", root.error().message);
  tree->root_ = std::move(root).value();
  if (!define_references(tree->root_))
    return fault(kGrammarTooComplex, "$",
                 "what $ref names outside of $defs and definitions is too large: move it there");
  RebasedReferences rebased(/*leave_out=*/strictness != SchemaStrictness::strict);
  if (rebased.find(tree->root_))
    return fault(kUnsupportedSchema, "$" + rebased.path() + ".$ref",
                 "below a \"$id\" of its own: leave that out, and write all references from the "
                 "whole document, as \"#/$defs/NAME\"");
  Value merged = copy_value(tree->root_);
  merge_schemas(merged);
  // Merging may make a choice of a tool's object. Relaxed, the object itself says more.
  const bool keeps_object = strictness == SchemaStrictness::strict ||
                            tree->root_.find("properties") == nullptr ||
                            merged.find("properties") != nullptr;
  if (keeps_object) tree->root_ = std::move(merged);
  if (strictness != SchemaStrictness::strict) relax_schema(tree->root_, strictness);
  tree->add(tree->root_, "$", "#");
  KOHO_TRY(tree->resolve());
  tree->find_discriminators();
  tree->find_productive();
  KOHO_TRY(tree->check_disjoint());
  if (!tree->nodes_[0].productive)
    return fault(kUnsatisfiableSchema, tree->unsatisfiable_path(),
                 "no finite value is valid: the recursion has no end, or an enum or a range is "
                 "empty");
  return tree;
}

std::string Schema::Tree::text() const {
  std::string out;
  write(out, 0, kAnyType, true);
  return out;
}

std::optional<LengthPlan> Schema::Tree::take_lengths() {
  for (Node& node : nodes_) {
    node.counted = bounds_of(node);
    if (node.pattern_properties < 0) continue;
    const json::Member& member = node.value->find("patternProperties")->object()->front();
    if (const std::optional<CountedPattern> counted = counted_pattern(member.name))
      node.counted_names = counted->bounds;
  }
  // Where schemas of one place differ in their bounds, a round returns these bounds to the grammar;
  // the next round builds the plan without them.
  constexpr int kRoundsMax = 16;
  for (int round = 0; round < kRoundsMax; ++round) {
    LengthPlan plan;
    bool agreed = true;
    if (!place_all(plan, agreed)) break;
    if (!agreed) continue;
    if (std::ranges::none_of(plan.places, [](const LengthPlan::Place& place) {
          return place.text.has_value() || place.names.has_value();
        }))
      break;
    return plan;
  }
  for (Node& node : nodes_) {
    node.counted.reset();
    node.counted_names.reset();
  }
  return std::nullopt;
}

std::optional<Schema::Part> Schema::Tree::part(int index) const {
  const Node& node = at(index);
  if (!node.reached || !node.productive) return std::nullopt;
  Part part;
  part.path = node.path;
  for (const std::string_view keyword : {"pattern", "multipleOf"})
    if (node.value->find(keyword) != nullptr) part.path += fmt::format(".{}", keyword);
  write(part.text, index, kAnyType, false);
  part.refers = part.text.find(R"("$ref")") != part.text.npos;
  if (part.refers) part.text = standing_alone(index, kAnyType);
  return part;
}

bool Schema::Tree::open() const {
  const Node& node = nodes_[static_cast<std::size_t>(follow(0))];
  return node.properties.empty() && allows_others(node) && node.additional < 0;
}

Result<std::vector<SchemaProperty>> Schema::Tree::properties(std::size_t& bytes_left) const {
  const int index = follow(0);
  const Node& node = at(index);
  if (allows_all(node) && node.value->object() != nullptr && node.primary.empty() &&
      node.properties.empty())
    return std::vector<SchemaProperty>{};
  if (node.types != object_type || !node.primary.empty() || node.pattern_properties >= 0)
    return fault(kUnsupportedSchema, node.path,
                 "parameters of a tool must be an object described by properties, without "
                 "patternProperties, enum, const, anyOf or oneOf at the top");
  if (refers_beyond_definitions_)
    return fault(kUnsupportedSchema, node.path,
                 "a $ref in the parameters of a tool must point into $defs or definitions");
  std::vector<Property> arguments = node.properties;
  const bool free = arguments.empty() && allows_others(node);
  const Value* most = node.value->find("maxProperties");
  if ((free && (node.names >= 0 || most != nullptr)) ||
      number_of(node, "minProperties") >
          std::ranges::count_if(arguments,
                                [](const Property& one) { return one.always_comes(); }) ||
      (most != nullptr &&
       number_of(node, "maxProperties") < static_cast<std::int64_t>(arguments.size())))
    return fault(kUnsupportedSchema, node.path,
                 "in the parameters of a tool, propertyNames, and minProperties and maxProperties "
                 "that `required` and `properties` do not keep, are not supported: leave them out");
  if (free && node.additional >= 0) arguments.push_back({.name = {}, .node = node.additional});
  std::vector<SchemaProperty> found;
  for (const Property& property : arguments) {
    if (!at(property.node).productive) continue;
    SchemaProperty& entry = found.emplace_back();
    entry.name = property.name;
    entry.any_name = free;
    entry.required = property.always_comes();
    std::vector<int> seen;
    add_alternatives(property.node, entry.alternatives, seen, bytes_left);
    if (bytes_left == 0)
      return fault(kGrammarTooComplex, node.path,
                   "the arguments' schemas are too large, each with the definitions that it may "
                   "refer to and the values of its enums: write fewer of these");
  }
  return found;
}

Schema::Schema(std::unique_ptr<Tree> tree) : tree_(std::move(tree)) {}
Schema::Schema(Schema&&) noexcept = default;
Schema& Schema::operator=(Schema&&) noexcept = default;
Schema::~Schema() = default;

Result<Schema> Schema::read(std::string_view text,
                            const SchemaLimits& limits,
                            SchemaStrictness strictness) {
  KOHO_TRY_ASSIGN(std::unique_ptr<Tree> tree, Tree::read(text, limits, strictness));
  return Schema(std::move(tree));
}

std::string Schema::text() const {
  return tree_->text();
}

std::optional<LengthPlan> Schema::take_lengths() {
  return tree_->take_lengths();
}

Result<std::vector<SchemaProperty>> Schema::properties(std::size_t& bytes_left) const {
  return tree_->properties(bytes_left);
}

bool Schema::open() const {
  return tree_->open();
}

int Schema::num_parts() const {
  return tree_->num_parts();
}

std::optional<Schema::Part> Schema::part(int index) const {
  return tree_->part(index);
}

}  // namespace koho
