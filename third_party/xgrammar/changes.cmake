# SPDX-License-Identifier: Apache-2.0
# What koho changes in xgrammar's sources; the changed files are compiled in place of the published ones.

# Replaces BEFORE by AFTER in cpp/NAME. BEFORE stands there TIMES times, or the version is another one.
function(change name times before after)
  set(text "${changed_${name}}")
  if(text STREQUAL "")
    file(READ "${XGRAMMAR_SOURCES}/cpp/${name}" text)
  endif()
  string(REPLACE "${before}" "" without "${text}")
  string(LENGTH "${text}" length)
  string(LENGTH "${without}" length_without)
  string(LENGTH "${before}" length_before)
  math(EXPR expected "${length} - ${times} * ${length_before}")
  if(NOT length_without EQUAL expected)
    message(FATAL_ERROR "xgrammar's ${name} does not hold ${times} times what koho changes in it: ${before}")
  endif()
  string(REPLACE "${before}" "${after}" text "${text}")
  set(changed_${name} "${text}" PARENT_SCOPE)
endfunction()

# Compiles the changed text of cpp/NAME in place of the published file.
function(compile_changed name)
  set(changed "${CMAKE_CURRENT_BINARY_DIR}/changed/${name}")
  set(there "")
  if(EXISTS "${changed}")
    file(READ "${changed}" there)
  endif()
  if(NOT there STREQUAL changed_${name})
    file(WRITE "${changed}" "${changed_${name}}")
  endif()
  list(REMOVE_ITEM sources "${XGRAMMAR_SOURCES}/cpp/${name}")
  list(APPEND sources "${changed}")
  set(sources "${sources}" PARENT_SCOPE)
endfunction()

# A string that has a pattern says what follows it, as xgrammar has it for all other strings. Without this every token with
# a quotation mark in it is followed at run time, at each character of such a string.
change(json_schema_converter.cc 1 [==[
    return Sequence(
        {ByteString("\""), RegexExpression(*spec.pattern, /*json_string=*/true), ByteString("\"")}
    );
]==] [==[
    int32_t pattern = builder_.AddRuleWithHint(
        rule_name + "_pattern", RegexExpression(*spec.pattern, /*json_string=*/true)
    );
    builder_.UpdateLookaheadAssertion(
        pattern,
        Sequence(
            {ByteString("\""),
             WhitespaceExpression(),
             builder_.AddCharacterClass({{',', ','}, {'}', '}'}, {']', ']'}, {':', ':'}})}
        )
    );
    return Sequence({ByteString("\""), RuleRef(pattern), ByteString("\"")});
]==])

# The addresses are such patterns, too: as rules, 1 to 2 ms a token with 151,936 tokens. The other formats are short, or hold
# quotation marks.
change(json_schema_converter.cc 1 [==[
      return Sequence({ByteString("\""), RegexExpression(*regex, false, true), ByteString("\"")});
    }
  }
  // Check for pattern
]==] [==[
      if (spec.format->rfind("uri", 0) == 0) {
        StringSpec as_pattern;
        as_pattern.pattern = *regex;
        return GenerateString(as_pattern, rule_name);
      }
      return Sequence({ByteString("\""), RegexExpression(*regex, false, true), ByteString("\"")});
    }
  }
  // Check for pattern
]==])

# What is said so is never all that may follow: nothing but it follows, but not everything of it may.
change(grammar_functor.cc 1
       [==[UpdateLookaheadExact(i, IsExactLookaheadAssertion(i))]==] [==[UpdateLookaheadExact(i, false)]==])

# (X)? must not lead into an end state of X from its start: where that state goes on (an X that ends with a repetition), the
# expression would match what follows there, too: ^(a[a-z]*|n)?$ would match "na".
change(fsm.cc 1 [==[
  if (!ends_.empty()) {
    fsm.AddEpsilonEdge(start_, ends_.front());
  }
  return FSMWithStartEnd(fsm, start_, ends_);
]==] [==[
  auto new_start = fsm.AddState();
  fsm.AddEpsilonEdge(new_start, start_);
  auto ends = ends_;
  ends.push_back(new_start);
  return FSMWithStartEnd(fsm, new_start, ends);
]==])

# An end state that was merged with one that goes on is no leaf any more: merged with all leaves, it would let each of them
# go on, so that ^(bc|([ab]){1,2})$ would match more.
change(fsm.cc 1 [==[
      if (outgoing_count == 0) {
        if (result.IsEndState(i)) {
]==] [==[
      if (outgoing_count == 0) {
        if (union_find_set.Count(i)) {
          continue;
        }
        if (result.IsEndState(i)) {
]==])

# X{n,} led from the end of a later X into an end state of an earlier one, where an X that ends with a repetition goes on:
# ((ab+)?){2,} matched "b". It is n - 1 times X and then X+.
change(fsm_builder.cc 1 [==[
  if (!has_upper_bound) {
    for (int i = 2; i < state.lower_bound; i++) {
]==] [==[
  if (!has_upper_bound) {
    std::vector<FSMWithStartEnd> copies(std::max(state.lower_bound - 1, 0), child);
    copies.push_back(state.lower_bound == 0 ? child.Star() : child.Plus());
    return ResultOk(FSMWithStartEnd::Concat(copies));
    for (int i = 2; i < state.lower_bound; i++) {
]==])

# What a large repetition repeats is a rule of its own, of a string where the whole is one: "^.{1,200}\.$" let a quotation mark in.
change(fsm_builder.cc 1 [==[
Result<RegexIR> ParseRegexToIR(
    const std::string& regex_with_flags, GrammarBuilder* builder, const std::string& rule_hint
) {
]==] [==[
Result<RegexIR> ParseRegexToIR(
    const std::string& regex_with_flags,
    GrammarBuilder* builder,
    const std::string& rule_hint,
    bool json_string = false
) {
]==])
change(fsm_builder.cc 1 "builder->AddRegex(inner_regex)" "builder->AddRegex(inner_regex, json_string)")
change(fsm_builder.cc 1 [==[
  auto build_result = Build(regex, builder, rule_hint);
  if (build_result.IsErr() || forbidden_chars.none()) {
    return build_result;
  }
]==] [==[
  auto ir_result = ParseRegexToIR(regex, builder, rule_hint, /*json_string=*/true);
  if (ir_result.IsErr()) {
    return ResultErr(std::move(ir_result).UnwrapErr());
  }
  auto build_result = std::move(ir_result).Unwrap().Build();
  if (build_result.IsErr() || forbidden_chars.none()) {
    return build_result;
  }
]==])

# The members that may follow one are a trie of their keys, and what follows a key is shared by all that lead to it. xgrammar's own
# rules lead from each member through the rules of all later ones, each of which then reads the same comma: with 50 optional
# members 1.6 ms for each token of a string, whose end is followed anew at each of its tokens, and as little as with one this way.
change(json_schema_converter.cc 1 [==[
  bool allow_additional = additional != nullptr;
  std::optional<int32_t> additional_pattern;
]==] [==[
  bool allow_additional = additional != nullptr;

  const size_t num_properties = properties.size();
  std::vector<std::string> keys;
  std::vector<int32_t> after_keys;  // the colon and the value
  for (int32_t pattern : property_patterns) {
    auto expr = builder_.GetGrammarExpr(pattern);
    if (allow_additional || expr.type != GrammarBuilder::GrammarExprType::kSequence) break;
    std::vector<int32_t> elements(expr.begin(), expr.end());
    auto key = builder_.GetGrammarExpr(elements[0]);
    if (key.type != GrammarBuilder::GrammarExprType::kByteString) break;
    keys.emplace_back(key.begin(), key.end());
    elements.erase(elements.begin());
    after_keys.push_back(Sequence(elements));
  }
  if (keys.size() == num_properties) {
    // Members that may come next, each with what may follow it.
    using Members = std::vector<std::pair<size_t, int32_t>>;
    // One of `members`, whose keys have the same first `offset` bytes: the rest of its key, its value, what may follow it.
    std::map<std::pair<Members, size_t>, int32_t> known;
    std::function<int32_t(const Members&, size_t)> one_of = [&](const Members& members, size_t offset) {
      const auto found = known.find({members, offset});
      if (found != known.end()) return found->second;
      const std::string& first = keys[members[0].first];
      size_t end = offset;
      while (end < first.size() && std::all_of(members.begin(), members.end(), [&](const auto& member) {
               const std::string& key = keys[member.first];
               return end < key.size() && key[end] == first[end];
             })) {
        ++end;
      }
      std::vector<int32_t> choices;
      if (end == first.size()) {  // a key ends with its only second quotation mark
        for (const auto& [member, tail] : members) choices.push_back(Sequence({after_keys[member], tail}));
      } else {
        std::map<char, Members> by_next;
        for (const auto& member : members) by_next[keys[member.first][end]].push_back(member);
        for (const auto& [character, those] : by_next) {
          choices.push_back(Sequence({ByteString(std::string(1, character)), one_of(those, end + 1)}));
        }
      }
      // Without an empty string before it: such a choice would be a rule that starts where this one does, which xgrammar's
      // parser completes one by one for all members so far.
      int32_t rest = Choice(choices);
      if (end > offset) rest = Sequence({ByteString(first.substr(offset, end - offset)), rest});
      const int32_t rule = RuleRef(builder_.AddRuleWithHint(rule_name + "_member", rest));
      known.emplace(std::make_pair(members, offset), rule);
      return rule;
    };
    // After `written` members the last of which is number `next` - 1: how many must follow at least, and how many may (all: -1).
    std::vector<int> required_from(num_properties + 1, 0);
    for (size_t i = num_properties; i-- > 0;) {
      required_from[i] = required_from[i + 1] + static_cast<int>(required.count(properties[i].name));
    }
    const auto counts = [&](size_t next, int written) {
      const int left = static_cast<int>(num_properties - next);
      const int most = max_properties == -1 ? left : max_properties - written;
      return std::make_pair(std::max(0, min_properties - written), most >= left ? -1 : most);
    };
    const auto is_possible = [&](size_t next, int written) {
      if (max_properties != -1 && written > max_properties) return false;
      const auto [least, most] = counts(next, written);
      return least <= static_cast<int>(num_properties - next) &&
             (most == -1 || (most >= required_from[next] && most >= least));
    };
    std::map<std::tuple<size_t, int, int>, int32_t> tails;
    const auto members_from = [&](size_t next, int written) {
      Members members;
      for (size_t i = next; i < num_properties; ++i) {
        if (is_possible(i + 1, written + 1)) {
          const auto [least, most] = counts(i + 1, written + 1);
          members.emplace_back(i, tails.at({i + 1, least, most}));
        }
        if (required.count(properties[i].name)) break;
      }
      return members;
    };
    const auto content_of = [&](const Members& members) {
      const auto& [member, tail] = members[0];
      return members.size() == 1 ? Sequence({property_patterns[member], tail}) : one_of(members, 0);
    };
    const int written_max = max_properties == -1 ? std::max(1, min_properties) : max_properties;
    for (size_t next = num_properties; next > 0; --next) {
      for (int written = 1; written <= std::min(static_cast<int>(next), written_max); ++written) {
        const auto [least, most] = counts(next, written);
        if (!is_possible(next, written) || tails.count({next, least, most})) continue;
        std::vector<int32_t> choices;
        if (least == 0 && required_from[next] == 0) choices.push_back(Empty());
        if (const Members members = members_from(next, written); !members.empty()) {
          choices.push_back(Sequence({middle_separator, content_of(members)}));
        }
        tails[{next, least, most}] =
            next == num_properties || most == 0
                ? Choice(choices)
                : RuleRef(builder_.AddRuleWithHint(rule_name + "_part_" + std::to_string(next - 1), Choice(choices)));
      }
    }
    const Members members = members_from(0, 0);
    if (members.empty()) return Unsatisfiable();
    return Sequence({first_separator, content_of(members), last_separator});
  }

  std::optional<int32_t> additional_pattern;
]==])

# An array whose first items may all be missing is empty, or has a first item. As one sequence the white space of the empty one
# is that before the items and that after them in every split, each followed with every token that begins so: 1.1 ms.
change(json_schema_converter.cc 1 [==[
    int32_t with_first = Sequence({RuleRef(item_rule_ids[0]), suffix});
    int32_t suffix_rule_id =
        builder_.AddRuleWithHint(rule_name + "_suffix_0", Choice({Empty(), with_first}));
    suffix = RuleRef(suffix_rule_id);
]==] [==[
    int32_t nonempty = Sequence(
        {left_bracket, start_separator, RuleRef(item_rule_ids[0]), suffix, end_separator, right_bracket}
    );
    return Choice({nonempty, empty_array});
]==])

# A pattern of a string that cannot match without a character that JSON escapes, "x\n", matches nothing: as rules it would allow
# the character itself.
change(json_schema_converter.cc 1 [==[
      if (!language_is_empty) {
        return builder_.AddRegex(regex, json_string);
]==] [==[
      if (!language_is_empty || json_string) {
        return builder_.AddRegex(regex, json_string);
]==])

# What no automaton can be built of is refused, too: rules would leave nothing out.
change(json_schema_converter.cc 1 [==[
    auto fsm_result = GrammarFSMBuilder::Regex(regex, json_string);
]==] [==[
    auto fsm_result = GrammarFSMBuilder::Regex(regex, json_string);
    if (json_string && fsm_result.IsErr()) {
      RegexToEBNF(regex);  // says what is wrong with it, if anything is
      throw koho::guard::NoAutomaton(std::move(fsm_result).UnwrapErr().what());
    }
]==])

# A range without a number of at most six decimals is no empty text.
change(json_schema_converter.cc 1 [==[
    return RegexExpression(
        GenerateFloatRangeRegex(start, end, /*precision=*/6, exclusive_start, exclusive_end),
        false,
        /*force_cfg_expansion=*/true
    );
]==] [==[
    const std::string range =
        GenerateFloatRangeRegex(start, end, /*precision=*/6, exclusive_start, exclusive_end);
    if (range == "^()$") return Unsatisfiable();
    return RegexExpression(range, false, /*force_cfg_expansion=*/true);
]==])

# The type of the exception says that no value satisfies a schema: xgrammar has one type for all its errors.
change(json_schema_converter.cc 1 [==[
#include "fsm_builder.h"
]==] [==[
#include <guard.h>

#include "fsm_builder.h"
]==])
change(json_schema_converter.cc 1 [==[
using SchemaError = TypedError<SchemaErrorType>;
]==] [==[
using SchemaError = TypedError<SchemaErrorType>;

[[noreturn]] void Throw(const SchemaError& error) {
  if (error.Type() == SchemaErrorType::kUnsatisfiableSchema) {
    throw koho::guard::Unsatisfiable(error.what());
  }
  XGRAMMAR_LOG(FATAL) << error.what();
  XGRAMMAR_UNREACHABLE();
}
]==])
change(json_schema_converter.cc 2 [==[
    XGRAMMAR_LOG(FATAL) << std::move(spec_result).UnwrapErr().what();
]==] [==[
    Throw(std::move(spec_result).UnwrapErr());
]==])
foreach(result result r)
  change(json_schema_converter.cc 1 "XGRAMMAR_LOG(FATAL) << std::move(${result}).UnwrapErr().what();"
         "Throw(std::move(${result}).UnwrapErr());")
endforeach()

# A listed number is written with as few digits as tell it from others: of {"enum":[0.1]} all that was allowed was
# 0.10000000000000001.
change(json_schema_converter.cc 1 [==[
#include <cctype>
]==] [==[
#include <cctype>
#include <charconv>
]==])
change(json_schema_converter.cc 1 [==[
// ==================== Spec ToString implementations ====================
]==] [==[
static std::string Written(const picojson::value& value) {
  std::string text;
  if (value.is<picojson::array>()) {
    for (const auto& item : value.get<picojson::array>()) {
      text += (text.empty() ? "" : ",") + Written(item);
    }
    return "[" + text + "]";
  }
  if (value.is<picojson::object>()) {
    const auto& object = value.get<picojson::object>();
    for (const auto& key : object.ordered_keys()) {
      text += (text.empty() ? "" : ",") + picojson::value(key).serialize() + ":" + Written(object.at(key));
    }
    return "{" + text + "}";
  }
  text = value.serialize();
  if (!value.is<double>() || value.is<int64_t>() || text.find_first_of(".e") == text.npos) return text;
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof(digits), value.get<double>()).ptr};
}

// ==================== Spec ToString implementations ====================
]==])
change(json_schema_converter.cc 1 [==[schema.at("const").serialize()]==] [==[Written(schema.at("const"))]==])
change(json_schema_converter.cc 1 "spec.json_values.push_back(value.serialize());" "spec.json_values.push_back(Written(value));")

# The type says, too, that the cache of compiled parts cannot hold a part of this grammar, which compiles without it.
change(grammar_functor.cc 1 [==[
#include "support/logging.h"
]==] [==[
#include "support/logging.h"
#include <guard.h>
]==])
set(has_hash "(grammar_->ImplPtr()->per_rule_fsm_hashes[ref_rule_id].has_value())")
change(grammar_functor.cc 2 "XGRAMMAR_CHECK${has_hash};" "if (!${has_hash}) throw koho::guard::NoHash();")

# A rule that is nothing but a repetition is repeated as what it repeats. One that repeats itself, as in root ::= root{2,}, ended on
# the end of the stack, and with it the process: it stays a reference.
change(grammar_functor.cc 1 [==[
  std::map<std::vector<int64_t>, int32_t> repetition_cache_;
};
]==] [==[
  std::map<std::vector<int64_t>, int32_t> repetition_cache_;
  std::set<int32_t> open_rules_;  // that the repetition being visited looks into
};
]==])
change(grammar_functor.cc 1 [==[
    if (ref_choice.size() == 1) {
      // Visit]==] [==[
    constexpr size_t kDepthMax = 64;
    if (ref_choice.size() == 1 && open_rules_.size() < kDepthMax && open_rules_.insert(rule_id).second) {
      // Visit]==])
change(grammar_functor.cc 1 [==[
      grammar_expr_id = VisitExpr(ref_choice[0]);
]==] [==[
      grammar_expr_id = VisitExpr(ref_choice[0]);
      open_rules_.erase(rule_id);
]==])

# Nothing follows the start rule, unless a rule refers to it: of root ::= "(" root ")" | "a" root root | "" the masks left out
# tokens that reach beyond the end of an inner root, as "))".
change(grammar_compiler.cc 1 [==[
  auto root_rule_id = compiled_grammar_impl->grammar->GetRootRuleId();

]==] [==[
  auto root_rule_id = compiled_grammar_impl->grammar->GetRootRuleId();
  const Grammar& optimized = compiled_grammar_impl->grammar;
  bool ends_with_root = true;
  for (int i = 0; i < optimized->NumGrammarExprs(); ++i) {
    using Type = Grammar::Impl::GrammarExprType;
    const auto expr = optimized->GetGrammarExpr(i);
    if ((expr.type == Type::kRuleRef || expr.type == Type::kRepeat) && expr[0] == root_rule_id) ends_with_root = false;
    if (expr.type == Type::kTagDispatch) {
      for (const auto& pair : optimized->GetTagDispatch(expr).tag_rule_pairs) {
        if (pair.second == root_rule_id) ends_with_root = false;
      }
    } else if (expr.type == Type::kTokenTagDispatch) {
      for (const auto& pair : optimized->GetTokenTagDispatch(expr).trigger_rule_pairs) {
        if (pair.second == root_rule_id) ends_with_root = false;
      }
    }
  }

]==])
change(grammar_compiler.cc 1 "add_task_adaptive_token_mask(cur_stack_element, rule_id == root_rule_id);"
       "add_task_adaptive_token_mask(cur_stack_element, rule_id == root_rule_id && ends_with_root);")

# What leads nowhere is left out: an edge behind which no text of its rule can end, as behind the empty class of a[^\s\S]b or in a
# rule that only begins itself anew. xgrammar would allow the token before it, and then none. No end at all: no text satisfies.
change(grammar_functor.cc 1 [==[
  static void Apply(Grammar* grammar) {
    FSM complete_fsm;
]==] [==[
  static void LeaveOutWhatCannotEnd(
      FSM* fsm, const std::vector<std::optional<FSMWithStartEndWithSize>>& rules, int32_t root
  ) {
    const auto start_of = [&](int32_t rule) { return rules[rule]->GetFsm().GetStart(); };
    // The start of the rule that an edge cannot do without; -1: there is none.
    const auto needed_by = [&](const FSMEdge& edge) {
      if (edge.IsRuleRef()) return start_of(edge.GetRefRuleId());
      if (!edge.IsRepeatRef()) return -1;
      const RepeatEdgeRef repeat = fsm->GetRepeatEdgeInfo(edge.GetAuxIndex());
      return repeat.Lower() == 0 ? -1 : start_of(repeat.RuleId());
    };
    std::vector<char> ends(fsm->NumStates(), 0);  // an end of its rule can be reached
    const auto leads_on = [&](const FSMEdge& edge) {
      const int needed = needed_by(edge);
      return ends[edge.target] && (needed == -1 || ends[needed]);
    };
    // Each edge under the states that it waits for, flat: those of state s are from begin[s] on.
    std::vector<int> begin(fsm->NumStates() + 1, 0);
    const auto each_edge = [&](const auto& visit) {
      for (int state = 0; state < fsm->NumStates(); ++state) {
        for (const FSMEdge& edge : fsm->GetEdges(state)) {
          visit(edge.target, state, edge);
          if (const int needed = needed_by(edge); needed != -1) visit(needed, state, edge);
        }
      }
    };
    each_edge([&](int waited_for, int, const FSMEdge&) { ++begin[waited_for]; });
    for (int state = 0, sum = 0; state <= fsm->NumStates(); ++state) sum = begin[state] += sum;
    std::vector<std::pair<int, const FSMEdge*>> waiting(begin.back());
    each_edge([&](int waited_for, int state, const FSMEdge& edge) { waiting[--begin[waited_for]] = {state, &edge}; });
    std::vector<int> fresh;
    const auto reach = [&](int state) {
      if (!std::exchange(ends[state], 1)) fresh.push_back(state);
    };
    for (const auto& rule : rules) {
      for (const int32_t end : rule->GetFsm().GetEnds()) reach(end);
    }
    while (!fresh.empty()) {
      const int state = fresh.back();
      fresh.pop_back();
      for (int i = begin[state]; i < begin[state + 1]; ++i) {
        if (leads_on(*waiting[i].second)) reach(waiting[i].first);
      }
    }
    if (!ends[start_of(root)]) throw koho::guard::Unsatisfiable("no text satisfies the grammar");
    for (int state = 0; state < fsm->NumStates(); ++state) {
      auto& edges = fsm->GetEdges(state);
      edges.erase(
          std::remove_if(edges.begin(), edges.end(), [&](const FSMEdge& edge) { return !leads_on(edge); }), edges.end()
      );
    }
  }

  static void Apply(Grammar* grammar) {
    FSM complete_fsm;
]==])
change(grammar_functor.cc 1 [==[
    // Compress to compact fsm
]==] [==[
    LeaveOutWhatCannotEnd(&complete_fsm, per_rule_fsms, (*grammar)->GetRootRuleId());

    // Compress to compact fsm
]==])

# An expression becomes one automaton where xgrammar can build one, not a rule for each repeated group: a token that reaches
# beyond a rule's end is followed at each step, and of ([a-z]+[ ,]?)+ these are nearly all tokens of words, 28 ms a step with
# 151,936 tokens and 6 us as an automaton. The translation to rules stays for other characters than ASCII, which automata read
# byte by byte, and for large repetitions, and says what is wrong with an expression.
change(grammar.cc 1 [==[
#include "grammar_functor.h"
]==] [==[
#include <cctype>
#include <unordered_set>

#include "fsm_builder.h"
#include "grammar_functor.h"
]==])
change(grammar.cc 1 [==[
Grammar Grammar::FromRegex(const std::string& regex, bool print_converted_ebnf) {
  auto ebnf_string = RegexToEBNF(regex);
]==] [==[
static std::optional<std::string> AutomatonGrammar(const std::string& regex) {
  constexpr int kRepetitionsMax = 128;
  std::string grammar = "root ::= Regex(\"";
  int number = 0;
  for (size_t i = 0; i < regex.size(); ++i) {
    const char c = regex[i];
    if (c == 'u' && i > 0 && regex[i - 1] == '\\' && regex.size() - i > 4 &&
        std::all_of(&regex[i + 1], &regex[i + 1] + 4, [](unsigned char digit) { return std::isxdigit(digit); })) {
      grammar += regex.substr(i, 5);  // \uHHHH repeats nothing
      i += 4;
      number = 0;
      continue;
    }
    number = std::isdigit(static_cast<unsigned char>(c)) ? number * 10 + (c - '0') : 0;
    if (c < ' ' || c > '~' || number > kRepetitionsMax) return std::nullopt;
    if (c == '"' || c == '\\') grammar += '\\';
    grammar += c;
  }
  auto built = RegexFSMBuilder::Build(regex);
  if (built.IsErr()) return std::nullopt;
  auto automaton = std::move(built).Unwrap();
  std::unordered_set<int> states;
  automaton.GetReachableStates(&states);
  if (std::none_of(states.begin(), states.end(), [&](int state) { return automaton.IsEndState(state); }))
    return std::nullopt;
  return grammar + "\")\n";
}

Grammar Grammar::FromRegex(const std::string& regex, bool print_converted_ebnf) {
  auto ebnf_string = RegexToEBNF(regex);
  if (auto automaton = AutomatonGrammar(regex)) return FromEBNF(*automaton);
]==])

# A class's bounds are code points. Cut to bytes, [\u1000-\u1fff] begins with any ASCII character: of what may follow a rule, as in
# d?[\u1000-\u1fff]x, the mask of the rule allowed "de", and of d?[^\u1000-\u1fff]x it forbade it.
change(earley_parser.cc 2 [==[
    if (static_cast<uint8_t>(sub_sequence[i]) <= ch &&
        ch <= static_cast<uint8_t>(sub_sequence[i + 1])) {
]==] [==[
    if (sub_sequence[i] <= ch && ch <= sub_sequence[i + 1]) {
]==])
# A character is what UTF-8 has: no surrogate (ED A0), no long form (E0 80, F0 80), nothing above U+10FFFF. An answer with such bytes
# is none that a client can read, or has three characters of replacement where a pattern allowed one.
change(fsm_builder.cc 1 [==[
  // Ensure max and min are valid unicode value.
]==] [==[
  constexpr std::pair<uint32_t, uint32_t> kCharacters[] = {
      {0, 0x7F}, {0xC280, 0xDFBF}, {0xE0A080, 0xED9FBF}, {0xEE8080, 0xEFBFBF}, {0xF0908080, 0xF48FBFBF}};
  for (const auto& [first, last] : kCharacters) {
    if (min <= last && first <= max) AddSameLengthCharacterRange(fsm, from, to, std::max(min, first), std::min(max, last));
  }
  return;
]==])
change(earley_parser.cc 2 [==[
    if ((ch & 0xC0) == 0x80) {
      auto new_state = state;
]==] [==[
    // What is read of the character so far tells its first byte: 0 that of a long form, 0xD of surrogates, 4 of what is above U+10FFFF.
    const int left = state.sub_element_id;
    const int read = state.partial_codepoint;
    const bool is_none = (left == 3 && ((read == 0 && ch < 0x90) || (read == 4 && ch >= 0x90))) ||
                         (left == 2 && ((read == 0 && ch < 0xA0) || (read == 0xD && ch >= 0xA0)));
    if ((ch & 0xC0) == 0x80 && !is_none) {
      auto new_state = state;
]==])

# \ud800 is half of a character: what many parsers of JSON refuse is not written.
change(json_schema_converter.cc 1 [==[
  int32_t unicode_escape = Sequence(
      {ByteString("u"),
       hexadecimal_character,
       hexadecimal_character,
       hexadecimal_character,
       hexadecimal_character}
  );
  builder_.UpdateRuleBody(kBasicEscape, Choice({escaped_character, unicode_escape}));
]==] [==[
  const auto escape_of = [&](std::vector<GrammarBuilder::CharacterClassElement> first, int32_t second) {
    std::vector<int32_t> digits{ByteString("u"), builder_.AddCharacterClass(std::move(first))};
    if (second != -1) digits.push_back(second);
    digits.resize(5, hexadecimal_character);
    return digits;
  };
  std::vector<int32_t> pair = escape_of({{'D', 'D'}, {'d', 'd'}}, builder_.AddCharacterClass({{'8', '9'}, {'A', 'B'}, {'a', 'b'}}));
  pair.push_back(ByteString("\\"));
  for (int32_t part : escape_of({{'D', 'D'}, {'d', 'd'}}, builder_.AddCharacterClass({{'C', 'F'}, {'c', 'f'}}))) {
    pair.push_back(part);
  }
  builder_.UpdateRuleBody(
      kBasicEscape,
      Choice(
          {escaped_character,
           Sequence(escape_of({{'0', '9'}, {'A', 'C'}, {'E', 'F'}, {'a', 'c'}, {'e', 'f'}}, -1)),
           Sequence(escape_of({{'D', 'D'}, {'d', 'd'}}, builder_.AddCharacterClass({{'0', '7'}}))),
           Sequence(pair)}
      )
  );
]==])
change(json_schema_converter.cc 1 "u[0-9a-fA-F]{4}))*"
       [==[u([0-9A-CEFa-cef][0-9A-Fa-f]{3}|[Dd]([0-7][0-9A-Fa-f]{2}|[89ABab][0-9A-Fa-f]{2}\\u[Dd][C-Fc-f][0-9A-Fa-f]{2}))))*]==])
# A class that begins with the character ^ is no class of all others, and a control character before a digit of hexadecimal numbers
# keeps its two digits: "\x1f2" of a class is read as one character again.
change(regex_converter.cc 1 [==[
    if (res == "]" || res == "-") {
      return "\\" + res;
]==] [==[
    if (res == "]" || res == "-" || res == "^") {
      return "\\" + res;
    } else if (res.rfind("\\x", 0) == 0 && res.size() == 4) {
      return "\\u00" + res.substr(2);
]==])
# The cache of parts knows a rule by its hash, in which edges to other rules were counted for all states visited after theirs, too,
# and with 32 of their 64 bits. A rule that begins with one that has no hash had one that did not tell with which: the masks of
# {"anyOf":[{},X]} were taken for {"anyOf":[X,{"type":"array"}]}. It has none.
change(grammar_functor.cc 1 "std::set<std::pair<int32_t, int32_t>> hash_and_target;" "std::set<std::pair<uint64_t, int32_t>> hash_and_target;")
change(grammar_functor.cc 1 "{static_cast<int32_t>(repeat_hash), edge.target}" "{repeat_hash, edge.target}")
change(grammar_functor.cc 2 [==[
    // To keep consistent, we need to sort them with hashes.
]==] [==[
    // To keep consistent, we need to sort them with hashes.
    hash_and_target.clear();
]==])
change(grammar_functor.cc 1 "    if (can_be_hashed) {
" "    if (can_be_hashed && false) {
")

# White space differs by dialect: ECMA-262 has U+FEFF, Python's re U+001C to U+001F, and both have U+0085 or not. \s is that of ASCII,
# which all have, and what excludes it, \S and [^\s], excludes what any of them has; [\s\S] is all characters.
change(fsm_builder.cc 1 [==[
struct RegexEscapeItem {
]==] [==[
const std::vector<CodepointRange> kSpace = {{0x09, 0x0D}, {' ', ' '}};
const std::vector<CodepointRange> kSpaceOfAnyDialect = {
    {0x09, 0x0D}, {0x1C, 0x20}, {0x85, 0x85}, {0xA0, 0xA0}, {0x1680, 0x1680}, {0x2000, 0x200A},
    {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};

struct RegexEscapeItem {
]==])
change(fsm_builder.cc 1 "ParseRegexEscape(const std::string& regex, size_t* pos, bool in_class) {"
       "ParseRegexEscape(const std::string& regex, size_t* pos, bool in_class, bool excluded = false) {")
change(fsm_builder.cc 1 [==[
    case 's':
      item.ranges = {{0x09, 0x0D}, {' ', ' '}};
      return ResultOk(std::move(item));
    case 'S':
      item.ranges = {{0x09, 0x0D}, {' ', ' '}};
]==] [==[
    case 's':
      item.ranges = excluded ? kSpaceOfAnyDialect : kSpace;
      return ResultOk(std::move(item));
    case 'S':
      item.ranges = excluded ? kSpace : kSpaceOfAnyDialect;
]==])
change(fsm_builder.cc 1 "      return ParseRegexEscape(regex, &pos, /*in_class=*/true);
" "      (regex[pos + 1] == 's' ? has_space : has_no_space) |= regex[pos + 1] == 's' || regex[pos + 1] == 'S';
      return ParseRegexEscape(regex, &pos, /*in_class=*/true, negated);
")
change(fsm_builder.cc 1 [==[
  // Parse one class unit: an escape sequence or a literal (possibly multi-byte) character.
]==] [==[
  bool has_space = false;
  bool has_no_space = false;
  // Parse one class unit: an escape sequence or a literal (possibly multi-byte) character.
]==])
change(fsm_builder.cc 1 [==[
  if (case_insensitive) {
    FoldAsciiCaseRanges(&ranges);
  }
  NormalizeRanges(&ranges);
  if (negated) {
]==] [==[
  if (has_space && has_no_space) ranges.push_back({0, kMaxCodepoint});
  if (case_insensitive) {
    FoldAsciiCaseRanges(&ranges);
  }
  NormalizeRanges(&ranges);
  if (negated) {
]==])
change(regex_converter.cc 1 [==[
std::string RegexConverter::HandleEscapeInCharClass() {
]==] [==[
static const char kSpace[] = R"(\t-\r\u0020)";
static const char kNoSpace[] = R"(\x00-\x08\x0E-\x1F\x21-\U0010FFFF)";
static const char kSpaceOfAnyDialect[] =
    R"(\t-\r\u001c-\u0020\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff)";
static const char kNoSpaceOfAnyDialect[] =
    R"(\x00-\x08\x0E-\x1B\x21-\u0084\u0086-\u009f\u00a1-\u167f\u1681-\u1fff\u200b-\u2027\u202a-\u202e\u2030-\u205e\u2060-\u2fff\u3001-\ufefe\uff00-\U0010FFFF)";

std::string RegexConverter::HandleEscapeInCharClass(bool excluded) {
]==])
change(regex_converter.cc 1 "  std::string HandleEscapeInCharClass();" "  std::string HandleEscapeInCharClass(bool excluded);")
change(regex_converter.cc 1 "      char_class += HandleEscapeInCharClass();
" "      if (current_[1] == 's' || current_[1] == 'S') sets += static_cast<char>(current_[1]);
      char_class += HandleEscapeInCharClass(char_class.rfind(\"[^\", 0) == 0);
")
change(regex_converter.cc 1 [==[
    RaiseError("Empty character class is not allowed in regex.");
  }
]==] [==[
    RaiseError("Empty character class is not allowed in regex.");
  }
  std::string sets;
]==])
change(regex_converter.cc 1 [==[
  char_class += ']';
]==] [==[
  if (sets.find('s') != sets.npos && sets.find('S') != sets.npos) char_class += R"(\x00-\U0010FFFF)";
  char_class += ']';
]==])
change(regex_converter.cc 1 [==[
    return R"(\f\n\r\t\v\u0020\u00a0)";
]==] [==[
    return excluded ? kSpaceOfAnyDialect : kSpace;
]==])
change(regex_converter.cc 1 [==[
    return R"(\x00-\x08\x0E-\x1F\x21-\x9F\xA1-\U0010FFFF)";
]==] [==[
    return excluded ? kNoSpace : kNoSpaceOfAnyDialect;
]==])
change(regex_converter.cc 1 [==[
    return R"([\f\n\r\t\v\u0020\u00a0])";
]==] [==[
    return std::string("[") + kSpace + "]";
]==])
change(regex_converter.cc 1 [==[
    return R"([^\f\n\r\t\v\u0020\u00a0])";
]==] [==[
    return std::string("[^") + kSpaceOfAnyDialect + "]";
]==])

# koho has a cache of whole grammars, within a limit of its own: the whole limit of xgrammar's is the parts'.
change(grammar_compiler.cc 7 "if (!cache_enabled_) {" "if (true) {")
change(grammar_compiler.cc 1 "max_memory_bytes - max_memory_bytes / 3 * 2" "max_memory_bytes")

# A part counts with what keeps it: one of a single token, 4 bytes, takes some 450. And one that has gone leaves nothing.
change(grammar_functor.cc 1 "class RuleLevelCache::Impl {" [==[
// With two places in a list that grows by doubling, 32 bytes of key and links in each, one in the table, 72, and what the
// allocator adds to three allocations.
static size_t PartBytes(const AdaptiveTokenMask& mask) { return MemorySize(mask) + 2 * (sizeof(mask) + 32) + 72 + 3 * 24; }

class RuleLevelCache::Impl {]==])
change(grammar_functor.cc 1 "MemorySize(token_mask) > shard_max_size" "PartBytes(token_mask) > shard_max_size")
change(grammar_functor.cc 1 "size_t new_item_size = MemorySize(token_mask);" "size_t new_item_size = PartBytes(token_mask);")
change(grammar_functor.cc 1 "shard.current_cache_memory_size -= MemorySize(oldest_it->second);"
       "shard.current_cache_memory_size -= PartBytes(oldest_it->second);
      oldest_it->second = AdaptiveTokenMask();")
change(grammar_functor.cc 1 "shard.current_cache_memory_size += MemorySize(new_it->second);"
       "shard.current_cache_memory_size += PartBytes(new_it->second);")

# So does a grammar: its masks' places in a table, its rules' names and numbers.
change(compiled_grammar.cc 1 "return MemorySize(impl.grammar) + MemorySize(impl.adaptive_token_mask_cache);"
       "return MemorySize(impl.grammar) + MemorySize(impl.adaptive_token_mask_cache) + impl.adaptive_token_mask_cache.size() * 96;")
change(grammar.cc 1 "         MemorySize(impl.allow_empty_rule_ids);"
       "         MemorySize(impl.allow_empty_rule_ids) + MemorySize(impl.per_rule_fsm_new_state_ids) + impl.rules_.size() * 96;")

compile_changed(earley_parser.cc)
compile_changed(compiled_grammar.cc)
compile_changed(regex_converter.cc)
compile_changed(grammar.cc)
compile_changed(grammar_compiler.cc)
compile_changed(json_schema_converter.cc)
compile_changed(fsm.cc)
compile_changed(fsm_builder.cc)
compile_changed(grammar_functor.cc)
