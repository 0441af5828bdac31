// SPDX-License-Identifier: Apache-2.0
#include "grammar/schema_references.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json_pointer.h"
#include "base/text.h"
#include "grammar/schema_values.h"

namespace koho {
namespace {

using json::Value;

constexpr std::size_t kValuesMax = 20'000;  // that become definitions

/// Keywords whose members are names of the client's, with a schema each.
bool has_names(std::string_view keyword) {
  constexpr std::array<std::string_view, 6> kNames{
      "properties",  "patternProperties", "$defs",
      "definitions", "dependentSchemas",  "dependencies"};
  return std::ranges::find(kNames, keyword) != kNames.end();
}

class Definer {
 public:
  explicit Definer(Value& root) : root_(root) {}

  bool run() {
    const Value* defs = root_.find("$defs");
    if (root_.object() == nullptr || (defs != nullptr && defs->object() == nullptr)) return true;
    visit(root_);
    for (std::size_t i = 0; i < made_.size() && values_ <= kValuesMax; ++i) {
      Value schema = std::move(made_[i].value);
      visit(schema);  // may add to made_
      made_[i].value = std::move(schema);
    }
    if (values_ > kValuesMax) return false;
    if (made_.empty()) return true;
    Value all = take_member(root_, "$defs");
    if (all.object() == nullptr) all = Value(Value::Object());
    for (json::Member& one : made_) all.object()->push_back(std::move(one));
    set_member(root_, "$defs", std::move(all));
    return true;
  }

 private:
  /// Recursive; the JSON parser has bounded the depth.
  void visit(Value& schema) {
    if (schema.array() != nullptr)
      for (Value& one : *schema.array()) visit(one);
    if (schema.object() == nullptr) return;
    for (json::Member& member : *schema.object()) {
      const std::string_view name = member.name;
      if (name == "const" || name == "enum") continue;
      if (name == "$ref" && member.value.string() != nullptr) {
        if (std::optional<std::string> defined = definition_of(*member.value.string()))
          member.value = Value(*std::move(defined));
      } else if (has_names(name)) {
        if (member.value.object() == nullptr) continue;
        for (json::Member& one : *member.value.object()) visit(one.value);
      } else if (!says_nothing(name)) {
        visit(member.value);
      }
    }
  }

  /// The reference to write in place of this one; nullopt: it stays.
  std::optional<std::string> definition_of(const std::string& reference) {
    const std::optional<std::vector<std::string>> steps = pointer_steps(reference);
    if (!steps || steps->empty()) return std::nullopt;
    const auto known = names_.find(*steps);
    if (known != names_.end()) return known->second;
    const Target target = target_of(*steps);
    if (target.schema == nullptr || values_ > kValuesMax) return std::nullopt;
    if (is_found(*steps)) return "#/" + (*steps)[0] + "/" + (*steps)[1];
    values_ += count_values(*target.schema);
    if (values_ > kValuesMax) return std::nullopt;
    const std::string name = unused_name(steps->back());
    Value made = copy_value(*target.schema);
    if (target.id != nullptr && made.object() != nullptr)
      set_member(made, "$id", Value(*target.id));
    made_.push_back({name, std::move(made)});
    return names_.emplace(*steps, "#/$defs/" + name).first->second;
  }

  struct Target {
    const Value* schema = nullptr;  // nullptr: there is nothing, or what is there is no schema
    const std::string* id =
        nullptr;  // the "$id" that its references are relative to; nullptr: none
  };

  Target target_of(const std::vector<std::string>& steps) const {
    const Value* here = &root_;
    const std::string* id = nullptr;
    bool names = false;  // here are names of the client's
    for (const std::string& step : steps) {
      if (const Value::Array* list = here->array()) {
        const std::optional<std::uint64_t> index = parse_integer<std::uint64_t>(step);
        if (!index || *index >= list->size() || (step[0] == '0' && step.size() > 1)) return {};
        here = &(*list)[*index];
      } else {
        here = here->find(step);
        if (here == nullptr) return {};
        names = !names && has_names(step);
      }
      const Value* own = names ? nullptr : here->find("$id");
      if (own != nullptr && own->string() != nullptr && !own->string()->starts_with('#'))
        id = own->string();
    }
    const bool is_schema = here->object() != nullptr || here->boolean();
    if (!is_schema || names) return {};
    return {here, id};
  }

  /// Whether the reader and xgrammar find what is there.
  static bool is_found(const std::vector<std::string>& steps) {
    return steps.size() == 2 && (steps[0] == "$defs" || steps[0] == "definitions") &&
           !steps[1].empty() && steps[1].find_first_of("/~%") == std::string::npos;
  }

  std::string unused_name(std::string_view wanted) const {
    std::string name;
    for (const char c : wanted) name += c == '/' || c == '~' || c == '%' ? '_' : c;
    const Value* defs = root_.find("$defs");
    const auto is_used = [&](const std::string& one) {
      return one.empty() || (defs != nullptr && defs->find(one) != nullptr) ||
             std::ranges::find(made_, one, &json::Member::name) != made_.end();
    };
    for (std::size_t i = made_.size(); is_used(name); ++i) name = "ref_" + std::to_string(i);
    return name;
  }

  Value& root_;
  std::vector<json::Member> made_;                         // definitions to add
  std::map<std::vector<std::string>, std::string> names_;  // references to them, by their steps
  std::size_t values_ = 0;
};

}  // namespace

bool define_references(Value& root) {
  return Definer(root).run();
}

}  // namespace koho
