// SPDX-License-Identifier: Apache-2.0
// Schemas and expressions with texts that they allow, and texts that they do not.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "grammar/constraint.h"
#include "grammar/grammar_compiler.h"
#include "grammar_accepts.h"
#include "grammar_walk.h"

namespace koho::testing {

/// Of models/tiny's vocabulary; the same for all tests of a program.
inline GrammarCompiler& compiler() {
  static GrammarCompiler made(tiny_tokenizer(), 4096, patient_limits());
  return made;
}

struct Case {
  const char* name;
  std::string source;
  std::vector<std::string> allowed;
  std::vector<std::string> excluded;
};

inline void PrintTo(const Case& one, std::ostream* out) {
  *out << one.name;
}

inline std::string name_of(const ::testing::TestParamInfo<Case>& one) {
  return one.param.name;
}

inline void expect_exact(const Case& one, const Constraint& constraint) {
  const auto compiled = compiler().compile(constraint);
  ASSERT_TRUE(compiled.ok()) << compiled.error().message;
  for (const std::string& text : one.allowed) EXPECT_TRUE(accepts(**compiled, text)) << text;
  for (const std::string& text : one.excluded) EXPECT_FALSE(accepts(**compiled, text)) << text;
}

}  // namespace koho::testing
