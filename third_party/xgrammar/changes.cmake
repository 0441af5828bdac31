# SPDX-License-Identifier: Apache-2.0
# What koho changes in xgrammar's sources; the changed files are compiled in place of the published ones.

# Compiles cpp/NAME with BEFORE replaced by AFTER. BEFORE stands there once, or the version is another one.
function(change name before after)
  file(READ "${XGRAMMAR_SOURCES}/cpp/${name}" text)
  string(REPLACE "${before}" "" without "${text}")
  string(LENGTH "${text}" length)
  string(LENGTH "${without}" length_without)
  string(LENGTH "${before}" length_before)
  math(EXPR expected "${length} - ${length_before}")
  if(NOT length_without EQUAL expected)
    message(FATAL_ERROR "xgrammar's ${name} does not hold what koho changes in it")
  endif()
  string(REPLACE "${before}" "${after}" text "${text}")
  set(changed "${CMAKE_CURRENT_BINARY_DIR}/changed/${name}")
  set(there "")
  if(EXISTS "${changed}")
    file(READ "${changed}" there)
  endif()
  if(NOT there STREQUAL text)
    file(WRITE "${changed}" "${text}")
  endif()
  list(REMOVE_ITEM sources "${XGRAMMAR_SOURCES}/cpp/${name}")
  list(APPEND sources "${changed}")
  set(sources "${sources}" PARENT_SCOPE)
endfunction()

# A string that has a pattern says what follows it, as xgrammar has it for all other strings. Without this every token with
# a quotation mark in it is followed at run time, at each character of such a string.
change(json_schema_converter.cc [==[
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

# What is said so is never all that may follow: nothing but it follows, but not everything of it may.
change(grammar_functor.cc
       [==[UpdateLookaheadExact(i, IsExactLookaheadAssertion(i))]==] [==[UpdateLookaheadExact(i, false)]==])
