// SPDX-License-Identifier: Apache-2.0
// Merging works on the JSON of the schema, subschema by subschema: first the subschema's own
// allOf, $ref and choices become one object of keywords or one anyOf of such objects, then `not`
// and uniqueItems are rewritten, then its children are visited.
#include "grammar/schema_merge.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json_writer.h"
#include "grammar/pattern_rewrite.h"
#include "grammar/schema_exclusion.h"
#include "grammar/schema_tree.h"
#include "grammar/schema_unique_items.h"
#include "grammar/schema_values.h"

namespace koho {
namespace {

using json::Member;

constexpr std::size_t kValuesMax = 20'000;  // that a merge copies
constexpr int kInliningMax = 16;            // $ref within $ref

constexpr std::array<std::string_view, 4> kWhole{"$ref", "anyOf", "oneOf", "allOf"};

bool is_definition(std::string_view name) {
  return name == "$defs" || name == "definitions";
}

class Merger {
 public:
  explicit Merger(const Value& original) : original_(original) {}

  void visit(Value& schema) {
    if (schema.object() == nullptr) return;
    if (std::optional<Value> merged = merge(schema)) schema = *std::move(merged);
    if (schema.object() == nullptr) return;
    if (limits_listed_values(schema))
      if (std::optional<Value> one = copy(schema))
        if (std::optional<Value> kept = with_listed_values(*std::move(one)))
          schema = *std::move(kept);
    if (schema.object() == nullptr) return;
    for (Member& member : *schema.object()) {
      rewrite_patterns(member);
      visit_member(member);
    }
    if (std::optional<Value> listed = without_unique_items(schema, items_of(schema)))
      schema = *std::move(listed);
    if (schema.object() == nullptr) return;
    if (std::ranges::none_of(kWhole, [&](auto name) { return schema.find(name) != nullptr; }))
      close_evaluated(schema);
    if (std::optional<Value> typed = with_other_types(schema)) schema = *std::move(typed);
  }

 private:
  /// The schema of an array's items, behind $ref.
  const Value* items_of(const Value& schema) const {
    const Value* items = schema.find("items");
    for (int inlined = 0; inlined <= kInliningMax && items != nullptr; ++inlined) {
      const Value* reference = items->find("$ref");
      const auto limits = [](const Member& member) {
        return member.name != "$ref" && !says_nothing(member.name);
      };
      if (reference == nullptr || reference->string() == nullptr ||
          std::ranges::any_of(*items->object(), limits))
        break;
      items = at_pointer(original_, *reference->string());
    }
    return items;
  }

  /// Leaves a pattern that cannot be rewritten as it is: the reader refuses it.
  void rewrite_patterns(Member& member) {
    const auto rewrite = [this](std::string_view pattern) {
      Result<std::string> made = patterns_.rewrite(pattern, true);
      return made.ok() ? *std::move(made) : std::string(pattern);
    };
    if (member.name == "pattern" && member.value.string() != nullptr)
      member.value = Value(rewrite(*member.value.string()));
    if (member.name == "patternProperties" && member.value.object() != nullptr)
      for (Member& one : *member.value.object()) one.name = rewrite(one.name);
  }

  void visit_member(Member& member) {
    const std::string_view name = member.name;
    const bool named = name == "properties" || name == "patternProperties" || is_definition(name);
    if (named && member.value.object() != nullptr) {
      for (Member& one : *member.value.object()) visit(one.value);
    } else if (name == "items" || name == "additionalProperties" || name == "propertyNames") {
      visit(member.value);
    } else if (name == "prefixItems" || name == "anyOf" || name == "oneOf" || name == "allOf") {
      if (member.value.array() == nullptr) return;
      for (Value& one : *member.value.array()) visit(one);
    }
  }

  std::optional<Value> copy(const Value& value) {
    values_ += count_values(value);
    if (values_ > kValuesMax) return std::nullopt;
    return copy_value(value);
  }

  /// The subschema as one object of keywords, or one choice of such objects; nullopt: it is that
  /// already, or cannot become it.
  std::optional<Value> merge(const Value& schema) {
    exclusive_ = false;
    const bool together = needs_merging(schema);
    if (!together && schema.find("not") == nullptr) return std::nullopt;
    std::optional<std::vector<Value>> options;
    if (together) {
      options = options_of(schema, 0);
    } else if (std::optional<Value> one = copy(schema)) {
      close_evaluated(*one);
      options.emplace();
      options->push_back(*std::move(one));
    }
    if (!options) return std::nullopt;
    std::vector<Value> all;
    for (Value& option : *options) {
      std::optional<std::vector<Value>> without = without_not(std::move(option));
      if (!without) return std::nullopt;
      for (Value& one : *without) all.push_back(std::move(one));
      if (all.size() > kAlternativesMax) return std::nullopt;
    }
    std::erase_if(all, [](const Value& one) { return one.boolean() == false; });
    Value made = Value(false);
    if (all.size() == 1) made = std::move(all.front());
    if (all.size() > 1) {
      made = Value(Value::Object());
      Value::Array list;
      for (Value& one : all) list.push_back(std::move(one));
      // A value that exactly one of the combinations allows is valid by exactly one option of each
      // oneOf that they combine.
      set_member(made, exclusive_ ? "oneOf" : "anyOf", Value(std::move(list)));
    }
    if (made.object() == nullptr) return made;
    for (const Member& member : *schema.object()) {
      if (!is_definition(member.name) && member.name != "discriminator") continue;
      std::optional<Value> kept = copy(member.value);
      if (!kept) return std::nullopt;
      set_member(made, member.name, *std::move(kept));
    }
    return made;
  }

  static bool needs_merging(const Value& schema) {
    int whole = 0;
    bool others = false;
    for (const Member& member : *schema.object()) {
      if (is_one_of(kWhole, member.name)) {
        ++whole;
        others = others || (member.name == "allOf" && member.value.array() != nullptr &&
                            member.value.array()->size() > 1);
      } else {
        others = others || (!is_note(member.name) && member.name != "not" &&
                            member.name != "discriminator" && limits_values(member.name));
      }
    }
    return whole > 1 || (whole == 1 && others);
  }

  /// unevaluatedProperties: false beside no other schema means additionalProperties: false.
  static void close_evaluated(Value& schema) {
    if (schema.object() == nullptr) return;
    const Value* rest = schema.find("unevaluatedProperties");
    if (rest == nullptr || rest->kind() != Kind::boolean) return;
    const bool closed = *rest->boolean() == false;
    take_member(schema, "unevaluatedProperties");
    if (closed && schema.find("additionalProperties") == nullptr)
      set_member(schema, "additionalProperties", Value(false));
  }

  /// Keywords that limit values of some types, without a `type`: values of other types are valid,
  /// too. Members and items keep their meaning for the reader: an object, an array.
  static std::optional<Value> with_other_types(const Value& schema) {
    unsigned concerned = 0;
    for (const Member& member : *schema.object()) {
      const std::string_view name = member.name;
      if (is_one_of(kWhole, name) || name == "type" || name == "enum" || name == "const" ||
          name == "properties" || name == "additionalProperties" || name == "patternProperties" ||
          name == "items" || name == "prefixItems" || is_one_of(kUnsupported, name))
        return std::nullopt;
      concerned |= limits_type(name);
    }
    if (concerned == 0) return std::nullopt;
    if ((concerned & number_type) != 0) concerned |= integer_type;
    Value limited = copy_value(schema);
    set_member(limited, "type", types_value(concerned));
    Value others = Value(Value::Object());
    set_member(others, "type", types_value(kAnyType & ~concerned));
    Value::Array list;
    list.push_back(std::move(limited));
    list.push_back(std::move(others));
    Value made = Value(Value::Object());
    for (const std::string_view name : {"$defs", "definitions"})
      if (Value kept = take_member(list.front(), name); !kept.is_null())
        set_member(made, name, std::move(kept));
    set_member(made, "anyOf", Value(std::move(list)));
    return made;
  }

  /// The alternatives that `schema` allows, each an object without $ref, allOf and choices, or
  /// `false`. nullopt: they cannot be merged, or are too many.
  std::optional<std::vector<Value>> options_of(const Value& schema, int inlined) {
    if (inlined > kInliningMax) return std::nullopt;
    std::vector<Value> options;
    if (schema.object() == nullptr) {
      if (schema.kind() != Kind::boolean) return std::nullopt;
      options.push_back(*schema.boolean() ? Value(Value::Object()) : Value(false));
      return options;
    }
    Value own = Value(Value::Object());
    for (const Member& member : *schema.object()) {
      if (is_one_of(kWhole, member.name) || is_definition(member.name) ||
          member.name == "discriminator")
        continue;
      std::optional<Value> kept = copy(member.value);
      if (!kept) return std::nullopt;
      own.object()->push_back({member.name, *std::move(kept)});
    }
    options.push_back(std::move(own));
    for (const Member& member : *schema.object()) {
      if (!is_one_of(kWhole, member.name)) continue;
      std::optional<std::vector<Value>> met = met_with(options, member, inlined);
      if (!met) return std::nullopt;
      options = *std::move(met);
    }
    // What a schema evaluates is what its alternative declares; of a schema around it, nothing.
    for (Value& option : options) close_evaluated(option);
    return options;
  }

  /// Every one of `options` together with every alternative of a $ref, an allOf or a choice.
  std::optional<std::vector<Value>> met_with(const std::vector<Value>& options,
                                             const Member& member,
                                             int inlined) {
    if (member.name == "$ref") {
      const Value* target = member.value.string() == nullptr
                                ? nullptr
                                : at_pointer(original_, *member.value.string());
      if (target == nullptr) return std::nullopt;
      std::optional<std::vector<Value>> others = options_of(*target, inlined + 1);
      return others ? pairs_of(options, *others) : std::nullopt;
    }
    const Value::Array* list = member.value.array();
    if (list == nullptr || list->empty()) return std::nullopt;
    std::vector<Value> choice;
    std::vector<Value> result;
    for (const Value& one : options) {
      std::optional<Value> kept = copy(one);
      if (!kept) return std::nullopt;
      result.push_back(*std::move(kept));
    }
    for (const Value& one : *list) {
      std::optional<std::vector<Value>> others = options_of(one, inlined);
      if (!others) return std::nullopt;
      if (member.name == "allOf") {
        std::optional<std::vector<Value>> both = pairs_of(result, *others);
        if (!both) return std::nullopt;
        result = *std::move(both);
        continue;
      }
      for (Value& other : *others) choice.push_back(std::move(other));
    }
    exclusive_ = exclusive_ || (member.name == "oneOf" && choice.size() > 1);
    return member.name == "allOf" ? std::move(result) : pairs_of(result, choice);
  }

  std::optional<std::vector<Value>> pairs_of(const std::vector<Value>& some,
                                             const std::vector<Value>& others) {
    if (some.size() * others.size() > kAlternativesMax) return std::nullopt;
    std::vector<Value> made;
    for (const Value& one : some)
      for (const Value& other : others) {
        std::optional<Value> both = both_of(one, other);
        if (!both) return std::nullopt;
        made.push_back(*std::move(both));
      }
    return made;
  }

  /// A schema for the values that two allow. Both are `false` or objects without $ref, allOf and
  /// choices.
  std::optional<Value> both_of(const Value& one, const Value& other) {
    if (one.object() == nullptr || other.object() == nullptr) return Value(false);
    if (combines_tuples(one, other) || combines_tuples(other, one)) return std::nullopt;
    if (combines_names(one, other) || combines_names(other, one)) return std::nullopt;
    std::optional<Value> made = copy(one);
    if (!made) return std::nullopt;
    forbid_undeclared(*made, other);
    std::optional<Value> second = copy(other);
    if (!second) return std::nullopt;
    forbid_undeclared(*second, one);
    for (Member& member : *second->object()) {
      const Value* mine = made->find(member.name);
      if (mine == nullptr) {
        made->object()->push_back({std::move(member.name), std::move(member.value)});
        continue;
      }
      if (member.name == "const" && !equal_values(*mine, member.value)) return Value(false);
      std::optional<Value> both = both_keywords(member.name, *mine, member.value);
      if (!both) return std::nullopt;
      set_member(*made, member.name, *std::move(both));
    }
    if (is_empty(*made)) return Value(false);
    return with_listed_values(*std::move(made));
  }

  /// Whether items of `other` apply to the first items of `tuple`, which have schemas of their own.
  static bool combines_tuples(const Value& tuple, const Value& other) {
    const Value* prefix = tuple.find("prefixItems");
    if (prefix == nullptr) return false;
    const Value* same = other.find("prefixItems");
    return same != nullptr ? !equal_values(*prefix, *same) : other.find("items") != nullptr;
  }

  /// Whether `rest` limits members that have a schema by their name's pattern in `schema`.
  static bool combines_names(const Value& schema, const Value& rest) {
    const Value* others = rest.find("additionalProperties");
    return schema.find("patternProperties") != nullptr && others != nullptr &&
           others->boolean() != true && !equal_values(schema, rest);
  }

  /// Whether merged types or bounds leave no value.
  static bool is_empty(const Value& schema) {
    if (const Value* type = schema.find("type"); type != nullptr && types_of(*type) == 0)
      return type->array() != nullptr && type->array()->empty();
    constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kNumbers{
        {{"minimum", "maximum"}, {"minItems", "maxItems"}}};
    return std::ranges::any_of(kNumbers, [&](const auto& bounds) {
      const Value* low = schema.find(bounds.first);
      const Value* high = schema.find(bounds.second);
      return low != nullptr && high != nullptr && low->number() && high->number() &&
             *low->number() > *high->number();
    });
  }

  /// Where `other` allows no properties but its own, those of `schema` that it does not have must
  /// not come; where it has a schema for them, they follow that, too.
  void forbid_undeclared(Value& schema, const Value& other) {
    const Value* rest = other.find("additionalProperties");
    Value::Object* mine = nullptr;
    for (Member& member : *schema.object())
      if (member.name == "properties") mine = member.value.object();
    if (rest == nullptr || mine == nullptr || rest->boolean() == true ||
        other.find("patternProperties") != nullptr)
      return;
    const Value* theirs = other.find("properties");
    for (Member& property : *mine) {
      if (theirs != nullptr && theirs->find(property.name) != nullptr) continue;
      if (rest->boolean() == false) {
        property.value = Value(false);
      } else {
        property.value = all_of(std::move(property.value), copy_value(*rest));
      }
    }
  }

  static Value all_of(Value one, Value other) {
    Value::Array list;
    list.push_back(std::move(one));
    list.push_back(std::move(other));
    Value made = Value(Value::Object());
    set_member(made, "allOf", Value(std::move(list)));
    return made;
  }

  /// The value of a keyword that both schemas have.
  std::optional<Value> both_keywords(std::string_view name, const Value& one, const Value& other) {
    if (is_note(name) || equal_values(one, other)) return copy(one);
    if (name == "type") return both_types(one, other);
    if (name.starts_with("min") || name == "exclusiveMinimum")
      return stricter(one, other, /*larger=*/true);
    if (name.starts_with("max") || name == "exclusiveMaximum")
      return stricter(one, other, /*larger=*/false);
    if (name == "multipleOf") {
      const std::optional<std::int64_t> a = whole_number(one);
      const std::optional<std::int64_t> b = whole_number(other);
      if (!a || !b || *a <= 0 || *b <= 0 || *a > 1024 || *b > 1024) return std::nullopt;
      return Value(std::lcm(*a, *b));
    }
    if (name == "required") return joined(one, other);
    if (name == "properties") return both_properties(one, other);
    if (name == "items" || name == "propertyNames" || name == "additionalProperties") {
      if (one.boolean() == false || other.boolean() == false) return Value(false);
      std::optional<Value> a = copy(one);
      std::optional<Value> b = copy(other);
      if (!a || !b) return std::nullopt;
      return all_of(*std::move(a), *std::move(b));
    }
    if (name == "enum") return shared_values(one, other);
    if (name == "uniqueItems") return Value(one.boolean() == true || other.boolean() == true);
    if (name == "not") {
      Value::Array list;
      std::optional<Value> a = copy(one);
      std::optional<Value> b = copy(other);
      if (!a || !b) return std::nullopt;
      list.push_back(*std::move(a));
      list.push_back(*std::move(b));
      Value either = Value(Value::Object());
      set_member(either, "anyOf", Value(std::move(list)));
      return either;
    }
    return std::nullopt;  // patterns, formats, tuples: the reader says so
  }

  static std::optional<Value> stricter(const Value& one, const Value& other, bool larger) {
    const std::optional<long double> a = exact_number(one);
    const std::optional<long double> b = exact_number(other);
    if (!a || !b) return std::nullopt;
    return copy_value((*a < *b) == larger ? other : one);
  }

  static std::optional<Value> both_types(const Value& one, const Value& other) {
    const unsigned shared = types_of(one) & types_of(other);
    return types_value(shared);
  }

  std::optional<Value> joined(const Value& one, const Value& other) {
    if (one.array() == nullptr || other.array() == nullptr) return std::nullopt;
    std::optional<Value> made = copy(one);
    if (!made) return std::nullopt;
    for (const Value& name : *other.array()) {
      const bool has = std::ranges::any_of(
          *made->array(), [&](const Value& mine) { return equal_values(mine, name); });
      if (!has) made->array()->push_back(copy_value(name));
    }
    return made;
  }

  std::optional<Value> both_properties(const Value& one, const Value& other) {
    if (one.object() == nullptr || other.object() == nullptr) return std::nullopt;
    std::optional<Value> made = copy(one);
    if (!made) return std::nullopt;
    for (const Member& property : *other.object()) {
      std::optional<Value> theirs = copy(property.value);
      if (!theirs) return std::nullopt;
      const Value* mine = made->find(property.name);
      if (mine == nullptr || equal_values(*mine, *theirs)) {
        set_member(*made, property.name, *std::move(theirs));
        continue;
      }
      set_member(*made, property.name, all_of(copy_value(*mine), *std::move(theirs)));
    }
    return made;
  }

  static std::optional<Value> shared_values(const Value& one, const Value& other) {
    if (one.array() == nullptr || other.array() == nullptr) return std::nullopt;
    Value::Array list;
    for (const Value& value : *one.array())
      if (std::ranges::any_of(*other.array(),
                              [&](const Value& same) { return equal_values(value, same); }))
        list.push_back(copy_value(value));
    return Value(std::move(list));
  }

  // ---- not

  /// The alternatives of a schema without its `not`; nullopt: not expressible.
  std::optional<std::vector<Value>> without_not(Value schema) {
    std::vector<Value> made;
    if (schema.object() == nullptr || schema.find("not") == nullptr) {
      made.push_back(std::move(schema));
      return made;
    }
    const Value excluded = take_member(schema, "not");
    if (excluded.object() == nullptr || excluded.object()->size() != 1 ||
        excluded.find("not") == nullptr)
      return exclude(std::move(schema), excluded);
    std::optional<std::vector<Value>> inner = options_of(*excluded.find("not"), 0);
    std::vector<Value> mine;
    mine.push_back(std::move(schema));
    return inner ? pairs_of(mine, *inner) : std::nullopt;
  }

  const Value& original_;
  PatternRewriter patterns_;
  std::size_t values_ = 0;  // copied so far
  bool exclusive_ = false;  // the subschema that is merged combines a oneOf
};

}  // namespace

void merge_schemas(Value& root) {
  const Value original = copy_value(root);
  Merger(original).visit(root);
}

}  // namespace koho
